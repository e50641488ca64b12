"""Files that are written as a whole."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from builder.files import whole_file


def test_readers_see_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    with whole_file(path) as new:
        new.write_text("half")
        assert path.read_text() == "old"
        new.write_text("new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_failed_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    with pytest.raises(ValueError, match="wrong"), whole_file(path) as new:
        new.write_text("half")
        raise ValueError("wrong")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_or_device_is_written_to_and_stays(tmp_path: Path) -> None:
    """As root a file in the place of `/dev/null` would take that from everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    with whole_file(pipe) as new:
        new.write_text("all of it")
    reader.join(10)
    assert read == ["all of it"] and pipe.is_fifo()
    with pytest.raises(OSError, match="nobody reads this pipe"), whole_file(pipe):
        pass  # which would else wait for a reader for ever
    with whole_file(Path("/dev/stdout")) as new:
        assert new == Path("/dev/stdout")
