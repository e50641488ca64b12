"""The verification of a bundle, all of it offline: every byte, its lists, evidence and signature.

A rendered file has its digest in the manifest and in `SHA256SUMS`, and the request and the facts in
the bundle say what it should hold. So a damaged file is compared with what they render, and the
first wrong byte is named.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import pipeline
from .. import resolve as gathering
from ..bundle import (
    EVIDENCE,
    MANIFEST,
    SIGNATURE,
    SUMS,
    File,
    json_document,
    read_sums,
    subject_digest,
    sums,
)
from ..diagnostics import Diagnostic
from ..errors import BadInput, DamagedBundle, ToolkitError
from ..targets.supply import sbom
from . import signature
from .corruption import Damage, Place, mended
from .signature import Signer

CHECKPOINT = "checkpoint.json"

# What a bundle is rendered from. Nothing else tells its content, so that a changed byte is found by
# trying.
INPUTS = ("deployment.yaml", CHECKPOINT, gathering.IMPORTED_RELEASE)

# Files are held in memory; results of long benchmarks take some megabytes.
LARGEST_BYTES = 1 << 28


@dataclass(slots=True)
class Report:
    """What was found. `signer` is `None` where there is no signature, or nothing to judge it by."""

    folder: Path
    digest: str
    rendered: int = 0
    evidence: int = 0
    signed: bool = False
    signer: Signer | None = None
    damage: list[Damage] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As `verify --json` prints it."""
        return {**asdict(self), "folder": str(self.folder), "intact": not self.damage}


@dataclass(frozen=True, slots=True)
class _Contents:
    """What lies in a folder: its files, and what is no file."""

    folder: Path
    files: Mapping[str, File]
    strange: tuple[Damage, ...]

    def digest(self, path: str) -> str | None:
        return self.files[path].sha256 if path in self.files else None


def verify(folder: Path, signers: Path | None = None, identity: str | None = None) -> Report:
    """Everything that is wrong with a bundle; with `signers`, it must be signed by one of them.

    Raises `BadInput` if the folder is no bundle.
    """
    if signers and not os.access(signers, os.R_OK):
        raise BadInput(Diagnostic(str(signers), "cannot be read", "give a file of allowed signers"))
    contents = _contents(folder)
    if MANIFEST not in contents.files and SUMS not in contents.files:
        what = f"is no bundle: it has no {MANIFEST}"
        remedy = "give a folder made by: python -m builder render"
        raise BadInput(Diagnostic(str(folder), what, remedy))
    report = Report(folder.resolve(), contents.digest(MANIFEST) or "")
    report.evidence = sum(map(_is_evidence, contents.files))
    report.damage += contents.strange
    report.damage += _damaged_files(contents)
    if not report.damage:
        report.rendered = len(_listed(contents)[0])
        report.damage += _wrong_bill(contents)
        report.damage += _foreign_evidence(contents, report.digest)
    _judge_signature(report, contents, signers, identity)
    return report


def sign(folder: Path, key: Path) -> Signer:
    """Sign a bundle, if nothing is wrong with it, in the place of an earlier signature."""
    report = verify(folder)
    report.damage = [row for row in report.damage if row.file != SIGNATURE]
    require(report)
    data, file = (folder / SUMS).read_bytes(), folder / SIGNATURE
    new = file.with_name(f".{SIGNATURE}.new")
    made = signature.sign(data, key)
    try:
        new.write_bytes(made)
        new.replace(file)
    except OSError as fault:
        what = f"cannot be written: {(fault.strerror or str(fault)).lower()}"
        raise BadInput(
            Diagnostic(str(file), what, "check the folder's owner and the disk")
        ) from None
    found = signature.check(data, file)
    assert isinstance(found, Signer), found
    return found


def require(report: Report) -> None:
    """Raises `DamagedBundle` with all damage."""
    if report.damage:
        raise DamagedBundle(row.problem for row in report.damage)


def _contents(folder: Path) -> _Contents:
    """Every file of a folder in memory; no link is followed."""
    files, strange = {}, []
    try:
        for parent, folders, names in os.walk(folder, onerror=_raise):
            for name in [*folders, *names]:
                path = Path(parent, name)
                inside = path.relative_to(folder).as_posix()
                if path.is_symlink() or not (path.is_file() or path.is_dir()):
                    kind = "is a link" if path.is_symlink() else "is no file"
                    strange.append(Damage(inside, kind, "remove it, or put the file there"))
                elif path.is_file() and path.stat().st_size > LARGEST_BYTES:
                    strange.append(Damage(inside, "is too large for a bundle", "remove it"))
                elif path.is_file():
                    files[inside] = File(path.read_bytes(), bool(path.stat().st_mode & 0o100))
    except OSError as fault:
        where, reason = str(fault.filename or folder), (fault.strerror or str(fault)).lower()
        raise DamagedBundle(Diagnostic(where, f"cannot be read: {reason}")) from None
    return _Contents(folder, files, tuple(sorted(strange, key=lambda row: row.file)))


def _raise(fault: OSError) -> None:
    if not isinstance(fault, FileNotFoundError | NotADirectoryError):
        raise fault  # a folder that is not there is no bundle, which is said elsewhere


def _is_evidence(path: str) -> bool:
    return path.startswith(f"{EVIDENCE}/")


def _listed(contents: _Contents) -> tuple[dict[str, dict[str, Any]], str]:
    """The manifest's row of each file, and what is wrong with the manifest if it has no rows."""
    if MANIFEST not in contents.files:
        return {}, "is missing"
    try:
        rows = json_document(contents.files[MANIFEST].data)["files"]
        return {str(name): {**row, "sha256": str(row["sha256"])} for name, row in rows.items()}, ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        return {}, f"is unreadable: {fault}"


@dataclass(frozen=True, slots=True)
class _Promise:
    """What a bundle should hold: the digest of each rendered file, and its bytes where known."""

    digests: Mapping[str, str]
    made_again: Mapping[str, File]
    manifest_fault: str
    modes: Mapping[str, bool]

    def content(self, path: str, found: bytes) -> bytes | None:
        """What a file should hold, as far as it is proved by its digest."""
        digest = self.digests[path]
        if path in self.made_again and self.made_again[path].sha256 == digest:
            return self.made_again[path].data
        return mended(found, digest) if path in INPUTS else None


def _damaged_files(contents: _Contents) -> Iterator[Damage]:
    rows, fault = _listed(contents)
    summed = read_sums(contents.files[SUMS].data) if SUMS in contents.files else {}
    if fault and MANIFEST not in summed:  # nothing is left that tells what should be there
        yield Damage(MANIFEST, fault)
        return
    promise = _promise(contents, rows, fault, summed)
    yield from _unlisted(contents, promise, summed)
    for path in sorted({*promise.digests, *filter(_is_evidence, summed)}):
        wanted = promise.digests.get(path) or summed[path]
        yield from _damaged(contents, promise, path, wanted)
    yield from _damaged_sums(contents, promise, summed)


def _promise(
    contents: _Contents,
    rows: Mapping[str, Mapping[str, Any]],
    fault: str,
    summed: Mapping[str, str],
) -> _Promise:
    """The manifest and `SHA256SUMS` prove each other. Where they differ, what is rendered again
    tells which is right; where that cannot be told, `SHA256SUMS` is, which a signature covers."""
    digest = contents.digest(MANIFEST) or ""
    own = {**{path: str(row["sha256"]) for path, row in rows.items()}, MANIFEST: digest}
    theirs = {path: value for path, value in summed.items() if not _is_evidence(path)}
    modes = {path: row.get("mode") == "755" for path, row in rows.items()}
    actual = {path: contents.digest(path) for path in own}
    if own == theirs == actual and not fault:
        return _Promise(own, {}, fault, modes)
    again = _made_again(contents, own, theirs)
    made = again[MANIFEST].sha256 if again else None
    agree = theirs.get(MANIFEST) == digest or made == digest or MANIFEST not in theirs
    if made in (digest, theirs.get(MANIFEST)):
        modes = {path: file.executable for path, file in again.items()}
    return _Promise(own if agree and not fault else theirs, again, fault, modes)


def _made_again(
    contents: _Contents, own: Mapping[str, str], theirs: Mapping[str, str]
) -> Mapping[str, File]:
    """The bundle rendered from its own request and facts, if they are what they were."""
    intact = {p: contents.digest(p) in (own.get(p), theirs.get(p)) for p in INPUTS}
    facts_intact = intact.pop(CHECKPOINT)
    try:
        return pipeline.render_again(contents.folder, facts_intact) if all(intact.values()) else {}
    except ToolkitError:  # this toolkit does not make such bundles any more
        return {}


def _unlisted(
    contents: _Contents, promise: _Promise, summed: Mapping[str, str]
) -> Iterator[Damage]:
    for path in sorted(set(contents.files) - set(promise.digests) - {SUMS, SIGNATURE}):
        if not _is_evidence(path):
            yield Damage(path, "is not in the manifest", "remove it, or render again")
        elif path not in summed and SUMS in contents.files:
            yield Damage(path, f"is not in {SUMS}", "remove it, or attach the runs again")


def _damaged(contents: _Contents, promise: _Promise, path: str, wanted: str) -> Iterator[Damage]:
    file = contents.files.get(path)
    if file is None:
        yield Damage(path, "is missing")
        return
    listed = SUMS if _is_evidence(path) or path == MANIFEST else "the manifest"
    if file.sha256 != wanted or (path == MANIFEST and promise.manifest_fault):
        expected = None if _is_evidence(path) else promise.content(path, file.data)
        size = f"{len(file.data)} bytes, {len(expected)} expected" if expected else ""
        what = f"differs from {listed}" + (f" ({size})" if size else "")
        what = promise.manifest_fault or what if path == MANIFEST else what
        yield Damage(path, what, place=Place.between(file.data, expected))
    elif file.executable != promise.modes.get(path, False):
        mode = "755" if promise.modes.get(path) else "644"
        yield Damage(path, f"must have mode {mode}", "use chmod")


def _damaged_sums(
    contents: _Contents, promise: _Promise, summed: Mapping[str, str]
) -> Iterator[Damage]:
    evidence = {path: digest for path, digest in summed.items() if _is_evidence(path)}
    expected = sums({**promise.digests, **evidence})
    if SUMS not in contents.files:
        yield Damage(SUMS, "is missing", "render again")
        return
    found = contents.files[SUMS].data
    if found != expected:
        yield Damage(SUMS, "is not the list of the files", place=Place.between(found, expected))
    elif contents.files[SUMS].executable:
        yield Damage(SUMS, "must have mode 644", "use chmod")


def _wrong_bill(contents: _Contents) -> Iterator[Damage]:
    """A bill of materials that does not tell the digests of the files."""
    if sbom.FILE not in contents.files:
        return
    try:
        told = sbom.digests(json.loads(contents.files[sbom.FILE].data))
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as fault:
        yield Damage(sbom.FILE, f"is no bill of materials: {fault}", "render again")
        return
    for path, digest in told.items():
        if contents.digest(path) != digest:
            yield Damage(sbom.FILE, f"tells another digest of {path}", "render again")


def _foreign_evidence(contents: _Contents, digest: str) -> Iterator[Damage]:
    """Evidence of another bundle."""
    for path, file in contents.files.items():
        if _is_evidence(path) and path.endswith(".json"):
            found = _subject(file.data)
            if found not in (None, digest):
                what = f"is of another bundle, of digest {found}"
                yield Damage(path, what, "attach runs of this bundle")


def _subject(data: bytes) -> str | None:
    try:
        return subject_digest(json.loads(data))
    except (ValueError, RecursionError):
        return None


def _judge_signature(
    report: Report, contents: _Contents, signers: Path | None, identity: str | None
) -> None:
    report.signed = SIGNATURE in contents.files
    if not report.signed:
        if signers:
            report.damage.append(
                Damage(SIGNATURE, "is missing: the bundle is not signed", "sign it")
            )
        return
    if any(row.file == SUMS for row in report.damage):
        return  # it signs other bytes, of course
    data, file = contents.files[SUMS].data, contents.folder / SIGNATURE
    found = signature.check(data, file, signers, identity)
    if isinstance(found, Signer):
        report.signer = found
    else:
        report.damage.append(Damage(SIGNATURE, found, "sign the bundle again"))
