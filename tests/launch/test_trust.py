"""What starts is what was verified: signatures, policies, and private copies of bundles."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from builder import pipeline, verification
from builder.bundle import SIGNATURE, SUMS, Bundle
from builder.errors import BadInput, DamagedBundle
from launch import trust
from launch.trust import Signers
from tests import prefork

NAME = "releases@example.com"


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "key"
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(make, check=True)
    return path


@pytest.fixture(scope="session")
def signers(key: Path) -> Signers:
    file = key.with_name("allowed_signers")
    file.write_text(f"{NAME} {key.with_suffix('.pub').read_text()}")
    return Signers(file, NAME)


@pytest.fixture
def strangers(tmp_path: Path) -> Signers:
    path = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    file = tmp_path / "other_signers"
    file.write_text(f"{NAME} {path.with_suffix('.pub').read_text()}")
    return Signers(file)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return pipeline.render("llama-tiny", tmp_path / "bundle", [], False)


@pytest.fixture
def signed(bundle: Bundle, key: Path) -> Bundle:
    verification.sign(bundle.folder, key)
    return bundle


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


Damage = Callable[[Path], Any]
DAMAGES: dict[str, Damage] = {
    "a file": lambda folder: append(folder / "deployment.yaml"),
    "the list": lambda folder: append(folder / SUMS),
    "no list": lambda folder: (folder / SUMS).unlink(),
    "the signature": lambda folder: append(folder / SIGNATURE),
    "a link": lambda folder: (folder / "more").symlink_to("/etc/passwd"),
    "another file": lambda folder: (folder / "more").touch(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_lists_and_signature_are_read_without_being_asked_for(
    signed: Bundle, damage: Damage
) -> None:
    trust.read(signed.folder, ())
    damage(signed.folder)
    with pytest.raises(DamagedBundle):
        trust.read(signed.folder, ())


def test_a_signature_is_wanted_of_one_of_the_signers(
    signed: Bundle, signers: Signers, strangers: Signers
) -> None:
    trust.read(signed.folder, (signers,))
    with pytest.raises(DamagedBundle, match="which is not that of"):
        trust.read(signed.folder, (strangers,))
    with pytest.raises(DamagedBundle, match="which is not that of"):
        trust.read(signed.folder, (signers, strangers))  # each must be satisfied


def test_an_unsigned_bundle_is_refused_where_a_signature_is_wanted(
    bundle: Bundle, signers: Signers
) -> None:
    with pytest.raises(DamagedBundle, match="not signed"):
        trust.read(bundle.folder, (signers,))


def policy_in(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text)
    monkeypatch.setattr(trust, "POLICY_FILE", path)
    return path


def test_a_policy_of_the_machine_wants_signatures_of_everybody(
    signers: Signers, strangers: Signers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy_in(tmp_path, f"signatures: {{signers: {signers.file}, identity: {NAME}}}", monkeypatch)
    assert trust.required(None, None) == (signers,)
    assert trust.required(strangers.file, None) == (strangers, signers)
    monkeypatch.setenv(trust.POLICY, "")
    assert trust.required(None, None) == (signers,)


def test_a_policy_may_be_named_by_the_environment(
    signers: Signers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"signatures: {{signers: {signers.file}}}")
    monkeypatch.setenv(trust.POLICY, str(path))
    assert trust.required(None, None) == (Signers(signers.file),)
    monkeypatch.setenv(trust.POLICY, str(tmp_path / "missing.yaml"))
    with pytest.raises(BadInput, match=r"missing\.yaml"):
        trust.required(None, None)


def test_a_policy_that_is_a_link_to_nothing_is_not_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.yaml"
    path.symlink_to("missing.yaml")
    monkeypatch.setattr(trust, "POLICY_FILE", path)
    with pytest.raises(BadInput, match="cannot be read"):
        trust.required(None, None)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "7", "a: [", "\0", "signatures: true", "signatures: {}", "other: {signers: f}"),
        *("signatures: {signers: 7}", "signatures: {signers: ''}", "signatures: {other: f}"),
        *("signatures: {signers: f, other: g}", "signatures: {signers: f, identity: null}"),
        "{signatures: {signers: f}, more: 1}",
        *("images: required", "images: {digests: wanted}", "images: {digests: true}"),
        "{signatures: {signers: f}, images: {digests: required, more: 1}}",
        *("images: !!int x", "images: {digests: required}\nimages: {digests: required}"),
        "a: " + "[" * 20_000,
    ],
)
def test_a_policy_that_says_something_else_starts_nothing(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = policy_in(tmp_path, text, monkeypatch)
    with pytest.raises(BadInput, match=str(path)):
        trust.required(None, None)


def test_a_policy_that_is_no_file_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(path := tmp_path / "policy.yaml")
    monkeypatch.setattr(trust, "POLICY_FILE", path)
    with pytest.raises(BadInput, match="pipe"):
        trust.required(None, None)


@pytest.mark.parametrize(
    ("name", "identity"), [("pipe", None), ("nul\0", None), ("file", "a\0"), ("file", "a\nb")]
)
def test_signers_that_ssh_keygen_would_wait_for_or_misread_are_refused(
    name: str, identity: str | None, signed: Bundle, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    with pytest.raises(BadInput):
        verification.verify(signed.folder, tmp_path / name, identity)


def test_an_identity_without_signers_is_named() -> None:
    with pytest.raises(BadInput, match="add --signers"):
        trust.required(None, NAME)


def test_a_copy_is_whole_signed_and_of_this_user_alone(
    signed: Bundle, signers: Signers, tmp_path: Path
) -> None:
    copy = trust.private_copy(signed, tmp_path / "run" / "copy", (signers,))
    assert (copy.digest, copy.folder) == (signed.digest, tmp_path / "run" / "copy")
    assert copy.folder.stat().st_mode & 0o777 == 0o700
    assert verification.verify(copy.folder, signers.file).signer
    append(signed.folder / "deployment.yaml")  # later
    assert trust.private_copy(copy, copy.folder, (signers,)).digest == signed.digest
    assert [path.name for path in copy.folder.parent.iterdir()] == ["copy"]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_changed_after_the_check_is_not_copied(
    signed: Bundle, signers: Signers, damage: Damage, tmp_path: Path
) -> None:
    damage(signed.folder)
    with pytest.raises(DamagedBundle):
        trust.private_copy(signed, tmp_path / "run" / "copy", (signers,))
    assert list((tmp_path / "run").iterdir()) == []


def test_another_bundle_in_the_place_of_the_checked_one_is_not_copied(
    bundle: Bundle, tmp_path: Path
) -> None:
    other = pipeline.render("llama-tiny", tmp_path / "other", ["name=other"], False)
    shutil.rmtree(bundle.folder)
    other.folder.rename(bundle.folder)
    with pytest.raises(DamagedBundle, match="was changed while it was read"):
        trust.private_copy(bundle, tmp_path / "run" / "copy", ())


def test_a_copy_that_was_changed_is_not_used(bundle: Bundle, tmp_path: Path) -> None:
    copy = trust.private_copy(bundle, tmp_path / "copy", ())
    append(copy.folder / "deployment.yaml")
    with pytest.raises(DamagedBundle, match="is a damaged copy"):
        trust.private_copy(bundle, tmp_path / "copy", ())


def test_two_that_copy_at_once_use_one_copy(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, make = threading.Barrier(2, timeout=20), tempfile.mkdtemp

    def together(**given: Any) -> str:
        both.wait()  # neither has a copy yet
        return str(make(**given))

    monkeypatch.setattr(tempfile, "mkdtemp", together)
    with ThreadPoolExecutor(2) as pool:
        copies = list(pool.map(lambda _: trust.private_copy(bundle, tmp_path / "copy", ()), "ab"))
    assert [copy.folder for copy in copies] == [tmp_path / "copy"] * 2
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".copy.")] == []


def test_a_bundle_that_was_signed_after_it_was_copied_is_known_to_be(
    bundle: Bundle, key: Path, signers: Signers, tmp_path: Path
) -> None:
    trust.private_copy(bundle, tmp_path / "copy", ())
    with pytest.raises(DamagedBundle, match="not signed"):
        trust.private_copy(bundle, tmp_path / "copy", (signers,))
    verification.sign(bundle.folder, key)
    trust.private_copy(bundle, tmp_path / "copy", (signers,))


PINNED = "nvcr.io/nvidia/tritonserver@sha256:" + "0" * 64
TAGGED = "nvcr.io/nvidia/tritonserver:26.01-trtllm-python-py3"


@pytest.mark.parametrize(
    ("images", "refused"),
    [({"triton": PINNED}, []), ({}, ["nvcr.io/nvidia/tritonserver:"])],
    ids=["a digest", "the usual image by its tag"],
)
def test_a_policy_may_refuse_images_without_a_digest(
    images: dict[str, str], refused: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_in(tmp_path, "images: {digests: required}", monkeypatch)
    asked = ["targets={triton: {}, kubernetes: {server: triton}}", f"images={images}"]
    bundle = pipeline.render("llama-tiny", tmp_path / "bundle", asked, False)
    trust.read(bundle.folder, ())
    requirements = trust.required(None, None)
    if not refused:
        trust.private_copy(bundle, tmp_path / "copy", requirements)
        return
    with pytest.raises(BadInput) as error:
        trust.read(bundle.folder, requirements)
    said = "\n".join(map(str, error.value.diagnostics))
    assert str(policy) in said
    assert "kubernetes/" in said
    assert "@sha256:DIGEST" in said
    assert all(image in said for image in refused)
    with pytest.raises(BadInput):
        trust.private_copy(bundle, tmp_path / "copy", requirements)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("name", "text", "is_refused"),
    [
        ("slurm/service.json", '{"container": {"images": {"triton": "docker://host#a:1"}}}', True),
        ("slurm/service.json", '{"images": {"triton": "/images/triton.sqsh"}}', False),
        ("compose.yaml", f"x: &a {{image: '{TAGGED}'}}\ny: [*a, *a]", True),
        ("compose.yaml", f"services: {{a: {{image: '{PINNED}'}}}}", False),
        ("handoff/ci.yaml", "image: python:3.12", False),
    ],
)
def test_images_are_found_wherever_a_file_names_them(
    name: str, text: str, is_refused: bool, bundle: Bundle
) -> None:
    file = bundle.folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    found = trust.unpinned_images(bundle)
    assert [row.where for row in found] == ([str(file)] if is_refused else [])


@pytest.mark.parametrize("verb", [["up"], ["rehearse"], ["smoke"], ["bench"], ["slurm", "submit"]])
def test_no_verb_starts_or_asks_a_server_of_a_bundle_that_the_policy_refuses(
    bundle: Bundle,
    signers: Signers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: list[str],
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"signatures: {{signers: {signers.file}}}")
    monkeypatch.setenv(trust.POLICY, str(policy))
    target = [] if verb[0] in ("rehearse", "slurm") else ["--target=triton"]
    words = [*verb, str(bundle.folder), *target]
    done = prefork.shared().run(words, tmp_path, "launch").done
    expected = (2, "has no target slurm") if verb[0] == "slurm" else (4, "not signed")
    assert (done.returncode, expected[1] in done.stderr) == (expected[0], True), done.stderr


@pytest.mark.parametrize("verb", [["up"], ["rehearse"], ["smoke"]])
def test_a_signer_is_wanted_by_an_option(
    bundle: Bundle, signers: Signers, verb: list[str], tmp_path: Path
) -> None:
    words = [*verb, str(bundle.folder), "--signers", str(signers.file)]
    done = prefork.shared().run(words, tmp_path, "launch").done
    assert done.returncode == 4 and "not signed" in done.stderr
    assert not (tmp_path / "runs").exists()
