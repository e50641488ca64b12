"""The reference engine for jobs: a folder that the nodes see, and the variables that lead to it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from builder.bundle import Bundle
from builder.facts import checkpoint, servers
from builder.miniature import checkpoint as miniature

from .. import engine, triton

WHOLE = "whole"


def environment(bundle: Bundle, folder: Path) -> dict[str, str]:
    """Variables with which the bundle's jobs serve a miniature, made once in `folder`."""
    if not (folder / WHOLE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        _make(bundle, folder)
        (folder / WHOLE).touch()
    entries = [folder / "python" / "bin", engine.REFERENCE_FOLDER / "bin"]
    launcher = folder / "tritonserver" / "bin"
    entries += [launcher] if launcher.is_dir() else []
    return {
        "PATH": os.pathsep.join([*map(str, entries), os.environ.get("PATH", os.defpath)]),
        "CHECKPOINT": str(folder / "miniature"),
        "TENSORRT_LLM_REFERENCE_RELEASE": bundle.launch["engine"]["release"],
    }


def _make(bundle: Bundle, folder: Path) -> None:
    (folder / "miniature").mkdir(parents=True)
    miniature.write(checkpoint.from_bundle(bundle.folder), folder / "miniature")
    engine.path_entries("reference", folder / "python", lambda path: path)
    programs = {servers.load(name).program for name in bundle.launch["targets"]}
    if triton.PROGRAM in programs:
        triton.prepare(folder / "tritonserver")
