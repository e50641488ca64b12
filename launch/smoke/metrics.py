"""What a server reports about itself: its Prometheus metrics and the version of its engine."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from builder.observability import metrics as server_metrics

from ..endpoint import Endpoint
from .client import CheckFailure, NotSupported, RequestRejected

TIMEOUT_S = 10.0
# How long a count may take to come.
COUNTED_S = 10.0
POLL_S = 0.1
# The toolkit's model updates its metrics once a second, all together. Others are up to date.
MODEL = "trtllm_model_"
REQUESTS = f"{MODEL}requests_total"
PERIOD_S = 1.2
# What the reference engine's version ends with.
REFERENCE_MARK = "+reference"
# The metric and label by which the toolkit's model reports the engine behind Triton.
ENGINE_METRIC = ("trtllm_model_engine_info", "release")
_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(\{.*\})? +(\S+)")

# A metric's name and labels as written, and its value.
Metrics = Mapping[str, float]


async def read(endpoint: Endpoint) -> Metrics:
    """All samples of a server. Raises `NotSupported` where it has no metrics."""
    # Of an extra, which a comparison of results goes without.
    from ..bounded_answer import client as session
    from .http import receive

    if endpoint.api == "kserve" and endpoint.metrics is None:
        raise NotSupported("the server has no metrics port")
    base = endpoint.metrics or f"{endpoint.url}{endpoint.record.paths['metrics']}"
    headers = {} if endpoint.metrics else endpoint.access.http_headers  # the server's own address
    async with session(base.rpartition("/")[0], TIMEOUT_S, headers) as http:
        response = await receive(http.get(base))
    if response.status_code in (404, 501):
        raise NotSupported(f"GET {base} gives {response.status_code}")
    if not response.is_success:
        raise RequestRejected(f"{response.status_code}: {response.text[:80]}")
    found = map(_LINE.match, response.text.splitlines())
    metrics = {}
    with suppress(ValueError):  # a text that is no metrics may have lines like theirs
        metrics = {f"{one[1]}{one[2] or ''}": float(one[3]) for one in found if one}
    if not metrics:
        raise CheckFailure(f"GET {base} gives no metrics: {response.text[:80]!r}")
    return metrics


async def read_if_any(endpoint: Endpoint) -> Metrics:
    """All samples, or none of a server without metrics."""
    try:
        return await read(endpoint)
    except NotSupported:
        return {}


def total(metrics: Metrics, name: str, **labels: str) -> float | None:
    """The sum over all samples of a name that have these labels, or `None` without any."""
    words = [f'{key}="{value}"' for key, value in labels.items()]
    values = [
        value
        for key, value in metrics.items()
        if key.partition("{")[0] == name and all(word in key for word in words)
    ]
    return sum(values) if values else None


def by_word(metrics: Metrics, endpoint: Endpoint, word: str) -> str | None:
    """The server's name for the metric that signals call `word`, with the prefix of its release.

    `None` if it has no such metric.
    """
    known = server_metrics.names(endpoint.server, prefix="").get(word)
    families = {key.partition("{")[0] for key in metrics}
    return min((name for name in families if known and name.endswith(known)), default=None)


def label(metrics: Metrics, name: str, key: str) -> str | None:
    """A label of the first sample of a name that has it."""
    wanted = re.compile(rf'{name}{{.*\b{key}="([^"]*)"')
    return next((found[1] for one in metrics if (found := wanted.match(one))), None)


def label_values(metrics: Metrics, key: str) -> set[str]:
    wanted = re.compile(rf'[{{,]{key}="([^"]*)"')
    return {found[1] for one in metrics if (found := wanted.search(one))}


async def read_settled(endpoint: Endpoint, requests: float = math.inf) -> Metrics:
    """The metrics after an update: when `requests` are counted, or after a period."""
    start_s = time.monotonic()
    metrics = await read(endpoint)
    while (counted := total(metrics, REQUESTS)) is not None:
        await asyncio.sleep(POLL_S)
        before, metrics = metrics, await read(endpoint)
        waited_s = time.monotonic() - start_s
        due = counted >= requests or waited_s > PERIOD_S
        if (due and _of_model(before) == _of_model(metrics)) or waited_s > COUNTED_S:
            break
    return metrics


def _of_model(metrics: Metrics) -> Metrics:
    return {name: value for name, value in metrics.items() if name.startswith(MODEL)}


async def wait_until(endpoint: Endpoint, holds: Callable[[Metrics], bool]) -> Metrics:
    """The metrics as soon as a condition holds, or at the timeout."""
    deadline = time.monotonic() + COUNTED_S
    while True:
        metrics = await read(endpoint)
        if holds(metrics) or time.monotonic() > deadline:
            return metrics
        await asyncio.sleep(POLL_S)


async def engine_version(endpoint: Endpoint) -> str | None:
    """`None` where the server does not report it."""
    from ..bounded_answer import client as session
    from .http import get_json

    try:
        if endpoint.api == "kserve":
            return label(await read(endpoint), *ENGINE_METRIC)
        async with session(endpoint.url or "", TIMEOUT_S, endpoint.access.http_headers) as http:
            found = (await get_json(http, "/version")).get("version")
            return found if isinstance(found, str) else None
    except (CheckFailure, RequestRejected, NotSupported):
        return None


def engine_info(endpoint: Endpoint) -> dict[str, Any]:
    """For results: the version, and whether it is a rehearsal; `None` is unknown."""
    version = asyncio.run(engine_version(endpoint))
    rehearsal = endpoint.rehearsal or (None if version is None else is_reference(version))
    return {"version": version, "rehearsal": rehearsal}


def is_reference(version: str) -> bool:
    return version.endswith(REFERENCE_MARK)
