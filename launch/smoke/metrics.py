"""What a server counts: its Prometheus metrics, read and compared."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping

from .client import Fault, NotOffered, Refused
from .endpoint import Endpoint
from .http import answer, session

TIMEOUT_S = 10.0
POLL_S = 0.1
# The toolkit's model brings its metrics to the port once a second, all in a row. Others are there
# at once.
MODEL = "trtllm_model_"
REQUESTS = f"{MODEL}requests_total"
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


def label(metrics: Metrics, name: str, key: str) -> str | None:
    """A label of the first sample of a name that has it."""
    wanted = re.compile(rf'{name}{{.*\b{key}="([^"]*)"')
    return next((found[1] for one in metrics if (found := wanted.match(one))), None)


async def settled(endpoint: Endpoint, requests: float = math.inf) -> Metrics:
    """The metrics when all that has ended is in them: when the model has counted so many requests,
    or else after its period."""
    begun_s = time.monotonic()
    metrics = await read(endpoint)
    while (counted := total(metrics, REQUESTS)) is not None:
        await asyncio.sleep(POLL_S)
        before, metrics = metrics, await read(endpoint)
        waited_s = time.monotonic() - begun_s
        due = counted >= requests or waited_s > PERIOD_S
        if (due and _of_model(before) == _of_model(metrics)) or waited_s > TIMEOUT_S:
            break
    return metrics


def _of_model(metrics: Metrics) -> Metrics:
    return {name: value for name, value in metrics.items() if name.startswith(MODEL)}


async def until(endpoint: Endpoint, holds: Callable[[Metrics], bool]) -> Metrics:
    """The metrics as soon as a condition holds, or as they are when the time is over."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        metrics = await read(endpoint)
        if holds(metrics) or time.monotonic() > deadline:
            return metrics
        await asyncio.sleep(POLL_S)
