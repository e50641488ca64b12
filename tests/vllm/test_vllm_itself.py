"""What is ours against an engine that is not: smoke, load, metrics, canary, report and stop.

vLLM's CPU build serves miniatures from rendered bundles. Its greedy tokens are those of the
reference engine up to arithmetic: where both first choose differently, vLLM itself gives both
choices nearly the same probability.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from builder.facts import release
from builder.observability import metrics
from launch import cpu_build
from launch.cli.main import main
from supervisor.checks import canary_error
from supervisor.spec import CanaryRequest
from tests.conftest import ROOT
from tests.launch.conftest import marked_processes
from tests.vllm.conftest import ENGINE, Served, render, serve

MODELS = {"llama": "llama-3.2-1b-instruct", "qwen3-moe": "qwen3-30b-a3b-fp8"}
PROMPTS = [f"A short text about {topic}:" for topic in ("rivers", "bread", "winter", "music")]
TOKENS = 24
# How far apart in log probability two choices are that BF16 may swap.
NEAR = 0.05


@pytest.fixture(scope="module", params=MODELS)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp(request.param)
    yield from serve(render(folder, request.param, MODELS[request.param]), folder / "served")


def launch(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("by", ["bundle", "url"])
def test_the_smoke_suite_passes(served: Served, by: str) -> None:
    at = served.bundle.folder if by == "bundle" else served.url
    done = launch("smoke", at, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    found = {one["id"]: one for one in document["results"]}
    assert found["P3"]["evidence"].startswith("vllm serve 0.32.0, model")
    assert "the engine ended after" in found["N10"]["evidence"]  # the cancellation reached it
    assert {one["id"] for one in found.values() if one["outcome"] == "warned"} <= {
        *("N3.input", "N3.name"),  # it passes over fields that it does not know
        "P21",  # random weights write blanks for ever
        "P7.batch",
    }


def test_greedy_tokens_are_the_same_again_and_the_reference_engines(served: Served) -> None:
    reference = reference_tokens(served.miniature)
    for prompt, expected in zip(PROMPTS, reference, strict=True):
        found, again = (completion(served, prompt) for _ in range(2))
        assert found["token_ids"] == again["token_ids"]
        different = [i for i in range(TOKENS) if found["token_ids"][i] != expected[i]]
        if different:
            first = different[0]
            likely = sorted(found["logprobs"]["top_logprobs"][first].values(), reverse=True)
            assert likely[0] - likely[1] < NEAR, (prompt, first, likely)


def completion(served: Served, prompt: str) -> dict[str, Any]:
    [model] = httpx.get(f"{served.url}/v1/models", trust_env=False).json()["data"]
    asked = {"max_tokens": TOKENS, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    body = {"model": model["id"], "prompt": prompt, "return_token_ids": True, **asked}
    [choice] = served.post("/v1/completions", **body)["choices"]
    return dict(choice)


REFERENCE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tensorrt_llm import LLM, SamplingParams
with LLM(sys.argv[2]) as llm:
    params = SamplingParams(max_tokens=int(sys.argv[3]), temperature=0.0, ignore_eos=True)
    found = [llm.generate_async(prompt, params).result() for prompt in json.loads(sys.argv[4])]
    print(json.dumps([list(one.outputs[0].token_ids) for one in found]))
"""


def reference_tokens(miniature: Path) -> list[list[int]]:
    """What the reference engine chooses with the same weights, in a process of its own."""
    folder = str(ROOT / "launch" / "reference")
    words = [folder, str(miniature), str(TOKENS), json.dumps(PROMPTS)]
    command = [sys.executable, "-c", REFERENCE, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_metric_of_its_record_is_shown_as_the_record_says(served: Served) -> None:
    text = httpx.get(f"{served.url}/metrics", trust_env=False).text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    known = metrics.of_server("vllm_serve", release.load("0.32.0", engine=ENGINE))
    assert known
    for name, family in known.items():
        if family.needs is not None:
            continue
        assert kinds.get(name) == family.kind, name
        sample = next(
            line for line in text.splitlines() if line.startswith(f"{family.samples[0]}{{")
        )
        assert set(family.labels) <= set(re.findall(r'(\w+)="', sample)), sample
        bounds = re.findall(rf'^{name}_bucket{{.*le="([\d.]+)"', text, re.MULTILINE)
        assert tuple(map(float, dict.fromkeys(bounds))) == family.bounds, name


def test_the_supervisors_canary_is_answered_with_text(served: Served) -> None:
    record = json.loads((served.bundle.folder / "launch.json").read_text())
    model = record["targets"]["vllm_serve"]["model_name"]
    body = {"model": model, "prompt": "Hello", "max_tokens": 1}
    host, _, port = served.url.removeprefix("http://").rpartition(":")
    request = CanaryRequest(path="/v1/completions", body=body, timeout_s=30.0)
    assert canary_error(host, int(port), request) is None


def test_a_benchmark_and_its_report_name_the_engine(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--isl", "32", "--osl", "8", "--concurrency", "2", "--requests", "8"]
    assert main(["bench", served.url, *quick, "--run-dir", "measured"]) == 0
    measured = json.loads(Path("measured/bench.json").read_text())
    assert measured["subject"]["engine"]["used"] == "vllm"
    assert measured["points"][0]["output_tokens"]["mean"] == 8
    assert main(["report", "measured", "-o", "page.html"]) == 0
    assert "vllm 0.32.0" in Path("page.html").read_text()


def test_a_stop_lets_streams_end_and_leaves_nothing(served: Served) -> None:
    [model] = httpx.get(f"{served.url}/v1/models", trust_env=False).json()["data"]
    body = {"model": model["id"], "prompt": "Once", "max_tokens": 256, "stream": True}
    with httpx.stream(
        "POST", f"{served.url}/v1/completions", json={**body, "ignore_eos": True}, timeout=120
    ) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        served.launcher.signal(signal.SIGINT)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert served.launcher.end(120) == 0
    facts = json.loads((served.run / "run.json").read_text())
    assert (facts["outcome"], facts["killed"]) == ("stopped", False)
    assert facts["engine"] == {
        "name": "vllm",
        "release": "0.32.0",
        "used": "vllm",
        "rehearsal": True,
    }
    deadline_s = time.monotonic() + 10
    while marked_processes() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert marked_processes() == set()


@pytest.mark.parametrize(
    ("checkpoint", "hardware"),
    [
        ("qwen3-235b-a22b-fp8", {"gpu": "h200", "num_gpus": 8}),
        ("deepseek-v3.2-nvfp4", {"gpu": "b300", "num_gpus": 8}),
    ],
)
def test_what_is_rendered_for_a_large_model_is_taken_by_the_engines_own_classes(
    checkpoint: str, hardware: dict[str, Any], tmp_path: Path
) -> None:
    from builder.facts import checkpoint as checkpoints

    bundle = render(tmp_path, "large", checkpoint, hardware=hardware)
    facts = checkpoints.from_bundle(bundle.folder)
    options = bundle.folder / "vllm_serve" / "config.yaml"
    assert cpu_build.refusal(ENGINE, facts, options) is None
    if checkpoint.startswith("qwen3"):
        options = tmp_path / "wrong.yaml"
        options.write_text("max_num_sequences: 4\n")
        assert "max-num-sequences" in (cpu_build.refusal(ENGINE, facts, options) or "")
