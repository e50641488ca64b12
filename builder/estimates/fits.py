"""What was fitted to the rows: `factors.json`, written by `python -m maintenance.fit_estimates`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadFacts
from ..files import read_text
from . import roofline
from .kriging import Scales
from .measurements import MEASUREMENT_INDEX, MEASUREMENTS
from .models import MeasuredModels

FACTORS = MEASUREMENTS / "factors.json"
SHORTEST_MS = 1e-6


_SCALES: Any = {
    **{name: float for name in Scales._fields if name != "quantiles"},
    "quantiles": {"*": float},
}
_FIT: Any = {
    "factors": {"*": [float]},
    "with_release": _SCALES,
    "without_release": _SCALES,
}
# Of the files beside the rows, by their paths in the data folder.
SCHEMAS: Mapping[str, Any] = {
    "measurements/factors.json": {"rows_sha256": str, "tpot": _FIT, "ttft": _FIT},
    "measurements/index.yaml": MEASUREMENT_INDEX,
    "measurements/models.yaml": MeasuredModels,
}


@dataclass(frozen=True, slots=True)
class Fit:
    """The roofline's factors by engine, and the kernel's scales where the release is known and
    where it is not, of the TPOT or of the TTFT."""

    factors: Mapping[str, Sequence[float]]
    with_release: Scales
    without_release: Scales

    def time(self, engine: str, terms: Sequence[float]) -> float:
        """The roofline's time in milliseconds."""
        return max(SHORTEST_MS, roofline.total(self.factors[engine], terms))

    def scales(self, with_release: bool) -> Scales:
        return self.with_release if with_release else self.without_release


@dataclass(frozen=True, slots=True)
class Fits:
    """Both, and the digest of the rows that they were fitted to."""

    rows_sha256: str
    tpot: Fit
    ttft: Fit


def load(path: Path = FACTORS) -> Fits:
    document = json.loads(read_text(path, BadFacts))
    fits = {
        name: Fit(
            document[name]["factors"],
            Scales(**document[name]["with_release"]),
            Scales(**document[name]["without_release"]),
        )
        for name in ("tpot", "ttft")
    }
    return Fits(document["rows_sha256"], **fits)
