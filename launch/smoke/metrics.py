"""What a server counts: its Prometheus metrics, read and compared."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping

from .client import Fault, NotOffered, Refused
from .endpoint import Endpoint
from .http import answer, session

TIMEOUT_S = 10.0
POLL_S = 0.1
# The toolkit's model brings its metrics up to date once a second.
PERIOD_S = 1.2
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(\{.*\})? +(\S+)")

# A metric's name and labels as written, and its value.
Metrics = Mapping[str, float]


async def read(endpoint: Endpoint) -> Metrics:
    """All samples of a server. Raises `NotOffered` where it has no metrics."""
    if endpoint.kind == "triton" and endpoint.metrics is None:
        raise NotOffered("the server has no metrics port")
    base = endpoint.metrics or f"{endpoint.url}/prometheus/metrics"
    async with session(base.rpartition("/")[0], TIMEOUT_S) as http:
        response = await answer(http.get(base))
    if response.status_code in (404, 501):
        raise NotOffered(f"GET {base} gives {response.status_code}")
    if not response.is_success:
        raise Refused(f"{response.status_code}: {response.text[:80]}")
    found = map(_LINE.match, response.text.splitlines())
    metrics = {f"{one[1]}{one[2] or ''}": float(one[3]) for one in found if one}
    if not metrics:
        raise Fault(f"GET {base} gives no metrics: {response.text[:80]!r}")
    return metrics


def total(metrics: Metrics, name: str, **labels: str) -> float | None:
    """The sum over all samples of a name that have these labels, or `None` without any."""
    words = [f'{key}="{value}"' for key, value in labels.items()]
    values = [
        value
        for key, value in metrics.items()
        if key.partition("{")[0] == name and all(word in key for word in words)
    ]
    return sum(values) if values else None


async def settled(endpoint: Endpoint, name: str) -> Metrics:
    """The metrics after a time in which one of them, if there is any, did not change."""
    metrics = await read(endpoint)
    while True:
        await asyncio.sleep(PERIOD_S if total(metrics, name) is not None else 0)
        before, metrics = metrics, await read(endpoint)
        if total(before, name) == total(metrics, name):
            return metrics


async def until(endpoint: Endpoint, holds: Callable[[Metrics], bool]) -> Metrics:
    """The metrics as soon as a condition holds, or as they are when the time is over."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        metrics = await read(endpoint)
        if holds(metrics) or time.monotonic() > deadline:
            return metrics
        await asyncio.sleep(POLL_S)
