"""Measures how soon a tuning run finds the best server, by replaying public measurements.

    python -m benchmarks.tune [--check] [--json] [--write]

A grid is a model, GPU and lengths with at least six configurations (engine, precision, layout,
drafting and run) of two or more loads each. Every grid makes three problems: the most output
tokens/s per GPU with TPOT at its 25, 50 or 75 % quantile and TTFT at its 80 % quantile. A start
measures the loads that the search asks for, at a configuration's measured values. The prior, and
the roofline's factors in it, come from rows without the model on this GPU, or without the model at
all; the kernel's scales are the shipped ones, which have seen them. Regret is how far the best
measured load is below the best of the grid. `--check` fails if a bound is missed, `--write` stores
the figures in `benchmarks/tune.json` and the table in `docs/tuning.md`. Takes a minute or two.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import figures
from benchmarks.estimates import question_of
from benchmarks.objectives import ITL_QUANTILES, TTFT_QUANTILE, quantile
from builder.estimates import Estimator, Question, fits, measurements, names, roofline, unrefused
from builder.estimates.cells import is_held
from builder.estimates.intervals import Spread
from builder.estimates.measurements import Row
from builder.tuning.candidates import Candidate
from builder.tuning.outcomes import MeasuredLoad, Outcome
from builder.tuning.search import Search, Stop
from maintenance import fit_estimates
from maintenance.left_out import shape

PAGE = figures.Page(
    Path(__file__).with_suffix(".json"),
    Path(__file__).parent.parent / "docs" / "tuning.md",
    "tuning",
)
LEAST_CONFIGURATIONS, LEAST_LOADS = 6, 2
STARTS = 10
NEAR = 0.05  # of the best: a search that came so near has found it
# What the prior has not seen, and the starts that follow its rank (see `Search`).
SCENES = {"another GPU measured": 4, "model never seen": 1}
# Bounds of the acceptance, in percent of the best: mean regret after 4 and after 6 starts; and if
# the search stops by its rule, the starts and the regret that is left.
BOUNDS = {
    ("another GPU measured", "regret_percent_at_4"): 5.0,
    ("model never seen", "regret_percent_at_4"): 7.0,
    **{(scene, "regret_percent_at_6"): 3.0 for scene in SCENES},
    **{(scene, "starts"): 5.5 for scene in SCENES},
    **{(scene, "regret_percent"): 2.5 for scene in SCENES},
}

Prior = Callable[[Question], Spread]


@dataclass(frozen=True, slots=True)
class Problem:
    """Configurations of one grid, each with its rows by load, and the limits to meet."""

    model: str
    gpu: str
    servers: Mapping[str, Mapping[int, Row]]
    limits_ms: Mapping[str, float]

    def is_met(self, row: Row) -> bool:
        times = {"itl_ms": row.tpot_ms, "ttft_ms": row.ttft_ms or 0.0}
        return all(times[name] <= most for name, most in self.limits_ms.items())

    @property
    def best(self) -> float:
        """The most output tokens/s per GPU of a row within the limits."""
        rows = (row for loads in self.servers.values() for row in loads.values())
        return max((tok_s(row) / row.num_gpus for row in rows if self.is_met(row)), default=0.0)


def tok_s(row: Row) -> float:
    e2e_ms = (row.ttft_ms or 0.0) + (row.osl - 1) * row.tpot_ms
    return row.concurrency * row.osl * 1000 / e2e_ms


def problems(rows: Iterable[Row]) -> Iterator[Problem]:
    """Three for each grid, unless no row meets the limits."""
    grids: dict[tuple[Any, ...], dict[str, dict[int, Row]]] = defaultdict(dict)
    for row in rows:
        if row.ttft_ms is None:
            continue
        parts = (row.engine, row.precision, *row.layout, row.drafting, row.date, row.release)
        grid = grids[row.model, row.gpu, row.isl, row.osl]
        grid.setdefault(" ".join(map(str, parts)), {}).setdefault(row.concurrency, row)
    for (model, gpu, *_), every in grids.items():
        servers = {name: loads for name, loads in every.items() if len(loads) >= LEAST_LOADS}
        if len(servers) < LEAST_CONFIGURATIONS:
            continue
        found = [row for loads in servers.values() for row in loads.values()]
        ttft_ms = quantile([row.ttft_ms or 0.0 for row in found], TTFT_QUANTILE)
        for share in ITL_QUANTILES:
            itl_ms = quantile([row.tpot_ms for row in found], share)
            problem = Problem(model, gpu, servers, {"itl_ms": itl_ms, "ttft_ms": ttft_ms})
            if problem.best:
                yield problem


def fitted(rows: Iterable[Row]) -> fits.Fits:
    """The fits that ship with the roofline's factors of these rows."""
    held = [row for row in rows if is_held(row, shape(row.model))]
    timed = [row for row in held if row.ttft_ms is not None]
    tpots_ms, ttfts_ms = [row.tpot_ms for row in held], [row.ttft_ms or 0.0 for row in timed]
    decode = fit_estimates.factors(held, roofline.decode_terms, tpots_ms)
    first = fit_estimates.factors(timed, roofline.first_terms, ttfts_ms)
    own = fits.load()
    return replace(
        own, tpot=replace(own.tpot, factors=decode), ttft=replace(own.ttft, factors=first)
    )


def prior_without(rows: Sequence[Row], model: str, gpu: str | None) -> Prior:
    """The prior from rows without those of a model, or of a model on a GPU."""
    left = [row for row in rows if row.model != model or (gpu and row.gpu != gpu)]
    facts = names.facts_of(model)
    assert facts is not None, model
    return cache(unrefused.prior(Estimator(left, fitted(left)), facts))


def candidate(name: str, loads: Mapping[int, Row]) -> Candidate:
    """A configuration of a grid; its run takes the place of the release."""
    row = next(iter(loads.values()))
    levels = tuple(sorted(loads))
    asked = replace(question_of(row), concurrency=levels[-1], release=f"{row.release} {row.date}")
    return Candidate(name, name, asked, levels, {}, {})


def replay(problem: Problem, prior: Prior, by_rank: int) -> tuple[list[float], int]:
    """The regret after each start, as a share of the best, and the measured loads."""
    candidates = [candidate(name, loads) for name, loads in problem.servers.items()]
    search = Search(candidates, problem.limits_ms, prior, by_rank=by_rank, starts=STARTS)
    outcomes: list[Outcome] = []
    regrets: list[float] = []
    while not isinstance(step := search.next(outcomes), Stop):
        rows, measured = problem.servers[step.candidate.id], list[MeasuredLoad]()
        while (load := search.next_load(step.candidate, outcomes, measured)) is not None:
            row = rows[load]
            measured.append(MeasuredLoad(load, row.ttft_ms or 0.0, row.tpot_ms, tok_s(row)))
        outcomes.append(Outcome(step.candidate.id, "measured", tuple(measured)))
        best = search.best(outcomes)
        found = best[1].output_tok_s / best[0].question.num_gpus if best else 0.0
        regrets.append(1 - found / problem.best)
    return regrets, sum(len(outcome.loads) for outcome in outcomes)


def report() -> dict[str, Any]:
    rows, digest = measurements.read()
    asked = list(problems(rows))
    scenes = {}
    for scene, by_rank in SCENES.items():
        is_seen = by_rank > 1
        priors = {(one.model, one.gpu if is_seen else None): None for one in asked}
        told = {key: prior_without(rows, *key) for key in priors}
        runs = [
            replay(one, told[one.model, one.gpu if is_seen else None], by_rank) for one in asked
        ]
        scenes[scene] = summary(runs)
    return {"rows_sha256": digest, "problems": len(asked), "scenes": scenes}


def summary(runs: Sequence[tuple[Sequence[float], int]]) -> dict[str, float]:
    """Means over the problems; a stopped search keeps its regret."""
    every = [[*regrets, *[regrets[-1]] * STARTS][:STARTS] for regrets, _ in runs]
    found = {
        f"regret_percent_at_{number}": 100 * fmean(regrets[number - 1] for regrets in every)
        for number in (1, 2, 4, 6)
    }
    return found | {
        "near_percent_at_4": 100 * fmean(regrets[3] <= NEAR for regrets in every),
        "starts": fmean(len(regrets) for regrets, _ in runs),
        "regret_percent": 100 * fmean(regrets[-1] for regrets, _ in runs),
        "loads": fmean(loads for _, loads in runs),
    }


def misses(document: Mapping[str, Any]) -> Iterator[str]:
    """Every bound that is missed, as text."""
    for (scene, measure), most in BOUNDS.items():
        if (value := document["scenes"][scene][measure]) > most:
            yield f"{scene}: {measure} is {value:.1f}, above {most:g}"


def table(document: Mapping[str, Any]) -> str:
    """Markdown, as the documentation has it."""
    lines = [
        "| the estimate has seen | mean regret after 1, 2, 4, 6 starts "
        "| within 5 % at 4 | starts until it stops | regret left | loads |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for scene, row in document["scenes"].items():
        regrets = ", ".join(f"{row[f'regret_percent_at_{number}']:.1f}" for number in (1, 2, 4, 6))
        lines.append(
            f"| {scene} | {regrets} % | {row['near_percent_at_4']:.0f} % | {row['starts']:.1f} "
            f"| {row['regret_percent']:.1f} % | {row['loads']:.1f} |"
        )
    return "\n".join([*lines, "", f"{document['problems']} problems."])


if __name__ == "__main__":
    sys.exit(figures.main(sys.argv[1:], __doc__, PAGE, report, table, misses))
