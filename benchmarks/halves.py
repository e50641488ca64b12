"""Factors, scales and promises that were fitted without the runs of the row that is asked about.

A run is a day and a release of an engine with a model on a GPU. Runs are parted into two halves by
a hash; what is asked of one half is answered with what was fitted to the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from builder.estimates import fits
from builder.estimates.cells import key_of
from builder.estimates.fits import Fits
from builder.estimates.measurements import Row
from maintenance import fit_estimates

HALVES = (0, 1)


def run_of(row: Row) -> tuple[str, ...]:
    return (*key_of(row), row.date, row.release)


def half(row: Row) -> int:
    return int(hashlib.sha256(repr(run_of(row)).encode()).hexdigest(), 16) % len(HALVES)


def fitted(rows: Sequence[Row]) -> list[Fits]:
    """For each half what was fitted to the rows of the other one; a minute or two."""
    return [
        fits.of(json.loads(fit_estimates.fit([r for r in rows if half(r) != own], "", None)))
        for own in HALVES
    ]
