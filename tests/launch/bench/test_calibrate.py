"""A calibration says how wrong this host is as a client, and how much it can follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launch.bench import calibrate
from launch.bench.calibrate import Rung
from launch.bench.truth.trial import Comparison

GOOD = Comparison(
    tokens_per_s=4000,
    ttft_error_ms=0.4,
    ttft_error_percent=0.8,
    tpot_error_percent=0.01,
    throughput_error_percent=0.01,
    late_percent=0.1,
    cpu_s_per_1k_tokens=0.02,
    peak_mib=30,
)


def rungs(*rates: float, fault: calibrate.Faulty | None) -> list[Rung]:
    good = [Rung(rate, replace(GOOD, tokens_per_s=rate), None) for rate in rates[:-1]]
    return [*good, Rung(rates[-1], replace(GOOD, tokens_per_s=rates[-1]), fault)]


def test_the_limit_is_the_highest_rate_that_was_followed() -> None:
    found = calibrate.document("openai_chat", rungs(4000, 12000, 40000, fault="client"))
    assert (found["limit_tokens_per_s"], found["limited_by"]) == (12000, "client")
    assert found["stated_at_tokens_per_s"] == 12000
    assert found["ttft_error_ms"] == 0.4
    assert [row["fault"] for row in found["rates"]] == [None, None, "client"]


def test_the_truth_server_may_be_the_limit() -> None:
    found = calibrate.document("grpc", rungs(4000, 12000, fault="truth server"))
    assert (found["limit_tokens_per_s"], found["limited_by"]) == (4000, "truth server")


def test_a_host_that_follows_nothing_has_no_limit() -> None:
    found = calibrate.document("grpc", rungs(4000, fault="client"))
    assert found["limit_tokens_per_s"] == 0
    assert calibrate.share_of_limit(found, 100, 1) is None


def test_the_share_of_the_limit_counts_processes_up_to_the_cpus() -> None:
    kept = {"limit_tokens_per_s": 10_000.0, "cpus": 2}
    shares = [calibrate.share_of_limit(kept, 8_000, processes) for processes in (1, 2, 4)]
    assert shares == [0.8, 0.4, 0.4]


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (GOOD, None),
        (replace(GOOD, ttft_error_percent=-30), "client"),
        (replace(GOOD, tpot_error_percent=2), "client"),
        (replace(GOOD, late_percent=5), "truth server"),
        (replace(GOOD, late_percent=5, tpot_error_percent=2), "client"),
    ],
)
def test_who_could_not_follow_is_named(found: Comparison, fault: str | None) -> None:
    assert calibrate.fault(found) == fault


def test_this_host_is_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "RATES", (2000,))
    monkeypatch.setattr(calibrate, "REQUEST_S", 0.2)
    said: list[Rung] = []
    found = calibrate.calibrate("openai_chat", said.append)
    assert found["api"] == "openai_chat"
    assert [row["offered_tokens_per_s"] for row in found["rates"]] == [2000]
    assert len(said) == 1
    assert said[0].found.tokens_per_s > 500
