"""The engine that a server finds: TensorRT-LLM as installed, or the reference engine."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from builder.diagnostics import Diagnostic
from builder.errors import NotReady
from builder.facts import engines

REFERENCE = "reference"

AsciiName = Callable[[Path], Path]

TOOLKIT = Path(__file__).parent.parent
REFERENCE_FOLDER = Path(__file__).parent / "reference"


def choose(wanted: str) -> str:
    """The name of the engine. `auto` takes the real one where this Python has it.

    Raises `NotReady` if it is asked for and not there.
    """
    if wanted == REFERENCE or (wanted == "auto" and not _is_installed()):
        return REFERENCE
    real = engines.default()
    if not _is_installed() and shutil.which("trtllm-serve") is None:
        what = f"is neither in this Python, {sys.executable}, nor is trtllm-serve on the path"
        remedy = "run in its container, or use --engine reference"
        raise NotReady(Diagnostic(real.title, what, remedy))
    return real.name


def path_entries(engine: str, folder: Path, ascii_name: AsciiName) -> list[Path]:
    """Folders for the front of the path. `folder` takes the Python of the reference engine."""
    if engine == REFERENCE:
        overlay = python_overlay(folder, [REFERENCE_FOLDER, TOOLKIT], ascii_name)
        return [overlay, REFERENCE_FOLDER / "bin"]
    if _is_installed():
        return [Path(sysconfig.get_path("scripts"))]
    return []


def python_overlay(folder: Path, packages: Iterable[Path], ascii_name: AsciiName) -> Path:
    """The `bin` of a Python that has this one's packages and, before them, those of `packages`.

    Triton's Python stub runs the first `python3` on the path and ignores `PYTHONPATH`, so that a
    virtual environment is the one way to give it a package that works for every program.
    """
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    paths = {"base": str(folder), "platbase": str(folder)}
    site_packages = Path(sysconfig.get_path("purelib", "venv", paths))
    own = dict.fromkeys(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
    lines = [str(ascii_name(path)) for path in packages]
    lines += [f"import site; site.addsitedir({str(ascii_name(path))!r})" for path in own]
    (site_packages / "overlay.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "bin"


def _is_installed() -> bool:
    """Whether this Python has the real engine, which is not imported to find out."""
    return find_spec(engines.default().module) is not None
