"""The examples for another team's repository, and the hooks that this one offers, at work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import pipeline
from builder.targets import handoff
from tests.conftest import ROOT

NAME = "chat-1.b"
BIN = Path(sys.executable).parent


def run(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PRE_COMMIT_HOME": str(cwd.parent / "pre-commit"),
        "GIT_CONFIG_GLOBAL": os.devnull,
        **{
            f"GIT_{who}_{what}": "test@example.invalid"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
    }
    return subprocess.run(
        list(map(str, words)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def git(*words: str, cwd: Path) -> str:
    done = run("git", *words, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, which must not be changed."""
    folder = tmp_path_factory.mktemp("ci") / NAME
    pipeline.render("llama-tiny", folder, [f"name={NAME}"], False, ["handoff"])
    return folder


@pytest.fixture
def repository(rendered: Path, tmp_path: Path) -> Path:
    """A repository of another team with the bundle in it."""
    folder = tmp_path / "repository"
    shutil.copytree(rendered, folder / NAME)
    git("init", "--quiet", cwd=folder)
    return folder


def example(repository: Path, name: str) -> Path:
    return repository / NAME / handoff.CI_FOLDER / name


def hooks(repository: Path) -> subprocess.CompletedProcess[str]:
    """All hooks on all files."""
    git("add", "--all", cwd=repository)
    return run("pre-commit", "run", "--all-files", "--color", "never", cwd=repository)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


def test_the_example_for_pre_commit_finds_a_flipped_byte(repository: Path) -> None:
    shutil.copy(
        example(repository, "pre-commit-config.yaml"), repository / ".pre-commit-config.yaml"
    )
    done = hooks(repository)
    assert done.returncode == 0 and done.stdout.count("Passed") == 2, done.stdout
    flip(repository / NAME / "trtllm_serve/serve.sh")
    done = hooks(repository)
    assert done.returncode == 1 and "trtllm_serve/serve.sh" in done.stdout


def test_the_hooks_of_this_repository_check_and_verify(repository: Path, tmp_path: Path) -> None:
    """As installed here: pre-commit itself would install the toolkit from its repository."""
    offered = tmp_path / "offered"
    offered.mkdir()
    shutil.copy(ROOT / ".pre-commit-hooks.yaml", offered)
    git("init", "--quiet", cwd=offered)
    git("add", "--all", cwd=offered)
    git("commit", "--quiet", "--message", "hooks", cwd=offered)
    rows: list[dict[str, Any]] = [
        {"id": "builder-check"},
        {"id": "builder-verify", "args": [NAME], "files": f"^{NAME}/"},
    ]
    source = {"repo": str(offered), "rev": git("rev-parse", "HEAD", cwd=offered)}
    config = {"repos": [{**source, "hooks": [{**row, "language": "system"} for row in rows]}]}
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    done = hooks(repository)
    assert done.returncode == 0 and done.stdout.count("Passed") == 2, done.stdout
    (repository / "mine.yaml").write_text("kv_cache_config: {dtyp: fp8}\n")
    done = hooks(repository)
    assert done.returncode == 1 and "mine.yaml:1:19: error[unknown-key]" in done.stdout


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("github-workflow.yaml", ["vendor.github-workflows"]),
        ("gitlab-ci.yaml", ["vendor.gitlab-ci", "--data-transform", "gitlab-ci"]),
    ],
)
def test_pipelines_are_valid_by_their_schemas(
    name: str, options: list[str], repository: Path
) -> None:
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", *options)
    done = run(*command, example(repository, name), cwd=repository)
    assert done.returncode == 0, done.stdout


def steps(name: str, document: Any) -> list[str]:
    """The commands of a pipeline, but for the one that installs the toolkit."""
    if name.startswith("github"):
        found = [row["run"] for row in document["jobs"]["deployment"]["steps"] if "run" in row]
    else:
        found = document["deployment"]["script"]
    install, *rest = found
    assert install == f'python -m pip install "${handoff.TOOLKIT}"'
    return list(rest)


@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("github-workflow.yaml", "deployment.sarif"),
        ("gitlab-ci.yaml", "gl-code-quality-report.json"),
    ],
)
def test_the_commands_of_a_pipeline_do_what_they_say(
    name: str, report: str, repository: Path
) -> None:
    document = yaml.safe_load(example(repository, name).read_text())
    check, verify = steps(name, document)
    assert run("bash", "-c", check, cwd=repository).returncode == 0
    assert run("bash", "-c", verify, cwd=repository).returncode == 0
    found = json.loads((repository / report).read_text())
    text = json.dumps(found)
    assert f"{NAME}/deployment.yaml" in text and "vulnerable-version" in text
    flip(repository / NAME / "trtllm_serve/config.yaml")
    assert run("bash", "-c", verify, cwd=repository).returncode == 4


def test_no_example_names_a_registry(rendered: Path) -> None:
    for path in (rendered / handoff.CI_FOLDER).iterdir():
        assert "://" not in path.read_text()
