"""Deployment files that are wrong: one readable line per fault, with its place and its remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.tables import by_table

GOOD = """\
name: deepseek
checkpoint: nvidia/DeepSeek-V3.2-NVFP4
hardware: {gpu: gb200, num_gpus: 4}
engine: {name: tensorrt_llm, release: 1.2.1}
workload: {isl: 800, osl: 1600, concurrency: 64}
targets: [trtllm_serve, triton]
"""


def edited(changes: Mapping[str, str]) -> str:
    """The good file with texts replaced, and with more at its end."""
    text = GOOD + changes.get("+", "")
    for old, new in changes.items():
        assert old == "+" or old in text
        text = text.replace(old, new) if old != "+" else text
    return text.replace("MANY_DIGITS", "9" * 5000)


@by_table
def test_a_wrong_file_gets_one_line_per_fault(
    written: str | dict[str, str], expected: list[str], builder: Run, tmp_path: Path
) -> None:
    """`expected` is what each line of the report holds, in order."""
    text = written if isinstance(written, str) else edited(written)
    (tmp_path / "deployment.yaml").write_text(text)
    done = builder("render", "deployment.yaml", "-o", "out")
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert len(lines) == len(expected), done.stderr
    for line, part in zip(lines, expected, strict=True):
        assert line.startswith("error: deployment.yaml")
        assert part in line
        assert "; " in line, "a remedy follows the fault"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deployment.yaml"]


def test_a_binary_file_is_refused(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "deployment.yaml").write_bytes(b"\x80\x81\x82")
    done = builder("plan", "deployment.yaml")
    assert done.returncode == 2
    assert done.stderr == "error: deployment.yaml: is not UTF-8 text; give a text file\n"


def test_an_absent_file_suggests_the_nearest_preset(builder: Run) -> None:
    done = builder("plan", "deepseek-v3.2-nvfp4-bg200")
    assert done.returncode == 2
    assert "did you mean deepseek-v3.2-nvfp4-gb200?" in done.stderr


def test_an_override_is_blamed_where_it_was_given(builder: Run) -> None:
    done = builder("plan", "llama-tiny", "--set", "hardware.gpu=h1000")
    assert done.stderr.startswith("error: --set hardware.gpu: h1000 is unknown; did you mean h100?")


@by_table
def test_what_another_option_gave_is_blamed_on_it(
    words: tuple[str, ...], blamed: str, builder: Run
) -> None:
    """The file, or the preset, says nothing of what was typed."""
    done = builder("plan", "llama-tiny", "--set", "targets.triton={}", *words)
    assert done.returncode == 2
    assert f"error: {blamed}" in done.stderr


@pytest.mark.parametrize("override", ["workload.isl", "=3", "name.x=1", "..=1", "workload.isl={"])
def test_a_malformed_override_is_refused(override: str, builder: Run) -> None:
    done = builder("plan", "llama-tiny", "--set", override)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --set {override.partition('=')[0]}".strip())


def test_the_good_file_renders(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "deployment.yaml").write_text(GOOD)
    done = builder("render", "deployment.yaml", "-o", "out")
    assert done.returncode == 0, done.stderr


def test_a_date_is_text(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "deployment.yaml").write_text(edited({"name: deepseek": "name: 2026-99-99"}))
    assert builder("plan", "deployment.yaml").returncode == 0


def test_aliases_that_multiply_are_refused_at_once(builder: Run, tmp_path: Path) -> None:
    bomb = ["a0: &a0 [x]"] + [
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)
    ]
    (tmp_path / "deployment.yaml").write_text("\n".join(bomb))
    done = builder("plan", "deployment.yaml")
    assert done.returncode == 2
    assert "has more than 100000 values, aliases counted" in done.stderr


def test_windows_line_ends_and_byte_order_marks_are_read(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "deployment.yaml").write_bytes(GOOD.replace("\n", "\r\n").encode("utf-8-sig"))
    assert builder("plan", "deployment.yaml").returncode == 0


def test_a_relative_checkpoint_is_relative_to_its_file(
    builder: Run, make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(make_miniature("nvidia/DeepSeek-V3.2-NVFP4"), tmp_path / "sub" / "weights")
    text = edited({"nvidia/DeepSeek-V3.2-NVFP4": "./weights"})
    (tmp_path / "sub" / "deployment.yaml").write_text(text)
    done = builder("plan", "sub/deployment.yaml")
    assert done.returncode == 0, done.stderr


def test_a_folder_of_the_same_name_does_not_hide_a_preset(builder: Run, tmp_path: Path) -> None:
    for _ in range(2):
        assert builder("render", "llama-tiny", "-o", "llama-tiny").returncode == 0


@pytest.mark.parametrize("targets", ["[triton]", "{triton: }", "{triton: {}}"])
def test_overrides_reach_below_every_form_of_targets(
    targets: str, builder: Run, tmp_path: Path
) -> None:
    (tmp_path / "deployment.yaml").write_text(edited({"[trtllm_serve, triton]": targets}))
    done = builder("render", "deployment.yaml", "-o", "b", "--set", "targets.triton.http_port=9000")
    assert done.returncode == 0, done.stderr
    launch = json.loads((tmp_path / "b" / "launch.json").read_text())
    assert launch["targets"]["triton"]["ports"]["http"] == 9000


def test_null_takes_a_target_away(builder: Run, tmp_path: Path) -> None:
    sides = "deepseek-v3.2-nvfp4-gb200x32"
    done = builder("render", sides, "--set", "targets.slurm=null", "-o", "b")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "b/kubernetes").is_dir() and not (tmp_path / "b/slurm").exists()
