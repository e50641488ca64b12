"""Compares two results point by point: better, worse, the same or unsure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from ..report.results import JsonObject, check_counts
from . import results, samples
from .samples import LEAST_SAMPLES, Interval

Verdict = Literal["better", "worse", "same", "unsure"]
# What must be the same in both results, unless a user allows it to differ.
Aspect = Literal["workload", "api", "model", "rehearsal", "window", "points", "outcome"]
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)
Document = Mapping[str, Any]

# Parts of a workload that repeat others, and the source of its prompts.
NOT_COMPARED = ("words", "prompts", "file")
REMEDY = "measure it again"
REMEDIES: Mapping[Aspect, str] = {"model": "measure bundles, which name theirs"}
# Aspects that must be known to be the same.
IDENTITY: tuple[Aspect, ...] = ("api", "model")
SPEED = "output_tokens_per_s"
# What may explain a difference: its name and its key.
SYSTEM = (("GPU", "gpu"), ("number of GPUs", "num_gpus"), ("precision", "precision"))
# A measure, its samples, and the quantile, or `None` for the mean. Lower is better.
MEASURES: tuple[tuple[str, str, float | None], ...] = (
    ("median TTFT in ms", "ttft_ms", 0.5),
    ("p90 TTFT in ms", "ttft_ms", 0.9),
    ("mean TPOT in ms", "tpot_ms", None),
    ("median end-to-end latency in ms", "e2e_ms", 0.5),
)


@dataclass(frozen=True, slots=True)
class PointDifference:
    """`percent` is the change from A to B, for failures the difference; with enough samples it has
    an interval."""

    point: str
    measure: str
    a: float
    b: float
    percent: float
    low_percent: float | None
    high_percent: float | None
    verdict: Verdict


def read(path: Path) -> Document:
    """A result with all parts that are compared. Raises `BadInput`."""
    document = results.read(path)
    top = JsonObject(document, str(path))
    for key in ("subject", "client", "workload", "points"):
        top.require(key)
    top.child("workload").require("kind")
    top.child("client"), top.child("subject").child("engine")
    for point in top.children("points"):
        for key in ("label", "load", "requests"):
            point.require(key)
        point.text("label"), point.child("load"), point.child("window"), point.child("samples")
        _check_counts(point)
    top.child("subject").require("engine")
    top.check()
    labels = [one["label"] for one in document["points"]]
    if again := sorted({label for label in labels if labels.count(label) > 1}):
        raise BadInput(Diagnostic(f"{path}: points", f"has {', '.join(again)} twice"))
    return document


def _check_counts(point: JsonObject) -> None:
    check_counts(point)
    requests = point.child("requests")
    for key in ("sent", "ok", "failed"):
        requests.require(key)
    ok = requests.count("ok")
    for name, row in point.child("samples").values.items():
        if ok is not None and isinstance(row, list) and len(row) > ok:
            point.child("samples").fault(name, f"has {len(row)} values of {ok} successes")


def check(a: Document, b: Document, allowed: Collection[str] = ()) -> None:
    """Raises `BadInput` with all that keeps the two from being compared.

    They must be complete results of the same workload, model and kind of run over the same API,
    except for the aspects that are `allowed` to differ. Whatever is allowed, each point that is
    compared needs as many successes as an interval takes.
    """
    if a == b:
        raise BadInput(Diagnostic("A and B", "are the same result", "name two results"))
    diagnostics = [
        Diagnostic(aspect, what, f"{REMEDIES.get(aspect, REMEDY)}, or give --allow {aspect}")
        for aspect, what in _obstacles(a, b)
        if aspect not in allowed
    ]
    for side, point in _sides(a, b):
        if len(_samples(point, "e2e_ms")) < LEAST_SAMPLES:
            what = f"has {_successes(point)}; {LEAST_SAMPLES} at least are needed"
            diagnostics.append(Diagnostic(f"point {point['label']} of {side}", what))
    if diagnostics:
        raise BadInput(diagnostics)


def warnings(a: Document, b: Document) -> list[str]:
    """What may explain a difference between two results that can be compared."""
    found = []
    for name, key in SYSTEM:
        one, other = a["subject"].get(key), b["subject"].get(key)
        if one != other:
            found.append(f"{name} differs: {_shown(one)} in A and {_shown(other)} in B")
    for side, point in _sides(a, b):
        if point.get("client_limited"):
            where = f"point {point['label']} of {side}"
            found.append(f"{where}: the client was the limit, not the server")
    return found


def compare(a: Document, b: Document, margin_percent: float) -> list[PointDifference]:
    """All differences at points that both have. Raises `BadInput` if they share no point."""
    found: list[PointDifference] = []
    for one, other in _pairs(a, b):
        found += _at(one, other, margin_percent)
    return found


def worst(found: Sequence[PointDifference]) -> Verdict:
    """Worse if any difference is; better if any is and none is worse."""
    verdicts = {one.verdict for one in found}
    order: tuple[Verdict, ...] = ("worse", "better", "unsure", "same")
    return next(verdict for verdict in order if verdict in verdicts)


def _pairs(a: Document, b: Document) -> list[tuple[Document, Document]]:
    others = {one["label"]: one for one in b["points"]}
    both = [(one, others[one["label"]]) for one in a["points"] if one["label"] in others]
    if not both:
        have = (", ".join(one["label"] for one in side["points"]) or "none" for side in (a, b))
        what = "have no point in common: {}; {}".format(*have)
        raise BadInput(Diagnostic("the two results", what))
    return both


def _sides(a: Document, b: Document) -> Iterator[tuple[str, Document]]:
    for one, other in _pairs(a, b):
        yield "A", one
        yield "B", other


def _obstacles(a: Document, b: Document) -> Iterator[tuple[Aspect, str]]:
    one, other = a["workload"], b["workload"]
    values: list[tuple[Aspect, str, Any, Any]] = []
    for key in one | other:
        if key not in NOT_COMPARED:
            values.append(("workload", f"its {key}", one.get(key), other.get(key)))
    for x, y in _pairs(a, b):
        label = x["label"]
        values.append(("workload", f"the load of {label}", x["load"], y["load"]))
        if not (x["requests"]["ok"] and y["requests"]["ok"]):
            continue  # which measured nothing
        values.append(("window", f"that of {label}", _window(x), _window(y)))
        for name in sorted(_measured(x) ^ _measured(y)):
            has = ("measured", "missing") if name in _measured(x) else ("missing", "measured")
            values.append(("points", f"{name} of {label}", *has))
    values += [
        ("api", "it", a["client"].get("api"), b["client"].get("api")),
        ("model", "it", a["subject"].get("model"), b["subject"].get("model")),
        ("rehearsal", "it", _is_rehearsal(a), _is_rehearsal(b)),
    ]
    for aspect, name, of_a, of_b in values:
        if of_a != of_b:
            yield aspect, f"{name} is {_shown(of_a)} in A and {_shown(of_b)} in B"
        elif of_a is None and aspect in IDENTITY:
            yield aspect, f"{name} is unknown in both"
    labels = {point["label"] for point in b["points"]}
    if missing := [one["label"] for one in a["points"] if one["label"] not in labels]:
        yield "points", f"B has no {', '.join(missing)}, which A has"
    for side, document in zip("AB", (a, b), strict=True):
        if (outcome := document.get("outcome")) != "complete":
            yield "outcome", f"that of {side} is {_shown(outcome)}"


def _window(point: Document) -> Any:
    return (point.get("window") or {}).get("kind")


def _is_rehearsal(document: Document) -> str:
    return "yes" if document["subject"]["engine"].get("rehearsal") else "no"


def _measured(point: Document) -> set[str]:
    """The measures of a point; one that only one side has could not be compared."""
    found = {key for _, key, _ in MEASURES if _samples(point, key)}
    return found | {SPEED} if point.get(SPEED) else found


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items())
    return "unknown" if value is None else str(value)


def _successes(point: Document) -> str:
    sent, ok = (point["requests"].get(name) or 0 for name in ("sent", "ok"))
    measured = len(_samples(point, "e2e_ms"))
    words = f"{ok or 'no'} successes of {sent} requests"
    return words if measured == ok else f"{words}, {measured} of them measured"


def _at(a: Document, b: Document, margin_percent: float) -> Iterator[PointDifference]:
    label, margin = a["label"], margin_percent
    speeds = [float(point.get(SPEED) or 0) for point in (a, b)]
    if all(speeds):  # a server that counts no tokens has none
        change = _throughput_change(a, b, speeds)
        # An open loop has the throughput of its arrivals, which have no interval here.
        verdict = _verdict(change or (speeds[1] / speeds[0],) * 2, False, margin)
        yield _difference(label, "output tokens per second", speeds, change, verdict)
    for name, key, share in MEASURES:
        rows = [_samples(point, key) for point in (a, b)]
        if all(_is_usable(row, share) for row in rows):
            values = [samples.estimate(row, share) for row in rows]
            change = samples.ratio(rows[0], rows[1], share)
            verdict = _verdict(change, True, margin) if change else "unsure"
            yield _difference(label, name, values, change, verdict)
    yield _failures(label, a["requests"], b["requests"], margin)


def _is_usable(row: Sequence[float], share: float | None) -> bool:
    least = sum(row) if share is None else min(row, default=0)
    return samples.has_interval(len(row), share) and least > 0


def _difference(
    label: str, measure: str, values: Sequence[float], change: Interval | None, verdict: Verdict
) -> PointDifference:
    low, high = _percents(change) if change else (None, None)
    percent = (values[1] / values[0] - 1) * 100
    return PointDifference(label, measure, values[0], values[1], percent, low, high, verdict)


def _percents(change: Interval) -> Interval:
    return (change[0] - 1) * 100, (change[1] - 1) * 100


def _verdict(change: Interval, less_is_better: bool, margin_percent: float) -> Verdict:
    """Better or worse if the whole interval is beyond the margin, the same if it is within it."""
    low, high = _percents(change)
    if low > margin_percent:
        return "worse" if less_is_better else "better"
    if high < -margin_percent:
        return "better" if less_is_better else "worse"
    return "same" if -margin_percent <= low and high <= margin_percent else "unsure"


def _throughput_change(a: Document, b: Document, speeds: Sequence[float]) -> Interval | None:
    """The interval for a closed loop, whose throughput is proportional to 1 / mean latency."""
    one, other = (_samples(point, "e2e_ms") for point in (a, b))
    if a["load"]["kind"] != "concurrency" or (change := samples.ratio(other, one, None)) is None:
        return None
    means = [samples.estimate(row, None) for row in (one, other)]
    factor = speeds[1] / speeds[0] / (means[0] / means[1])
    return change[0] * factor, change[1] * factor


def _failures(label: str, a: Document, b: Document, margin_percent: float) -> PointDifference:
    """Significantly more failures are worse, however few; the margin covers chance."""
    sent = [max(side["sent"], 1) for side in (a, b)]
    shares = [side["failed"] / of for side, of in zip((a, b), sent, strict=True)]
    bounds = [samples.wilson(share, of) for share, of in zip(shares, sent, strict=True)]
    low, high = samples.difference(bounds[0], bounds[1], (shares[0], shares[1]))
    values = [100 * share for share in shares]
    verdict: Verdict = "unsure"
    if low > 0 or high < 0:
        verdict = "worse" if low > 0 else "better"
    elif shares[0] == shares[1] or max(-low, high) * 100 <= margin_percent:
        verdict = "same"
    numbers = (values[0], values[1], values[1] - values[0], 100 * low, 100 * high)
    return PointDifference(label, "failed requests in percent", *numbers, verdict)


def _samples(point: Document, name: str) -> Sequence[float]:
    """Raises `BadInput` for what is not a list of times."""
    found = (point.get("samples") or {}).get(name) or ()
    if not isinstance(found, list | tuple) or not all(_is_time(value) for value in found):
        where = f"point {point['label']}: samples.{name}"
        raise BadInput(Diagnostic(where, "must be a list of numbers >= 0"))
    return found


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
