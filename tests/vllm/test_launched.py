"""A dense model that `launch up` starts on vLLM: smoke, greedy tokens, metrics and stop."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import httpx

from builder.facts import release
from builder.observability import metrics
from tests.launch.conftest import marked_processes
from tests.vllm.answers import (
    a_stream,
    greedy_tokens_are_the_reference_engines,
    nothing_is_left,
    passed,
)
from tests.vllm.conftest import ENGINE, STOP_TIMEOUT_S, Launched


def test_the_smoke_suite_passes(llama: Launched) -> None:
    command = [sys.executable, "-m", "launch", "smoke", str(llama.bundle.folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    passed(json.loads(done.stdout))


def test_greedy_tokens_are_the_reference_engines(llama: Launched) -> None:
    greedy_tokens_are_the_reference_engines(llama)


# A metric of vLLM in an expression; `:` also stands in the names of recording rules.
METRIC = re.compile(r"\bvllm:[a-z_]+")


def test_every_metric_that_is_asked_for_is_shown_as_its_record_says(llama: Launched) -> None:
    text = httpx.get(f"{llama.url}/metrics", trust_env=False, verify=False, timeout=60).text
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


# It comes last: it ends what the others ask.
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
