"""A short benchmark: a few small requests, to see that a server can be measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import clients, document, order, subject, sweep, tokens, workload
from .order import Served
from .progress import Progress
from .runner import Runner
from .sweep import Sweep

CONCURRENCIES = (1, 2, 4)
REQUESTS = 12  # as many as three waves of the largest concurrency
ISL, OSL = 32, 8


def run(served: Served, folder: Path) -> Mapping[str, Any]:
    """The document, whose files are left in a run folder."""
    api = clients.offered(served.endpoint)[0]
    made_of = tokens.of_folder(served.checkpoint) if served.checkpoint else tokens.Words()
    ordered = Sweep(
        workload=workload.fixed(made_of, ISL, OSL, workload.Style()),
        loads=sweep.closed("concurrency", CONCURRENCIES),
        tokens=made_of,
        api=api,
        requests=REQUESTS,
        warmup=0,
    )
    word = subject.ask(served.endpoint)
    facts = order.facts(ordered, subject.of(served.endpoint, served.bundle, served.run, word))
    results = document.create(folder, "short")
    try:
        runner = Runner(ordered, served.endpoint, results, Progress(lines=False), facts)
        runner.run()
    finally:
        results.close()
    return runner.document


def faults(found: Mapping[str, Any]) -> list[str]:
    """What failed, by point and kind, in words."""
    return [
        f"{point['label']}: {one['count']} requests failed, {kind}: {one['example']}"
        for point in found["points"]
        for kind, one in point["errors"].items()
    ]
