"""The bundle: a rendered folder with its manifest, written as a whole and verified file by file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import BadInput, DamagedBundle, Problem

MANIFEST = "manifest.json"
FORMAT = 1
REQUIRED = ("tool", "engine", "inputs", "decisions", "memory")


@dataclass(frozen=True, slots=True)
class File:
    """A file of a bundle: its bytes, and whether it can be executed."""

    data: bytes
    executable: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle on disk whose files match its manifest. `digest` names the whole of it."""

    folder: Path
    manifest: Mapping[str, Any]
    digest: str

    @property
    def launch(self) -> Mapping[str, Any]:
        """How each target is started: argv, environment, ports, health endpoints."""
        return json_document((self.folder / "launch.json").read_bytes())


def to_json(document: Mapping[str, Any]) -> bytes:
    """JSON as every file of a bundle holds it: the same document gives the same bytes."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def json_document(data: bytes) -> Mapping[str, Any]:
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError(f"a {type(document).__name__} instead of an object")
    return document


def write(folder: Path, files: Mapping[str, File], facts: Mapping[str, Any], force: bool) -> Bundle:
    """Write the files and a manifest that holds `facts` and every digest.

    The folder appears complete or not at all. An unchanged bundle in its place is replaced;
    anything else there is kept and reported as `BadInput`, unless `force` is set.
    """
    listing = {
        path: {
            "sha256": file.sha256,
            "bytes": len(file.data),
            "mode": "755" if file.executable else "644",
        }
        for path, file in sorted(files.items())
    }
    manifest = to_json({"format": FORMAT, **facts, "files": listing})
    folder = folder.resolve()
    try:
        if Path.cwd().is_relative_to(folder):
            raise BadInput(Problem(str(folder), "holds the working folder", "give another one"))
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent):
            _check_replaceable(folder, force)
            _replace(folder, {**files, MANIFEST: File(manifest)})
    except OSError as fault:
        reason = fault.strerror or str(fault)
        what = f"cannot be written: {reason.lower()}"
        raise BadInput(Problem(str(folder), what, "give another folder")) from None
    return Bundle(folder, json_document(manifest), hashlib.sha256(manifest).hexdigest())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time below a folder; the lock ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(folder: Path, files: Mapping[str, File]) -> None:
    """Write beside the folder, then swap; what was there comes back if that fails."""
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    old = staging.with_name(f"{staging.name}.old")
    try:
        for path, file in files.items():
            _write_file(staging / path, file)
        for created in (staging, *staging.rglob("*/")):
            created.chmod(0o755)
        if folder.exists():
            folder.rename(old)
        staging.rename(folder)
    except BaseException:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _write_file(path: Path, file: File) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.data)
    path.chmod(0o755 if file.executable else 0o644)


def _check_replaceable(folder: Path, force: bool) -> None:
    if force or not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    remedy = "choose another folder, or add --force to replace it"
    if not (folder / MANIFEST).is_file():
        raise BadInput(Problem(str(folder), "exists and is no bundle", remedy))
    try:
        read(folder)
    except DamagedBundle as fault:
        changed = ", ".join(problem.where for problem in fault.problems)
        what = f"holds a bundle that was changed by hand ({changed})"
        raise BadInput(Problem(str(folder), what, remedy)) from None


def read(folder: Path) -> Bundle:
    """A bundle whose files all match its manifest.

    Raises `BadInput` if the folder is no bundle, `DamagedBundle` with every file that differs.
    """
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
    except OSError as fault:
        remedy = "give a folder made by: python -m builder render"
        if not isinstance(fault, FileNotFoundError | NotADirectoryError):
            raise DamagedBundle(Problem(str(path), f"cannot be read: {fault.strerror}")) from None
        raise BadInput(
            Problem(str(folder), f"is no bundle: it has no {MANIFEST}", remedy)
        ) from None
    try:
        manifest = json_document(raw)
        listing = {str(name): dict(entry) for name, entry in manifest["files"].items()}
        known = manifest["format"] == FORMAT
        if missing := [key for key in REQUIRED if key not in manifest]:
            raise ValueError(f"it lacks {', '.join(missing)}")
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise DamagedBundle(Problem(MANIFEST, f"is unreadable: {fault}", "render again")) from None
    if not known:
        what = f"has format {manifest['format']}, this version reads {FORMAT}"
        raise DamagedBundle(Problem(MANIFEST, what, "render again"))
    try:
        problems = _damage(folder, listing)
    except OSError as fault:
        where = str(fault.filename or folder)
        raise DamagedBundle(Problem(where, f"cannot be read: {fault.strerror}")) from None
    if problems:
        raise DamagedBundle(problems)
    return Bundle(folder.resolve(), manifest, hashlib.sha256(raw).hexdigest())


def _damage(folder: Path, listing: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Files that are missing, changed or not listed."""
    remedy = "render again, or restore the file"
    present = {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() or path.is_symlink()
    }
    problems = [
        Problem(name, "is not in the manifest", "remove it, or render again")
        for name in sorted(present - set(listing) - {MANIFEST})
    ]
    for name, entry in listing.items():
        path = folder / name
        if name not in present or not path.resolve().is_relative_to(folder.resolve()):
            problems.append(Problem(name, "is missing", remedy))
            continue
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != entry.get("sha256"):
            what = f"differs from the manifest ({len(data)} bytes, {entry.get('bytes')} expected)"
            problems.append(Problem(name, what, remedy))
        elif bool(path.stat().st_mode & 0o100) != (entry.get("mode") == "755"):
            problems.append(Problem(name, f"must have mode {entry.get('mode')}", "use chmod"))
    return problems
