"""The verification of a bundle, all of it offline: every byte, its lists, evidence and signature.

A rendered file has its digest in the manifest and in `SHA256SUMS`, and the request and the facts in
the bundle say what it should hold. A corrupted file is compared with what they render, and
its first wrong byte is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import bundle, pipeline, signature
from . import contents as bundle_contents
from .bundle import read_sums, subject_digest, sums
from .contents import EVIDENCE, MANIFEST, SIGNATURE, SUMS, Contents, File
from .diagnostics import Diagnostic, one_line
from .errors import BadInput, DamagedBundle, ToolkitError
from .files import MAX_JSON_BYTES, parse_json, read_bytes, whole_file
from .resolve import IMPORTED_RELEASE
from .signature import Signer
from .targets.components import sbom

CHECKPOINT = "checkpoint.json"

# What a bundle is rendered from. Nothing else tells its content.
INPUTS = ("deployment.yaml", CHECKPOINT, IMPORTED_RELEASE)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first byte that is wrong, counted from 0; `line` and `column` are counted from 1.

    `found` or `expected` is `None` past the end of what is there or of what should be.
    """

    offset: int
    line: int
    column: int
    found: int | None
    expected: int | None

    @classmethod
    def first(cls, found: bytes, expected: bytes | None) -> Difference | None:
        """Where two contents begin to differ."""
        if expected is None or found == expected:
            return None
        pairs = enumerate(zip(found, expected, strict=False))
        offset = next((at for at, (a, b) in pairs if a != b), min(len(found), len(expected)))
        before = expected[:offset]
        line = before.rpartition(b"\n")[2].decode(errors="replace")
        values = (data[offset] if offset < len(data) else None for data in (found, expected))
        return cls(offset, before.count(b"\n") + 1, len(line) + 1, *values)

    def __str__(self) -> str:
        found, expected = _shown(self.found), _shown(self.expected)
        return (
            f"first at byte {self.offset}, line {self.line} column {self.column}: "
            f"{found}, expected {expected}"
        )


def _shown(value: int | None) -> str:
    if value is None:
        return "the end"
    return f'"{chr(value)}"' if 0x20 < value < 0x7F else f"byte 0x{value:02x}"


@dataclass(frozen=True, slots=True)
class Corruption:
    """What is wrong with a file, and where in it if that can be known."""

    file: str
    message: str
    fix: str = "render again, or restore the file"
    difference: Difference | None = None

    @property
    def diagnostic(self) -> Diagnostic:
        where = f"; {self.difference}" if self.difference else ""
        return Diagnostic(self.file, f"{self.message}{where}", self.fix)

    def document(self) -> dict[str, Any]:
        place = asdict(self.difference) if self.difference else None
        return {"file": self.file, "what": self.message, "remedy": self.fix, "place": place}


@dataclass(slots=True)
class Verification:
    """What was found. `signer` is `None` without a signature or a key to verify it."""

    folder: Path
    digest: str
    rendered: int = 0
    evidence: int = 0
    signed: bool = False
    signer: Signer | None = None
    damage: list[Corruption] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As `verify --json` prints it."""
        damage = [row.document() for row in self.damage]
        return {
            **asdict(self),
            "folder": str(self.folder),
            "damage": damage,
            "intact": not damage,
        }


def verify(folder: Path, signers: Path | None = None, identity: str | None = None) -> Verification:
    """Everything that is wrong with a bundle; with `signers`, it must be signed by one of them.

    Raises `BadInput` if the folder is not a bundle.
    """
    if signers:
        read_bytes(signers)  # a file, which ssh-keygen does not ask for
    if identity is not None and not identity.isprintable():
        raise BadInput(Diagnostic(one_line(identity), "is no identity", "give one of the signers"))
    contents = bundle_contents.read(folder)
    report = Verification(folder.resolve(), contents.digest(MANIFEST) or "")
    report.evidence = sum(map(_is_evidence, contents.files))
    report.damage += (Corruption(row.where, row.message, row.fix) for row in contents.forbidden)
    report.damage += _damaged_files(contents)
    if not report.damage:
        report.rendered = len(_listed(contents)[0])
        report.damage += _wrong_bill(contents)
        report.damage += _foreign_evidence(contents, report.digest)
    _verify_signature(report, contents, signers, identity)
    return report


def sign(folder: Path, key: Path) -> Signer:
    """Sign a bundle, if nothing is wrong with it, in the place of an earlier signature."""
    report = verify(folder)
    report.damage = [row for row in report.damage if row.file != SIGNATURE]
    require(report)
    data, file = (folder / SUMS).read_bytes(), folder / SIGNATURE
    made = signature.sign(data, key)
    try:
        with whole_file(file) as new:
            new.write_bytes(made)
    except OSError as error:
        what = f"cannot be written: {(error.strerror or str(error)).lower()}"
        raise BadInput(
            Diagnostic(str(file), what, "check the folder's owner and the disk")
        ) from None
    found = signature.check(data, file)
    assert isinstance(found, Signer), found
    return found


def require(report: Verification) -> None:
    """Raises `DamagedBundle` with all damage."""
    if report.damage:
        raise DamagedBundle(row.diagnostic for row in report.damage)


def _is_evidence(path: str) -> bool:
    return path.startswith(f"{EVIDENCE}/")


def _listed(contents: Contents) -> tuple[dict[str, dict[str, Any]], str]:
    """The manifest's row of each file, and what is wrong with the manifest if it has no rows."""
    if MANIFEST not in contents.files:
        return {}, "is missing"
    try:
        return bundle.read_manifest(contents.files[MANIFEST].data)["files"], ""
    except DamagedBundle as error:
        return {}, error.diagnostics[0].message


@dataclass(frozen=True, slots=True)
class _Promise:
    """What a bundle should hold: the digest of each rendered file, and its bytes where known."""

    digests: Mapping[str, str]
    made_again: Mapping[str, File]
    manifest_error: str
    modes: Mapping[str, bool]

    def content(self, path: str) -> bytes | None:
        """What a file should hold, as far as it is proved by its digest."""
        digest = self.digests[path]
        if path in self.made_again and self.made_again[path].sha256 == digest:
            return self.made_again[path].data
        return None


def _damaged_files(contents: Contents) -> Iterator[Corruption]:
    rows, error = _listed(contents)
    summed = read_sums(contents.files[SUMS].data) if SUMS in contents.files else {}
    if error and MANIFEST not in summed:  # nothing is left that tells what should be there
        yield Corruption(MANIFEST, error)
        return
    promise = _promise(contents, rows, error, summed)
    yield from _unlisted(contents, promise, summed)
    for path in sorted({*promise.digests, *filter(_is_evidence, summed)}):
        wanted = promise.digests.get(path) or summed[path]
        yield from _damaged(contents, promise, path, wanted)
    yield from _damaged_sums(contents, promise, summed)


def _promise(
    contents: Contents,
    rows: Mapping[str, Mapping[str, Any]],
    error: str,
    summed: Mapping[str, str],
) -> _Promise:
    """The manifest and `SHA256SUMS` prove each other. Where they differ, what is rendered again
    tells which is right; where that cannot be told, `SHA256SUMS` is, which a signature covers."""
    digest = contents.digest(MANIFEST) or ""
    own = {**{path: str(row["sha256"]) for path, row in rows.items()}, MANIFEST: digest}
    theirs = {path: value for path, value in summed.items() if not _is_evidence(path)}
    modes = {path: row.get("mode") == "755" for path, row in rows.items()}
    actual = {path: contents.digest(path) for path in own}
    if own == theirs == actual and not error:
        return _Promise(own, {}, error, modes)
    again = _made_again(contents, own, theirs)
    made = again[MANIFEST].sha256 if again else None
    agree = theirs.get(MANIFEST) == digest or made == digest or MANIFEST not in theirs
    if made in (digest, theirs.get(MANIFEST)):
        modes = {path: file.executable for path, file in again.items()}
    return _Promise(own if agree and not error else theirs, again, error, modes)


def _made_again(
    contents: Contents, own: Mapping[str, str], theirs: Mapping[str, str]
) -> Mapping[str, File]:
    """The bundle rendered from its own request and facts, if they are what they were."""
    intact = {p: contents.digest(p) in (own.get(p), theirs.get(p)) for p in INPUTS}
    facts_intact = intact.pop(CHECKPOINT)
    try:
        return pipeline.render_again(contents.folder, facts_intact) if all(intact.values()) else {}
    except ToolkitError:  # this toolkit does not make such bundles any more
        return {}


def _unlisted(
    contents: Contents, promise: _Promise, summed: Mapping[str, str]
) -> Iterator[Corruption]:
    for path in sorted(set(contents.files) - set(promise.digests) - {SUMS, SIGNATURE}):
        if not _is_evidence(path):
            yield Corruption(path, "is not in the manifest", "remove it, or render again")
        elif path not in summed and SUMS in contents.files:
            yield Corruption(path, f"is not in {SUMS}", "remove it, or attach the runs again")


def _damaged(contents: Contents, promise: _Promise, path: str, wanted: str) -> Iterator[Corruption]:
    file = contents.files.get(path)
    if file is None:
        if path not in {row.where for row in contents.forbidden}:
            yield Corruption(path, "is missing")
        return
    listed = SUMS if _is_evidence(path) or path == MANIFEST else "the manifest"
    if file.sha256 != wanted or (path == MANIFEST and promise.manifest_error):
        expected = None if _is_evidence(path) else promise.content(path)
        size = f"{len(file.data)} bytes, {len(expected)} expected" if expected else ""
        what = f"differs from {listed}" + (f" ({size})" if size else "")
        what = promise.manifest_error or what if path == MANIFEST else what
        yield Corruption(path, what, difference=Difference.first(file.data, expected))
    elif file.executable != promise.modes.get(path, False):
        mode = "755" if promise.modes.get(path) else "644"
        yield Corruption(path, f"must have mode {mode}", "use chmod")


def _damaged_sums(
    contents: Contents, promise: _Promise, summed: Mapping[str, str]
) -> Iterator[Corruption]:
    evidence = {path: digest for path, digest in summed.items() if _is_evidence(path)}
    expected = sums({**promise.digests, **evidence})
    if SUMS not in contents.files:
        yield Corruption(SUMS, "is missing", "render again")
        return
    found = contents.files[SUMS].data
    if found != expected:
        yield Corruption(
            SUMS, "is not the list of the files", difference=Difference.first(found, expected)
        )
    elif contents.files[SUMS].executable:
        yield Corruption(SUMS, "must have mode 644", "use chmod")


def _wrong_bill(contents: Contents) -> Iterator[Corruption]:
    """A bill of materials that does not tell the digests of the files."""
    if sbom.FILE not in contents.files:
        return
    try:
        recorded = sbom.digests(parse_json(contents.files[sbom.FILE].data))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        yield Corruption(sbom.FILE, f"is not a bill of materials: {error}", "render again")
        return
    for path, digest in recorded.items():
        if contents.digest(path) != digest:
            yield Corruption(sbom.FILE, f"tells another digest of {path}", "render again")


def _foreign_evidence(contents: Contents, digest: str) -> Iterator[Corruption]:
    """Evidence of another bundle."""
    for path, file in contents.files.items():
        if _is_evidence(path) and path.endswith(".json") and len(file.data) <= MAX_JSON_BYTES:
            found = _subject(file.data)
            if found not in (None, digest):
                what = f"is of another bundle, of digest {found}"
                yield Corruption(path, what, "attach runs of this bundle")


def _subject(data: bytes) -> str | None:
    try:
        return subject_digest(parse_json(data))
    except ValueError:
        return None


def _verify_signature(
    report: Verification, contents: Contents, signers: Path | None, identity: str | None
) -> None:
    report.signed = SIGNATURE in contents.files
    if not report.signed:
        if signers:
            report.damage.append(
                Corruption(SIGNATURE, "is missing: the bundle is not signed", "sign it")
            )
        return
    if any(row.file == SUMS for row in report.damage):
        return  # it signs other bytes, of course
    data, file = contents.files[SUMS].data, contents.folder / SIGNATURE
    found = signature.check(data, file, signers, identity)
    if isinstance(found, Signer):
        report.signer = found
    else:
        report.damage.append(Corruption(SIGNATURE, found, "sign the bundle again"))
