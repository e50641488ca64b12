"""Verification: checks every byte, list, evidence and signature of a bundle, offline.

The manifest and `SHA256SUMS` hold the digest of each rendered file. A corrupted file is compared
with what the bundle's own request and facts render, and its first wrong byte is reported.

The signature is an SSH signature of `SHA256SUMS`, made and verified by `ssh-keygen`. A key in PEM,
which `ssh-keygen` reads from OpenSSH 9.6 on, signs with `openssl`; the result is the same kind of
signature.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from . import bundle, pipeline
from .bundle import (
    EVIDENCE,
    MANIFEST,
    SIGNATURE,
    SUMS,
    Contents,
    File,
    read_sums,
    subject_digest,
    sums,
)
from .diagnostics import Diagnostic, one_line
from .errors import BadFacts, BadInput, DamagedBundle, ToolkitError
from .files import MAX_JSON_BYTES, parse_json, read_bytes, reported, whole_file
from .resolve import IMPORTED_RELEASE
from .targets.components import BILL_FILE, bill_digests

CHECKPOINT = "checkpoint.json"

# The files that a bundle is rendered from.
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
    """What is wrong with a file, and where if that is known."""

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
    """The result. `signer` is `None` without a signature, or without a key to verify it."""

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
    """All damage to a bundle; with `signers`, one of them must have signed it.

    Raises `BadInput` if the folder is not a bundle.
    """
    if signers:
        read_bytes(signers)  # a file, which ssh-keygen does not ask for
    if identity is not None and not identity.isprintable():
        raise BadInput(Diagnostic(one_line(identity), "is no identity", "give one of the signers"))
    contents = bundle.read_contents(folder)
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
    """Sign an intact bundle, replacing an earlier signature."""
    report = verify(folder)
    report.damage = [row for row in report.damage if row.file != SIGNATURE]
    require(report)
    data, file = (folder / SUMS).read_bytes(), folder / SIGNATURE
    made = sign_bytes(data, key)
    remedy = "check the folder's owner and the disk"
    with reported(file, "cannot be written", remedy), whole_file(file) as new:
        new.write_bytes(made)
    found = check_signature(data, file)
    assert isinstance(found, Signer), found
    return found


def require(report: Verification) -> None:
    """Raises `DamagedBundle` with all damage."""
    if report.damage:
        raise DamagedBundle(row.diagnostic for row in report.damage)


def _is_evidence(path: str) -> bool:
    return path.startswith(f"{EVIDENCE}/")


def _listed(contents: Contents) -> tuple[dict[str, dict[str, Any]], str]:
    """The manifest's entry of each file, and what is wrong with the manifest if it has none."""
    if MANIFEST not in contents.files:
        return {}, "is missing"
    try:
        return bundle.read_manifest(contents.files[MANIFEST].data)["files"], ""
    except DamagedBundle as error:
        return {}, error.diagnostics[0].message


@dataclass(frozen=True, slots=True)
class _Promise:
    """What a bundle should contain: the digest of each rendered file, and its bytes if known."""

    digests: Mapping[str, str]
    made_again: Mapping[str, File]
    manifest_error: str
    modes: Mapping[str, bool]

    def content(self, path: str) -> bytes | None:
        """The expected bytes of a file, if its digest proves them."""
        digest = self.digests[path]
        if path in self.made_again and self.made_again[path].sha256 == digest:
            return self.made_again[path].data
        return None


def _damaged_files(contents: Contents) -> Iterator[Corruption]:
    rows, error = _listed(contents)
    summed = read_sums(contents.files[SUMS].data) if SUMS in contents.files else {}
    if error and MANIFEST not in summed:  # nothing says what the files should be
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
    """Compares the manifest with `SHA256SUMS`. If they differ, the files rendered again decide; if
    those cannot be rendered, `SHA256SUMS` wins, which a signature covers."""
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
    """The bundle rendered from its own request and facts, if these are unchanged."""
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
    if BILL_FILE not in contents.files:
        return
    try:
        recorded = bill_digests(parse_json(contents.files[BILL_FILE].data))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        yield Corruption(BILL_FILE, f"is not a bill of materials: {error}", "render again")
        return
    for path, digest in recorded.items():
        if contents.digest(path) != digest:
            yield Corruption(BILL_FILE, f"has another digest of {path}", "render again")


def _foreign_evidence(contents: Contents, digest: str) -> Iterator[Corruption]:
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
        return  # a signature of other bytes
    data, file = contents.files[SUMS].data, contents.folder / SIGNATURE
    found = check_signature(data, file, signers, identity)
    if isinstance(found, Signer):
        report.signer = found
    else:
        report.damage.append(Corruption(SIGNATURE, found, "sign the bundle again"))


# Signatures for other purposes, such as commits, are not valid for bundles.
NAMESPACE = "bundle@trtllm-deployment-toolkit"

# The armour of OpenSSH, PROTOCOL.sshsig: base64 in lines of 70 characters.
_MOST_BYTES = 100_000  # far above one by the largest RSA key with its certificate
_BEGIN, _END, _COLUMNS = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----", 70
_PEM = b"BEGIN PRIVATE KEY"
_KIND = b"ssh-ed25519"
# The bytes before the 32 bytes of the key in the DER of an ed25519 public key, RFC 8410.
_ED25519_DER = bytes.fromhex("302a300506032b6570032100")

# Words in ssh-keygen's errors about a key, what is wrong, and the fix.
_KEY_FAULTS = (
    ("passphrase", "has a passphrase", "load it with ssh-add and give its .pub file"),
    ("unprotected", "can be read by others", "chmod 600 it"),
    ("bad permissions", "can be read by others", "chmod 600 it"),
    ("load public key", "is not an SSH key", "make one: ssh-keygen -t ed25519 -f KEY"),
    ("agent", "is not in the agent", "load the private key with ssh-add, or give its file"),
)


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signed: the fingerprint of the key, and the name if it was checked."""

    key: str
    name: str | None


def sign_bytes(data: bytes, key: Path) -> bytes:
    """The signature of some bytes. Raises `BadInput` if the key cannot sign."""
    if _PEM in read_bytes(key).partition(b"\n")[0]:
        return _sign_with_openssl(data, key)
    done = _ssh_keygen("-Y", "sign", "-f", str(key), "-n", NAMESPACE, data=data)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        for word, what, remedy in _KEY_FAULTS:
            if word in said.lower():
                raise BadInput(Diagnostic(str(key), what, remedy))
        what = f"cannot sign: {said.splitlines()[-1] if said else 'no reason given'}"
        raise BadInput(Diagnostic(str(key), what, "give the file of an SSH key"))
    return done.stdout


def check_signature(
    data: bytes, signature: Path, signers: Path | None = None, identity: str | None = None
) -> Signer | str:
    """Who signed the bytes, or what is wrong with the signature.

    With a file of allowed signers (`man ssh-keygen`), the key must be there, under `identity` if
    that is set. Otherwise only the match of key and signature is checked.
    """
    if signature.stat().st_size > _MOST_BYTES or not _is_canonical(signature.read_bytes()):
        return "is not an SSH signature as ssh-keygen writes it"
    shared = ("-n", NAMESPACE, "-s", str(signature))
    done = _ssh_keygen("-Y", "check-novalidate", *shared, data=data)
    if done.returncode:
        return f"is not a signature of these bytes for {NAMESPACE}"
    key = re.search(rb"SHA256:\S+", done.stdout)
    if key is None:
        return "was made with a key of unknown kind"
    if signers is None:
        return Signer(key[0].decode(), None)
    asked = ("-Y", "find-principals", "-s", str(signature), "-f", str(signers))
    names = [identity] if identity else _ssh_keygen(*asked, data=data).stdout.decode().splitlines()
    for name in names:
        allowed = ("-f", str(signers), "-I", name)
        if _ssh_keygen("-Y", "verify", *allowed, *shared, data=data).returncode == 0:
            return Signer(key[0].decode(), name)
    who = f"{identity} in {signers}" if identity else f"{signers}"
    return f"was made with key {key[0].decode()}, which is not that of {who}"


def _is_canonical(text: bytes) -> bool:
    """Whether it is exactly what ssh-keygen writes; ssh-keygen itself ignores surrounding text."""
    body = text.decode(errors="replace").removeprefix(f"{_BEGIN}\n").partition(f"\n{_END}")[0]
    try:
        return text == _armoured(base64.b64decode(body.replace("\n", ""), validate=True))
    except ValueError:
        return False


def _armoured(blob: bytes) -> bytes:
    text = base64.b64encode(blob).decode()
    lines = [text[at : at + _COLUMNS] for at in range(0, len(text), _COLUMNS)]
    return "".join(f"{line}\n" for line in (_BEGIN, *lines, _END)).encode()


def _sign_with_openssl(data: bytes, key: Path) -> bytes:
    """The data to sign and the resulting blob follow OpenSSH's PROTOCOL.sshsig."""
    public = _openssl(key, "pkey", "-in", str(key), "-pubout", "-outform", "DER")
    if not public.startswith(_ED25519_DER):
        raise BadInput(
            Diagnostic(str(key), "is not an ed25519 key", "give an ed25519 key, or an SSH key")
        )
    subject = _strings(NAMESPACE.encode(), b"", b"sha512")
    with tempfile.NamedTemporaryFile() as file:  # openssl 3.0 signs files only with this kind
        file.write(b"SSHSIG" + subject + _strings(hashlib.sha512(data).digest()))
        file.flush()
        signed = _openssl(key, "pkeyutl", "-sign", "-rawin", "-inkey", str(key), "-in", file.name)
    owner = _strings(_strings(_KIND, public[len(_ED25519_DER) :]))
    version = (1).to_bytes(4, "big")
    return _armoured(b"SSHSIG" + version + owner + subject + _strings(_strings(_KIND, signed)))


def _strings(*values: bytes) -> bytes:
    """Strings in the SSH protocol's format, each after its length."""
    return b"".join(len(value).to_bytes(4, "big") + value for value in values)


def _openssl(key: Path, *arguments: str) -> bytes:
    done = _run(("openssl", *arguments), b"")
    if done.returncode:
        what = "is not a private key that openssl can use without a passphrase"
        raise BadInput(Diagnostic(str(key), what, "give an ed25519 key, or an SSH key"))
    return done.stdout


def _ssh_keygen(*arguments: str, data: bytes) -> subprocess.CompletedProcess[bytes]:
    return _run(("ssh-keygen", *arguments), data)


def _run(command: tuple[str, ...], data: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run a tool in a new session, so that it cannot ask for a passphrase."""
    environment = os.environ | {"LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"}
    try:
        return subprocess.run(
            command,
            input=data,
            capture_output=True,
            env=environment,
            start_new_session=True,
            check=False,
        )
    except FileNotFoundError:
        package = {"ssh-keygen": "openssh-client", "openssl": "openssl"}[command[0]]
        what = "is not installed, and signatures need it"
        raise BadFacts(Diagnostic(command[0], what, f"install {package}")) from None
