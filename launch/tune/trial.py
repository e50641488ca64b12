"""One start of a tuning run: a server is started as by `launch up`, checked, measured and stopped.

A start that fails ends with the kind of its failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from builder.bundle import Bundle
from builder.deployment import USUAL_PERCENTILE, Slo
from builder.diagnosis.signatures import signatures
from builder.errors import NotReady, ToolkitError
from builder.tuning.outcomes import Kind, MeasuredLoad

from .. import endpoint, serving, target, trust
from .. import run as runs
from ..bench import clients, config, results, system_under_test, workload
from ..bench.config import BenchConfig
from ..bench.point_metrics import MetricOptions
from ..bench.progress import Progress
from ..bench.request import RequestRecord
from ..bench.runner import Runner
from ..bench.system_under_test import SystemUnderTest
from ..process import Interrupts, ServerProcess
from ..smoke import suite
from ..target import Target

WARMUP = 2  # requests before a load
# The checks of the smoke suite that find wrong answers; the others test the protocol.
SMOKE = ("P1", "P2", "P3", "P6", "P7", "P8")
MOST_FAILED = 0.01  # of the requests of a load
DEATH_S = 2.0  # in which a server whose requests failed may turn out to be dead
# Phases of a start in which the weights are loaded.
_LOADING = ("import", "setup", "load", None)

NextLoad = Callable[[Sequence[MeasuredLoad]], int | None]
IsHopeless = Callable[[float, float], bool]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all starts of a tuning run share. `percentile` is that of the measured times,
    `timeout_s` the limit of a start instead of the bundle's."""

    engine: str
    target: str | None
    slo: Slo
    environment: Mapping[str, str]
    requirements: tuple[trust.Requirement, ...]
    interrupts: Interrupts
    timeout_s: float | None = None
    requests: int | None = None

    @property
    def percentile(self) -> str:
        limits = self.slo.limits_ms
        return (self.slo.percentile or USUAL_PERCENTILE) if limits else "p50"


class Trial:
    """A start of a bundle's server in `folder`; `facts` are for its end in the ledger."""

    def __init__(self, conditions: Conditions, bundle: Bundle, folder: Path) -> None:
        self._conditions, self._bundle, self._folder = conditions, bundle, folder
        self._loads: list[MeasuredLoad] = []
        self.facts: dict[str, Any] = {"option": "", "cause": "", "phases": {}}

    def run(
        self, next_load: NextLoad, is_hopeless: IsHopeless, options: Sequence[str], patience: int
    ) -> None:
        """Serve, check and measure, and stop. `options` are paths that a failure may name.

        Raises what is no failure of the server: `BadInput`, and an interruption.
        """
        own, began_s = self._conditions, time.monotonic()
        bundle = trust.read(self._bundle.folder, own.requirements)
        served = target.read_one(bundle, own.target).as_set_in(own.environment)
        served = served.on_checkpoints_of(own.environment)
        served.check_nodes()
        with runs.create(bundle, served.name, own.engine, self._folder / "run") as run:
            served = serving.with_checkpoint(served, own.engine, run).on_free_ports()
            limit_s = (own.timeout_s or served.start_timeout_s) * patience
            try:
                with serving.serve(
                    served,
                    own.engine,
                    run,
                    own.interrupts,
                    start_timeout_s=limit_s,
                    stop_grace_s=served.stop_timeout_s,
                ) as (ready, server):
                    kind, cause = self._checked(ready, server, run, next_load, is_hopeless)
            except NotReady as error:
                kind, cause = self._failure(run, error, options)
        self.facts |= {"kind": kind, "cause": cause, "phases": run.facts.get("phases", {})}
        self.facts |= {"loads": list(map(asdict, self._loads))}
        self.facts |= {"seconds": round(time.monotonic() - began_s, 1)}

    def _failure(
        self, run: runs.Run, error: ToolkitError, options: Sequence[str]
    ) -> tuple[Kind, str]:
        """The kind of a start that failed, by its end and the diagnosis of its log."""
        found = run.facts.get("diagnosis") or {}
        causes: Sequence[Mapping[str, Any]] = found.get("causes") or []
        first = error.diagnostics[0]
        cause = ": ".join([first.message.partition(";")[0], *list(first.log)[-1:]])
        if causes:
            cause = causes[0]["cause"].strip()
        if run.facts["outcome"] == "timed_out":
            return "timeout", cause
        clusters = {row.id: row.cluster for row in signatures()}
        cluster = clusters.get(causes[0]["id"]) if causes else None
        if cluster == "memory":
            at_load = found["phase"] in _LOADING
            return ("memory_at_load" if at_load else "memory_at_graphs"), cause
        if cluster == "options":
            places = [line["line"] for line in causes[0]["evidence"]]
            lines = run.log.read_text(errors="replace").splitlines()
            told = " ".join([cause, *lines[min(places) - 1 : max(places)]])
            self.facts["option"] = next((path for path in options if _is_named(path, told)), "")
            return "refused_option", cause
        return "unknown", cause

    def _checked(
        self,
        served: Target,
        server: ServerProcess,
        run: runs.Run,
        next_load: NextLoad,
        is_hopeless: IsHopeless,
    ) -> tuple[Kind, str]:
        at = endpoint.from_target(served)
        if run.facts["engine"]["rehearsal"]:
            at = endpoint.from_rehearsal(served, self._conditions.engine, server.pid)
        checks = [row for row in suite.POSITIVE if row.id in SMOKE]
        failed = [row for row in suite.run(at, lambda _: None, checks) if row.outcome == "failed"]
        if failed and server.exit_status(DEATH_S) is None:
            return "wrong_answer", f"{failed[0].id} {failed[0].title}: {failed[0].evidence}"
        system = SystemUnderTest(at, self._bundle, served, run.facts)
        count = 0
        while not failed and (load := next_load(self._loads)) is not None:
            count += 1
            if problem := self._measure(system, load, count, is_hopeless):
                failed_under_load = server.exit_status(DEATH_S) is not None
                return ("died_under_load" if failed_under_load else "unknown"), problem
        if failed:
            return "died_under_load", "died while it was checked"
        return "measured", ""

    def _measure(
        self, system: SystemUnderTest, load: int, number: int, is_hopeless: IsHopeless
    ) -> str:
        """Measure a load; what failed, or an empty text."""
        own = self._conditions
        try:
            reported = system_under_test.reported(system.endpoint)
            files = results.create(self._folder / f"load-{number}", "tune")
            try:
                runner = self._runner(system, reported, load, number, is_hopeless, files)
                runner.run()
            finally:
                files.close()
        except ToolkitError as error:
            return str(error.diagnostics[0])
        [point] = runner.document["points"]
        requests = point["requests"]
        if requests["failed"] > MOST_FAILED * requests["sent"]:
            example = next(iter(point["errors"].values()))["example"]
            return f"{requests['failed']} of {requests['sent']} requests failed: {example}"
        if point["output_tokens_per_s"] is None:
            return "the server does not say how many tokens it generates"
        if not (point["tpot_ms"] or {}).get(own.percentile):
            return "the tokens of an answer arrive together, so that they have no time of their own"
        self._loads.append(measured_load(point, own.percentile))
        return ""

    def _runner(
        self,
        system: SystemUnderTest,
        reported: tuple[str, str | None],
        load: int,
        number: int,
        is_hopeless: IsHopeless,
        files: results.Results,
    ) -> Runner:
        own, asked = self._conditions, system_under_test.deployment(system.bundle)["workload"]
        offered = clients.offered(system.endpoint)
        exact = "openai_completions"  # a chat template adds tokens
        api = exact if exact in offered else offered[0]
        prompts = config.prompts_of(system, reported[0])
        template = replace(workload.TEMPLATE, keep_text=api in ("generate_stream", "grpc"))
        bench = BenchConfig(
            # Another seed for each load: a prompt that comes again is in the server's cache.
            workload=workload.fixed(prompts, asked["isl"], asked["osl"], template, number),
            levels=config.closed("concurrency", [load]),
            prompts=prompts,
            api=api,
            metrics=MetricOptions(slo=own.slo.limits_ms or None),
            requests=own.requests,
            warmup=WARMUP,
        )
        allowed = (1 - own.slo.share) * bench.plan(bench.levels[0], 0).size

        def is_lost(records: Sequence[RequestRecord]) -> bool:
            """Whether so many requests are hopeless that the percentile is too; without the first
            wave, whose prompts come all together."""
            over = 0
            for one in records[load:]:
                if one.ok and one.ttft_ms is not None:
                    over += is_hopeless(one.ttft_ms, one.tpot_ms or 0.0)
            return over > allowed

        return Runner(bench, system, reported, files, Progress(form="none"), is_lost)


def _is_named(path: str, text: str) -> bool:
    name = path.rpartition(".")[2]
    return name in text or name.replace("_", "-") in text


def measured_load(point: Mapping[str, Any], percentile: str) -> MeasuredLoad:
    """A point of a benchmark in the measures of the search."""
    return MeasuredLoad(
        point["load"]["concurrency"],
        point["ttft_ms"][percentile],
        point["tpot_ms"][percentile],
        point["output_tokens_per_s"],
    )


def measured_before(folder: Path, percentile: str) -> list[MeasuredLoad]:
    """The loads that a start that was cut off has measured to their end."""
    found = []
    for file in sorted(folder.glob(f"load-*/{results.BENCH}")):
        document = results.read(file)
        if document["outcome"] != "interrupted" and document["points"]:
            found.append(measured_load(document["points"][0], percentile))
    return found
