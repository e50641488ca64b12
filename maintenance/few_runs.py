"""How wide intervals are where only a few runs of the user say anything of a cell.

Each public curve plays such a cell: three or four of its loads are the user's own runs, its ends
and two others as far apart as those that a measuring plan asks for. Nothing else is known, nor have
the roofline's factors seen its model. The loads between those two are asked about.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from builder.estimates import Estimate, Estimator, Question, Refusal
from builder.estimates.fits import Fits
from builder.estimates.measurements import OWN, Row

GAP = (8, 16)  # how many times one load is the other
# More than elsewhere: no other row says that a new model is like those that were tried.
COVERED = 0.975


def untried(rows: Sequence[Row], without: Callable[[str], Fits]) -> float:
    """The factor of the half width with which intervals hold so often; `without` gives what was
    fitted to all rows but those of a model."""
    errors = sorted(
        error
        for model in sorted({row.model for row in rows})
        for error in _errors([row for row in rows if row.model == model], without(model))
    )
    return float(f"{errors[int(COVERED * len(errors))]:.2g}")


def _errors(rows: Sequence[Row], fits: Fits) -> Iterator[float]:
    """Of the time to the last token, in half widths."""
    for row, found in asked(rows, fits):
        if isinstance(found, Estimate):
            truth_ms, e2e = (row.ttft_ms or 0.0) + (row.osl - 1) * row.tpot_ms, found.e2e_ms
            above, below = truth_ms - e2e.value, e2e.value - truth_ms
            yield max(above / (e2e.high - e2e.value), below / (e2e.value - e2e.low))


def asked(rows: Sequence[Row], fits: Fits) -> Iterator[tuple[Row, Estimate | Refusal]]:
    """Every load between two such runs, and the answer from them and those at the ends."""
    for curve in _curves(rows):
        for low, high in combinations(range(len(curve)), 2):
            if GAP[0] <= curve[high].concurrency / curve[low].concurrency <= GAP[1]:
                own = {0, low, high, len(curve) - 1}
                runs = [curve[index]._replace(source=OWN) for index in sorted(own)]
                estimator = Estimator(runs, fits)
                yield from (
                    (row, estimator.estimate(_question(row))) for row in curve[low + 1 : high]
                )


def _curves(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Loads of one deployment on one day, in their order."""
    curves: dict[tuple[object, ...], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        if row.ttft_ms is not None:
            subject = (row.model, row.gpu, row.precision, row.engine, row.date, row.release)
            curve = (*subject, *row.layout, row.drafting, row.isl, row.osl)
            curves[curve].setdefault(row.concurrency, row)
    return ([loads[load] for load in sorted(loads)] for loads in curves.values())


def _question(row: Row) -> Question:
    return Question(
        *(row.model, row.gpu, row.precision, row.engine, row.tp, row.ep, row.attention_dp),
        *(row.isl, row.osl, row.concurrency),
        mtp=1 if row.drafting == "on" else None,
    )
