"""A bench.json document made from another tool's results: what its file does not say is null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...bench.results import FORMAT, KIND

Document = dict[str, Any]
STATISTICS = ("n", "mean", "stddev", "min", "p50", "p90", "p95", "p99", "max")


def bench(
    tool: str,
    name: str,
    *,
    model: str | None,
    points: Sequence[Document],
    version: str | None = None,
    api: str | None = None,
    url: str | None = None,
    interrupted: bool = False,
    **others: Any,
) -> Document:
    """`others` are `workload`, and `started`, `ended` and `seed` where the file has them."""
    return {
        "format": FORMAT,
        "kind": KIND,
        "imported": True,
        "outcome": "interrupted" if interrupted else "complete",
        "subject": {"name": model or name, "model": model, "url": url},
        "client": {"tool": tool, "version": version, "api": api},
        "points": list(points),
        **others,
    }


def load(concurrency: float | None, rate_per_s: float | None, burstiness: float | None) -> Document:
    """How requests arrived: a fixed concurrency, or a request rate."""
    if rate_per_s is not None:
        kind = "poisson" if burstiness in (None, 1) else "gamma"
        row = {"kind": kind, "rate_per_s": rate_per_s, "concurrency": concurrency}
        return row | ({"burstiness": burstiness} if kind == "gamma" else {})
    return {"kind": "concurrency" if concurrency else "unlimited", "concurrency": concurrency}


def point(row: Document, **values: Any) -> Document:
    """A point under a load; rates per user follow from the mean time per output token."""
    tpot = (values.get("tpot_ms") or {}).get("mean")
    return {
        "load": row,
        "label": _label(row),
        "errors": {},
        "itl_of": "tokens",
        **values,
        "output_tokens_per_s_per_user": 1000 / tpot if tpot else None,
        "output_tokens_per_s_per_gpu": None,
    }


def statistics(values: Mapping[str, float | None]) -> Document | None:
    """Statistics under the names of bench.json, or null if they are missing."""
    row = {name: values.get(name) for name in STATISTICS}
    return row if any(value is not None for value in row.values()) else None


def lengths(isl: float | None, osl: float | None, text: str, kind: str = "fixed") -> Document:
    return {"kind": kind, "isl": isl, "osl": osl, "words": text}


def _label(row: Document) -> str:
    if row.get("rate_per_s") is not None:
        return f"r{row['rate_per_s']:g}"
    return f"c{row['concurrency']:g}" if row["concurrency"] else "unlimited"
