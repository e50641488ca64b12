"""What a server counts, read before and after a point: Prometheus metrics and the engine's own.

`/metrics` of trtllm-serve is the iterations since it was last read, and `/perf_metrics` the
requests since then; both are emptied by reading them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from ..smoke import metrics
from ..smoke.client import CheckFailure, NotSupported, RequestRejected
from ..smoke.endpoint import Endpoint
from ..smoke.http import receive, session
from . import told

ITERATIONS, REQUESTS = "/metrics", told.PERF_METRICS
# Parts of histograms say nothing as a difference of two readings that their sums do not.
LEFT_OUT = ("_bucket", "_created")


@dataclass(frozen=True, slots=True)
class Reading:
    """`absent` says in words what this server does not tell."""

    samples: metrics.Metrics = field(default_factory=dict)
    iterations: Sequence[Mapping[str, Any]] = ()
    requests: Sequence[Mapping[str, Any]] = ()
    absent: tuple[str, ...] = ()

    @property
    def perf(self) -> list[told.Row]:
        return [told.perf_row(one) for one in self.requests]


def read(endpoint: Endpoint, before: Reading | None = None, ended: int = 0) -> Reading:
    """All that the server tells now; what was kept for this reading is emptied by it.

    It is read when it tells of all requests that have `ended` since the reading before.
    """
    counted = metrics.total(before.samples, metrics.REQUESTS) if before else None
    return asyncio.run(_read(endpoint, math.inf if counted is None else counted + ended))


def between(before: Reading, after: Reading) -> dict[str, Any]:
    """Samples that changed, and what the iterations come to, by name."""
    found: dict[str, Any] = {
        name: {"before": before.samples.get(name), "after": value}
        for name, value in after.samples.items()
        if value != before.samples.get(name) and not name.partition("{")[0].endswith(LEFT_OUT)
    }
    if after.iterations:
        found["iterations"] = len(after.iterations)
        found |= _means(after.iterations)
    return found


async def _read(endpoint: Endpoint, requests: float) -> Reading:
    absent = []
    samples: metrics.Metrics = {}
    try:
        samples = await metrics.read_settled(endpoint, requests)
    except (NotSupported, RequestRejected, CheckFailure) as fault:
        absent.append(str(fault))
    rows: dict[str, Sequence[Mapping[str, Any]]] = {ITERATIONS: (), REQUESTS: ()}
    if endpoint.api == "openai":
        async with session(endpoint.url or "", metrics.TIMEOUT_S) as http:
            for path in rows:
                try:
                    rows[path] = await _rows(http, path)
                except CheckFailure as fault:
                    absent.append(str(fault))
    return Reading(samples, rows[ITERATIONS], rows[REQUESTS], tuple(absent))


async def _rows(http: httpx.AsyncClient, path: str) -> Sequence[Mapping[str, Any]]:
    response = await receive(http.get(path))
    if not response.is_success:
        raise CheckFailure(f"GET {path} gives {response.status_code}")
    try:
        document = response.json()
    except ValueError:
        raise CheckFailure(f"GET {path} gives no JSON") from None
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        raise CheckFailure(f"GET {path} gives no list of objects")
    return document


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean over all iterations of each number in them."""
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in _numbers(row, ""):
            values.setdefault(name, []).append(value)
    return {f"iteration mean {name}": round(sum(row) / len(row), 4) for name, row in values.items()}


def _numbers(row: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)
