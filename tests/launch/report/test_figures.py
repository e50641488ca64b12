"""Scales, fronts, comparisons and published figures: what the charts and tables are made of."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launch.report import (
    comparison,
    evidence,
    figures,
    page,
    published,
    verdict,
)
from launch.report.evidence import RunEvidence
from tests.launch.report import samples

Runs = Callable[..., list[RunEvidence]]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """The evidence of documents."""

    def gather(*documents: samples.Json) -> list[RunEvidence]:
        folders = [
            samples.run_folder(tmp_path / str(index), document)
            for index, document in enumerate(documents)
        ]
        return evidence.gather(folders)

    return gather


def test_the_front_spans_the_runs(runs: Runs) -> None:
    slow = samples.bench("slow", points=[samples.point(n, tpot_ms=9) for n in samples.LOADS])
    found = figures.draw(runs(samples.bench("fast"), slow))[1]
    assert found.linear and found.linear.count('class="front"') == 1


def test_open_loops_are_drawn_over_their_rate(runs: Runs) -> None:
    points = []
    for rate in (0.5, 1.0, 2.0):
        point = samples.point(4)
        point |= {"load": {"kind": "poisson", "rate_per_s": rate}, "label": f"r{rate:g}"}
        points.append(point)
    found = figures.draw(runs(samples.bench(points=points)))
    assert found[2].linear and "requests per second" in found[2].linear
    assert ">0.5<" in str(found[0].linear)
    assert found[0].how.endswith("its load in requests per second.")


def test_what_was_not_measured_is_not_drawn(runs: Runs) -> None:
    missing = {"itl_ms": None, "output_tokens_per_s_per_gpu": None}
    points = [samples.point(load) | missing for load in (1, 2)]
    found = runs(samples.bench(points=points))
    drawn = {figure.name: figure for figure in figures.draw(found)}
    assert drawn["throughput"].linear
    assert drawn["interactivity"].linear is None
    shown = page.text(found)
    assert 'id="throughput"' in shown and 'id="interactivity"' not in shown
    assert drawn["itl"].linear is None


def test_runs_with_one_load_each_get_bars_in_place_of_charts(runs: Runs) -> None:
    documents = [
        samples.bench(f"tpot {ms}", points=[samples.point(8, tpot_ms=ms)]) for ms in (2, 4)
    ]
    found = runs(*documents)
    drawn = {figure.name: figure for figure in figures.draw(found)}
    itl = drawn["itl"]
    assert itl.linear is None and itl.bars
    assert [row[:2] for row in itl.bars.rows] == [
        ["tpot 2, 8 concurrent requests", "2.8"],
        ["tpot 4, 8 concurrent requests", "5.6"],
    ]
    assert [float(row[2]) for row in itl.bars.rows] == [0.5, 1]
    assert (itl.how, drawn["throughput"].how) == ("Lower is better.", "Higher is better.")
    bars = figures.draw(found[:1])[0].bars
    assert bars and len(bars.columns) == len(bars.rows[0]) == 2  # there is nothing to compare


def test_long_times_are_drawn_in_seconds(runs: Runs) -> None:
    points = [samples.point(load, tpot_ms=6000) for load in (1, 8)]
    drawn = {one.name: one for one in figures.draw(runs(samples.bench(points=points)))}
    assert "ITL (s)" in str(drawn["itl"].linear) and "TTFT (ms)" in str(drawn["ttft"].linear)


def test_messages_and_tokens_share_no_axis(runs: Runs) -> None:
    tokens = [samples.point(n) for n in (1, 8)]
    messages = [samples.point(n, tpot_ms=9) | {"itl_of": "messages"} for n in (1, 8)]
    found = runs(samples.bench("one", points=tokens), samples.bench("other", points=messages))
    drawn = {figure.name: figure for figure in figures.draw(found)}
    assert 'class="mark s0"' in str(drawn["itl"].linear)
    assert 'class="mark s1"' not in str(drawn["itl"].linear)
    assert 'class="mark s1"' in str(drawn["gaps"].linear)
    assert 'class="limit"' in str(drawn["itl"].linear) and 'class="limit"' not in str(
        drawn["gaps"].linear
    )
    assert "A message may hold several tokens" in drawn["gaps"].how
    assert "other is not here: its messages hold several tokens" in drawn["itl"].how
    assert "one is not here: it sends a token per message" in drawn["gaps"].how


def test_runs_are_compared_load_by_load_with_the_first(runs: Runs) -> None:
    fast = samples.bench("fast", points=[samples.point(n) for n in (1, 8)])
    slow = samples.bench("slow", points=[samples.point(n, tpot_ms=6.8) for n in (8, 16)])
    (row,) = comparison.differences(runs(fast, slow))
    assert (row["run"], row["load"]) == ("slow", "c8")
    assert row["changes"]["TPOT p50"] == pytest.approx(1.0)
    assert row["changes"]["TTFT p50"] == pytest.approx(0.0)
    assert row["changes"]["output tokens/s"] == pytest.approx(-0.495, abs=0.01)


def test_settings_that_differ_are_listed_and_no_others(runs: Runs) -> None:
    one, other = samples.bench("one"), samples.bench("other")
    other["subject"] |= {"precision": "fp8"}
    other["workload"] |= {"isl": 1024}
    found = comparison.settings(runs(one, other))
    assert [title for title, _ in found.columns] == ["setting", "one", "other"]
    assert found.rows == [["precision", "nvfp4", "fp8"], ["isl", "800", "1,024"]]


def test_decisions_of_two_bundles_are_compared(runs: Runs, rendered: samples.Json) -> None:
    one, other = runs(samples.bench("one", bundle=rendered), samples.bench("two", bundle=rendered))
    assert other.manifest
    decisions = [
        {**row, "value": 32} if row["path"] == "max_batch_size" else row
        for row in other.manifest["decisions"]
    ]
    changed = replace(other, manifest={**other.manifest, "decisions": decisions})
    assert ["max_batch_size", "64", "32"] in comparison.settings([one, changed]).rows


def test_published_figures_carry_source_and_workload(runs: Runs, rendered: samples.Json) -> None:
    (row,) = published.for_run(runs(samples.bench(bundle=rendered))[0])
    assert row.source == "Microsoft and NVIDIA, DeepSeek-V3.2 on GB200 (2026-02)"
    assert "ShareGPT, 500 prompts, output length 1600" in row.workload
    assert (row.concurrency, row.output_tokens_per_s, row.e2e_ms) == (1, 272, 5801)
    assert (row.tokens_per_s_per_user, row.tokens_per_s_per_gpu) == (272, 68)
    assert (row.mark_label, row.gpus) == ("1, published", "4x\u00a0gb200")


@pytest.mark.parametrize(
    ("changes", "tone", "title"),
    [
        ({}, "good", "Within the SLO with up to 16 concurrent requests"),
        ({"largest_concurrency_within_slo": None}, "warning", "No load met the service level"),
        ({"slo": None}, "good", "4,361 output tokens/s at 64 concurrent requests"),
        ({"outcome": "interrupted"}, "warning", "Within the SLO with up to 16 concurrent requests"),
        ({"points": []}, "good", "Nothing was measured"),
        ({"points": [], "outcome": "failed"}, "bad", "Nothing was measured"),
        ({"outcome": "failed"}, "bad", "The run ended by a failure"),
    ],
)
def test_the_verdict(runs: Runs, changes: samples.Json, tone: str, title: str) -> None:
    found = verdict.verdict(runs(samples.bench(**changes)))
    assert (found.tone, found.title.replace("\u00a0", " ")) == (tone, title)


def test_notices_come_before_any_figure(runs: Runs) -> None:
    document = samples.bench(outcome="interrupted", points=[samples.point(1, failed=2)])
    document["client"] |= {"marked": True, "share_of_limit": 0.82}
    document["points"][0]["client_limited"] = True
    document["subject"]["engine"]["rehearsal"] = True
    found = runs(document)
    assert [notice.title for notice in verdict.notices(found)] == [
        "Rehearsal",
        "Interrupted",
        "Near the client's limit",
        "Failed requests",
    ]
    text = page.text(found).replace("\u00a0", " ")
    assert text.index("Near the client") < text.index('class="verdict')
    assert "at 82 % of its own limit at 1 concurrent request; from 70 % on" in text
    assert "2 of 20 requests failed (10 %): 2 cut." in text


def test_a_notice_that_runs_share_is_given_once(runs: Runs) -> None:
    documents = [samples.bench(name, outcome="interrupted") for name in ("one", "two", "three")]
    documents[2]["outcome"] = "complete"
    (notice,) = verdict.notices(runs(*documents))
    assert notice.title == "Interrupted: one; two"


def test_why_a_run_ended_by_a_failure_is_said(runs: Runs) -> None:
    [notice] = verdict.notices(runs(samples.bench(outcome="failed", failure="grpc: no model x")))
    assert (notice.title, notice.text) == (
        "Ended by a failure",
        "grpc: no model x. Loads after it are missing.",
    )


@pytest.mark.parametrize(
    ("change", "same"),
    [({}, True), ({"isl": 860}, True), ({"isl": None}, True), ({"kind": "unknown"}, True),
     ({"isl": 8}, False), ({"osl": 100}, False), ({"kind": "agent"}, False)],
)  # fmt: skip
def test_runs_of_other_workloads_are_not_compared(
    runs: Runs, change: samples.Json, same: bool
) -> None:
    one, other = samples.bench("one"), samples.bench("other")
    other["workload"] |= change
    found = runs(one, other)
    title = verdict.verdict(found).title
    assert ("Runs of different workloads side by side" not in title) == same
    assert bool(comparison.differences(found)) == same


def test_a_rehearsal_never_delivers_most(runs: Runs) -> None:
    quick = [samples.point(64, tpot_ms=0.1)]
    found = runs(samples.bench("real"), samples.bench("tiny", rehearsal=True, points=quick))
    assert verdict.verdict(found).title == "real delivers most"
    rehearsals = verdict.verdict([found[1], found[1]])
    assert rehearsals.title == "Side by side on CPU; the speed says nothing about the GPU"


def test_a_run_with_failures_leads_with_them_and_wins_nothing(runs: Runs) -> None:
    good = samples.bench("good", points=[samples.point(8)])
    swift = [samples.point(8, tpot_ms=0.1, failed=3), samples.point(16, tpot_ms=0.1, failed=1)]
    both = runs(samples.bench("bad", points=swift), good)
    alone = verdict.verdict(both[:1])
    assert alone.title == "4 of 240 requests failed"
    assert "No load was served without a failed request." in alone.text
    said = verdict.verdict(both)
    assert said.title == "bad: 4 of 240 requests failed"
    assert "The highest output is that of good" in said.text
    assert "bad:" not in said.text and "that of bad" not in said.text
    first, second = comparison.overview(both).rows
    assert first[:2] == ["bad", "4 of 240"] and set(first[2:]) == {"\u2013"}
    assert second[:2] == ["good", "0 of 80"]
    assert comparison.differences(both) == []


def test_a_total_failure_is_all_that_is_said(runs: Runs) -> None:
    lost = samples.point(12, failed=120) | {"output_tokens_per_s": 0.0}
    (run,) = runs(samples.bench(points=[lost]))
    said = verdict.verdict([run])
    assert (said.tone, said.title) == ("bad", "120 of 120 requests failed")
    assert verdict.tiles(run) == []


def test_the_legend_names_only_what_is_drawn(runs: Runs) -> None:
    lost = samples.point(12, failed=120) | {"output_tokens_per_s": None, "ttft_ms": None}
    lost |= {"itl_ms": None, "output_tokens_per_s_per_gpu": None}
    text = page.text(runs(samples.bench("good"), samples.bench("lost", points=[lost])))
    assert 'data-toggle="0"' in text and 'data-toggle="1"' not in text


def test_a_load_with_failures_is_no_headline(runs: Runs) -> None:
    points = [samples.point(8), samples.point(64, failed=2)]
    (run,) = runs(samples.bench(points=points))
    said = verdict.verdict([run])
    assert said.title == "2 of 720 requests failed"
    assert "Without a failed request it delivers up to 1,651" in said.text.replace("\u00a0", " ")
    assert all("c64" not in tile.condition for tile in verdict.tiles(run))


def test_figures_do_not_depend_on_the_order_of_loads(runs: Runs) -> None:
    points = [samples.point(load) for load in samples.LOADS]
    shuffled = [points[place] for place in (3, 6, 0, 5, 1, 4, 2)]
    one, other = runs(samples.bench(points=points), samples.bench(points=shuffled))
    assert page.text([one]) == page.text([replace(other, title=one.title, place=one.place)])


def test_rehearsals_are_not_compared(runs: Runs) -> None:
    """A hundredth more or less of a miniature on a CPU says nothing."""
    slow = [samples.point(8, tpot_ms=3.41)]
    found = runs(
        samples.bench("one", rehearsal=True),
        samples.bench("two", rehearsal=True, points=slow),
        samples.bench("real", points=[samples.point(8)]),
        samples.bench("late", points=slow),
    )
    assert [row["run"] for row in comparison.differences(found)] == ["late"]
    assert comparison.changes(found).caption.startswith("Changes against real; rehearsals")
    assert comparison.differences(found[:2]) == []


def test_a_figure_that_is_not_known_has_no_tile(runs: Runs) -> None:
    point = samples.point(8) | {"ttft_ms": None}
    (run,) = runs(samples.bench(points=[point]))
    assert [tile.name for tile in verdict.tiles(run)][:3] == [
        "Highest output", "For one user", "Whole request"
    ]  # fmt: skip


def test_failed_smoke_checks_make_the_verdict_bad(runs: Runs) -> None:
    (run,) = runs(samples.bench())
    failing = replace(run, smoke=[replace(one, outcome="failed") for one in run.smoke])
    said = verdict.verdict([failing])
    assert (said.tone, said.title) == ("bad", "3 of 3 smoke checks failed")


def test_scores_are_shown_with_their_interval(runs: Runs) -> None:
    task = {"task": "gsm8k", "metric": "exact_match", "score": 0.93, "low": 0.9, "high": 0.95,
            "items": 200, "reference": 0.94, "verdict": "like the reference"}  # fmt: skip
    text = page.text(runs(samples.bench(quality={"tasks": [task]})))
    for part in ("gsm8k", "0.93", "0.9 to 0.95", "like the reference"):
        assert part in text


def test_metrics_of_the_server_are_shown_as_what_they_grew_by(runs: Runs) -> None:
    point = samples.point(1)
    point["server"] = {"a_total": {"before": 10, "after": 30}, "b": 0.5}
    text = page.text(runs(samples.bench(points=[point])))
    assert re.search(r'a_total</th><td class="num" data-label="1 concurrent">20</td>', text)
    assert re.search(r'b</th><td class="num" data-label="1 concurrent">0.5</td>', text)


def test_many_metrics_stay_a_small_page(runs: Runs) -> None:
    points = [samples.point(n) for n in samples.LOADS]
    for point in points:
        point["server"] = {f"metric_{index}": {"before": 0, "after": 1} for index in range(500)}
    text = page.text(runs(*[samples.bench(f"run {n}", points=points) for n in range(4)]))
    assert "460 more are in bench.json" in text
    assert len(text.encode()) < 300_000
