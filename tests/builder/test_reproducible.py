"""Two handoffs of one deployment are the same bytes, wherever and by whomever they are rendered."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from builder import pipeline
from builder.bundle import SUMS
from builder.facts import checkpoint
from tests.conftest import ROOT

PRESET = "deepseek-v3.2-nvfp4-gb200"
OPTIONS = (
    *("--target", "monitoring", "--target", "handoff"),
    *("--set", "targets.kubernetes.server=triton", "--set", "targets.compose.server=triton"),
)

# Another user on another machine, as far as a process can see them.
USER = {"HOME": "/nonexistent", "USER": "nobody", "LOGNAME": "nobody"}
PLACE = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
INTERPRETER = {"PYTHONHASHSEED": "4711", "PYTHONOPTIMIZE": "2"}
ELSEWHERE = {**USER, **PLACE, **INTERPRETER, "SOURCE_DATE_EPOCH": "1"}


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its mode."""
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in folder.rglob("*")
        if path.is_file()
    }


def render(folder: Path, before: str = "true", environment: dict[str, str] | None = None) -> Path:
    words = [sys.executable, "-m", "builder", "render", PRESET, "-o", str(folder), *OPTIONS]
    subprocess.run(
        ["bash", "-c", f'{before}; exec "$@"', "render", *words],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        check=True,
        capture_output=True,
    )
    return folder


def test_the_same_bytes_on_another_machine(tmp_path: Path) -> None:
    (tmp_path / "a folder").mkdir()
    first = contents(render(tmp_path / "bundle"))
    other = contents(render(tmp_path / "a folder" / "of another name", "umask 077", ELSEWHERE))
    assert other == first
    assert {"handoff/sbom.cdx.json", SUMS} <= other.keys()


def rendered_again(folder: Path) -> dict[str, bytes]:
    return {path: file.data for path, file in pipeline.render_again(folder).items()}


def rendered(folder: Path) -> dict[str, bytes]:
    """What rendering again makes; the list of digests is made when it is written."""
    return {path: data for path, (data, _) in contents(folder).items() if path != SUMS}


def test_a_bundle_holds_all_that_it_is_rendered_from(
    make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its checkpoint and its draft model may be gone."""
    names = {"model": "meta-llama/Llama-3.3-70B-Instruct", "draft": "meta-llama/Meta-Llama-3.1-8B"}
    for folder, name in names.items():
        shutil.copytree(make_miniature(name), tmp_path / folder)
    draft = f"draft={{checkpoint: {tmp_path / 'draft'}, tokens: 3, method: draft_target}}"
    changes = [f"checkpoint={tmp_path / 'model'}", draft]
    pipeline.render("llama-tiny", tmp_path / "bundle", changes, more_targets=["handoff"])
    for folder in names:
        shutil.rmtree(tmp_path / folder)
    assert (tmp_path / "bundle/handoff/draft.sha256").is_file()
    assert rendered_again(tmp_path / "bundle") == rendered(tmp_path / "bundle")


def test_the_tensors_of_a_folder_are_those_of_its_bundle(
    make_miniature: Callable[[str], Path],
) -> None:
    """A folder may hold other ones than its configuration lets expect."""
    facts = checkpoint.gather(str(make_miniature("llama-tiny")))
    facts = replace(facts, stored_groups=facts.groups[1:])
    assert checkpoint.from_document(checkpoint.to_document(facts)).groups == facts.groups


def test_prefill_servers_are_rendered_again_with_their_side(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    changes = [
        f"targets.slurm.site={ROOT / 'tests/golden/site.yaml'}",
        "targets.slurm.prefill.deployment=deepseek-v3.2-nvfp4-gb300-prefill",
    ]
    pipeline.render("deepseek-v3.2-nvfp4-gb300-decode", folder, changes)
    assert "prefill/manifest.json" in rendered(folder)
    assert rendered_again(folder) == rendered(folder)
