"""Two results compared: point by point, with confidence intervals, as better, worse or the same."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

Verdict = Literal["better", "worse", "same", "unsure"]

# Fewer for many samples, whose intervals need no fine tail: a diff ends within seconds.
MOST_RESAMPLES, LEAST_RESAMPLES, DRAWS = 1000, 200, 400_000
LEVEL = 0.95
LEAST_SAMPLES = 5
Interval = tuple[float, float] | None
Statistic = Callable[[Sequence[float]], float]


def _p90(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=10, method="inclusive")[-1]


# A measure, the samples that it is taken of, and how. Less is better of all of them.
MEASURES: tuple[tuple[str, str, Statistic], ...] = (
    ("median TTFT in ms", "ttft_ms", statistics.median),
    ("p90 TTFT in ms", "ttft_ms", _p90),
    ("mean TPOT in ms", "tpot_ms", statistics.fmean),
    ("median end-to-end latency in ms", "e2e_ms", statistics.median),
)


@dataclass(frozen=True, slots=True)
class PointDifference:
    """`percent` is the change from A to B, or of failures their difference; the interval is that
    of the change, where there are samples to tell it from."""

    point: str
    measure: str
    a: float
    b: float
    percent: float
    low_percent: float | None
    high_percent: float | None
    verdict: Verdict


def compare(
    a: Mapping[str, Any], b: Mapping[str, Any], margin_percent: float
) -> list[PointDifference]:
    """All differences at points that both have. Raises `BadInput` if there are none."""
    others = {one["label"]: one for one in b["points"]}
    both = [(one, others[one["label"]]) for one in a["points"] if one["label"] in others]
    if not both:
        have = (", ".join(one["label"] for one in side["points"]) or "none" for side in (a, b))
        raise BadInput(
            Diagnostic("the two results", "have no point in common: {}; {}".format(*have))
        )
    return [one for pair in both for one in _at(*pair, margin_percent)]


def unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """In words, what makes two results hard to compare."""

    aspects: tuple[tuple[str, Callable[[Mapping[str, Any]], Any]], ...] = (
        ("workload", lambda side: side["workload"].get("words")),
        ("model", lambda side: side["subject"].get("model")),
        ("GPU", lambda side: (side["subject"].get("gpu"), side["subject"].get("num_gpus"))),
        ("API", lambda side: side["client"].get("api")),
        ("rehearsal", lambda side: side["subject"]["engine"].get("rehearsal")),
        ("outcome", lambda side: side.get("outcome")),
    )
    return [
        f"{name} differs: {take(a)} and {take(b)}" for name, take in aspects if take(a) != take(b)
    ]


def worst(found: Sequence[PointDifference]) -> Verdict:
    """One word for all: worse if anything is, better if anything is and nothing is worse."""
    verdicts = {one.verdict for one in found}
    order: tuple[Verdict, ...] = ("worse", "better", "unsure", "same")
    return next(verdict for verdict in order if verdict in verdicts)


def _at(
    a: Mapping[str, Any], b: Mapping[str, Any], margin_percent: float
) -> Iterator[PointDifference]:
    label = a["label"]

    def difference(
        measure: str, values: Sequence[float], percent: float, interval: Interval, less: bool
    ) -> PointDifference:
        verdict = _verdict(percent, interval, less, margin_percent)
        low, high = interval or (None, None)
        return PointDifference(label, measure, values[0], values[1], percent, low, high, verdict)

    speeds = [float(side["output_tokens_per_s"] or 0) for side in (a, b)]
    if speeds[0]:
        percent = (speeds[1] / speeds[0] - 1) * 100
        interval = _throughput_interval(a, b, percent)
        yield difference("output tokens per second", speeds, percent, interval, False)
    for name, key, take in MEASURES:
        one, other = (_samples(side, key) for side in (a, b))
        if min(len(one), len(other)) >= LEAST_SAMPLES and take(one) > 0:
            values = [take(one), take(other)]
            percent = (values[1] / values[0] - 1) * 100
            yield difference(name, values, percent, _interval(one, other, take), True)
    failed = [100 * side["requests"]["failed"] / side["requests"]["sent"] for side in (a, b)]
    yield difference("failed requests in percent", failed, failed[1] - failed[0], None, True)


def _verdict(
    percent: float,
    interval: Interval,
    less_is_better: bool,
    margin_percent: float,
) -> Verdict:
    """Better or worse if the whole interval is beyond the margin, the same if it is within it."""
    low, high = interval or (percent, percent)
    if low > margin_percent:
        return "worse" if less_is_better else "better"
    if high < -margin_percent:
        return "better" if less_is_better else "worse"
    return "same" if -margin_percent <= low and high <= margin_percent else "unsure"


def _throughput_interval(a: Mapping[str, Any], b: Mapping[str, Any], percent: float) -> Interval:
    """Of a closed loop, whose throughput goes as 1 / mean latency; around the measured change."""
    rows = [_samples(side, "e2e_ms") for side in (a, b)]
    if a["load"]["kind"] != "concurrency" or min(map(len, rows)) < LEAST_SAMPLES:
        return None
    centre = (statistics.fmean(rows[0]) / statistics.fmean(rows[1]) - 1) * 100
    low, high = _interval(rows[1], rows[0], statistics.fmean)
    return percent + low - centre, percent + high - centre


def _interval(a: Sequence[float], b: Sequence[float], take: Statistic) -> tuple[float, float]:
    """The bootstrap's percentile interval of the change from A to B, in percent.

    Requests are drawn anew; that those of one run depend on each other is left out of account.
    """
    chance = random.Random(0)
    resamples = min(MOST_RESAMPLES, max(LEAST_RESAMPLES, DRAWS // (len(a) + len(b))))
    changes = sorted(
        (take(chance.choices(b, k=len(b))) / take(chance.choices(a, k=len(a))) - 1) * 100
        for _ in range(resamples)
    )
    beyond = int(resamples * (1 - LEVEL) / 2)
    return changes[beyond], changes[-1 - beyond]


def _samples(point: Mapping[str, Any], name: str) -> Sequence[float]:
    found: Sequence[float] = (point.get("samples") or {}).get(name) or ()
    return found
