"""Which runs of the measured rows drafted tokens by MTP, where the sources do not say it.

Two runs of one engine with one model at the same points differ by a third or more only where one of
them drafts: releases of the same weeks do not. A run is a day and a release.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from math import log
from statistics import median

from builder.estimates.measurements import Row
from builder.estimates.names import measured_models
from builder.facts import checkpoint

Run = tuple[str, str, str, str]
Points = Mapping[tuple[object, ...], float]

MIN_COMMON = 5  # points that two runs share
MIN_COMMON_WITH_TOLD = 2  # the same with a run that others tell to draft
FASTER = log(1.25)  # by the median over them


def infer(rows: Sequence[Row]) -> list[Row]:
    """The rows, with `drafting` on those of a run that others tell."""
    runs: dict[Run, dict[tuple[object, ...], float]] = defaultdict(dict)
    for row in rows:
        if _can_draft(row.model) and row.date:
            runs[_run(row)][_point(row)] = log(row.tpot_ms)
    told = dict(_told(runs, MIN_COMMON, runs))
    drafting = {run for run, mark in told.items() if mark == "on"}
    slower = dict(_told(runs, MIN_COMMON_WITH_TOLD, drafting))
    marks = {**{run: mark for run, mark in slower.items() if mark == "off"}, **told}
    return [row._replace(drafting=marks.get(_run(row), row.drafting)) for row in rows]


def _told(
    runs: Mapping[Run, Points], min_common: int, beside: Collection[Run]
) -> Iterator[tuple[Run, str]]:
    """Both runs of every pair that differs so much; one of them is among `beside`."""
    for one, other in combinations(sorted(runs), 2):
        common = runs[one].keys() & runs[other].keys()
        if one[:2] != other[:2] or len(common) < min_common or not {one, other} & set(beside):
            continue
        gain = median(runs[one][point] - runs[other][point] for point in common)
        if abs(gain) >= FASTER:
            yield one, "off" if gain > 0 else "on"
            yield other, "on" if gain > 0 else "off"


def _run(row: Row) -> Run:
    return row.model, row.engine, row.release, row.date


def _point(row: Row) -> tuple[object, ...]:
    return (row.gpu, row.precision, *row.layout, row.isl, row.osl, row.concurrency)


def _can_draft(model: str) -> bool:
    return checkpoint.gather(measured_models()[model].shape).mtp_layers > 0
