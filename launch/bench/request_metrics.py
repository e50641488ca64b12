"""Metrics over many requests: the distribution of a value, and the time that is measured."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from .load import NS, LoadPlan
from .request import RequestRecord

PERCENTILES = (50, 90, 95, 99)
# How percentiles are taken, as bench.json names it.
PERCENTILE_DEFINITION = (
    "linear interpolation between closest ranks (Hyndman and Fan 7, as numpy's default)"
)
DIGITS = 4

# A closed loop needs its first wave, its last wave and as much between them.
WAVES = 3
# Of the arrivals of an open loop, this share at each end is left out.
OPEN_RAMP = 0.1
OPEN_LEAST = 20

Summary = dict[str, float]
WindowKind = Literal["steady", "whole"]


def summarize(values: Iterable[float | None]) -> Summary | None:
    """`None` without values."""
    return summarize_counts(Counter(value for value in values if value is not None))


def summarize_counts(counts: Mapping[float, int]) -> Summary | None:
    """The same of values that each came so many times."""
    if not counts:
        return None
    rising = sorted(counts)
    ranks = list(accumulate(counts[value] for value in rising))
    n = ranks[-1]
    mean = math.fsum(value * counts[value] for value in rising) / n
    variance = math.fsum(counts[value] * (value - mean) ** 2 for value in rising) / n

    def at(percent: float) -> float:
        place = (n - 1) * percent / 100
        low, high = (rising[bisect_right(ranks, f(place))] for f in (math.floor, math.ceil))
        return low + (high - low) * (place - math.floor(place))

    found = {"mean": mean, "stddev": math.sqrt(variance), "min": rising[0]}
    found |= {f"p{percent}": at(percent) for percent in PERCENTILES} | {"max": rising[-1]}
    return {"n": n, **{name: round(value, DIGITS) for name, value in found.items()}}


@dataclass(frozen=True, slots=True)
class Window:
    """`chosen` are the requests whose latencies count; throughput is that of the time."""

    kind: WindowKind
    from_ns: int
    to_ns: int
    chosen: Sequence[RequestRecord]

    @property
    def seconds(self) -> float:
        return (self.to_ns - self.from_ns) / NS

    def as_json(self, start_ns: int) -> dict[str, Any]:
        from_s, to_s = ((at_ns - start_ns) / NS for at_ns in (self.from_ns, self.to_ns))
        return {"kind": self.kind, "from_s": round(from_s, 4), "to_s": round(to_s, 4)}


def measurement_window(
    records: Sequence[RequestRecord], plan: LoadPlan, wanted: WindowKind
) -> Window:
    """Requests are chosen by the order in which they were sent, so that long ones are not favoured.

    Of a closed loop, the first wave comes all at once and the last one runs among ever fewer; the
    time is that in which all streams were busy. Tasks and traces count as a whole, and so does a
    load that is too short.
    """
    edge = _edge(len(records), plan) if wanted == "steady" else 0
    chosen = records[edge : len(records) - edge]
    if edge and chosen[0].sent_ns < records[-1].sent_ns:
        return Window("steady", chosen[0].sent_ns, records[-1].sent_ns, chosen)
    last_ns = max(one.ended_ns for one in records)
    return Window("whole", records[0].sent_ns, last_ns + 1, records)


def _edge(count: int, plan: LoadPlan) -> int:
    if plan.kind == "concurrency":
        return plan.concurrency if count >= WAVES * plan.concurrency else 0
    if plan.kind in ("poisson", "gamma") and count >= OPEN_LEAST:
        return int(count * OPEN_RAMP)
    return 0
