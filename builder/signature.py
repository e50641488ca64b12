"""The signature of a bundle's `SHA256SUMS`: an SSH signature, made and verified by `ssh-keygen`.

A key in PEM, which `ssh-keygen` reads from OpenSSH 9.6 on, signs by `openssl`; the result is the
same kind of signature. Nothing here needs a network.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .diagnostics import Diagnostic
from .errors import BadFacts, BadInput
from .files import read_bytes

# A signature made for something else, such as a commit, is none of a bundle.
NAMESPACE = "bundle@trtllm-deployment-toolkit"

# The armour of OpenSSH, PROTOCOL.sshsig: base64 in lines of 70 characters.
_MOST_BYTES = 100_000  # far above one by the largest RSA key with its certificate
_BEGIN, _END, _COLUMNS = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----", 70
_PEM = b"BEGIN PRIVATE KEY"
_KIND = b"ssh-ed25519"
# What comes before the 32 bytes of the key in the DER of an ed25519 public key, RFC 8410.
_ED25519_DER = bytes.fromhex("302a300506032b6570032100")

# What ssh-keygen says of a key that it cannot use, what that means, and what to do about it.
_KEY_FAULTS = (
    ("passphrase", "has a passphrase", "load it with ssh-add and give its .pub file"),
    ("unprotected", "can be read by others", "chmod 600 it"),
    ("bad permissions", "can be read by others", "chmod 600 it"),
    ("load public key", "is not an SSH key", "make one: ssh-keygen -t ed25519 -f KEY"),
    ("agent", "is not in the agent", "load the private key with ssh-add, or give its file"),
)


@dataclass(frozen=True, slots=True)
class Signer:
    """Whose signature it is: the fingerprint of the key, and the name where it was checked."""

    key: str
    name: str | None


def sign(data: bytes, key: Path) -> bytes:
    """The signature of some bytes. Raises `BadInput` where the key cannot sign."""
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


def check(
    data: bytes, signature: Path, signers: Path | None = None, identity: str | None = None
) -> Signer | str:
    """Whose signature of the bytes it is, or what is wrong with it.

    With a file of allowed signers (`man ssh-keygen`), the key must be there, under the identity if
    one is given. Without, only that key and signature fit is known.
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
    for name in [identity] if identity else _principals(signature, signers, data):
        allowed = ("-f", str(signers), "-I", name)
        if _ssh_keygen("-Y", "verify", *allowed, *shared, data=data).returncode == 0:
            return Signer(key[0].decode(), name)
    who = f"{identity} in {signers}" if identity else f"{signers}"
    return f"was made with key {key[0].decode()}, which is not that of {who}"


def _principals(signature: Path, signers: Path, data: bytes) -> list[str]:
    given = ("-s", str(signature), "-f", str(signers))
    return _ssh_keygen("-Y", "find-principals", *given, data=data).stdout.decode().splitlines()


def _is_canonical(text: bytes) -> bool:
    """Whether it is what ssh-keygen writes, which itself reads over what is around and between."""
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
    """PROTOCOL.sshsig of OpenSSH: what is signed, and the blob that holds the signature."""
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
    """Strings as the SSH protocol writes them, each after its length."""
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
    """A tool, in a session of its own so that it can ask nobody for a passphrase."""
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
