"""A rehearsal: a target of a bundle started on a miniature, smoke-tested and stopped; no GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.bundle import Bundle
from builder.errors import NotReady

from . import run as runs
from . import serving
from .interrupts import Interrupts
from .serving import Limits
from .smoke import endpoint, suite
from .target import Target

# A miniature loads in seconds and has nothing to drain.
STOP_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """How it went with one target. `smoke` is missing if the server was not ready."""

    target: str
    folder: Path
    ready_after_s: float | None
    smoke: dict[str, Any] | None
    problem: NotReady | None

    @property
    def passed(self) -> bool:
        return self.smoke is not None and not self.smoke["failed"]


def rehearse(
    bundle: Bundle,
    target: Target,
    folder: Path | None,
    start_timeout_s: float,
    interrupts: Interrupts,
    report: Callable[[suite.Result], None],
) -> Rehearsed:
    """One target with the reference engine, on ports of its own."""
    limits = Limits(start_timeout_s, STOP_GRACE_S)
    with runs.create(bundle, target.name, "reference", folder) as run:
        served = serving.with_miniature(target, bundle, run).on_free_ports()
        try:
            with serving.serve(served, "reference", run, limits, interrupts):
                results = suite.run(endpoint.of_target(served), report)
        except NotReady as problem:
            return Rehearsed(target.name, run.folder, None, None, problem)
        smoke = record_smoke(run, results)
        return Rehearsed(target.name, run.folder, run.ready_after_s, smoke, None)


def record_smoke(run: runs.Run, results: Sequence[suite.Result]) -> dict[str, Any]:
    """Leave the results in the run folder and their numbers in `run.json`."""
    summary = suite.summary(results)
    run.write_json("smoke.json", summary)
    run.record(smoke={key: value for key, value in summary.items() if key != "results"})
    return summary
