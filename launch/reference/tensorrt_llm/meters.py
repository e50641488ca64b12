"""The Prometheus metrics of a server: its release's families, fed by requests and iterations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from builder.documents import value_at
from builder.observability.metrics import Family

_KINDS = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}


class Meters:
    """One meter for each family. `words` name families as `builder/data/metrics` does.

    `labels` are the values that all samples share. Families that a release lacks are left alone.
    """

    def __init__(
        self, families: Mapping[str, Family], words: Mapping[str, str], labels: Mapping[str, str]
    ) -> None:
        self._words, self._labels = words, labels
        self._registry = CollectorRegistry()
        self._meters: dict[str, Any] = {}
        for name, row in families.items():
            bounds = {"buckets": row.bounds} if row.bounds else {}
            text = name.replace("_", " ")
            kind: Any = _KINDS[row.kind]
            meter = kind(name, text, row.labels, registry=self._registry, **bounds)
            self._meters[name] = meter
        self._stats = {row.stat: row for row in families.values() if row.stat}

    def add(self, word: str, value: float = 1.0, **labels: str) -> None:
        """Count or observe a value; `labels` are those of this sample alone."""
        self._set(self._words.get(word, ""), value, labels)

    def take(self, statistics: Mapping[str, Any]) -> None:
        """The statistics of one iteration."""
        for stat, row in self._stats.items():
            over, _, under = stat.partition(" / ")
            value = value_at(statistics, over)
            if value is not None:
                divisor = 1 if not under else float(value_at(statistics, under) or under)
                self._set(row.name, value / divisor, {})

    def _set(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        meter = self._meters.get(name)
        if meter is None:
            return
        own = {**self._labels, **labels}
        sample = meter.labels(**{label: own[label] for label in meter._labelnames})
        if isinstance(meter, Gauge):
            sample.set(value)
        elif isinstance(meter, Counter):
            sample.inc(value)
        else:
            sample.observe(value)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
