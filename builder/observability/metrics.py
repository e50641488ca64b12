"""The metrics that a server of a release exports, and those of other exporters.

They are rows of `builder/data/metrics/`. A release's own table lists the families of trtllm-serve
and their prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from string import Template
from typing import Any, Literal

from ..documents import DATA
from ..facts import data_file, plain_data, servers
from ..facts.release import Release

METRICS = DATA / "metrics"
# The job by which Prometheus asks the servers; those of exporters are rows of the data.
SERVER_JOB = "server"
_EVERY_JOB = "prometheus"
_EXPORTERS = "exporters"

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family. `needs` is the engine option without which it stays empty.

    `bounds` are the upper bounds of a histogram's buckets. `stat` is the field of the engine's
    iteration statistics that it shows, by its path, or the quotient of two.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    bounds: tuple[float, ...]
    needs: str | None
    stat: str | None = None

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of its time series."""
        if self.kind != "histogram":
            return (self.name,)
        return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))


def of_server(server: str, release: Release) -> dict[str, Family]:
    """What a server of a release can export, by name."""
    families = _families(_document(server)["families"])
    if not servers.load(server).metrics.by_release:
        return families
    prefix, known = release.metric_prefix, release.metric_names
    return {
        f"{prefix}{name}": replace(row, name=f"{prefix}{name}")
        for name, row in families.items()
        if name in known or name.removesuffix("_total") in known
    }


def names(server: str, prefix: str) -> dict[str, str]:
    """A server's metrics by signal identifier, with the release's prefix."""
    rows = _document(server)["names"].items()
    return {word: Template(name).substitute(prefix=prefix) for word, name in rows}


def of_jobs(jobs: Iterable[str]) -> dict[str, Family]:
    """What the exporters of these jobs export, and what Prometheus adds for each."""
    document = _document(_EXPORTERS)
    found: dict[str, Family] = {}
    for job in (_EVERY_JOB, *jobs):
        if job != SERVER_JOB:
            found |= _families(document["jobs"][job]["families"])
    return found


def jobs() -> tuple[str, ...]:
    return tuple(job for job in _document(_EXPORTERS)["jobs"] if job != _EVERY_JOB)


def job_of(family: str) -> str | None:
    """The job whose exporter exports a family, or `None` for a family of a server."""
    jobs = _document(_EXPORTERS)["jobs"]
    return next((job for job, row in jobs.items() if family in row["families"]), None)


def _families(rows: Mapping[str, Any]) -> dict[str, Family]:
    return {
        name: Family(
            name=name,
            kind=row["kind"],
            labels=tuple(row.get("labels", ())),
            bounds=tuple(map(float, row.get("bounds", ()))),
            needs=row.get("needs"),
            stat=row.get("stat"),
        )
        for name, row in rows.items()
    }


@cache
def _document(name: str) -> Mapping[str, Any]:
    """A data file; empty for a server without one."""
    path = METRICS / f"{name}.yaml"
    if not path.is_file():
        return {"names": {}, "families": {}}
    kind: Any = plain_data.SERVER_METRICS_FILE
    if name == _EXPORTERS:
        kind = plain_data.EXPORTERS_FILE
    document: Mapping[str, Any] = data_file.load(path, kind)
    return document
