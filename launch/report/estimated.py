"""Compares the estimate in a bundle with the measurements of its run at that load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from builder.facts.published_results import LATENCIES, MEASURES
from builder.number_format import percent, quantity

from .evidence import RunEvidence
from .results import JsonObject, LoadPoint

INSIDE = "inside"


@dataclass(frozen=True, slots=True)
class EstimatedMeasure:
    """A measure with its interval, and the measured value, `None` if it is unknown."""

    name: str
    unit: str
    low: float
    value: float
    high: float
    measured: float | None

    @property
    def verdict(self) -> str:
        """Whether the measured value is inside the interval, or how far outside it is."""
        if self.measured is None:
            return "not measured"
        if self.low <= self.measured <= self.high:
            return INSIDE
        side, end = ("above", self.high) if self.measured > self.high else ("below", self.low)
        return f"{percent(abs(self.measured / end - 1))} {side}"


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """The estimate in the bundle of a run, without measures if it was refused.

    `summary` compares both or says why it cannot; `is_compared` tells which.
    """

    load: str
    measures: tuple[EstimatedMeasure, ...]
    summary: str
    is_compared: bool
    evidence: tuple[str, ...]


Load = tuple[int, int, int]  # isl, osl and concurrency


def for_run(run: RunEvidence) -> RunEstimate | None:
    """The estimate in the run's bundle, if it has one.

    Raises `BadInput` for an estimate of an unknown form.
    """
    document = (run.manifest or {}).get("estimate")
    if document is None:
        return None
    found = JsonObject(document, f"{run.place}: manifest.json", "estimate")
    measures = [] if "refused" in found else list(MEASURES)
    for name in ("isl", "osl", "concurrency", *measures):
        found.require(name)
    for name in measures:
        for end in ("low", "value", "high"):
            found.child(name).require(end)
            found.child(name).number(end)
    rows, refused = found.count("rows"), found.text("refused")
    load = (found.count("isl") or 0, found.count("osl") or 0, found.count("concurrency") or 0)
    words = "{:,} in and {:,} out, {:,} concurrent".format(*load)
    found.check()
    evidence = tuple(_evidence(rows, found))
    if refused:
        return RunEstimate(words, (), f"No estimate of {words}: {refused}.", False, evidence)
    point, why = _same_load(run, load)
    values = tuple(_measure(name, found.values[name], point) for name in MEASURES)
    summary = _summary(values, point) if point else why
    return RunEstimate(words, values, summary, point is not None, evidence)


def _same_load(run: RunEvidence, load: Load) -> tuple[LoadPoint | None, str]:
    """The point that was measured under the estimated load, or the reason why it is missing."""
    if run.rehearsal:
        return None, "A rehearsal says nothing about GPU speed: there is nothing to compare."
    for point in run.bench.clean_points:
        if (run.bench.isl, run.bench.osl, point.concurrency) == load:
            return point, ""
    asked = "--isl {} --osl {} --concurrency {}".format(*load)
    return None, f"This run did not measure that load: launch bench {asked} does."


def _measure(name: str, ends: Mapping[str, float], point: LoadPoint | None) -> EstimatedMeasure:
    measured = None
    if point:
        measured = point.stats(name).p50 if name in LATENCIES else point.rate(name)
    words, unit_ = MEASURES[name]
    words += ", median" if name in LATENCIES else ""
    return EstimatedMeasure(words, unit_, ends["low"], ends["value"], ends["high"], measured)


def _summary(measures: tuple[EstimatedMeasure, ...], point: LoadPoint) -> str:
    outside, inside = [], 0
    for one in measures:
        ends = (quantity(end, one.unit) for end in (one.low, one.high))
        interval = f"{' to '.join(ends)} of the estimate"
        if one.verdict == INSIDE:
            inside += 1
        elif one.measured is not None:
            measured = f"{one.name} {quantity(one.measured, one.unit)}"
            outside.append(f"{measured}, {one.verdict} the {interval}")
    if not outside:
        return f"At {point.load_text} every measured value is inside the interval of its estimate."
    known = inside + len(outside)
    count = f"{inside} of {known} measured values are inside the interval of their estimate"
    return f"At {point.load_text} {count}. Outside: {'; '.join(outside)}."


def _evidence(rows: int | None, found: JsonObject) -> Iterator[str]:
    if rows:
        yield f"It is based on {rows} measurements of this model, GPU, precision and engine."
    for key, word in (("notes", "Note"), ("nearest", "Nearest row")):
        if isinstance(texts := found.values.get(key), list):
            yield from (f"{word}: {one}." for one in texts)
