"""The metrics that rules ask of a release's server are there, as the release has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from builder import pipeline
from builder.facts import release as releases
from builder.observability import metrics
from builder.observability.signals import METRIC
from tensorrt_llm import LLM, options
from tensorrt_llm.server import OpenAIServer
from tests.conftest import of_release
from tests.reference.conftest import LLAMA

SAMPLE = re.compile(r"^(\w+)\{(.*)\} \S+$", re.MULTILINE)
PATH, STATISTICS = "/prometheus/metrics", "/metrics"
DRAFTS = {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 2}
ENABLED = {"return_perf_metrics": True, "enable_iter_perf_stats": True}


Served = Callable[..., TestClient]


@pytest.fixture
def served(make_miniature: Callable[[str], Path]) -> Iterator[Served]:
    """A client of a server that has answered one request and refused another."""
    engines: list[LLM] = []

    def start(**given: object) -> TestClient:
        engines.append(LLM(make_miniature(LLAMA), speculative_config=DRAFTS, **given))
        found = TestClient(OpenAIServer(engines[-1], LLAMA).app)
        asked = {"model": LLAMA, "prompt": "the end of the end of", "max_tokens": 40}
        fixed = {"temperature": 0, "ignore_eos": True}
        assert found.post("/v1/completions", json={**asked, **fixed}).status_code == 200
        assert (
            found.post("/v1/completions", json={**asked, "max_tokens": "many"}).status_code == 400
        )
        return found

    yield start
    for engine in engines:
        engine.shutdown()


def samples(text: str) -> dict[str, set[str]]:
    """The labels of each sample."""
    return {name: set(re.findall(r'(\w+)="', labels)) for name, labels in SAMPLE.findall(text)}


def asked_for(release: str, folder: Path) -> set[str]:
    """The metrics of the engine in all rules of a bundle."""
    given = [*of_release(release), "targets.monitoring={server: trtllm_serve}"]
    bundle = pipeline.render(LLAMA, folder, given, more_targets=["monitoring"]).folder
    rules = "".join(path.read_text() for path in (bundle / "monitoring").rglob("*.y*ml"))
    exporters = {name for row in metrics.of_jobs(metrics.jobs()).values() for name in row.samples}
    return {name for name in METRIC.findall(rules) if not name.partition(":")[2]} - exporters


@pytest.mark.parametrize("release", ["1.2.1", "main-00043967"])
def test_every_metric_that_rules_ask_for_is_answered(
    release: str, tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = releases.load(release)
    monkeypatch.setattr(options, "release", lambda: table)
    text = served(**ENABLED).get(PATH).text
    answered = samples(text)
    families = metrics.of_server("trtllm_serve", table)
    for family in families.values():
        assert f"# TYPE {family.name.removesuffix('_total')}" in text
        for name in family.samples:
            assert set(family.labels) == answered[name] - {"le"}
    asked = asked_for(release, tmp_path / "bundle")
    assert {name for name in asked if "time_to_first_token" in name}
    assert asked <= set(answered)


def test_statistics_of_iterations_add_up(served: Served) -> None:
    """Reading one path takes nothing from the other."""
    found = served(**ENABLED)
    assert found.get(PATH).status_code == 200
    rows = found.get(STATISTICS).json()
    assert found.get(STATISTICS).json() == []
    assert sum(row["numCompletedRequests"] for row in rows) == 1
    assert rows[0]["inflightBatchingStats"]["numContextRequests"] == 1
    drafts = [row["specDecodingStats"] for row in rows]
    accepted = sum(row["numAcceptedTokens"] for row in drafts)
    assert 0 < accepted < sum(row["numDraftTokens"] for row in drafts)
    assert len(rows) == 40 - accepted
    for row in rows:
        blocks = row["kvCacheStats"]
        assert blocks["usedNumBlocks"] + blocks["freeNumBlocks"] == blocks["maxNumBlocks"]


def test_what_is_not_enabled_is_not_there(served: Served) -> None:
    found = served()
    assert found.get(STATISTICS).json() == []
    assert found.get(PATH).status_code == 404
