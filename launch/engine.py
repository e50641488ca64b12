"""The engine that a server finds: an installed one, a CPU build, or the reference engine."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from builder import command
from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady
from builder.facts import engines, servers
from builder.facts.engines import Engine

from . import cpu_build

REFERENCE = "reference"

AsciiName = Callable[[Path], Path]

TOOLKIT = Path(__file__).parent.parent
REFERENCE_FOLDER = Path(__file__).parent / "reference"


def choose(wanted: str, name: str) -> str:
    """The name of the engine for a bundle of the engine `name`.

    `auto` takes that one where this Python has it or where its CPU build is set up, else the
    reference engine. Raises `NotReady` if it is asked for and not there, `BadInput` if another one
    is asked for.
    """
    record = engines.load(name)
    is_here = _is_installed(record) or cpu_build.folder(record) is not None
    if wanted == REFERENCE or (wanted == "auto" and not is_here):
        return _reference()
    _check_same(wanted, record)
    if is_here:
        return record.name
    known = map(servers.load, servers.names())
    own = [one.program for one in known if record.name in one.engines and one.api == "openai"]
    programs = own or [record.module]
    if not any(map(shutil.which, programs)):
        where = f"is neither in this Python, {sys.executable}, nor is {programs[0]} on the path"
        raise NotReady(Diagnostic(record.title, where, _remedy(record, "run in its container")))
    return record.name


def choose_without_gpu(wanted: str, name: str) -> str:
    """The same for a rehearsal, which takes the CPU build or the reference engine."""
    record = engines.load(name)
    is_here = cpu_build.folder(record) is not None
    if wanted == REFERENCE or (wanted == "auto" and not is_here):
        return _reference()
    _check_same(wanted, record)
    if not is_here:
        raise NotReady(Diagnostic(record.title, "has no CPU build here", _remedy(record)))
    return record.name


def _reference() -> str:
    """Raises `BadInput` where what the reference engine computes with is not installed."""
    command.require_modules("numpy", "torch", "transformers")
    return REFERENCE


def uses_cpu_build(engine: str) -> bool:
    """Whether an engine that was chosen is its CPU build: this Python has no other one."""
    if engine == REFERENCE:
        return False
    record = engines.load(engine)
    return not _is_installed(record) and cpu_build.folder(record) is not None


def _check_same(wanted: str, record: Engine) -> None:
    if wanted not in ("auto", record.name):
        what = f"is {wanted}, and the bundle is for {record.title}"
        raise BadInput(Diagnostic("--engine", what, f"use {record.name}, {REFERENCE} or auto"))


def _remedy(record: Engine, *ways: str) -> str:
    setup = f"bash launch/setup_engine.sh {record.name}" if record.cpu_build else None
    return ", or ".join(filter(None, (*ways, setup, "use --engine reference")))


def path_entries(engine: str, folder: Path, ascii_name: AsciiName) -> list[Path]:
    """Folders for the front of the path. `folder` takes what is made for this run."""
    if engine == REFERENCE:
        overlay = python_overlay(folder, [REFERENCE_FOLDER, TOOLKIT], ascii_name)
        return [overlay, REFERENCE_FOLDER / "bin"]
    record = engines.load(engine)
    if _is_installed(record):
        return [Path(sysconfig.get_path("scripts"))]
    if uses_cpu_build(engine):
        return [cpu_build.write_program(record, folder)]
    return []


def variables(engine: str) -> dict[str, str]:
    """What the environment of a server has for its engine."""
    build = engines.load(engine).cpu_build if uses_cpu_build(engine) else None
    return build.variables if build else {}


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


def _is_installed(record: Engine) -> bool:
    """Whether this Python has the real engine, which is not imported to find out."""
    return find_spec(record.module) is not None
