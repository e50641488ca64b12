"""Inputs that nobody can use: a clear line or a few, soon, in little memory, nothing written."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builder.lint.read.file import MAX_CHARACTERS
from tests import prefork
from tests.prefork import Measured

GOOD = """\
name: one
checkpoint: ./weights
hardware: {gpu: h100, num_gpus: 1}
engine: {release: 1.2.1}
workload: {isl: 64, osl: 64, concurrency: 4}
targets: [trtllm_serve]
"""

# Of processor time: it guards against what grows without bounds.
MAX_SECONDS = 5.0
MAX_PEAK_MB = 200

Make = Callable[[Path], object]


def text(content: str) -> Make:
    return lambda path: path.write_text(content)


def raw(content: bytes) -> Make:
    return lambda path: path.write_bytes(content)


def bomb(path: Path) -> None:
    rows = ["a0: &a0 [x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    path.write_text("\n".join(rows))


def large(path: Path) -> None:
    with path.open("w") as file:
        file.truncate(50_000_000)


def locked(path: Path) -> None:
    path.write_text(GOOD)
    path.chmod(0)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


# Case: what lies at the place of the file, and what the line about it holds.
FILES: dict[str, tuple[Make, str]] = {
    "a tab": (text("max_batch_size: 8\n\tname: x\n"), "found a tab character"),
    "no YAML": (text("max_batch_size: [8\n"), "is not YAML: did not find expected"),
    "a key given twice": (text(GOOD + "name: two\n"), "is given twice, first in line 1"),
    "an alias of nothing": (text("max_batch_size: *b\n"), "which nothing above defines"),
    "a list": (text("- name: x\n"), "list|kind not recognised"),
    "one word": (text("hello\n"), "is a str|holds no options"),
    "an empty file": (text(""), "is empty"),
    "only a comment": (text("# nothing\n"), "is empty"),
    "two documents": (text(GOOD + "---\nname: two\n"), "begins a second document"),
    "a value that is not data": (text("max_batch_size: !!set {a}\n"), "a value that no option"),
    "a number of 5,000 digits": (text(f"max_batch_size: {'9' * 5000}\n"), "5000 digits"),
    "deep nesting": (text("max_batch_size: " + "[" * 50_000), "is nested too deeply"),
    "deep blocks": (
        text("\n".join(f"{' ' * i}max_batch_size:" for i in range(2000))),
        "is nested too deeply",
    ),
    "a bomb of aliases": (bomb, "has more than 100000 values"),
    "a long list": (text("max_batch_size:\n" + "- a\n" * 400_000), "has more than 100000 val"),
    "50 megabytes": (large, "50000000 bytes is too large"),
    "a binary file": (raw(b"\x7fELF\x80\x81\xff" * 1000), "is not UTF-8 text"),
    "a control character": (raw(b"max_batch_size: 8\x00\n"), "control characters"),
    "UTF-16": (raw("max_batch_size: 8\n".encode("utf-16")), "is not UTF-8 text"),
    "a link to itself": (loop, "too many levels of symbolic links"),
    "a link to nothing": (lambda path: path.symlink_to("gone"), "no such file|neither a file"),
    "a pipe": (os.mkfifo, "is a device, pipe or socket"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is a device, pipe or socket"),
    "an unknown release": (text(GOOD.replace("1.2.1", "0.9.0")), r"0\.9\.0 .*table; known: 1\.0"),
}

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


HEADER = struct.pack("<Q", 1 << 40)


def config(content: str) -> Make:
    return lambda folder: (folder / "config.json").write_text(content)


def truncated(folder: Path) -> None:
    shard = next(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:1000])


def huge_header(folder: Path) -> None:
    next(folder.glob("*.safetensors")).write_bytes(HEADER + b"{}")


def no_header(folder: Path) -> None:
    next(folder.glob("*.safetensors")).write_bytes(b"abc")


def folder_for_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()


def emptied(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


# Case: what is wrong with the checkpoint of a right deployment, and what the line about it holds.
CHECKPOINTS: dict[str, tuple[Make, str]] = {
    "a config.json that is a list": (config("[]"), "holds a list, not an object"),
    "a config.json that is no JSON": (config("{"), "is not JSON"),
    "an empty config.json": (config(""), "is not JSON"),
    "a config.json of 100,000 brackets": (config("[" * 100_000), "is not JSON"),
    "a config.json without a model": (config("{}"), "names no architecture"),
    "a config.json that is a folder": (folder_for_config, "is a folder"),
    "truncated weights": (truncated, "truncated|bytes|header"),
    "weights with a header of a terabyte": (huge_header, "header|bytes"),
    "weights without a header": (no_header, "header|bytes|truncated"),
    "no files at all": (emptied, "config.json"),
}


def snapshot(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def run(verb: str, folder: Path) -> Measured:
    extra = ["-o", "out"] if verb == "render" else []
    return prefork.shared().run([verb, "deployment.yaml", *extra], folder)


def judge(verb: str, folder: Path, expected: str) -> None:
    before = snapshot(folder)
    found = run(verb, folder)
    done = found.done
    said = done.stdout if verb == "check" else done.stderr
    faults = [line for line in said.splitlines() if "error" in line or "warning" in line]
    recognised = "kind not recognised" not in said
    assert done.returncode in ((2, 3) if recognised else (0,)), said
    assert re.search(expected, said), said
    assert "Traceback" not in done.stdout + done.stderr
    assert 1 <= len([line for line in faults if not line.startswith("checked")]) <= 4, said
    assert max(map(len, faults)) < 600
    assert snapshot(folder) == before
    assert found.seconds < MAX_SECONDS
    assert found.peak_mb < MAX_PEAK_MB


@pytest.mark.parametrize("verb", ["check", "render"])
@pytest.mark.parametrize("case", FILES)
def test_a_file_that_nobody_can_use(case: str, verb: str, tmp_path: Path) -> None:
    make, expected = FILES[case]
    folder = tmp_path / "here"
    folder.mkdir()
    make(folder / "deployment.yaml")
    judge(verb, folder, expected)


@pytest.mark.parametrize("verb", ["check", "render"])
@pytest.mark.parametrize("case", CHECKPOINTS)
def test_a_checkpoint_that_nobody_can_use(
    case: str, verb: str, make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    make, expected = CHECKPOINTS[case]
    folder = tmp_path / "here"
    shutil.copytree(make_miniature("llama-tiny"), folder / "weights")
    (folder / "deployment.yaml").write_text(GOOD)
    make(folder / "weights")
    judge(verb, folder, expected)


def test_keys_that_are_no_strings_are_named_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "deployment.yaml").write_text("max_batch_size: 8\n12: 1\non: 2\n")
    done = run("check", tmp_path).done
    assert done.returncode == 2
    lines = done.stdout.splitlines()
    assert lines[0].startswith("deployment.yaml:2:1: error[unknown-key] 12: unknown option")
    assert lines[1].startswith("deployment.yaml:3:1: error[unknown-key] True: unknown option")


# The superuser may read everything, unless that right is taken from it.
UNPRIVILEGED = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]


def test_what_must_not_be_read_is_named_and_the_rest_is_checked(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0)
    locked(tmp_path / "locked.yaml")
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
