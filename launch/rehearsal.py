"""A rehearsal: a target started on a miniature, smoke-tested, measured and stopped; no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.bundle import Bundle
from builder.errors import NotReady, ToolkitError

from . import endpoint, serving
from . import run as runs
from .bench import quick_bench
from .bench.system_under_test import SystemUnderTest
from .dummy_credentials import with_dummy_credentials
from .interrupts import Interrupts
from .serving import Limits
from .smoke import metrics, suite
from .smoke.results import CheckResult, junit, summary, totals
from .target import Target

# A miniature loads in seconds and has nothing to drain.
STOP_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class RehearsalResult:
    """What one target showed. `smoke` is missing if the server was not ready.

    `bench` is missing if a check failed before it, or no streams can be measured. `bench_errors`
    say what was wrong with the measurement.
    """

    target: str
    folder: Path
    ready_after_s: float | None
    smoke: dict[str, Any] | None
    not_ready: NotReady | None
    bench: Mapping[str, Any] | None = None
    bench_errors: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.smoke is not None and not self.smoke["failed"] and not self.bench_errors


def rehearse(
    bundle: Bundle,
    target: Target,
    folder: Path | None,
    start_timeout_s: float,
    interrupts: Interrupts,
    on_result: suite.OnResult,
) -> RehearsalResult:
    """One target with the reference engine, on ports of its own."""
    limits = Limits(start_timeout_s, STOP_GRACE_S)
    with runs.create(bundle, target.name, "reference", folder) as run:
        try:
            served = serving.with_miniature(target, bundle, run).on_free_ports()
            served = with_dummy_credentials(served, run.folder)
            with serving.serve(served, "reference", run, limits, interrupts) as running:
                target, server = running.target, running.server
                at = endpoint.from_rehearsal(target, server.pid)
                engine = metrics.engine_info(at)
                results = suite.run(at, on_result)
                measured: Mapping[str, Any] | None = None
                bench_errors: Sequence[str] = ()
                if all(one.outcome != "failed" for one in results) and is_measurable(at):
                    measured, bench_errors = measure(SystemUnderTest(at, bundle, target), run)
                last = suite.stop(at, server, target.environment.get("SERVE_SHM_PREFIX"))
                on_result(last)
        except NotReady as not_ready:
            return RehearsalResult(target.name, run.folder, None, None, not_ready)
        smoke = record_smoke(run, [*results, *last], engine)
        return RehearsalResult(
            target.name, run.folder, run.ready_after_s, smoke, None, measured, tuple(bench_errors)
        )


def is_measurable(at: endpoint.Endpoint) -> bool:
    """Not a model without streams: every measure starts at the first token."""
    return bool(at.options.get("triton_config", {}).get("decoupled", True))


def measure(served: SystemUnderTest, run: runs.Run) -> tuple[Mapping[str, Any] | None, list[str]]:
    """The quick bench, whose results stay in the run folder, and what was wrong with it."""
    try:
        found = quick_bench.run(served, run.folder)
    except ToolkitError as error:
        return None, [str(error)]
    return found, quick_bench.failures(found)


def record_smoke(
    run: runs.Run, results: Sequence[CheckResult], engine: Mapping[str, Any]
) -> dict[str, Any]:
    """Leave the results in the run folder and their numbers in `run.json`."""
    document = summary(results, engine)
    run.write_json("smoke.json", document)
    (run.folder / "smoke.xml").write_bytes(junit(results, engine))
    run.record(smoke=totals(results))
    return document
