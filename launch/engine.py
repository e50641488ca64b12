"""The engine that a server finds: TensorRT-LLM as installed, or the stand-in for this machine."""

from __future__ import annotations

import sysconfig
import venv
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

TENSORRT_LLM = "tensorrt_llm"
REFERENCE = "reference"
CHOICES = ("auto", TENSORRT_LLM, REFERENCE)
EngineName = Literal["tensorrt_llm", "reference"]

TOOLKIT = Path(__file__).parent.parent
REFERENCE_FOLDER = Path(__file__).parent / "reference"


def choose(wanted: str) -> EngineName:
    """`auto` takes TensorRT-LLM where this Python has it, without importing it."""
    if wanted == REFERENCE or (wanted == "auto" and find_spec(TENSORRT_LLM) is None):
        return "reference"
    return "tensorrt_llm"


def path_entries(engine: EngineName, folder: Path) -> list[Path]:
    """Folders for the front of the path. `folder` takes the Python of the reference engine."""
    if engine == REFERENCE:
        overlay = python_overlay(folder, [REFERENCE_FOLDER, TOOLKIT])
        return [overlay, REFERENCE_FOLDER / "bin"]
    if find_spec(TENSORRT_LLM) is not None:
        return [Path(sysconfig.get_path("scripts"))]
    return []


def python_overlay(folder: Path, packages: Iterable[Path]) -> Path:
    """The `bin` of a Python that has this one's packages and, before them, those of `packages`.

    Triton's Python stub runs the first `python3` on the path and ignores `PYTHONPATH`, so that a
    virtual environment is the one way to give it a package that works for every program.
    """
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    paths = {"base": str(folder), "platbase": str(folder)}
    site_packages = Path(sysconfig.get_path("purelib", "venv", paths))
    own = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    lines = [str(path) for path in packages]
    lines += [f"import site; site.addsitedir({path!r})" for path in own]
    (site_packages / "overlay.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "bin"
