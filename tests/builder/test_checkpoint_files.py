"""The files of a checkpoint: their digests come from others, and weights are never read."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from huggingface_hub._local_folder import write_download_metadata

from builder.errors import BadFacts
from builder.facts import checkpoint_files
from builder.facts.checkpoint_files import HASHED_BYTES, CheckpointFile
from tests.tables import by_table

COMMIT = "1" * 40
DIGEST = "ab" * 32
WEIGHTS = "model-00001-of-00002.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small file, and one that is too large to be read; it takes no room."""
    made = tmp_path / "checkpoint"
    made.mkdir()
    (made / "config.json").write_text("{}")
    with (made / WEIGHTS).open("wb") as file:
        file.truncate(HASHED_BYTES + 1)
    return made


def weights_of(folder: Path) -> CheckpointFile:
    return next(row for row in checkpoint_files.read(folder).files if row.name == WEIGHTS)


def test_small_files_are_hashed_and_weights_are_not(folder: Path) -> None:
    listing = checkpoint_files.read(folder)
    assert listing.files == (
        CheckpointFile("config.json", 2, hashlib.sha256(b"{}").hexdigest(), "its content"),
        CheckpointFile(WEIGHTS, HASHED_BYTES + 1, None, None),
    )
    assert [row.name for row in listing.unknown] == [WEIGHTS]


def test_a_list_in_the_folder_knows_the_weights(folder: Path) -> None:
    (folder / "SHA256SUMS").write_text(f"{DIGEST} *./{WEIGHTS}\n")
    assert weights_of(folder).sha256 == DIGEST
    assert weights_of(folder).digest_source == "SHA256SUMS"


def test_the_command_that_is_named_makes_the_list(folder: Path) -> None:
    subprocess.run(["bash", "-c", checkpoint_files.COMMAND], cwd=folder, check=True)
    digest = hashlib.sha256(bytes(HASHED_BYTES + 1)).hexdigest()
    assert weights_of(folder).sha256 == digest
    assert not checkpoint_files.read(folder).unknown


def test_a_list_that_contradicts_a_file_is_a_fault(folder: Path) -> None:
    (folder / "SHA256SUMS").write_text(f"{DIGEST}  config.json\n")
    with pytest.raises(
        BadFacts, match=rf"config.json: has the digest .*, SHA256SUMS says {DIGEST}"
    ):
        checkpoint_files.read(folder)


def test_the_hub_client_leaves_digest_and_commit(folder: Path) -> None:
    """Written by the client itself; of a small file it notes no SHA-256."""
    for name, etag in ((WEIGHTS, DIGEST), ("config.json", "2" * 40)):
        metadata = folder / checkpoint_files.METADATA / f"{name}.metadata"
        metadata.parent.mkdir(parents=True, exist_ok=True)
        write_download_metadata(folder, name, COMMIT, etag)
        assert metadata.is_file()
    assert weights_of(folder) == CheckpointFile(
        WEIGHTS, HASHED_BYTES + 1, DIGEST, "Hugging Face download"
    )
    assert checkpoint_files.read(folder).revision == COMMIT
    assert len(checkpoint_files.read(folder).files) == 2


def test_what_changed_after_the_download_is_not_known(folder: Path) -> None:
    (folder / checkpoint_files.METADATA).mkdir(parents=True)
    write_download_metadata(folder, WEIGHTS, COMMIT, DIGEST)
    later = (folder / WEIGHTS).stat().st_mtime + 10
    os.utime(folder / WEIGHTS, (later, later))
    assert weights_of(folder).sha256 is None
    assert checkpoint_files.read(folder).revision is None


def test_the_cache_of_the_hub_client_names_blobs_by_their_digest(
    folder: Path, tmp_path: Path
) -> None:
    blobs, snapshot = tmp_path / "hub" / "blobs", tmp_path / "hub" / "snapshots" / COMMIT
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (folder / WEIGHTS).rename(blobs / DIGEST)
    (snapshot / WEIGHTS).symlink_to(Path("../../blobs") / DIGEST)
    assert weights_of(snapshot).sha256 == DIGEST
    assert checkpoint_files.read(snapshot).revision == COMMIT


@pytest.mark.parametrize("content", ["", "x\n", f"{COMMIT}\n{DIGEST}\nyesterday\n"])
def test_a_note_that_is_none_is_left_alone(content: str, folder: Path) -> None:
    note = folder / checkpoint_files.METADATA / f"{WEIGHTS}.metadata"
    note.parent.mkdir(parents=True)
    note.write_text(content)
    assert weights_of(folder).sha256 is None


@by_table
def test_the_model_card_names_the_license(card: str, license: str | None, folder: Path) -> None:
    (folder / "README.md").write_text(card, encoding="latin-1", newline="")
    assert checkpoint_files.read(folder).license == license
