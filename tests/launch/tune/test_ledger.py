"""The ledger: what was written stays, and what does not belong together is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import BadInput
from launch.tune import ledger

IDENTITY = {"image": "a", "model": "m"}


def begun(folder: Path) -> Path:
    with ledger.opened(folder, IDENTITY, print):
        return folder / ledger.LEDGER


def test_a_line_that_was_not_written_to_its_end_is_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = begun(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"event": "start')
    with ledger.opened(tmp_path, IDENTITY, print) as book:
        assert len(book.entries) == 1
        assert path.read_bytes() == whole
    assert "the last line was not written to its end; it is ignored" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "identity", "words"),
    [
        ("not JSON\n", IDENTITY, "tune.jsonl:2: is not a line of a tuning run"),
        ('{"event": "ended"}\n', IDENTITY, "tune.jsonl:2: is not a line of a tuning run"),
        ("", {**IDENTITY, "image": "b"}, "tune.jsonl:1: image: was a, now b; restore it, or start"),
    ],
)
def test_what_does_not_belong_to_the_ledger_is_refused(
    tmp_path: Path, line: str, identity: dict[str, str], words: str
) -> None:
    path = begun(tmp_path)
    path.write_text(path.read_text() + line)
    with pytest.raises(BadInput) as refused, ledger.opened(tmp_path, identity, print):
        pass
    assert words in str(refused.value)


def test_a_second_tuner_of_a_folder_is_refused(tmp_path: Path) -> None:
    with ledger.opened(tmp_path, IDENTITY, print), pytest.raises(BadInput) as refused:
        begun(tmp_path)
    assert "is in use by another tune" in str(refused.value)


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with pytest.raises(BadInput) as refused:
        begun(tmp_path)
    assert "is not empty and has no tune.jsonl" in str(refused.value)
