"""A Triton server on the path, installed or of the nvidia-pytriton wheel, and what it needs there.

Triton starts its Python through a shell without quotes, and that Python knows ASCII only, whatever
the locale: a blank or an umlaut in a path ends in a server that never becomes ready. So such paths
are given ASCII names, by links in a folder of their own.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from builder.diagnostics import Diagnostic
from builder.errors import NotReady

PROGRAM = "tritonserver"
CONTAINER_BIN = Path("/opt/tritonserver/bin")
SHARED_MEMORY = Path("/dev/shm")
_ASCII_PATH = re.compile(r"[A-Za-z0-9._/+=@%:,-]+")


def prepare(folder: Path) -> Path | None:
    """The folder to put on the path so that `tritonserver` is found; `None` where it already is.

    The wheel keeps its Python backend and the stub for each Python apart; they are brought
    together in `folder`.
    """
    if shutil.which(PROGRAM):
        return None
    if (CONTAINER_BIN / PROGRAM).exists():
        return CONTAINER_BIN
    spec = find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise NotReady(
            Diagnostic(
                "tritonserver",
                "is neither installed nor in this Python's nvidia-pytriton wheel",
                "run in a Triton container, or install trtllm-deployment-toolkit[rehearse]",
            )
        )
    return _from_wheel(Path(spec.origin).parent, folder)


def shared_memory(prefix: str) -> list[Path]:
    """The regions of a server; `prefix` must be of that server alone."""
    return sorted(SHARED_MEMORY.glob(f"{prefix}*"))


def sweep_shared_memory(prefix: str) -> list[str]:
    """Remove what a killed Triton left behind; `prefix` must be of that server alone."""
    left = shared_memory(prefix)
    for region in left:
        region.unlink(missing_ok=True)
    return [region.name for region in left]


def _from_wheel(package: Path, folder: Path) -> Path:
    triton = package / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = triton / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not stub.exists():
        known = sorted(path.name for path in stub.parent.parent.iterdir())
        what = f"the nvidia-pytriton wheel has no stub for Python {version}"
        raise NotReady(Diagnostic("tritonserver", what, f"use Python {', '.join(known)}"))
    backend = folder / "backends" / "python"
    backend.mkdir(parents=True)
    for path in [*(triton / "backends" / "python").glob("*.*"), stub]:
        (backend / path.name).symlink_to(path)
    # Neither finds its libraries by itself: the stub is moved, and libpython is not in the wheel.
    libraries = [package.parent / "nvidia_pytriton.libs", Path(sysconfig.get_config_var("LIBDIR"))]
    launcher = folder / "bin" / "tritonserver"
    launcher.parent.mkdir()
    launcher.write_text(
        "#!/bin/sh\n"
        f"export LD_LIBRARY_PATH={shlex.quote(':'.join(map(str, libraries)))}"
        "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n"
        f"exec {shlex.quote(str(triton / 'bin' / 'tritonserver'))}"
        f' --backend-directory {shlex.quote(str(backend.parent))} "$@"\n'
    )
    launcher.chmod(0o755)
    return launcher.parent


@contextmanager
def ascii_paths() -> Iterator[Callable[[Path], Path]]:
    """Gives a path itself, or a link to it where a shell or an ASCII locale would not take it."""
    links: dict[Path, Path] = {}
    with tempfile.TemporaryDirectory(prefix="launch-") as folder:

        def ascii_path(path: Path) -> Path:
            if _ASCII_PATH.fullmatch(str(path)):
                return path
            if path not in links:
                links[path] = Path(folder) / str(len(links))
                links[path].symlink_to(path, target_is_directory=True)
            return links[path]

        yield ascii_path
