"""Estimates and choices of separate prefill and decode servers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from builder.cli.main import main
from builder.estimates import Question, Refusal, pools
from builder.estimates.pools import PoolEstimate, Pools

SERVER = Question(
    *("DeepSeek-R1", "gb200", "fp4", "tensorrt_llm"),
    *(1, 8, 8, 1024, 1024, 512),
    mtp=0,
)
ASKED = Pools(SERVER, 1, 1, 1, 4, 4)
OPEN = """
name: pools
checkpoint: nvidia/DeepSeek-R1-0528-NVFP4-v2
serving: disaggregated
hardware: {gpu: gb200, num_gpus: {at_most: 32}}
engine: {name: tensorrt_llm, release: 1.2.1}
workload: {isl: 1024, osl: 1024, concurrency: 512}
slo: {itl_ms: 20, ttft_ms: 3000}
targets:
  trtllm_serve: {}
  slurm:
    server: trtllm_serve
    site: {name: x, gpu_request: none, container: {runtime: none}, mpi: pmix, exclusive: true}
  kubernetes: {server: trtllm_serve}
"""


def answered(asked: Pools) -> PoolEstimate:
    found = pools.estimate(asked)
    assert isinstance(found, PoolEstimate)
    return found


def test_an_estimate_has_an_interval_and_its_measurements() -> None:
    found = answered(ASKED)
    assert found.tpot_ms.low < found.tpot_ms.value < found.tpot_ms.high
    assert found.rows > 30
    assert found.nearest[0].row.server.gpu == "gb200"
    gpus = found.output_tok_s.value / found.tok_s_per_gpu.value
    assert round(gpus) == pools.num_gpus(ASKED) == 12


def test_more_load_keeps_the_prefill_servers_busier() -> None:
    few, many = (
        answered(ASKED._replace(server=replace(SERVER, concurrency=n))) for n in (256, 1024)
    )
    assert few.prefill_use < many.prefill_use
    assert few.limit == "decode"


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"model": "MiniMax-M2.5"}, "unmeasured", "no measurements of prefill and decode servers"),
        ({"mtp": None}, "modes", "give mtp"),
        ({"isl": 100_000}, "outside", "isl 100,000 is outside the measured range"),
        ({"ep": 3}, "layout", "8 GPUs cannot be shared by EP 3"),
    ],
)
def test_a_refusal_says_what_to_measure(changes: dict[str, object], kind: str, reason: str) -> None:
    found = pools.estimate(ASKED._replace(server=replace(SERVER, **changes)))  # type: ignore[arg-type]
    assert isinstance(found, Refusal)
    assert found.kind == kind
    assert reason in found.reason
    assert [one.concurrency for one in found.measure] == [512, 256, 1024]


def test_a_chosen_deployment_renders_for_slurm_and_kubernetes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "open.yaml").write_text(OPEN)
    chosen = tmp_path / "chosen.yaml"
    assert main(["choose", str(tmp_path / "open.yaml"), "--json", "-o", str(chosen)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["chosen"]["tpot_ms"]["high"] <= 20
    assert 2 <= len(told["measure"]) <= 4
    written = yaml.safe_load(chosen.read_text())
    assert written["role"] == "decode"
    assert main(["render", str(chosen), "-o", str(tmp_path / "bundle")]) == 0
    for folder in ("slurm", "kubernetes", "prefill"):
        assert (tmp_path / "bundle" / folder).is_dir()
    capsys.readouterr()
    assert main(["estimate", str(chosen), "--json"]) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert point["tok_s_per_gpu"]["value"] == pytest.approx(
        told["chosen"]["tok_s_per_gpu"]["value"], rel=0.01
    )


@pytest.mark.parametrize(
    ("old", "new", "code", "says"),
    [
        ("itl_ms: 20", "itl_ms: 0.1", 2, "no candidate meets the targets; the nearest"),
        ("ttft_ms: 3000", "ttft_ms: 1", 2, "no candidate meets the targets; the nearest"),
        ("disaggregated", "split", 2, "'split' is neither aggregated nor disaggregated"),
        ("gb200", "h200", 3, "no candidate has an estimate"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, code: int, says: str
) -> None:
    (tmp_path / "open.yaml").write_text(OPEN.replace(old, new))
    assert main(["choose", str(tmp_path / "open.yaml")]) == code
    assert says in capsys.readouterr().err
