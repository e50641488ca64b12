"""The measures of a point: each one by its definition, on requests whose times are known."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import pytest

from launch.bench import point_metrics, server_metrics, workers
from launch.bench.load import LoadPlan
from launch.bench.point_metrics import MetricOptions
from launch.bench.request import Failure, LoadRequest, RequestRecord
from launch.bench.samples import summarize, summarize_counts
from launch.bench.workers import ProcessUsage
from tests.launch.bench.records import failed, seen, stream

WHOLE = MetricOptions(window="whole")


def point(
    rows: Sequence[RequestRecord], settings: MetricOptions = WHOLE, **plan: Any
) -> dict[str, Any]:
    return point_metrics.measure(rows, LoadPlan(**{"kind": "concurrency", **plan}), settings)


def test_latencies_are_those_of_the_definitions() -> None:
    one = seen(sent_ms=7, ttft_ms=50, itl_ms=5, tokens=9)
    assert one.ttft_ms == 50
    assert one.tpot_ms == 5
    assert one.e2e_ms == 90


def test_times_are_from_the_send_however_late_it_was() -> None:
    late = seen(sent_ms=500, ttft_ms=50, itl_ms=5, tokens=5, scheduled_ns=0)
    assert (late.ttft_ms, late.e2e_ms, late.late_ms) == (50, 70, 500)
    found = point([late])
    assert (found["ttft_ms"]["p50"], found["e2e_ms"]["p50"]) == (50, 70)
    assert found["duration_s"] == pytest.approx(0.07)


def test_inter_token_latency_is_over_the_gaps_of_all_requests() -> None:
    found = point([seen(0, itl_ms=5, tokens=9), seen(1, itl_ms=50, tokens=3)])["itl_ms"]
    assert (found["n"], found["min"], found["p50"], found["max"]) == (10, 5, 5, 50)
    assert found["mean"] == (8 * 5 + 2 * 50) / 10


def test_a_gap_is_shared_by_the_tokens_of_the_message_after_it() -> None:
    ms = 1_000_000
    one = seen(message_ns=(50 * ms, 80 * ms, 84 * ms), message_tokens=(2, 3, 1))
    assert one.gaps_us() == {10_000: 3, 4_000: 1}


def test_without_counts_a_gap_is_one_of_messages_and_said_to_be() -> None:
    found = point([seen(tokens=9, per_message=3, counted=False)])
    assert found["itl_ms"]["p50"] == 15
    assert found["itl_of"] == "messages"
    assert point([seen()])["itl_of"] == "tokens"


def test_tokens_without_time_between_them_give_a_user_no_rate() -> None:
    alone, together = point([seen(tokens=1)]), point([seen(tokens=4, itl_ms=0)])
    assert (alone["tpot_ms"], together["tpot_ms"]["mean"]) == (None, 0)
    for found in (alone, together):
        assert found["output_tokens_per_s_per_user"] is None


def test_percentiles_are_those_of_numpy() -> None:
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6, 5.0]
    found = summarize(values)
    assert found is not None
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for percent in (50, 90, 95, 99):
        assert found[f"p{percent}"] == pytest.approx(cuts[percent - 1], abs=1e-4)
    assert (found["n"], found["min"], found["max"]) == (7, 1.0, 9.0)
    assert found["mean"] == pytest.approx(statistics.fmean(values), abs=1e-4)
    assert found["stddev"] == pytest.approx(statistics.pstdev(values), abs=1e-4)


def test_counted_values_are_summed_up_as_if_each_stood_alone() -> None:
    assert summarize_counts({1.0: 3, 7.0: 2}) == summarize([1.0, 1.0, 1.0, 7.0, 7.0])
    assert summarize([]) is None


def test_a_failed_request_is_an_error_and_in_nothing_else() -> None:
    good = [seen(0), seen(1, sent_ms=100)]
    with_failed = point([*good, failed(2), failed(3), failed(4, kind="cut")])
    alone = point(good)
    assert with_failed["errors"] == {
        "timeout": {"count": 2, "example": "it took too long"},
        "cut": {"count": 1, "example": "it took too long"},
    }
    assert with_failed["requests"] == {"sent": 5, "ok": 2, "failed": 3, "in_window": 2}
    for name in ("ttft_ms", "tpot_ms", "e2e_ms", "itl_ms", "output_tokens"):
        assert with_failed[name] == alone[name]


def test_tokens_before_a_failure_are_no_users_speed() -> None:
    cut = seen(2, itl_ms=500, failure=Failure("cut", "the connection ended"))
    found = point([seen(0), seen(1, sent_ms=100), cut])
    assert found["output_tokens_per_s_per_user"] == 200
    assert found["itl_ms"]["max"] == found["tpot_ms"]["max"] == 5
    assert found["output_tokens_per_s"] * found["duration_s"] == pytest.approx(10, rel=1e-3)


def test_a_point_without_any_success_has_errors_only() -> None:
    found = point([failed(0), failed(1)])
    assert found["requests"]["failed"] == 2
    assert found["ttft_ms"] is found["output_tokens_per_s"] is found["goodput"] is None
    assert set(found) == set(point([seen()]))


@pytest.mark.parametrize("seconds", [0.5, 1.0])
def test_throughput_of_a_whole_load_is_its_tokens_over_its_time(seconds: float) -> None:
    rows = [seen(0), seen(1, sent_ms=1000 * seconds - 70)]
    found = point(rows, MetricOptions(window="whole", num_gpus=4))
    assert found["output_tokens_per_s"] == pytest.approx(10 / seconds, rel=1e-6)
    assert found["total_tokens_per_s"] == pytest.approx(30 / seconds, rel=1e-6)
    assert found["output_tokens_per_s_per_gpu"] == pytest.approx(2.5 / seconds, rel=1e-6)
    assert found["output_tokens_per_s_per_user"] == 200


def test_the_steady_window_leaves_out_the_first_and_the_last_wave() -> None:
    rows = stream(concurrency=4, waves=5)
    rows = [*rows[:-4], *[seen(n, 400, ttft_ms=900) for n in range(16, 20)]]  # a slow drain
    found = point(rows, MetricOptions(), concurrency=4)
    assert found["window"]["kind"] == "steady"
    assert found["requests"]["in_window"] == 12
    assert found["e2e_ms"]["max"] == 100
    assert found["output_tokens_per_s"] == pytest.approx(4 * 5 / 0.1, rel=0.01)
    assert found["requests_per_s"] == pytest.approx(40, rel=0.01)


def test_an_open_loop_leaves_out_a_tenth_at_each_end() -> None:
    rows = [seen(n, sent_ms=10 * n, scheduled_ns=int((10 * n - 2) * 1e6)) for n in range(30)]
    found = point_metrics.measure(rows, LoadPlan("poisson"), MetricOptions())
    assert found["requests"]["in_window"] == 24
    assert found["late_ms"]["max"] == 2


def test_goodput_counts_requests_within_every_limit() -> None:
    rows = [seen(0), seen(1), seen(2, ttft_ms=80), seen(3, itl_ms=20), failed(4)]
    found = point(rows, MetricOptions({"ttft_ms": 60, "itl_ms": 10}, window="whole"))
    assert found["goodput"]["share"] == 0.4
    assert found["goodput"]["requests_per_s"] == pytest.approx(
        found["requests_per_s"] * 2 / 4, abs=1e-3
    )


def test_the_largest_concurrency_within_the_slo_ends_before_the_first_that_is_not() -> None:
    def at(concurrency: int, share: float) -> dict[str, Any]:
        load = {"kind": "concurrency", "concurrency": concurrency}
        return {"load": load, "goodput": {"share": share}}

    points = [at(8, 1.0), at(1, 1.0), at(2, 0.995), at(4, 0.9)]
    assert point_metrics.largest_within_slo(points) == 2
    assert point_metrics.largest_within_slo(points[3:]) is None


def test_cost_is_the_price_of_all_gpus_over_what_they_do() -> None:
    settings = MetricOptions(num_gpus=4, price_per_gpu_hour_usd=3.6, window="whole")
    found = point([seen(0), seen(1, sent_ms=930)], settings)
    assert found["cost"]["usd_per_million_output_tokens"] == pytest.approx(400, rel=1e-6)
    assert found["cost"]["usd_per_million_total_tokens"] == pytest.approx(400 / 3, rel=1e-6)
    assert found["cost"]["usd_per_task"] is None
    assert point([seen()])["cost"] is None


def test_a_task_is_done_with_its_last_call_and_timed_as_a_whole() -> None:
    calls = [LoadRequest("hi", task=task) for task in (0, 0, 1, 1)]
    plan = LoadPlan("tasks", tasks=(tuple(calls[:2]), tuple(calls[2:])))
    rows = [
        seen(0, 5000, task=0, call=0),
        seen(1, 5500, task=0, call=1, attempt=1),
        seen(2, 5000, task=1, call=0),
    ]
    settings = MetricOptions(num_gpus=1, price_per_gpu_hour_usd=3600, window="whole")
    found = point_metrics.measure(rows, plan, settings)
    assert found["tasks"] | {"total_s": None} == {
        "count": 2, "ok": 1, "calls": 3, "retries": 1, "total_s": None
    }  # fmt: skip
    assert found["tasks"]["total_s"]["mean"] == 0.57
    assert found["cost"]["usd_per_task"] == pytest.approx(0.57, rel=1e-4)


def test_throughput_is_unknown_where_nobody_counted() -> None:
    found = point([seen(output_tokens=None, message_tokens=())])
    assert found["output_tokens_per_s"] is found["total_tokens_per_s"] is None
    assert found["requests_per_s"] > 0


def test_acceptance_is_weighted_by_draft_tokens() -> None:
    rows = [
        seen(server={"total_draft_tokens": 90.0, "total_accepted_draft_tokens": 9.0}),
        seen(server={"total_draft_tokens": 10.0, "total_accepted_draft_tokens": 10.0}),
    ]
    found = point(rows)["speculative"]
    assert (found["acceptance_rate"], found["source"]) == (0.19, "answers")


def test_tokens_per_step_are_all_tokens_over_all_steps() -> None:
    """30 tokens in 10 steps and 10 in 10, which no mean of the two rates gives."""
    rows = [
        seen(0, tokens=30, server={"tokens_per_step": 3.0}),
        seen(1, tokens=10, server={"tokens_per_step": 1.0}),
    ]
    found = point(rows)["speculative"]
    assert found == {"acceptance_rate": None, "tokens_per_step": 2.0, "source": "answers"}


PERF = {
    "request_id": 7,
    "perf_metrics": {
        "timing_metrics": {
            "arrival_time": 10.0,
            "first_scheduled_time": 10.002,
            "first_token_time": 10.05,
        },
        "kv_cache_metrics": {"num_reused_blocks": 3, "num_missed_blocks": 1},
        "speculative_decoding": {"total_draft_tokens": 8, "total_accepted_draft_tokens": 6},
    },
}


def test_what_answers_do_not_say_comes_from_perf_metrics() -> None:
    perf = [server_metrics.perf_row(PERF), server_metrics.perf_row({"perf_metrics": {}})]
    found = point_metrics.measure([seen()], LoadPlan("concurrency"), WHOLE, perf)
    assert found["speculative"]["acceptance_rate"] == 0.75
    assert found["kv_cache"] == {"reused_share": 0.75, "source": "/perf_metrics"}
    assert found["queue_ms"]["mean"] == pytest.approx(2)
    assert found["server_ttft_ms"]["mean"] == pytest.approx(50)


def test_reuse_is_told_by_cached_tokens_too() -> None:
    found = point([seen(cached_tokens=6), seen(cached_tokens=1)])
    assert found["kv_cache"] == {"reused_share": 0.35, "source": "usage"}


def test_samples_are_evenly_spaced_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_metrics, "MOST_SAMPLES", 4)
    rows = [seen(n, sent_ms=n, ttft_ms=n + 1) for n in range(10)]
    assert point(rows)["samples"]["ttft_ms"] == [1, 4, 7, 10]


SECOND_NS = 1_000_000_000


def busy(*cpu_shares: float) -> ProcessUsage:
    """A process that used such shares of a core, in one second after the other."""
    samples, cpu_ns = [(0, 0)], 0
    for second, share in enumerate(cpu_shares, 1):
        cpu_ns += int(share * SECOND_NS)
        samples.append((second * SECOND_NS, cpu_ns))
    return ProcessUsage(sum(cpu_shares), 30.0, tuple(samples))


def test_cpu_time_counts_only_while_the_window_was_open() -> None:
    one = busy(1.0, 0.2, 0.4, 1.0)
    assert one.share_of_core(1 * SECOND_NS, 3 * SECOND_NS) == pytest.approx(0.3)
    assert one.share_of_core(int(1.5 * SECOND_NS), 2 * SECOND_NS) == pytest.approx(0.2)
    assert one.share_of_core(3 * SECOND_NS, 9 * SECOND_NS) == pytest.approx(1.0)
    assert one.share_of_core(5 * SECOND_NS, 9 * SECOND_NS) is None
    assert ProcessUsage(0.1, 30.0).share_of_core(0, SECOND_NS) is None


def test_the_busiest_process_counts_and_more_processes_than_cpus_share_them() -> None:
    usage = [busy(0.2), busy(0.4)]
    assert workers.share_of_limit(usage, 0, SECOND_NS, cpus=2) == pytest.approx(0.4)
    assert workers.share_of_limit(usage, 0, SECOND_NS, cpus=1) == pytest.approx(0.8)
    assert workers.share_of_limit([], 0, SECOND_NS, cpus=1) is None


@pytest.mark.parametrize(("share", "limited"), [(0.7, False), (0.75, True), (1.0, True)])
def test_a_point_whose_load_process_was_busy_is_marked(
    share: float, limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point_metrics, "CLIENT_LIMITED_SHARE", 0.75)
    rows = [seen(0), seen(1, sent_ms=100)]
    plan = LoadPlan("concurrency")
    found = point_metrics.measure(rows, plan, WHOLE, usage=[busy(share)])
    assert (found["share_of_limit"], found["client_limited"]) == (share, limited)
    other = point_metrics.measure(rows, plan, WHOLE, usage=[busy(0.1)])
    assert point_metrics.client_limit([other, found]) == {
        "share_of_limit": share,
        "marked": limited,
    }


def test_a_point_without_a_success_says_nothing_of_its_client() -> None:
    found = point_metrics.measure([failed()], LoadPlan("concurrency"), WHOLE, usage=[busy(1.0)])
    assert (found["share_of_limit"], found["client_limited"]) == (None, False)


def test_a_point_says_when_its_window_was_to_a_tenth_of_a_millisecond() -> None:
    window = point_metrics.Window("whole", 1_000_123_400, 1_250_123_400, [])
    said = {"kind": "whole", "from_s": 0.0001, "to_s": 0.2501}
    assert window.as_json(1_000_000_000) == said
    assert window.seconds == 0.25


def test_the_steady_window_is_from_the_second_wave_to_the_last_send() -> None:
    """By its own words, and by what is counted in it: tokens at its beginning, none at its end."""
    rows = stream(concurrency=4, waves=5)
    held = point_metrics.measurement_window(rows, LoadPlan("concurrency", concurrency=4), "steady")
    assert (held.from_ns, held.to_ns) == (rows[4].sent_ns, rows[-1].sent_ns)
    assert (held.chosen[0], held.chosen[-1]) == (rows[4], rows[15])
    said = point(rows, MetricOptions(), concurrency=4)["window"]
    assert said == {"kind": "steady", "from_s": 0.1, "to_s": 0.4}


def test_the_whole_window_is_from_the_first_send_to_the_last_end() -> None:
    rows = [seen(0, sent_ms=20, tokens=50), seen(1, sent_ms=40)]  # the first one ends last
    held = point_metrics.measurement_window(rows, LoadPlan("concurrency"), "whole")
    assert (held.from_ns, held.to_ns) == (rows[0].sent_ns, rows[0].ended_ns + 1)
    assert point(rows)["window"] == {"kind": "whole", "from_s": 0.0, "to_s": 0.295}
    assert point(rows)["requests_per_s"] == pytest.approx(2 / 0.295, rel=1e-4)


@pytest.mark.parametrize(("ended_ms", "counted"), [(99.999, 0), (100, 1), (199.999, 1), (200, 0)])
def test_a_request_counts_in_the_window_in_which_it_ended(ended_ms: float, counted: int) -> None:
    window = point_metrics.Window("steady", 100_000_000, 200_000_000, [])
    one = seen(ttft_ms=ended_ms, tokens=1)
    found = point_metrics._throughput([one], window, MetricOptions())
    assert found["requests_per_s"] == counted * 10


@pytest.mark.parametrize(("first_ms", "counted"), [(99.999, 0), (100, 1), (199.999, 1), (200, 0)])
def test_a_prompt_counts_in_the_window_of_its_first_token(first_ms: float, counted: int) -> None:
    window = point_metrics.Window("steady", 100_000_000, 200_000_000, [])
    output, total = point_metrics._tokens_per_s([seen(ttft_ms=first_ms, tokens=1)], window)
    assert output is not None and total is not None
    assert total - output == pytest.approx(counted * 10 / 0.1)


@pytest.mark.parametrize(("share", "largest"), [(0.9899, 1), (0.99, 4), (1.0, 4)])
def test_an_slo_holds_for_99_of_100_requests(share: float, largest: int) -> None:
    rows = [
        {"load": {"kind": "concurrency", "concurrency": count}, "goodput": {"share": part}}
        for count, part in ((4, share), (1, 1.0))
    ]
    assert point_metrics.largest_within_slo(rows) == largest


@pytest.mark.parametrize(("limit_ms", "is_within"), [(49.999, False), (50, True), (50.001, True)])
def test_a_request_at_its_limit_is_within_it(limit_ms: float, is_within: bool) -> None:
    assert point_metrics.is_within({"ttft_ms": limit_ms}, seen(ttft_ms=50)) is is_within


@pytest.mark.parametrize(("count", "kind"), [(11, "whole"), (12, "steady"), (13, "steady")])
def test_three_waves_are_enough(count: int, kind: str) -> None:
    rows = [seen(n, sent_ms=n) for n in range(count)]
    assert point(rows, MetricOptions(), concurrency=4)["window"]["kind"] == kind


@pytest.mark.parametrize("kind", ["poisson", "gamma"])
@pytest.mark.parametrize(("count", "in_window"), [(19, 19), (20, 16), (29, 25)])
def test_an_open_loop_of_twenty_is_long_enough(kind: Any, count: int, in_window: int) -> None:
    rows = [seen(n, sent_ms=10 * n) for n in range(count)]
    assert point(rows, MetricOptions(), kind=kind)["requests"]["in_window"] == in_window


@pytest.mark.parametrize("tokens", [1, 2])
def test_only_a_single_token_has_no_gaps_to_be_within_a_limit(tokens: int) -> None:
    slow = seen(tokens=tokens, itl_ms=500)
    assert point_metrics.is_within({"itl_ms": 20}, slow) is (tokens == 1)


def test_gaps_between_tokens_that_nobody_counted_are_within_no_limit() -> None:
    uncounted = seen(output_tokens=None, message_tokens=())
    assert not point_metrics.is_within({"itl_ms": 20}, uncounted)
    assert point_metrics.is_within({"e2e_ms": 70}, uncounted)


def test_shares_are_told_to_four_digits() -> None:
    rows = [seen(0, ttft_ms=10), seen(1, ttft_ms=900), seen(2, ttft_ms=900)]
    settings = MetricOptions(slo={"ttft_ms": 50}, window="whole")
    assert point(rows, settings)["goodput"]["share"] == 0.3333
