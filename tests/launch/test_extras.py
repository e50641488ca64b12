"""The base install says which extra a command needs, and does without one wherever it can."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from builder import command
from tests.conftest import ROOT

# Imports end as they do where the modules are not installed.
PROGRAM = """
import runpy, sys
sys.modules.update(dict.fromkeys({modules!r}))
sys.argv[:] = {argv!r}
runpy.run_module({module!r}, run_name="__main__")
"""
MISSING = tuple(name for modules in command.EXTRAS.values() for name in modules if name != "google")
MISSING += ("google.protobuf", "tensorrt_llm", "vllm")


def base(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command of an environment without any extra."""
    module, *arguments = words
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = PROGRAM.format(modules=MISSING, argv=[module, *arguments], module=module)
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "SERVE_HTTP_PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle."""
    made = tmp_path_factory.mktemp("base")
    done = base("builder", "render", "llama-tiny", "-o", "bundle", cwd=made)
    assert done.returncode == 0, done.stderr
    return made


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("launch", "smoke triton://127.0.0.1:1"),
        ("launch", "bench bundle --target trtllm_serve"),
        ("launch", "rehearse bundle --engine reference"),
        ("rehearse", "up bundle --target trtllm_serve --engine reference"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(folder: Path, extra: str, words: str) -> None:
    done = base("launch", *words.split(), cwd=folder)
    assert done.returncode == 2, done.stderr
    wanted = "is not installed, and this command needs it; install the extra"
    assert f"{wanted} {extra}, in a checkout with: pip install -e '.[{extra}]'" in done.stderr
    assert "a bug in this toolkit" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("launch --help", 0),
        ("launch bench --help", 0),
        ("launch completion bash", 0),
        ("launch bench diff a b", 2),
        ("launch report bundle", 2),
        ("launch attach bundle bundle", 2),
        ("builder miniature llama-tiny -o miniature --force", 0),
        ("builder verify bundle", 0),
        ("builder check bundle", 0),
        ("builder explain bundle", 0),
        ("builder estimate llama-tiny", (0, 3)),
        ("builder release import --name 1.3 -o x.json --like 1.2.1", 3),
    ],
)
def test_what_needs_no_extra_goes_without(
    folder: Path, words: str, code: int | tuple[int, ...]
) -> None:
    done = base(*words.replace(" --force", "").split(), cwd=folder)
    assert done.returncode in (code if isinstance(code, tuple) else (code,)), done.stderr
    assert "a bug in this toolkit" not in done.stderr
    assert "Traceback" not in done.stderr


def test_every_module_of_an_extra_is_known_by_it() -> None:
    """As pyproject.toml lists them, and as their distributions say what they bring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    brought: dict[str, set[str]] = {}
    for module, names in metadata.packages_distributions().items():
        for name in names:
            brought.setdefault(name.lower().replace("_", "-"), set()).add(module)
    for extra, modules in command.EXTRAS.items():
        for row in project["optional-dependencies"][extra]:
            name = re.split(r"[\[<>=]", row)[0].strip().lower()
            if name != project["name"]:
                assert brought[name] & set(modules), f"{name} brings {brought[name]}"


@pytest.mark.parametrize("name", [None, "", "no_such_module", "builder.gone", "launch"])
def test_a_module_of_no_extra_is_a_fault_of_ours(name: str | None) -> None:
    assert command.missing_extra(name) is None
