"""The bundle: a rendered folder with its manifest. Writes it as a whole, reads it file by file.

`SHA256SUMS` lists every file except itself and its signature. Evidence is attached later: it is in
`SHA256SUMS` but not in the manifest, whose digest identifies the bundle.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EBUSY
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from . import schema
from .diagnostics import Diagnostic, one_line
from .errors import BadInput, DamagedBundle
from .files import MANIFEST as MANIFEST  # its home is where checks of single files can read it
from .files import parse_json, reason, without_links
from .schema import Bounds, Check

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
    """How to start a server of several nodes from a bundle: the path, and hints for readers."""

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
    """The files of a folder, and in `forbidden` everything that no bundle may contain."""

    folder: Path
    files: Mapping[str, File]
    forbidden: tuple[Diagnostic, ...]

    def digest(self, path: str) -> str | None:
        return self.files[path].sha256 if path in self.files else None


def read_contents(folder: Path) -> Contents:
    """Every file of a bundle in memory; links are not followed, except for the folder itself.

    Raises `BadInput` if the folder is not a bundle, `DamagedBundle` if it cannot be read.
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
        where = str(error.filename or folder)
        raise DamagedBundle(Diagnostic(where, f"cannot be read: {reason(error)}")) from None
    used: set[str] = set()
    for name in (*files, *forbidden):
        used.update(map(str, PurePosixPath(name).parents))
    for name in folders:
        if name not in used | {*forbidden} and str(PurePosixPath(name).parent) in used:
            forbidden[name] = ("is a folder without files", "remove it")
    rows = (Diagnostic(name, *forbidden[name]) for name in sorted(forbidden))
    return Contents(folder, files, tuple(rows))


def _walk(folder: Path) -> Iterator[Path]:
    """The folder and everything below it. Raises `DamagedBundle` for far too many files."""
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
    """What is wrong with a path of this type and these permissions, and the fix."""
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


LAUNCH = "launch.json"
FORMAT = 1
LOCK_S = 4.0  # that others may write beside a bundle; whoever can read its folder can lock it
MOST_SHOWN = 5  # of the errors of a manifest


_RESTORE = "render again, or restore the file"


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle on disk whose files match its manifest. `digest` identifies it."""

    folder: Path
    manifest: Mapping[str, Any]
    digest: str

    @property
    def launch(self) -> Mapping[str, Any]:
        """How each target is started: argv, environment, ports, health endpoints.

        Raises `DamagedBundle` if `launch.json` does not have the form that `launch` reads.
        """
        try:
            document = json_document((self.folder / LAUNCH).read_bytes())
        except (OSError, ValueError) as error:
            raise DamagedBundle(Diagnostic(LAUNCH, f"is unreadable: {error}", _RESTORE)) from None
        if wrong := launch_misfits(document):
            raise DamagedBundle(Diagnostic(LAUNCH, wrong[0], _RESTORE))
        return document


def to_json(document: Mapping[str, Any]) -> bytes:
    """JSON as in every file of a bundle: equal documents give equal bytes."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def json_document(data: bytes) -> Mapping[str, Any]:
    document = parse_json(data, unique_keys=True)
    if not isinstance(document, dict):
        raise ValueError(f"a {type(document).__name__} instead of an object")
    return document


def complete(files: Mapping[str, File], facts: Mapping[str, Any]) -> dict[str, File]:
    """The files, plus a manifest with `facts` and the digest of every file."""
    listing = {
        path: {
            "sha256": file.sha256,
            "bytes": len(file.data),
            "mode": "755" if file.executable else "644",
        }
        for path, file in sorted(files.items())
    }
    return {**files, MANIFEST: File(to_json({"format": FORMAT, **facts, "files": listing}))}


def sums(digests: Mapping[str, str]) -> bytes:
    """Digests in the format of `sha256sum`, ordered by file name."""
    lines = []
    for path, digest in sorted(digests.items()):
        name = path.replace("\\", r"\\").replace("\n", r"\n").replace("\r", r"\r")
        lines.append(f"{'' if name == path else chr(92)}{digest}  {name}\n")
    return "".join(lines).encode(errors="surrogateescape")  # as names of files are


def read_sums(data: bytes) -> dict[str, str]:
    """The digests in the output of `sha256sum`, by path. Other lines are ignored."""
    found = {}
    for line in data.decode(errors="surrogateescape").split("\n"):
        if row := re.fullmatch(r"(\\?)([0-9a-f]{64}) [ *](?:\./)?(.+)", line):
            escaped, digest, name = row.groups()
            found[re.sub(r"\\([\\nr])", _unescaped, name) if escaped else name] = digest
    return found


def _unescaped(found: re.Match[str]) -> str:
    return {"n": "\n", "r": "\r"}.get(found[1], found[1])


def write(folder: Path, files: Mapping[str, File], facts: Mapping[str, Any], force: bool) -> Bundle:
    """Write the files, a manifest with `facts` and every digest, and their `SHA256SUMS`.

    The folder appears complete or not at all. An unchanged bundle at this path is replaced;
    anything else there is kept and reported as `BadInput`, unless `force` is set.
    """
    files = complete(files, facts)
    manifest = files[MANIFEST].data
    files[SUMS] = File(sums({path: file.sha256 for path, file in files.items()}))
    folder = without_links(folder)
    try:
        if Path.cwd().is_relative_to(folder):
            raise BadInput(Diagnostic(str(folder), "holds the working folder", "give another one"))
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent):
            _check_replaceable(folder, force)
            _replace(folder, files)
    except OSError as error:
        what = f"cannot be written: {reason(error)}"
        remedy = "try again" if error.errno == EBUSY else "give another folder"
        raise BadInput(Diagnostic(str(folder), what, remedy)) from None
    return Bundle(folder, json_document(manifest), hashlib.sha256(manifest).hexdigest())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Allows one writer at a time below a folder; the lock ends with the process.

    Anyone who can read the folder can hold the lock, so waiting ends after `LOCK_S`.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        end_s = time.monotonic() + LOCK_S
        while not _locks(descriptor):
            if time.monotonic() > end_s:
                raise OSError(EBUSY, "another process holds its lock", str(folder))
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _locks(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _replace(folder: Path, files: Mapping[str, File]) -> None:
    """Write into a new folder, then swap; the old folder is restored if that fails."""
    import tempfile  # only what is written needs it

    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    old = staging.with_name(f"{staging.name}.old")
    try:
        _write_all(staging, files)
        if folder.exists():
            folder.rename(old)
        staging.rename(folder)
    except BaseException:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        if old.is_file():
            old.unlink()
        shutil.rmtree(old, ignore_errors=True)


def _write_all(folder: Path, files: Mapping[str, File]) -> None:
    for path, file in files.items():
        write_file(folder / path, file)
    for created in (folder, *folder.rglob("*/")):
        created.chmod(0o755)


def write_file(path: Path, file: File) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.data)
    path.chmod(0o755 if file.executable else 0o644)


def _check_replaceable(folder: Path, force: bool) -> None:
    if folder.exists() and not folder.is_file() and not folder.is_dir():
        # Replacing /dev/null by a folder would break it for every user of the machine.
        what = "is a device, pipe or socket"
        raise BadInput(Diagnostic(str(folder), what, "give the name of a folder"))
    if force or not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    remedy = "choose another folder, or add --force to replace it"
    if not (folder / MANIFEST).is_file():
        raise BadInput(Diagnostic(str(folder), "exists and is not a bundle", remedy))
    try:
        read(folder)
    except DamagedBundle as error:
        changed = ", ".join(row.where for row in error.diagnostics)
        what = f"holds a bundle that was changed by hand ({changed})"
        raise BadInput(Diagnostic(str(folder), what, remedy)) from None
    if added := [name for name in (EVIDENCE, SIGNATURE) if (folder / name).exists()]:
        what = f"holds a bundle with {' and '.join(added)}"
        raise BadInput(Diagnostic(str(folder), what, remedy))


def attach(bundle: Bundle, evidence: Mapping[str, bytes]) -> bool:
    """Replace a bundle's evidence with these files.

    Removes a signature of other contents, and returns whether there was one.
    """
    folder = bundle.folder
    files = {f"{EVIDENCE}/{name}": File(data) for name, data in evidence.items()}
    rendered = {name: str(row["sha256"]) for name, row in bundle.manifest["files"].items()}
    attached = {name: file.sha256 for name, file in files.items()}
    files[SUMS] = File(sums({**rendered, MANIFEST: bundle.digest, **attached}))
    try:
        with _locked(folder.parent):
            unchanged = all(_holds(folder / name, file) for name, file in files.items())
            if unchanged and set(attached) == set(_below(folder, EVIDENCE)):
                return False
            stale = (folder / SIGNATURE).exists()
            (folder / SIGNATURE).unlink(missing_ok=True)
            _swap_evidence(folder, files)
            return stale
    except OSError as error:
        what = f"cannot be written: {reason(error)}"
        remedy = "try again" if error.errno == EBUSY else "check its owner and the disk"
        raise BadInput(Diagnostic(str(folder), what, remedy)) from None


def subject_digest(document: Any) -> str | None:
    """The digest of the bundle that a run or a result belongs to; `None` if it has none."""
    if not isinstance(document, dict):
        return None
    about = document.get("subject", document)
    named = about.get("bundle") if isinstance(about, dict) else None
    return str(named["digest"]) if isinstance(named, dict) and "digest" in named else None


def _holds(path: Path, file: File) -> bool:
    return path.is_file() and path.read_bytes() == file.data


def _below(folder: Path, name: str) -> list[str]:
    found = (folder / name).rglob("*")
    return [path.relative_to(folder).as_posix() for path in found if not path.is_dir()]


def _swap_evidence(folder: Path, files: Mapping[str, File]) -> None:
    """Write into a new folder, then swap; the old evidence is restored if that fails."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
        staging, current = Path(beside), folder / EVIDENCE
        new, old = staging / EVIDENCE, staging / "old"
        _write_all(staging, files)
        try:
            if current.exists():
                current.rename(old)
            new.rename(current)
            (staging / SUMS).replace(folder / SUMS)
        except BaseException:
            if not new.exists():
                current.rename(new)
            if old.exists():
                old.rename(current)
            raise


def read(folder: Path) -> Bundle:
    """A bundle whose files all match its manifest.

    Raises `BadInput` if the folder is not a bundle, `DamagedBundle` with every file that differs.
    """
    found = read_contents(folder)
    if MANIFEST not in found.files:
        raise DamagedBundle(found.forbidden or (Diagnostic(MANIFEST, "is missing", _RESTORE),))
    raw = found.files[MANIFEST].data
    manifest = read_manifest(raw)
    if diagnostics := [*found.forbidden, *_damage(found, manifest["files"])]:
        raise DamagedBundle(diagnostics)
    return Bundle(folder.resolve(), manifest, hashlib.sha256(raw).hexdigest())


def _is_text(value: str) -> bool:
    """Whether a program can receive the text as an argument."""
    try:
        return b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _is_path(name: str) -> bool:
    """Whether a file below a folder can have this name."""
    return _is_text(name) and ".." not in name.split("/") and name[:1] not in ("", "/")


_OBJECT = Mapping[str, Any]
_DECISION = {"path": str, "reason": str, "evidence": str, "source": str, "value": Any}
# What `explain`, `verify` and `launch` read of a manifest.
REQUIRED: Any = {
    "tool": _OBJECT,
    "engine": {"name": str, "release": str},
    "inputs": {"files": _OBJECT},
    "decisions": [_DECISION],
    "memory": _OBJECT,
    "files": {
        "*": {
            "sha256": Annotated[str, Bounds(pattern=r"[0-9a-f]{64}")],
            "bytes": int,
            "mode": Literal["644", "755"],
        }
    },
}
MAX_SECONDS = 10_000_000
MAX_NODES = 100_000
_Text = Annotated[str, Check(_is_text, "must be text that a program can receive")]
_Name = Annotated[str, Bounds(pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")]
_Variables = Mapping[Annotated[str, Bounds(pattern=r"[A-Za-z_][A-Za-z0-9_]*")], _Text]
_Seconds = Annotated[int, Bounds(ge=0, le=MAX_SECONDS)]
# What `launch` reads of `launch.json`.
_LAUNCH: Any = {
    "name": _Name,
    "checkpoint": _Text,
    "engine": {"name": _Name, "release": _Text},
    "environment": _Variables,
    "targets": {
        "*": {
            "argv": Annotated[list[_Text], Bounds(min_length=1)],
            "host": Annotated[str, Bounds(pattern=r"[A-Za-z0-9:_][A-Za-z0-9:._-]{0,254}")],
            "ports": Mapping[_Name, Annotated[int, Bounds(ge=0, le=65535)]],
            "environment": _Variables,
            "ready": {"port": _Name, "path?": Annotated[str, Bounds(pattern=r"/[!-~]{0,999}")]},
            "start_timeout_s": _Seconds,
            "stop_timeout_s?": _Seconds,
            "model_name?": Annotated[str, Bounds(pattern=r"(?!\.{1,2}$)[^/\x00-\x1f\x7f]{1,255}")],
            "restricted_apis?": list[_Name],
            "nodes?": Annotated[int, Bounds(ge=1, le=MAX_NODES)],
        }
    },
}


def _misfits(form: Any, document: Any) -> list[str]:
    _, wrong = schema.build(form, schema.known(form, document))
    return [one_line(f"{row.path} {row.message}".strip())[:200] for row in wrong]


def read_manifest(data: bytes) -> Mapping[str, Any]:
    """A manifest with all required parts. Raises `DamagedBundle`."""
    try:
        manifest = json_document(data)
        found = manifest.get("format")
        if type(found) is not int or found != FORMAT:
            what = f"has format {json.dumps(found)[:60]}, this version reads {FORMAT}"
            raise DamagedBundle(Diagnostic(MANIFEST, what, "render again"))
        form = REQUIRED | (
            {"engine_defaults": [_DECISION]} if "engine_defaults" in manifest else {}
        )
        if wrong := _misfits(form, manifest):
            raise ValueError(", ".join(wrong[:MOST_SHOWN]))
        if names := [name for name in manifest["files"] if not _is_path(name)]:
            raise ValueError(f"{names[0][:100]!r} is not a valid file name")
    except ValueError as error:
        what = f"is unreadable: {error}"
        raise DamagedBundle(Diagnostic(MANIFEST, what, "render again")) from None
    return manifest


def launch_misfits(document: Any) -> list[str]:
    """What is wrong with a `launch.json`, each with its dotted path."""
    if wrong := _misfits(_LAUNCH, document):
        return wrong
    return [
        f"targets.{name}.ports has no {entry['ready']['port']}"
        for name, entry in document["targets"].items()
        if entry["ready"]["port"] not in entry["ports"]
    ]


def _damage(found: Contents, rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Diagnostic]:
    """Files that are missing, changed or not listed; evidence is not in the manifest."""
    for name in sorted(set(found.files) - set(rows) - {MANIFEST, SUMS, SIGNATURE}):
        if not name.startswith(f"{EVIDENCE}/"):
            yield Diagnostic(name, "is not in the manifest", "remove it, or render again")
    for name, row in rows.items():
        file = found.files.get(name)
        if file is None:
            if name not in {each.where for each in found.forbidden}:
                yield Diagnostic(name, "is missing", _RESTORE)
        elif (file.sha256, len(file.data)) != (row["sha256"], row["bytes"]):
            what = f"differs from the manifest ({len(file.data)} bytes, {row['bytes']} expected)"
            yield Diagnostic(name, what, _RESTORE)
        elif file.executable != (row["mode"] == "755"):
            yield Diagnostic(name, f"must have mode {row['mode']}", "use chmod")
