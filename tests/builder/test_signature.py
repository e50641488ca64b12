"""Signatures: what may sign, what a signature is worth, and that no byte of one can change."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder import verification
from builder.errors import BadFacts, BadInput
from builder.verification import Signer

DATA = b"the list\n"


def ssh_key(path: Path, passphrase: str = "") -> Path:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)]
    subprocess.run(command, check=True)
    return path


def pem_key(path: Path, kind: str = "ed25519", *options: str) -> Path:
    command = ["openssl", "genpkey", "-algorithm", kind, *options, "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return ssh_key(tmp_path / "key")


@pytest.fixture
def signed(key: Path, tmp_path: Path) -> Path:
    """A signature of the data."""
    (tmp_path / "data.sig").write_bytes(verification.sign_bytes(DATA, key))
    return tmp_path / "data.sig"


@pytest.fixture
def signers(key: Path, tmp_path: Path) -> Path:
    """Who may sign: the owner of the key, called `release`."""
    public = key.with_suffix(".pub").read_text()
    (tmp_path / "signers").write_text(f"other {public_of(tmp_path / 'other')}release {public}")
    return tmp_path / "signers"


def public_of(path: Path) -> str:
    return ssh_key(path).with_suffix(".pub").read_text()


def test_a_signature_names_its_key(signed: Path) -> None:
    found = verification.check_signature(DATA, signed)
    assert isinstance(found, Signer)
    assert found.key.startswith("SHA256:")
    assert found.name is None


def test_an_allowed_signer_is_named(signed: Path, signers: Path) -> None:
    found = verification.check_signature(DATA, signed, signers)
    assert isinstance(found, Signer)
    assert found.name == "release"
    assert found == verification.check_signature(DATA, signed, signers, "release")


def test_another_signer_is_not_the_one_that_was_asked_for(signed: Path, signers: Path) -> None:
    assert "which is not that of other in" in str(
        verification.check_signature(DATA, signed, signers, "other")
    )


def test_a_key_that_is_not_allowed_is_refused(signed: Path, tmp_path: Path) -> None:
    (tmp_path / "others").write_text(f"release {public_of(tmp_path / 'stranger')}")
    assert "which is not that of" in str(
        verification.check_signature(DATA, signed, tmp_path / "others")
    )


def test_other_data_is_not_signed(signed: Path) -> None:
    assert "is not a signature of these bytes" in str(
        verification.check_signature(b"the fist\n", signed)
    )


def test_a_signature_for_another_purpose_is_none(key: Path, tmp_path: Path) -> None:
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", "git"]
    made = subprocess.run(command, input=DATA, capture_output=True, check=True).stdout
    (tmp_path / "git.sig").write_bytes(made)
    assert "is not a signature of these bytes" in str(
        verification.check_signature(DATA, tmp_path / "git.sig")
    )


def test_no_byte_of_a_signature_can_change(signed: Path) -> None:
    """ssh-keygen itself reads over the newline at the end, and over more."""
    whole = signed.read_bytes()
    unseen = []
    for offset, value in enumerate(whole):
        changed = bytes((value ^ 1 << offset % 8,))
        signed.write_bytes(whole[:offset] + changed + whole[offset + 1 :])
        if isinstance(verification.check_signature(DATA, signed), Signer):
            unseen.append(offset)
    assert not unseen
    signed.write_bytes(whole + b"\n")
    assert (
        verification.check_signature(DATA, signed)
        == "is not an SSH signature as ssh-keygen writes it"
    )


def test_a_key_in_pem_makes_the_same_kind_of_signature(tmp_path: Path) -> None:
    key = pem_key(tmp_path / "key.pem")
    (tmp_path / "data.sig").write_bytes(verification.sign_bytes(DATA, key))
    assert isinstance(verification.check_signature(DATA, tmp_path / "data.sig"), Signer)
    assert isinstance(verification.check_signature(b"other", tmp_path / "data.sig"), str)


def test_the_agent_signs_for_a_key_with_a_passphrase(
    agent: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = ssh_key(tmp_path / "locked", "secret")
    (tmp_path / "askpass").write_text("#!/bin/sh\necho secret\n")
    (tmp_path / "askpass").chmod(0o700)
    monkeypatch.setenv("SSH_ASKPASS", str(tmp_path / "askpass"))
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    subprocess.run(["ssh-add", "-q", str(key)], check=True, stdin=subprocess.DEVNULL)
    (tmp_path / "data.sig").write_bytes(verification.sign_bytes(DATA, key.with_suffix(".pub")))
    assert isinstance(verification.check_signature(DATA, tmp_path / "data.sig"), Signer)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An agent for keys, which ends with the test."""
    socket = tmp_path / "agent"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout
    process.stdout.readline()  # it says where it listens once it does
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    yield
    process.terminate()
    process.wait()
    process.stdout.close()


def fault(key: Path) -> str:
    with pytest.raises(BadInput) as found:
        verification.sign_bytes(DATA, key)
    return str(found.value)


def test_a_key_with_a_passphrase_says_what_to_do(tmp_path: Path) -> None:
    remedy = "has a passphrase; load it with ssh-add and give its .pub file"
    assert remedy in fault(ssh_key(tmp_path / "locked", "secret"))
    locked = pem_key(tmp_path / "locked.pem", "ed25519", "-aes256", "-pass", "pass:secret")
    assert remedy in fault(locked)


def test_what_is_no_key_is_said(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello\n")
    assert "is not an SSH key; make one: ssh-keygen" in fault(tmp_path / "text")
    assert "cannot be read: no such file" in fault(tmp_path / "none")
    assert "is a folder" in fault(tmp_path)
    assert "is not an ed25519 key" in fault(pem_key(tmp_path / "x.pem", "x25519"))


def test_a_key_that_others_can_read_is_refused(key: Path) -> None:
    key.chmod(0o644)
    assert "can be read by others; chmod 600 it" in fault(key)


def test_a_missing_tool_is_named(
    key: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadFacts, match=r"ssh-keygen: is not installed.*openssh-client"):
        verification.sign_bytes(DATA, key)
