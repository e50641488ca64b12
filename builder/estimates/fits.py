"""Fits: the parameters in `factors.json`, which `python -m maintenance.fit_estimates` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import schema
from ..facts import data_file
from . import roofline
from .interpolation import Scales
from .measurements import MEASUREMENT_INDEX, MEASUREMENTS, DisaggregatedRow, Row
from .names import MEASURED_MODELS

FACTORS = MEASUREMENTS / "factors.json"
SHORTEST_MS = 1e-6

# With a release or without, by cell or engine: standard deviations of TPOT and TTFT.
Ends = Mapping[str, Mapping[str, list[float]]]


@dataclass(frozen=True, slots=True)
class Fit:
    """For TPOT or TTFT the roofline's factors by engine, and the kernel's scales for known and for
    unknown releases."""

    factors: Mapping[str, list[float]]
    with_release: Scales
    without_release: Scales

    def time(self, engine: str, terms: tuple[float, ...]) -> float:
        """The roofline's time in milliseconds."""
        return max(SHORTEST_MS, roofline.total(self.factors[engine], terms))

    def scales(self, with_release: bool) -> Scales:
        return self.with_release if with_release else self.without_release


@dataclass(frozen=True, slots=True)
class Fits:
    """The fits of TPOT and TTFT, and the digest of the rows that they were fitted to.

    `intervals` is the half width of an 80 % interval and `promises` the distance of the
    conservative bound, both in standard deviations: by cell, and by engine for cells without fitted
    rows. `untried` widens the intervals of a cell that only the user measured.
    """

    rows_sha256: str
    tpot: Fit
    ttft: Fit
    intervals: Ends
    promises: Ends
    untried: float

    @property
    def both(self) -> tuple[Fit, Fit]:
        return self.tpot, self.ttft


# Schemas of the measurement files, by their paths in the data folder.
SCHEMAS: Mapping[str, Any] = {
    "measurements/factors.json": Fits,
    "measurements/index.yaml": MEASUREMENT_INDEX,
    "measurements/models.yaml": MEASURED_MODELS,
    "measurements/disaggregated.csv": DisaggregatedRow,
    "measurements/*.csv": Row,
}


def of_cell(ends: Ends, cell: Sequence[str], with_release: bool) -> list[float]:
    """The values for a cell, or else for its engine, the last part of its name."""
    found = ends[release_name(with_release)]
    return found.get(" ".join(cell)) or found[cell[-1]]


def release_name(with_release: bool) -> str:
    return "with_release" if with_release else "without_release"


def load(path: Path = FACTORS) -> Fits:
    return data_file.load(path, Fits)


def of(document: Mapping[str, Any]) -> Fits:
    """The fits in a document like `factors.json`."""
    found: Fits = schema.build(Fits, document)[0]
    return found
