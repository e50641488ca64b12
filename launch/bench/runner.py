"""The run of a sweep: its points in turn, each warmed up, loaded, measured and written down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from builder import __version__

from ..run import now
from ..smoke.endpoint import Endpoint
from . import document, measure, scrape, summary, workers
from .document import Results
from .load import LoadPlan
from .progress import Progress
from .record import Record
from .scrape import Reading
from .seen import Seen
from .sweep import Load, Sweep
from .tokens import Tokens
from .worker import ProcessUsage


class Runner:
    """Measures an endpoint. The results on disk are whole at any time."""

    def __init__(
        self,
        sweep: Sweep,
        endpoint: Endpoint,
        results: Results,
        progress: Progress,
        facts: Mapping[str, Any],
    ) -> None:
        self._sweep, self._endpoint, self._results = sweep, endpoint, results
        self._progress = progress
        self._last: Reading | None = None  # if no request came after it
        self._place = 0  # in the workload: no point repeats the prompts of another
        times = {"started": now(), "ended": None, "outcome": "interrupted"}
        self.document: dict[str, Any] = {
            "format": document.FORMAT,
            "kind": document.KIND,
            "toolkit_version": __version__,
            **times,
            **facts,
            "points": [],
            "largest_concurrency_within_slo": None,
            "quality": None,
            "percentiles": summary.DEFINITION,
        }

    def run(self) -> None:
        """All points in turn. What an interrupt leaves of a point is measured and kept."""
        self._write()
        try:
            for one in self._sweep.loads:
                self._warm(one)
                self._point(one)
        finally:
            self._progress.close()
        self.record(outcome="complete")

    def record(self, **facts: Any) -> None:
        """Add facts to the document."""
        self.document |= facts
        self._write()

    def _write(self) -> None:
        self.document["ended"] = now()
        self._results.write(self.document)

    def _warm(self, one: Load) -> None:
        if plan := self._sweep.warm(one, self._place):
            self._progress.begin(f"{one.label} warm-up", plan.size)
            self._drive(plan, self._progress.saw)
            self._progress.end(None)
            self._place += plan.size
            self._last = None

    def _point(self, one: Load) -> None:
        plan = self._sweep.plan(one, self._place)
        self._place += len(plan.tasks) or plan.size
        seen: list[Seen] = []

        def saw(request: Seen) -> None:
            seen.append(request)
            self._results.request(one.label, request)
            self._progress.saw(request)

        before, begun = self._last or scrape.read(self._endpoint), now()
        self._progress.begin(one.label, None if plan.duration_s else plan.size)
        # Of a point that was interrupted, neither the server nor the load processes tell more.
        after = Reading()
        usage: Sequence[ProcessUsage] = ()
        try:
            usage = self._drive(plan, saw)
            after = self._last = scrape.read(self._endpoint, before, len(seen))
        finally:
            if seen:
                measured = measure.point(seen, plan, self._sweep.settings, after.perf, usage)
                self._add(one, begun, {**measured, "server": scrape.between(before, after)})

    def _drive(self, plan: LoadPlan, saw: Callable[[Seen], None]) -> Sequence[ProcessUsage]:
        sweep = self._sweep
        processes = max(1, min(sweep.processes, plan.connections))

        def received(record: Record) -> None:
            saw(Seen.of(counted(record, sweep.tokens)))

        stop = threading.Event()
        return workers.run(plan, self._endpoint, sweep.api, processes, received, stop)

    def _add(self, one: Load, begun: str, measured: Mapping[str, Any]) -> None:
        row = {"load": dict(one.facts), "label": one.label, "started": begun, "ended": now()}
        points = self.document["points"]
        points.append({**row, **measured})
        self.document["client"] |= measure.client_limit(points)
        self.document["largest_concurrency_within_slo"] = measure.largest_within_slo(points)
        self._progress.end(points[-1])
        self._write()


def counted(record: Record, tokens: Tokens) -> Record:
    """The record without its text, whose tokens are counted here if the server counted none."""
    if record.text is None:
        return record
    if record.ok and record.output_tokens is None and (count := tokens.count(record.text)):
        record = replace(record, output_tokens=count, count_source="tokenizer")
    return replace(record, text=None)
