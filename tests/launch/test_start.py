"""A start followed in its log: phases, the time of an earlier start, and the cause of a failure."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from builder.cli.main import main as builder_main
from builder.documents import dump_yaml
from launch import diagnose
from launch.run import Run
from launch.start import CHECKPOINT_BYTES, EXPECTED, PHASES, Start, expected

FACTS: dict[str, Any] = {"bundle": {"name": "b"}, "target": "t", "engine": {"name": "tensorrt_llm"}}
SETUP = "[09/14/2026-12:09:04] [TRT-LLM] [I] Using LLM with PyTorch backend\n"
LOAD = "Loading safetensors weights in parallel:  48%|####      | 28/59 [00:03<00:00]\n"
READY = "INFO:     Application startup complete.\n"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "now").mkdir()
    found = Run(tmp_path / "now", dict(FACTS))
    found.log.touch()
    return found


def write(run: Run, text: str) -> None:
    with run.log.open("a") as log:
        log.write(text)


def test_a_start_tells_its_phase_with_its_share(run: Run) -> None:
    following = Start(run.log)
    following.advance()
    assert following.words == ""
    write(run, SETUP)
    following.advance()
    assert following.words == "setup, 0 s"
    write(run, LOAD[:20])
    following.advance()
    assert following.words == "setup, 0 s", "a line that is not whole is read later"
    write(run, LOAD[20:])
    following.advance()
    assert following.words == "load 48 %, 0 s of about 0 s"


def test_a_load_tells_its_rate_and_the_time_that_its_share_promises(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = Start(run.log, checkpoint_bytes=100_000_000_000)
    write(run, SETUP + LOAD)
    following.advance()
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 24)
    assert following.words == "load 48 %, 2.0 GB/s, 24 s of about 50 s"


def test_an_earlier_start_of_the_same_kind_tells_how_long_a_phase_takes(
    run: Run, tmp_path: Path
) -> None:
    others: dict[str, dict[str, Any]] = {
        "older": {"ready": "2026-11-01", PHASES: {"load": 9.0}},
        "newer": {"ready": "2026-11-02", PHASES: {"load": 46.4}},
        "not ready": {PHASES: {"load": 1.0}},
        "of another target": {"ready": "2026-11-03", "target": "x", PHASES: {"load": 2.0}},
    }
    for name, facts in others.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(FACTS | facts))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    write(run, SETUP + LOAD)
    following = Start.of_run(run, {})
    following.advance()
    assert following.words == "load 48 %, 0 s of about 46 s"
    assert following.facts()[EXPECTED] == {"load": 46.4}


def test_a_start_of_another_bundle_tells_the_rate_of_a_load(run: Run, tmp_path: Path) -> None:
    facts = {"ready": "2026-11-01", "bundle": {"name": "x"}, PHASES: {"setup": 3.0, "load": 9.0}}
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "run.json"
    other.write_text(json.dumps(FACTS | facts | {CHECKPOINT_BYTES: 10}))
    assert expected(run) == {}, "the size of this checkpoint is unknown"
    run.record(**{CHECKPOINT_BYTES: 30})
    assert expected(run) == {"load": 27.0}
    other.write_text(json.dumps(FACTS | facts | {CHECKPOINT_BYTES: 10, "target": "y"}))
    assert expected(run) == {}, "another server loads at another rate"


def test_silence_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    write(run, SETUP)
    following = Start(run.log)
    following.advance()
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 720)
    assert following.words.endswith("no new line for 12 min")


def test_the_summary_has_the_seconds_of_the_phases_before_it_serves(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100, 1000, 10))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    following = Start(run.log)
    for text in (SETUP, LOAD):
        write(run, text)
        following.advance()
    write(run, READY)
    assert following.facts()[PHASES] == {"setup": 10.0, "load": 20.0}


def test_a_failed_start_tells_its_cause(run: Run) -> None:
    write(run, "ImportError: libmpi.so.40: cannot open shared object file: No such file\n")
    found = Start(run.log).diagnosis({"exit_code": "1"})
    assert [cause.signature.id for cause in found.causes] == ["open-mpi-is-missing"]


def test_the_kv_cache_is_compared_once_it_is_that_of_the_service(run: Run) -> None:
    write(run, "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.90 GiB for max tokens in paged KV cache (8224).\n")  # fmt: skip  # noqa: E501
    start = Start(run.log, planned={"budget.kv_tokens": 9000, "budget.kv_cache_gib": 1.2})
    assert start.in_force() == []
    write(run, READY)
    assert [(row.difference, row.differs) for row in start.in_force()] == [
        ("-776", False),
        ("-0.3", True),
    ]


@pytest.mark.parametrize(
    ("line", "planned", "difference"),
    [
        ("max_seq_len=8192, max_num_requests=64, max_num_tokens=8192, max_batch_size=64",
         {"max_batch_size": 16, "max_seq_len": 8192}, {"max_seq_len": "", "max_batch_size": "+48"}),
        ("exceeds upper bound 4096 for available blocks. Reducing to 4096.",
         {"max_seq_len": 8192}, {"attention_window": "-4,096"}),
        ("Chunked context is not supported for this configuration and will be disabled",
         {"enable_chunked_prefill": True}, {"chunked_prefill": "differs"}),
        ("cache_transceiver is disabled",
         {"cache_transceiver_config.backend": "UCX"}, {"kv_transfer": "differs"}),
        ("PyTorchConfig(attn_backend='TRTLLM', moe_backend='CUTLASS')",
         {"moe_config.backend": "TRTLLM", "attn_backend": "AUTO"},
         {"moe_backend": "differs", "attention_backend": ""}),
    ],
)  # fmt: skip
def test_what_the_engine_logged_is_compared_with_the_plan(
    run: Run, line: str, planned: dict[str, Any], difference: dict[str, str]
) -> None:
    write(run, f"[TensorRT-LLM][INFO] {line}\n")
    rows = Start(run.log, planned=planned).in_force()
    assert {row.name: row.difference for row in rows} == difference


KV_CACHE = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated {} GiB for max tokens in paged KV cache (8224).\n"  # fmt: skip  # noqa: E501


def test_the_next_plan_takes_the_memory_that_a_start_logged(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "llama-3.3-70b-fp8-h100"
    assert builder_main(["render", name, "-o", str(tmp_path / "bundle")]) == 0
    write(run, KV_CACHE.format("12.50") + READY)
    start = Start(run.log, planned=diagnose.planned(tmp_path / "bundle"))
    facts = tmp_path / "memory.facts.yaml"
    facts.write_text(dump_yaml(start.measured(tmp_path / "bundle")))
    capsys.readouterr()

    def memory(*changes: str) -> tuple[dict[str, Any], str]:
        assert builder_main(["plan", name, "--json", "--facts", str(facts), *changes]) == 0
        shown = capsys.readouterr()
        found: dict[str, Any] = json.loads(shown.out)["memory"]
        return found, shown.err

    found, _ = memory()
    assert found["per_gpu"]["kv_cache_gib"] == 12.5
    assert (found["evidence"], found["source"]) == ("measured", f"{run.log}:1")
    found, said = memory("--set", "engine_config.max_num_tokens=4096")
    assert "evidence" not in found
    assert "not used: max_num_tokens was 8192 there, and this plan has 4096" in said
    assert builder_main(["plan", name, "--facts", str(facts)]) == 0
    assert "MEASURED MEMORY" in capsys.readouterr().out


def test_a_bundle_that_was_planned_with_measurements_is_rendered_again_alike(
    tmp_path: Path,
) -> None:
    bundle = tmp_path / "bundle"
    facts = tmp_path / "x.yaml"
    assert builder_main(["render", "llama-tiny", "-o", str(bundle)]) == 0
    log = tmp_path / "server.log"
    log.write_text(KV_CACHE.format("9.00") + READY)
    facts.write_text(dump_yaml(Start(log, planned=diagnose.planned(bundle)).measured(bundle)))
    words = ["render", "llama-tiny", "--force", "--facts", str(facts), "-o", str(bundle)]
    assert builder_main(words) == 0
    assert builder_main(["verify", str(bundle)]) == 0
