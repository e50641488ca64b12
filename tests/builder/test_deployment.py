"""Deployment files that are wrong: one readable line per fault, with its place and its remedy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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

# What lets a deployment use the release before.
OLD = """\
accepted_advisories:
- {product: tensorrt_llm, version: 1.1.0, reason: a test of an old release}
- {product: triton, version: "26.02", reason: a test of an old release}
"""

SEVERAL = """\
name: Deep Seek
checkpoint: nvidia/DeepSeek-V3.2-NVFP5
hardware: {gpu: gb20, num_gpus: 0, rack: 1}
engine: {release: 0.21.0}
workload: {isl: -1, osl: 1600}
targets: [trtlm_serve, triton]
"""


def edited(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


# Case: the file, and what each line of the report must hold, in order.
CASES: dict[str, tuple[str, list[str]]] = {
    "unknown key": (
        GOOD + "tragets: [triton]\n",
        [":7: tragets: unknown key; did you mean targets?"],
    ),
    "words of other tools": (
        "model: nvidia/DeepSeek-V3.2-NVFP4\nhardware: {gpu_type: gb200, gpus: 4}\ntp: 4\n"
        "slo: {tpot_ms: 50}\n",
        [
            ": name: is missing; write name: my-deployment",
            ": engine: is missing; write engine: {release: 1.2.1}",
            ": workload: is missing; write workload: {isl: 800, osl: 1600, concurrency: 64}",
            ": targets: is missing; write targets: [trtllm_serve, triton]",
            ":1: model: unknown key; write checkpoint",
            ":2: hardware.gpu_type: unknown key; write gpu",
            ":2: hardware.gpus: unknown key; write num_gpus",
            ":3: tp: unknown key; write engine_config",
            ":4: slo.tpot_ms: unknown key; write itl_ms",
        ],
    ),
    "misspelt GPU": (
        edited("gb200", "gb2000"),
        [":3: hardware.gpu: gb2000 is unknown; did you mean gb200?"],
    ),
    "three GPUs": (
        edited("num_gpus: 4", "num_gpus: 3"),
        [":3: hardware.num_gpus: tensor parallelism over 3 GPUs does not divide num_attention_he"],
    ),
    "tensor parallel size that does not divide": (
        GOOD + "engine_config: {tensor_parallel_size: 3}\n",
        [
            ":7: engine_config.tensor_parallel_size: 3 x pipeline_parallel_size 1 uses 3 GPUs",
            ":7: engine_config.tensor_parallel_size: tensor parallelism over 3 GPUs does not",
        ],
    ),
    "negative isl": (
        edited("isl: 800", "isl: -800"),
        [":5: workload.isl: -800 is out of range; must be >= 1"],
    ),
    "missing checkpoint": (
        edited("nvidia/DeepSeek-V3.2-NVFP4", "/models/absent"),
        [":2: checkpoint: /models/absent: there is no such folder; the nearest parent that exists"],
    ),
    "unknown release": (edited("1.2.1", "0.21.0"), [":4: engine.release: release 0.21.0"]),
    "NVFP4 on H200": (edited("gb200", "h200"), [":3: hardware.gpu: h200 has no NVFP4 arithmetic"]),
    "model too large": (
        edited("num_gpus: 4", "num_gpus: 2"),
        ["does not fit on 2 x gb200: each GPU has 184.3 GiB, weights take"],
    ),
    "several faults at once": (
        SEVERAL,
        [
            ":1: name: Deep Seek is not allowed",
            ":2: checkpoint: nvidia/DeepSeek-V3.2-NVFP5",
            ":3: hardware.num_gpus: 0 is out of range",
            ":3: hardware.rack: unknown key",
            ":3: hardware.gpu: gb20 is unknown",
            ":4: engine.release: release 0.21.0",
            ":5: workload.isl: -1 is out of range",
            ":5: workload.concurrency: is missing",
            ":6: targets.trtlm_serve: is not a target",
        ],
    ),
    "wrong engine option": (
        GOOD + "engine_config: {kv_cache_config: {dtyp: fp8}, moe_config: {backend: AUTO}}\n",
        [
            ":7: engine_config.kv_cache_config.dtyp: unknown option in kv_cache_config; did you",
            ":7: engine_config.moe_config.backend: AUTO is not allowed",
        ],
    ),
    "an option below one set to a scalar": (
        GOOD + "engine_config: {kv_cache_config: 3}\n",
        [":7: engine_config.kv_cache_config: is 3; expected a mapping"],
    ),
    "wrong target option": (
        edited("[trtllm_serve, triton]", "{triton: {http_port: 99999, grpc_prt: 1}}"),
        [
            ":6: targets.triton.http_port: 99999 is out of range",
            ":6: targets.triton.grpc_prt: unknown key; did you mean grpc_port",
        ],
    ),
    "no targets": (edited("[trtllm_serve, triton]", "[]"), [":6: targets: is"]),
    "context too long": (
        edited("isl: 800", "isl: 200000"),
        [":5: workload: isl + osl is 201600 tokens, the model's longest context is 163840"],
    ),
    "more than a node": (
        edited("num_gpus: 4", "num_gpus: 8"),
        [":3: hardware.num_gpus: 8 GPUs need more than one node: a gb200 node has 4"],
    ),
    "model that the release does not serve": (
        edited("1.2.1", "1.1.0") + OLD,
        [":4: engine.release: release 1.1.0 does not serve DeepseekV32ForCausalLM"],
    ),
    "a warning accepted without a reason": (
        GOOD + "accepted_warnings: [{path: checkpoint}, {path: x, reason: short}, {rule: y}]\n",
        [
            ":7: accepted_warnings.0.reason: is missing",
            ":7: accepted_warnings.1.reason: short is too short; write at least 10",
            ":7: accepted_warnings.2.path: is missing",
            ":7: accepted_warnings.2.reason: is missing",
        ],
    ),
    "duplicate key": (GOOD + "name: other\n", [":7: name: is given twice, first in line 1"]),
    "tab": ("name: x\n\tcheckpoint: y\n", [":2: is not YAML: found a tab character"]),
    "list": ("- name: x\n", ["is a list; a mapping is expected"]),
    "empty": ("", ["is empty; a mapping is expected"]),
    "two servers' ports are one": (
        edited("[trtllm_serve, triton]", "{triton: {http_port: 8001}}"),
        [":6: targets.triton: http_port, grpc_port and metrics_port collide; give"],
    ),
    "a host that reads as a flag": (
        edited("[trtllm_serve, triton]", "{triton: {host: -h}}"),
        [":6: targets.triton.host: -h is not allowed"],
    ),
    "key twice on one line": (
        edited("gpu: gb200,", "gpu: gb200, gpu: b200,"),
        [":3: hardware.gpu: is given twice, first in line 3"],
    ),
    "a number of five thousand digits": (
        edited("isl: 800", "isl: " + "9" * 5000),
        ["holds a value that no option can have"],
    ),
    "a set": (GOOD + "engine_config: !!set {a}\n", ["holds a value that no option can have"]),
    "a batch limit below one": (
        GOOD + "engine_config: {max_batch_size: 0}\n",
        [":7: engine_config.max_batch_size: 0 is too small for the workload; give at least 1"],
    ),
    "limits that keep the workload out": (
        GOOD + "engine_config: {max_num_tokens: 100, max_seq_len: 2000}\n",
        [
            ":7: engine_config.max_seq_len: 2000 is below isl + osl, 800 + 1600 = 2400",
            ":7: engine_config.max_num_tokens: 100 is below isl 800",
        ],
    ),
    "numbers that nothing real reaches": (
        edited("concurrency: 64", "concurrency: 10000000000000").replace(
            "osl: 1600", "osl: 1000000000"
        )
        + "engine_config: {max_num_tokens: 100000000000000000000}\n",
        [
            ":5: workload.osl: 1000000000 is out of range; must be <= 100000000",
            ":5: workload.concurrency: 10000000000000 is out of range",
            ":7: engine_config: max_num_tokens is 1e+20",
        ],
    ),
    "a number for a string": (
        edited("1.2.1", "1.2"),
        [":4: engine.release: 1.2 is not a release of TensorRT-LLM; is 1.2.1 meant?"],
    ),
    "a target for the targets": (
        edited("[trtllm_serve, triton]", "triton"),
        [":6: targets: triton is not a mapping; write targets: [trtllm_serve, triton]"],
    ),
    "a target named twice": (
        edited("[trtllm_serve, triton]", "[triton, triton]"),
        [":6: targets: triton is named twice; keep one"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_file_gets_one_line_per_fault(case: str, builder: Run, tmp_path: Path) -> None:
    text, expected = CASES[case]
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
    (tmp_path / "deployment.yaml").write_text(edited("name: deepseek", "name: 2026-99-99"))
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
    text = edited("checkpoint: nvidia/DeepSeek-V3.2-NVFP4", "checkpoint: ./weights")
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
    (tmp_path / "deployment.yaml").write_text(edited("[trtllm_serve, triton]", targets))
    done = builder("render", "deployment.yaml", "-o", "b", "--set", "targets.triton.http_port=9000")
    assert done.returncode == 0, done.stderr
    launch = json.loads((tmp_path / "b" / "launch.json").read_text())
    assert launch["targets"]["triton"]["ports"]["http"] == 9000
