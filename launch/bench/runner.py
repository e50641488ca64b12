"""Runs a benchmark: warms up, loads, measures and records its points one by one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from builder import __version__
from builder.diagnostics import Diagnostic
from builder.errors import ChecksFailed, ToolkitError

from ..run import now
from . import point_metrics, results, server_metrics, workers
from .config import BenchConfig, LoadLevel, label
from .load import LoadPlan
from .progress import Progress
from .request import Failure, FailureKind, RequestRecord
from .results import Results
from .samples import PERCENTILE_DEFINITION
from .server_metrics import MetricsReading
from .system_under_test import SystemUnderTest
from .workers import ProcessUsage
from .workload import Prompts

TOOL = "trtllm-deployment-toolkit"
# What to do about a failed warm-up, by the kind of its first failure.
_PROMPTS = "prompts may not be what this model takes: see --tokenizer, --isl, --osl and --api"
REMEDIES: Mapping[FailureKind, str] = {
    "refused": "start the server, for example with: python -m launch up BUNDLE",
    "unavailable": "wait until the server has room, or give a lower --concurrency",
    "timeout": "give a longer --request-timeout, or a shorter --osl",
    "http": _PROMPTS,
    "rpc": _PROMPTS,
    "in_stream": _PROMPTS,
    "wrong_count": "give --stop-at-eos for a server that ends answers where it likes",
}


class Runner:
    """Measures an endpoint. The results on disk are valid at any time."""

    def __init__(
        self,
        config: BenchConfig,
        system: SystemUnderTest,
        reported: tuple[str, str | None],
        files: Results,
        progress: Progress,
        is_lost: Callable[[Sequence[RequestRecord]], bool] = lambda _records: False,
    ) -> None:
        """`reported` is the version and the model's name, as the server reports them. A point whose
        records so far are `is_lost` is stopped, and the outcome is `stopped`."""
        self._config, self._endpoint, self._files = config, system.endpoint, files
        self._progress, self._is_lost = progress, is_lost
        self._stop = threading.Event()
        self._last: MetricsReading | None = None  # unless requests came after it
        self._place = 0  # the next index in the workload: points share no prompts
        workload, slo = config.workload, config.metrics.slo
        request = workload.request(0)
        host = {"cpus": os.cpu_count()}
        client = {"tool": TOOL, "api": config.api, "processes": config.processes, "host": host}
        self.document: dict[str, Any] = {
            "format": results.FORMAT,
            "kind": results.KIND,
            "toolkit_version": __version__,
            "started": now(),
            "ended": None,
            "outcome": "interrupted",
            "failure": None,
            "subject": system.described(reported, config.metrics.num_gpus),
            "client": {**client, "share_of_limit": None, "marked": False},
            "workload": {
                "kind": workload.kind,
                **workload.facts,
                "ignore_eos": request.ignore_eos,
                "temperature": request.temperature,
            },
            "slo": slo and {name: slo.get(name) for name in point_metrics.LIMITS},
            "price_per_gpu_hour_usd": config.metrics.price_per_gpu_hour_usd,
            "seed": config.seed,
            "points": [],
            "largest_concurrency_within_slo": None,
            "quality": None,
            "percentiles": PERCENTILE_DEFINITION,
        }

    def run(self) -> None:
        """Measures all points; of an interrupted point it keeps what was measured."""
        self._write()
        try:
            for number, one in enumerate(self._config.levels, 1):
                self._warm(one)
                self._point(one, number)
        except ToolkitError as error:
            self.record(outcome="failed", failure="; ".join(map(str, error.diagnostics)))
            raise
        finally:
            self._progress.close()
        self.record(outcome="stopped" if self._stop.is_set() else "complete")

    def record(self, **facts: Any) -> None:
        self.document |= facts
        self._write()

    def _write(self) -> None:
        self.document["ended"] = now()
        self._files.write(self.document)

    def _warm(self, one: LoadLevel) -> None:
        """Raises `ChecksFailed` if every request fails: so would the point."""
        if not (plan := self._config.warm(one, self._place)):
            return
        failures: list[Failure | None] = []

        def on_request(request: RequestRecord) -> None:
            failures.append(request.failure)
            self._progress.on_request(request)

        name = f"{label(one)} warm-up"
        self._progress.begin(name, plan.size)
        self._drive(plan, on_request)
        self._progress.end(None)
        self._place += plan.size
        self._last = None
        if failures and (first := failures[0]) and None not in failures:
            count = f"all {len(failures)} requests" if len(failures) > 1 else "its request"
            what = f"{count} failed, {first.kind}: {first.message}"
            remedy = REMEDIES.get(first.kind, "look at the server's log")
            raise ChecksFailed(Diagnostic(name, what, remedy))

    def _point(self, one: LoadLevel, number: int) -> None:
        plan = self._config.plan(one, self._place)
        self._place += len(plan.tasks) or plan.size
        records: list[RequestRecord] = []

        def on_request(request: RequestRecord) -> None:
            records.append(request)
            self._files.request(label(one), request)
            self._progress.on_request(request)
            if self._is_lost(records):
                self._stop.set()

        before, begun = self._last or server_metrics.read(self._endpoint), now()
        of = f"{number} of {len(self._config.levels)}"
        total = None if plan.duration_s else plan.size
        self._progress.begin(label(one), total, plan.duration_s, of)
        # These stay for an interrupted point.
        after = MetricsReading()
        usage: Sequence[ProcessUsage] = ()
        try:
            usage = self._drive(plan, on_request)
            after = self._last = server_metrics.read(self._endpoint, before, len(records))
        finally:
            if records:
                measured = point_metrics.measure(
                    records, plan, self._config.metrics, after.perf, usage
                )
                self._add(one, begun, {**measured, "server": server_metrics.changes(before, after)})

    def _drive(
        self, plan: LoadPlan, on_request: Callable[[RequestRecord], None]
    ) -> Sequence[ProcessUsage]:
        config = self._config
        processes = max(1, min(config.processes, plan.connections))

        def received(record: RequestRecord) -> None:
            on_request(counted(record, config.prompts).packed())

        on_look = self._progress.on_look
        return workers.run(
            plan, self._endpoint, config.api, processes, received, self._stop, on_look=on_look
        )

    def _add(self, one: LoadLevel, begun: str, measured: Mapping[str, Any]) -> None:
        row = {"load": dict(one), "label": label(one), "started": begun, "ended": now()}
        points = self.document["points"]
        points.append({**row, **measured})
        self.document["client"] |= point_metrics.client_limit(points)
        self.document["largest_concurrency_within_slo"] = point_metrics.largest_within_slo(points)
        self._progress.end(points[-1])
        self._write()


def counted(record: RequestRecord, prompts: Prompts) -> RequestRecord:
    """The record without its text, with its tokens counted here if the server did not."""
    if record.text is None:
        return record
    if record.ok and record.output_tokens is None and (count := prompts.count(record.text)):
        record = replace(record, output_tokens=count, count_source="tokenizer")
    return replace(record, text=None)
