"""Signals: server-independent quantities, each a recording rule over a server's own metrics.

Rows of `builder/data/signals.yaml`. A reference names a signal, with a window if it has any:
`ready`, `failing_5m`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from string import Template
from typing import Any

from ..documents import DATA
from ..facts import data_file, plain_data, servers
from ..facts.release import Release
from . import metrics
from .metrics import Family

SIGNALS = DATA / "signals.yaml"

# Every metric in a rule is followed by its selector.
METRIC = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)\{")
_OWN_IDENTIFIERS = {"self", "window"}


@dataclass(frozen=True, slots=True)
class Signal:
    """A quantity to watch. There is one value per `level`; `labels` are other labels in the
    example."""

    name: str
    level: str
    unit: str
    title: str
    windows: tuple[str, ...]
    labels: Mapping[str, str]

    @property
    def references(self) -> dict[str, str | None]:
        return {f"{self.name}_{window}": window for window in self.windows} or {self.name: None}

    def record(self, window: str | None) -> str:
        return f"{self.level}:llm_{self.name}" + (f":{window}" if window else "")


@dataclass(frozen=True, slots=True)
class Source:
    """An expression for a signal over the metrics of one kind of server.

    `thresholds` are the thresholds in the expression; `jobs` must be scraped.
    """

    signal: Signal
    expression: str
    thresholds: frozenset[str]
    jobs: frozenset[str]
    test: Mapping[str, Any]

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(METRIC.findall(self.expression)))


@cache
def all_of() -> Mapping[str, Signal]:
    return {
        name: Signal(
            name,
            row["level"],
            row["unit"],
            row["title"],
            tuple(row.get("windows", ())),
            row.get("labels", {}),
        )
        for name, row in _document()["signals"].items()
    }


@cache
def by_reference() -> Mapping[str, tuple[Signal, str | None]]:
    found: dict[str, tuple[Signal, str | None]] = {}
    for signal in all_of().values():
        found |= {name: (signal, window) for name, window in signal.references.items()}
    return found


def select(
    server: str,
    release: Release,
    families: Mapping[str, Family],
    jobs: Collection[str],
    thresholds: Collection[str],
    absent: Mapping[str, str],
) -> tuple[dict[str, Source], dict[str, str]]:
    """The first source of each signal that can be recorded, and why other signals cannot.

    `absent` explains why metrics, jobs or thresholds are missing.
    """
    samples = set(chain.from_iterable(family.samples for family in families.values()))
    sources: dict[str, Source] = {}
    missing: dict[str, str] = {}
    for name in all_of():
        missing[name] = f"{server} exports nothing of it"
        for source in sources_of(name, server, release.metric_prefix):
            needed = (
                *sorted(source.jobs - set(jobs)),
                *sorted(source.thresholds - set(thresholds)),
                *(metric for metric in source.metrics if metric not in samples),
            )
            if not needed:
                sources[name] = source
                del missing[name]
                break
            exports_none = f"{server} of release {release.name} exports no {needed[0]}"
            missing[name] = absent.get(needed[0], exports_none)
    return sources, missing


def sources_of(name: str, server: str, prefix: str) -> Iterator[Source]:
    """The sources of a signal that use only metrics of the server, best first."""
    document, names = _document(), metrics.names(server, prefix)
    every = set().union(*(metrics.names(known, prefix) for known in servers.names()))
    others = every - set(names)
    for row in document["rows"]:
        template = Template(row["expr"])
        identifiers = set(template.get_identifiers())
        if row["signal"] != name or identifiers & others or row.get("server", server) != server:
            continue
        yield Source(
            all_of()[name],
            template.safe_substitute(names),
            frozenset(identifiers - set(names) - _OWN_IDENTIFIERS | set(row.get("needs", ()))),
            frozenset(row.get("jobs", ())),
            {
                **row["test"],
                "feed": {
                    Template(series).safe_substitute(names): values
                    for series, values in row["test"]["feed"].items()
                },
            },
        )


def quoted(text: str) -> str:
    """A text as a PromQL string."""
    escapes = {"\\": r"\\", '"': r"\"", "\n": r"\n"}
    return '"' + "".join(escapes.get(letter, letter) for letter in text) + '"'


@cache
def _document() -> Mapping[str, Any]:
    document: Mapping[str, Any] = data_file.load(SIGNALS, plain_data.SIGNALS_FILE)
    return document
