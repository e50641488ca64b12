"""Server-side metrics: readings before and after a point, and the engine's own per request.

Those of a request come with its answer (Triton's outputs, the usage of OpenAI's) or from
`/perf_metrics`, whose rows are here brought under the names of the Triton outputs. `/metrics` of
trtllm-serve is the iterations since it was last read, and `/perf_metrics` the requests since then;
both are emptied by reading them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

from builder import files

from .request import NS_PER_MS, RequestRecord
from .samples import Summary, summarize

if TYPE_CHECKING:
    import httpx

    from ..endpoint import Endpoint
    from ..smoke.metrics import Metrics

ANSWERS, PERF_METRICS = "answers", "/perf_metrics"
ITERATIONS = "/metrics"
# Suffixes of histogram parts; the difference of their sums says the same.
LEFT_OUT = ("_bucket", "_created")
NS_PER_S = 1e9
MOST = 2**53  # larger numbers are ignored
LEVELS = 8  # of objects in one another, in the statistics of an iteration
# The list has a document of about 1 KB for each request since it was last read, of some 80 values.
LIST_BYTES, LIST_VALUES = 64 << 20, 5_000_000
# Speculation in a stream of trtllm-serve.
TOKENS_PER_STEP = "tokens_per_step"

Row = Mapping[str, float]
# Where each value is in a row of /perf_metrics, and what makes it one of the Triton outputs'.
PLACES: Mapping[str, tuple[str, str, float]] = {
    "arrival_time_ns": ("timing_metrics", "arrival_time", NS_PER_S),
    "first_scheduled_time_ns": ("timing_metrics", "first_scheduled_time", NS_PER_S),
    "first_token_time_ns": ("timing_metrics", "first_token_time", NS_PER_S),
    "kv_cache_reused_block": ("kv_cache_metrics", "num_reused_blocks", 1),
    "kv_cache_missed_block": ("kv_cache_metrics", "num_missed_blocks", 1),
    "acceptance_rate": ("speculative_decoding", "acceptance_rate", 1),
    "total_accepted_draft_tokens": ("speculative_decoding", "total_accepted_draft_tokens", 1),
    "total_draft_tokens": ("speculative_decoding", "total_draft_tokens", 1),
}


def perf_row(document: Mapping[str, Any]) -> Row:
    """The known values of one request of `/perf_metrics`."""
    groups = _mapping(document.get("perf_metrics"))
    found = {}
    for name, (group, key, factor) in PLACES.items():
        value: Any = _mapping(groups.get(group)).get(key)
        if _is_number(value):
            found[name] = value * factor
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a number of a size that floats can hold."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and -MOST < value < MOST


def speculative(records: Sequence[RequestRecord], perf: Sequence[Row]) -> dict[str, Any] | None:
    """Accepted draft tokens over drafted ones, and tokens per step of the engine."""
    for source, rows in _sources(records, perf):
        drafted = sum(row.get("total_draft_tokens", 0) for row in rows)
        accepted = sum(row.get("total_accepted_draft_tokens", 0) for row in rows)
        rates = [row["acceptance_rate"] for row in rows if row.get("acceptance_rate")]
        if drafted or rates:
            rate = accepted / drafted if drafted else sum(rates) / len(rates)
            steps = _tokens_per_step(records)
            return {"acceptance_rate": round(rate, 4), "tokens_per_step": steps, "source": source}
    steps = _tokens_per_step(records)
    if steps is None or steps <= 1:
        return None
    return {"acceptance_rate": None, "tokens_per_step": steps, "source": ANSWERS}


def _tokens_per_step(records: Sequence[RequestRecord]) -> float | None:
    pairs = [
        (one.output_tokens, one.server[TOKENS_PER_STEP])
        for one in records
        if one.output_tokens and one.server.get(TOKENS_PER_STEP)
    ]
    steps = sum(tokens / per_step for tokens, per_step in pairs)
    return round(sum(tokens for tokens, _ in pairs) / steps, 4) if steps else None


def kv_cache(records: Sequence[RequestRecord], perf: Sequence[Row]) -> dict[str, Any] | None:
    """The share of prompt tokens, or of prompt blocks, that came from the cache."""
    for source, rows in _sources(records, perf):
        reused = sum(row.get("kv_cache_reused_block", 0) for row in rows)
        missed = sum(row.get("kv_cache_missed_block", 0) for row in rows)
        if reused + missed:
            return {"reused_share": round(reused / (reused + missed), 4), "source": source}
    pairs = [(one.cached_tokens, one.prompt_tokens) for one in records]
    known = [(cached, prompt) for cached, prompt in pairs if cached is not None and prompt]
    if not known:
        return None
    share = sum(cached for cached, _ in known) / sum(prompt for _, prompt in known)
    return {"reused_share": round(share, 4), "source": "usage"}


def since_arrival_ms(
    records: Sequence[RequestRecord], perf: Sequence[Row], end: str
) -> Summary | None:
    """Time from the arrival at the engine to `end`, by the engine's clock."""
    start = "arrival_time_ns"
    for _, rows in _sources(records, perf):
        times = [row[end] - row[start] for row in rows if row.get(start) and row.get(end)]
        if times:
            return summarize(time / NS_PER_MS for time in times)
    return None


def _sources(
    records: Sequence[RequestRecord], perf: Sequence[Row]
) -> Iterable[tuple[str, Sequence[Mapping[str, float]]]]:
    return (ANSWERS, [one.server for one in records]), (PERF_METRICS, perf)


@dataclass(frozen=True, slots=True)
class MetricsReading:
    """Metrics of a server at one time. `absent` lists what it does not report."""

    samples: Metrics = field(default_factory=dict)
    iterations: Sequence[Mapping[str, Any]] = ()
    requests: Sequence[Mapping[str, Any]] = ()
    absent: tuple[str, ...] = ()

    @property
    def perf(self) -> list[Row]:
        return [perf_row(one) for one in self.requests]


def read(
    endpoint: Endpoint, before: MetricsReading | None = None, ended: int = 0
) -> MetricsReading:
    """All metrics now; reading them empties the lists of the server.

    Waits until the server has counted all requests that `ended` since the last reading.
    """
    from ..smoke import metrics

    counted = metrics.total(before.samples, metrics.REQUESTS) if before else None
    return asyncio.run(_read(endpoint, math.inf if counted is None else counted + ended))


def changes(before: MetricsReading, after: MetricsReading) -> dict[str, Any]:
    """Samples that changed, and the means of the iterations, by name."""
    found: dict[str, Any] = {
        name: {"before": before.samples.get(name), "after": value}
        for name, value in after.samples.items()
        if value != before.samples.get(name) and not name.partition("{")[0].endswith(LEFT_OUT)
    }
    if after.iterations:
        found["iterations"] = len(after.iterations)
        found |= _means(after.iterations)
    return found


async def _read(endpoint: Endpoint, requests: float) -> MetricsReading:
    from ..bounded_answer import client as session
    from ..smoke import metrics
    from ..smoke.client import CheckFailure, NotSupported, RequestRejected

    absent = []
    samples: Metrics = {}
    try:
        samples = await metrics.read_settled(endpoint, requests)
    except (NotSupported, RequestRejected, CheckFailure) as error:
        absent.append(str(error))
    rows: dict[str, Sequence[Mapping[str, Any]]] = {ITERATIONS: (), PERF_METRICS: ()}
    if endpoint.api == "openai":
        headers = endpoint.access.http_headers
        async with session(endpoint.url or "", metrics.TIMEOUT_S, headers, LIST_BYTES) as http:
            for path in rows:
                try:
                    rows[path] = await _rows(http, path)
                except CheckFailure as error:
                    absent.append(str(error))
    return MetricsReading(samples, rows[ITERATIONS], rows[PERF_METRICS], tuple(absent))


async def _rows(http: httpx.AsyncClient, path: str) -> Sequence[Mapping[str, Any]]:
    from ..smoke.client import CheckFailure
    from ..smoke.http import receive

    response = await receive(http.get(path))
    if not response.is_success:
        raise CheckFailure(f"GET {path} gives {response.status_code}")
    try:
        document = files.parse_json(response.content, max_values=LIST_VALUES)
    except ValueError:
        raise CheckFailure(f"GET {path} gives no JSON") from None
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        raise CheckFailure(f"GET {path} gives no list of objects")
    return document


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in _numbers(row):
            values.setdefault(name, []).append(float(value))
    return {f"iteration mean {name}": round(sum(row) / len(row), 4) for name, row in values.items()}


def _numbers(
    row: Mapping[str, Any], prefix: str = "", levels: int = LEVELS
) -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if _is_number(value):
            yield f"{prefix}{name}", value
        elif isinstance(value, Mapping) and levels:
            yield from _numbers(value, f"{prefix}{name}.", levels - 1)
