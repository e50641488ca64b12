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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from builder import pipeline
from builder.facts import checkpoint as checkpoints
from builder.facts import release
from builder.observability import metrics
from launch import cpu_build
from launch.cli.main import main
from supervisor.state import DRAIN
from tests.conftest import ROOT
from tests.launch.conftest import marked_processes
from tests.vllm.conftest import (
    ENGINE,
    STOP_TIMEOUT_S,
    Launched,
    Served,
    Supervised,
    launched,
    processes,
    render,
    supervised,
)

PROMPTS = [f"A short text about {topic}:" for topic in ("rivers", "bread", "winter", "music")]
TOKENS = 24
# How far apart in log probability two choices are that BF16 may swap.
NEAR = 0.05
# Models that no CPU serves, as their options are rendered for a node.
LARGE = [
    ("qwen3-235b-a22b-fp8", {"gpu": "h200", "num_gpus": 8}),
    ("deepseek-v3.2-nvfp4", {"gpu": "b300", "num_gpus": 8}),
    ("gpt-oss-120b", {"gpu": "h200", "num_gpus": 8}),
]
PRESETS = ["llama-3.3-70b-fp8-h100-vllm", "qwen3.5-397b-nvfp4-b300-vllm"]
WARNED = {
    *("N3.input", "N3.name"),  # it passes over fields that it does not know
    "P21",  # random weights write blanks for ever
    "P7.batch",
}


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder = tmp_path_factory.mktemp("llama")
    yield from launched(render(folder, "llama", "llama-3.2-1b-instruct"), folder)


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervised]:
    folder = tmp_path_factory.mktemp("qwen3-moe")
    yield from supervised(render(folder, "qwen3-moe", "qwen3-30b-a3b-fp8"), folder)


@pytest.fixture(params=["llama", "qwen"])
def served(request: pytest.FixtureRequest) -> Served:
    found: Served = request.getfixturevalue(request.param)
    return found


def passed(document: Any) -> None:
    """What a run of the smoke suite says of vLLM."""
    found = {one["id"]: one for one in document["results"]}
    assert found["P3"]["evidence"].startswith("vllm serve 0.32.0, model")
    assert "the engine ended after" in found["N10"]["evidence"]  # the cancellation reached it
    assert {one["id"] for one in found.values() if one["outcome"] == "failed"} == set()
    assert {one["id"] for one in found.values() if one["outcome"] == "warned"} <= WARNED


def test_the_smoke_suite_passes(llama: Launched) -> None:
    command = [sys.executable, "-m", "launch", "smoke", str(llama.bundle.folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    passed(json.loads(done.stdout))


def test_the_supervisor_of_a_job_admits_it_by_its_own_smoke_suite(qwen: Supervised) -> None:
    record = qwen.record()
    assert (record["state"], record["admitted"] is not None) == ("serving", True)
    log = (qwen.run / "smoke.log").read_text()
    passed(json.loads(log[log.index("{") : log.rindex("}") + 1]))


@pytest.fixture(scope="session")
def reference(llama: Launched, qwen: Supervised) -> dict[Path, list[list[int]]]:
    """What the reference engine chooses with the same weights, in a process of its own."""
    folder = str(ROOT / "launch" / "reference")
    models = [str(one.miniature) for one in (llama, qwen)]
    words = [folder, json.dumps(models), str(TOKENS), json.dumps(PROMPTS)]
    command = [sys.executable, "-c", REFERENCE, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[list[int]]] = json.loads(done.stdout.splitlines()[-1])
    return {Path(model): tokens for model, tokens in zip(models, found, strict=True)}


def test_greedy_tokens_are_the_same_again_and_the_reference_engines(
    served: Served, reference: dict[Path, list[list[int]]]
) -> None:
    for prompt, expected in zip(PROMPTS, reference[served.miniature], strict=True):
        found, again = (completion(served, prompt) for _ in range(2))
        assert found["token_ids"] == again["token_ids"]
        different = [i for i in range(TOKENS) if found["token_ids"][i] != expected[i]]
        if different:
            first = different[0]
            likely = sorted(found["logprobs"]["top_logprobs"][first].values(), reverse=True)
            assert likely[0] - likely[1] < NEAR, (prompt, first, likely)


def completion(served: Served, prompt: str) -> dict[str, Any]:
    asked = {"max_tokens": TOKENS, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    body = {"model": served.model, "prompt": prompt, "return_token_ids": True, **asked}
    [choice] = served.post("/v1/completions", **body)["choices"]
    return dict(choice)


REFERENCE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tensorrt_llm import LLM, SamplingParams
params = SamplingParams(max_tokens=int(sys.argv[3]), temperature=0.0, ignore_eos=True)
found = []
for model in json.loads(sys.argv[2]):
    with LLM(model) as llm:
        answers = [llm.generate_async(one, params).result() for one in json.loads(sys.argv[4])]
        found.append([list(one.outputs[0].token_ids) for one in answers])
print(json.dumps(found))
"""


# A metric of vLLM in an expression; `:` also stands in the names of recording rules.
METRIC = re.compile(r"\bvllm:[a-z_]+")


def test_every_metric_that_is_asked_for_is_shown_as_its_record_says(llama: Launched) -> None:
    text = httpx.get(f"{llama.url}/metrics", trust_env=False).text
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
    shown = {*kinds, *re.findall(r"^(vllm:\w+)", text, re.MULTILINE)}
    files = [path for path in (llama.bundle.folder / "monitoring").rglob("*") if path.is_file()]
    asked = {name for path in files for name in METRIC.findall(path.read_text())}
    unshown = [family for family in known.values() if family.needs]  # without a draft model
    assert asked
    assert asked - shown <= {name for family in unshown for name in family.samples}


def test_a_benchmark_and_its_report_name_the_engine(
    qwen: Supervised, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--isl", "32", "--osl", "8", "--concurrency", "2", "--requests", "8"]
    assert main(["bench", qwen.url, *quick, "--run-dir", "measured"]) == 0
    measured = json.loads(Path("measured/bench.json").read_text())
    assert measured["subject"]["engine"]["used"] == "vllm"
    assert measured["points"][0]["output_tokens"]["mean"] == 8
    assert main(["report", "measured", "-o", "page.html"]) == 0
    assert "vllm 0.32.0" in Path("page.html").read_text()


# The next two come last: they end what the others ask.


def test_a_stop_lets_streams_end_and_leaves_nothing(llama: Launched) -> None:
    with a_stream(llama) as lines:
        llama.launcher.signal(signal.SIGINT)
        assert list(lines)[-1] == "data: [DONE]"
    assert llama.launcher.end(STOP_TIMEOUT_S) == 0
    facts = json.loads((llama.run / "run.json").read_text())
    assert (facts["outcome"], facts["killed"]) == ("stopped", False)
    assert facts["engine"] == {
        "name": "vllm",
        "release": "0.32.0",
        "used": "vllm",
        "rehearsal": True,
    }
    nothing_is_left(marked_processes)


def test_a_job_that_is_drained_lets_streams_end_and_leaves_nothing(qwen: Supervised) -> None:
    with a_stream(qwen) as lines:
        (qwen.run / DRAIN).touch()
        assert list(lines)[-1] == "data: [DONE]"
    assert qwen.job.wait(STOP_TIMEOUT_S) == 0
    record = qwen.record()
    assert (record["state"], record["outcome"]) == ("ended", "stopped")
    nothing_is_left(lambda: processes(qwen.bundle.folder.parent))


@contextmanager
def a_stream(served: Served) -> Iterator[Iterator[str]]:
    """The lines of a long answer after its first one."""
    body = {"model": served.model, "prompt": "Once", "max_tokens": 256, "ignore_eos": True}
    address = f"{served.url}/v1/completions"
    with httpx.stream("POST", address, json={**body, "stream": True}, timeout=120) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert next(lines).startswith("data: ")
        yield lines


def nothing_is_left(found: Callable[[], set[int]]) -> None:
    deadline_s = time.monotonic() + 30
    while found() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert found() == set()


def test_what_is_rendered_is_taken_by_the_engines_own_classes(tmp_path: Path) -> None:
    asked = {}
    for number, (model, hardware) in enumerate(LARGE):
        bundle = render(tmp_path / str(number), "large", model, hardware=hardware)
        facts = checkpoints.from_bundle(bundle.folder)
        asked[model] = facts, bundle.folder / "vllm_serve" / "config.yaml"
    for preset in PRESETS:
        bundle = pipeline.render(preset, tmp_path / preset, [])
        facts = checkpoints.from_bundle(bundle.folder)
        asked[preset] = facts, bundle.folder / "vllm_serve" / "config.yaml"
    triton = pipeline.render(PRESETS[0], tmp_path / "triton", ["targets={triton_vllm: {}}"])
    [options] = triton.folder.rglob("model.json")
    asked["triton"] = checkpoints.from_bundle(triton.folder), options
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("max_num_sequences: 4\n")
    asked["wrong"] = asked[LARGE[0][0]][0], wrong
    found = dict(zip(asked, cpu_build.refusals(ENGINE, list(asked.values())), strict=True))
    assert "max-num-sequences" in (found.pop("wrong") or "")
    assert ENGINE.cpu_build is not None
    assert ENGINE.cpu_build.unjudged in (found.pop("qwen3.5-397b-nvfp4-b300-vllm") or "")
    assert set(found.values()) == {None}, found
