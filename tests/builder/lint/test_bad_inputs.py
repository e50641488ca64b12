"""Inputs that nobody can use: a clear line or a few, soon, in little memory, nothing written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from builder.lint.read.file import MAX_CHARACTERS
from tests import prefork

# Of processor time: it guards against what grows without bounds.
MAX_SECONDS = 5.0
MAX_PEAK_MB = 200

# Files of other kinds that are far larger than anyone writes them.
LARGE = {
    "config.pbtxt": 'parameters { key: "a" value: { string_value: "b" } }\n' * 56_000,
    "broken.pbtxt": "typo: 3\n" * 300_000,
    "serve.sh": 'echo a few words and "more" of them\n' * 60_000 + "trtllm-serve model\n",
}


@pytest.mark.parametrize("name", LARGE)
def test_a_file_that_is_too_large_for_its_kind_is_refused_at_once(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(LARGE[name])
    found = prefork.shared().run(["check", name], tmp_path)
    assert found.done.returncode == 2
    assert re.match(rf"{name}: error\[unreadable\] \d+ characters are too", found.done.stdout)
    assert found.seconds < MAX_SECONDS and found.peak_mb < MAX_PEAK_MB


@pytest.mark.parametrize("name", LARGE)
def test_a_file_that_is_barely_small_enough_is_read_soon(name: str, tmp_path: Path) -> None:
    rows = LARGE[name].splitlines(keepends=True)
    count = (MAX_CHARACTERS - 100) // len(rows[0])
    (tmp_path / name).write_text("".join([*rows[:count], *rows[-1:]]))
    found = prefork.shared().run(["check", name], tmp_path)
    assert "characters are too" not in found.done.stdout
    assert found.done.stdout.count("\n") < 300
    assert found.seconds < MAX_SECONDS and found.peak_mb < MAX_PEAK_MB


@pytest.mark.parametrize(
    ("size", "text", "said"),
    [
        (50_000_000, "", "50000000 bytes is too large"),
        (0, "- name: x\n", "kind not recognised"),
        (0, "hello\n", "holds no options"),
    ],
)
def test_what_holds_no_options_is_said(size: int, text: str, said: str, tmp_path: Path) -> None:
    with (tmp_path / "f.yaml").open("w") as file:
        file.write(text)
        file.truncate(size or None)
    found = prefork.shared().run(["check", "f.yaml"], tmp_path)
    assert said in found.done.stdout
    assert found.seconds < MAX_SECONDS and found.peak_mb < MAX_PEAK_MB


def test_keys_that_are_no_strings_are_named_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "deployment.yaml").write_text("max_batch_size: 8\n12: 1\non: 2\n")
    done = prefork.shared().run(["check", "deployment.yaml"], tmp_path).done
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert lines[0].startswith("deployment.yaml:2:1: error[unknown-key] 12: unknown option")
    assert lines[1].startswith("deployment.yaml:3:1: error[unknown-key] True: unknown option")


# The superuser may read everything, unless that right is taken from it.
UNPRIVILEGED = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


def test_what_must_not_be_read_is_named_and_the_rest_is_checked(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    (tmp_path / "locked.yaml").write_text("max_batch_size: 8\n")
    (tmp_path / "locked.yaml").chmod(0)
    (tmp_path / "f.yaml").write_text("max_batch_size: 8\n")
    rights = UNPRIVILEGED if os.geteuid() == 0 else []
    command = [*rights, sys.executable, "-m", "builder", "check", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout.count("cannot be read: permission denied") == 2
    assert "f.yaml: engine options" in done.stdout


def test_one_file_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "b.yaml").write_text("max_bach_size: 8\nmax_num_tokens: 8\n")
    command = [sys.executable, "-m", "builder", "check", "a.yaml", "b.yaml", "c.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[:3]] == [
        "a.yaml",
        "b.yaml",
        "c.yaml",
    ]
