"""What lies in the folder of a bundle: its files, and what no bundle can hold."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .diagnostics import Diagnostic
from .errors import BadInput, DamagedBundle

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
SIGNATURE = f"{SUMS}.sig"
EVIDENCE = "evidence"


# Files are held in memory; results of long benchmarks take some megabytes.
MAX_TOTAL_BYTES = 1 << 28  # of all files together
MAX_FILES = 10_000


@dataclass(frozen=True, slots=True)
class File:
    """A file of a bundle: its bytes, and whether it can be executed."""

    data: bytes
    executable: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class MultiNodeStart:
    """What of a bundle starts a server of several nodes, and how, said in it and outside of it."""

    path: str
    way: str
    remedy: str


STARTERS = {  # by the target that has them
    "slurm": MultiNodeStart(
        "slurm/serve.sbatch",
        "start it with slurm/serve.sbatch",
        "run it as a job of Slurm: sbatch BUNDLE/slurm/serve.sbatch",
    ),
    "kubernetes": MultiNodeStart(
        "kubernetes",
        "apply kubernetes/",
        "run it on a cluster: kubectl apply -k BUNDLE/kubernetes",
    ),
}


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies in a folder: its files, and `forbidden` what no bundle can hold."""

    folder: Path
    files: Mapping[str, File]
    forbidden: tuple[Diagnostic, ...]

    def digest(self, path: str) -> str | None:
        return self.files[path].sha256 if path in self.files else None


def read(folder: Path) -> Contents:
    """Every file of a bundle in memory; no link is followed but one that is the folder itself.

    Raises `BadInput` if the folder is not a bundle, `DamagedBundle` where it cannot be read.
    """
    files: dict[str, File] = {}
    forbidden, folders, left = {}, [], MAX_TOTAL_BYTES
    try:
        if not {MANIFEST, SUMS} & {path.name for path in folder.iterdir()}:
            raise FileNotFoundError
        for path in _walk(folder):
            name = path.relative_to(folder).as_posix()
            status = path.stat(follow_symlinks=path == folder)
            if wrong := _forbidden(status.st_mode):
                forbidden[name] = wrong
            if stat.S_ISREG(status.st_mode) and status.st_size > left:
                forbidden[name] = ("is too large for a bundle", "remove it")
            elif stat.S_ISDIR(status.st_mode):
                folders.append(name)
            elif stat.S_ISREG(status.st_mode):
                files[name] = File(path.read_bytes(), bool(status.st_mode & 0o111))
                left -= status.st_size
    except (FileNotFoundError, NotADirectoryError):
        what = f"is not a bundle: it has no {MANIFEST}"
        remedy = "give a folder made by: python -m builder render"
        raise BadInput(Diagnostic(str(folder), what, remedy)) from None
    except OSError as error:
        where, reason = str(error.filename or folder), (error.strerror or str(error)).lower()
        raise DamagedBundle(Diagnostic(where, f"cannot be read: {reason}")) from None
    used = {str(above) for name in (*files, *forbidden) for above in PurePosixPath(name).parents}
    for name in folders:
        if name not in used | {*forbidden} and str(PurePosixPath(name).parent) in used:
            forbidden[name] = ("is a folder without files", "remove it")
    rows = (Diagnostic(name, *forbidden[name]) for name in sorted(forbidden))
    return Contents(folder, files, tuple(rows))


def _walk(folder: Path) -> Iterator[Path]:
    """The folder itself and all that is below it. Raises `DamagedBundle` for far too many."""
    yield folder
    count = 0
    for parent, folders, names in os.walk(folder, onerror=_raise):
        for name in (*folders, *names):
            count += 1
            if count > MAX_FILES:
                what = f"holds more than {MAX_FILES} files"
                raise DamagedBundle(Diagnostic(str(folder), what, "render again"))
            yield Path(parent, name)


def _raise(error: OSError) -> None:
    raise error


def _forbidden(mode: int) -> tuple[str, str] | None:
    """What is wrong with a path of this kind and these permissions, and what to do about it."""
    if stat.S_ISLNK(mode):
        return "is a link", "remove it, or put the file there"
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return "is not a file", "remove it, or put the file there"
    if not mode & stat.S_IRUSR:  # only root could
        return "cannot be read by its owner", "chmod u+r"
    if mode & stat.S_IWOTH:
        return "can be written by every user", "chmod o-w"
    if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX):
        return "has the permissions of another user or group", "chmod u-s,g-s,-t"
    return None
