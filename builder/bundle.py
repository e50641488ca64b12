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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EBUSY
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from .diagnostics import Diagnostic, one_line
from .errors import BadInput, DamagedBundle
from .files import MANIFEST as MANIFEST  # its home is where checks of single files can read it
from .files import parse_json, without_links

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
        where, reason = str(error.filename or folder), (error.strerror or str(error)).lower()
        raise DamagedBundle(Diagnostic(where, f"cannot be read: {reason}")) from None
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
REQUIRED = ("tool", "engine", "inputs", "decisions", "memory", "files")


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
        if wrong := next(launch_misfits(document), None):
            what = f"has no {one_line(wrong)[:200]}, or not of its kind"
            raise DamagedBundle(Diagnostic(LAUNCH, what, _RESTORE))
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
        reason = error.strerror or str(error)
        what = f"cannot be written: {reason.lower()}"
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
        _write_file(folder / path, file)
    for created in (folder, *folder.rglob("*/")):
        created.chmod(0o755)


def _write_file(path: Path, file: File) -> None:
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
        what = f"cannot be written: {(error.strerror or str(error)).lower()}"
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


def read_manifest(data: bytes) -> Mapping[str, Any]:
    """A manifest with all required parts. Raises `DamagedBundle`."""
    try:
        manifest = json_document(data)
        found = manifest.get("format")
        if type(found) is not int or found != FORMAT:
            what = f"has format {json.dumps(found)[:60]}, this version reads {FORMAT}"
            raise DamagedBundle(Diagnostic(MANIFEST, what, "render again"))
        if missing := [key for key in REQUIRED if key not in manifest]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        for key in REQUIRED:
            if not isinstance(manifest[key], list if key == "decisions" else dict):
                raise ValueError(f"{key} is a {type(manifest[key]).__name__}")
        if not isinstance(manifest["inputs"].get("files"), dict):
            raise ValueError("inputs has no files")
        if not all(isinstance(manifest["engine"].get(key), str) for key in ("name", "release")):
            raise ValueError("engine has no name and release")
        more = manifest.get("engine_defaults", [])  # older bundles have none
        if not isinstance(more, list) or not all(map(_is_decision, manifest["decisions"] + more)):
            raise ValueError(f"a decision has not all of {', '.join(_DECISION)}")
        for name, row in manifest["files"].items():
            if not _is_path(name):
                raise ValueError(f"{name[:100]!r} is not a valid file name")
            if not _is_file(row):
                raise ValueError(f"the row of {name} has no digest, size and mode")
    except ValueError as error:
        what = f"is unreadable: {error}"
        raise DamagedBundle(Diagnostic(MANIFEST, what, "render again")) from None
    return manifest


_DECISION = ("path", "reason", "evidence", "source", "value")


def _is_decision(row: Any) -> bool:
    """Whether it is a decision as `explain` shows it."""
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(key), str) for key in _DECISION[:-1])
        and "value" in row
    )


def _is_path(name: str) -> bool:
    """Whether a file below a folder can have this name."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return "\0" not in name and ".." not in name.split("/") and name[:1] not in ("", "/")


def _is_file(row: Any) -> bool:
    """Whether it is a file's entry as `complete` writes it."""
    return (
        isinstance(row, dict)
        and re.fullmatch(r"[0-9a-f]{64}", str(row.get("sha256"))) is not None
        and type(row.get("bytes")) is int
        and row.get("mode") in ("644", "755")
    )


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


MAX_SECONDS = 10_000_000
MAX_NODES = 100_000


def _is_text(value: Any) -> bool:
    """Whether a program can receive the text as an argument."""
    try:
        return isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


def _is_argv(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _is_like(pattern: str, value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _is_between(least: int, most: int, value: Any) -> bool:
    return type(value) is int and least <= value <= most


def _is_map(key: str, fits: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, dict) and all(_is_like(key, k) and fits(v) for k, v in value.items())


def _is_list(fits: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, list) and all(map(fits, value))


_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_is_name = partial(_is_like, _NAME)
_are_variables = partial(_is_map, _VARIABLE, _is_text)
_ENTRY = {
    "argv": _is_argv,
    "host": partial(_is_like, r"[A-Za-z0-9:_][A-Za-z0-9:._-]{0,254}"),
    "ports": partial(_is_map, _NAME, partial(_is_between, 0, 65535)),
    "environment": _are_variables,
    "ready": {"port": _is_name, "path?": partial(_is_like, r"/[!-~]{0,999}")},
    "start_timeout_s": partial(_is_between, 0, MAX_SECONDS),
    "stop_timeout_s?": partial(_is_between, 0, MAX_SECONDS),
    "model_name?": partial(_is_like, r"(?!\.{1,2}$)[^/\x00-\x1f\x7f]{1,255}"),
    "restricted_apis?": partial(_is_list, _is_name),
    "nodes?": partial(_is_between, 1, MAX_NODES),
}
_DOCUMENT = {
    "name": _is_name,
    "checkpoint": _is_text,
    "engine": {"name": _is_name, "release": _is_text},
    "environment": _are_variables,
    "targets": {"*": _ENTRY},
}


def launch_misfits(document: Any) -> Iterator[str]:
    """The dotted paths at which a document has the wrong form; "" is the whole document."""
    found = [path.strip(".") for path in _misfits(document, _DOCUMENT, "")]
    if found:
        yield from found
        return
    for name, entry in document["targets"].items():
        if entry["ready"]["port"] not in entry["ports"]:
            yield f"targets.{name}.ports.{entry['ready']['port']}"


def _misfits(value: Any, form: Any, path: str) -> Iterator[str]:
    """Check a value by a test or a mapping of forms; `*` is any key, `?` ends an optional one."""
    if callable(form):
        if not form(value):
            yield path
    elif not isinstance(value, dict):
        yield path
    else:
        for key, inner in (dict.fromkeys(value, form["*"]) if "*" in form else form).items():
            name = key if "*" in form else key.removesuffix("?")
            if name == key or value.get(name) is not None:
                yield from _misfits(value.get(name), inner, f"{path}.{name}")
