"""Rows: measurements by model and cell, and those nearest to a question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from heapq import nsmallest
from math import log2

from . import measurements
from .cells import Key, key_of, minor, point, point_of
from .interpolation import Curve, Kernel, Point
from .measurements import DisaggregatedRow, Row
from .question import Neighbor, Question

SHOWN = 3
ANOTHER_MODEL = 10.0  # distance of the rows of another model


class Rows:
    """All rows of an estimator; `kernel` measures distances between them."""

    def __init__(self, rows: Iterable[Row], kernel: Kernel) -> None:
        self._every = list(rows)
        self._kernel = kernel
        self._by_model: dict[str, list[Row]] = {}
        for row in self._every:
            self._by_model.setdefault(row.model, []).append(row)
        self.releases = cache(self._releases)
        self._points = lru_cache(maxsize=64)(self._new_points)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._every)

    def of_model(self, model: str) -> Sequence[Row]:
        return self._by_model.get(model, ())

    def _releases(self, key: Key) -> frozenset[str]:
        """The releases in a cell: empty without rows, "" for rows without a release."""
        rows = self.of_model(key.model)
        return frozenset(minor(row.release) for row in rows if key_of(row) == key)

    def own_cells(self) -> list[Key]:
        """The cells that the user measured."""
        own = (row for row in self._every if row.source == measurements.OWN)
        return list(dict.fromkeys(map(key_of, own)))

    def missing(self, key: Key) -> str:
        """Which part of a cell without rows nobody measured."""
        rows = self.of_model(key.model)
        what = f"no measurements for {key.model}"
        if not rows:
            return what
        if not (rows := [row for row in rows if row.gpu == key.gpu]):
            return f"{what} on {key.gpu}"
        if all(row.engine != key.engine for row in rows):
            return f"{what} on {key.gpu} with {key.engine}"
        return f"{what} in {key.precision} on {key.gpu} with {key.engine}"

    def nearest(self, asked: Question, without: Key | None = None) -> tuple[Neighbor, ...]:
        """The nearest rows: of the same model, if it has any; of the cell `without` published rows
        only those of the user."""
        curve, load = _place(asked)
        slope = self._kernel.slope
        own = self.of_model(asked.model)
        far = 0.0 if own else ANOTHER_MODEL
        known = self._points(asked.model, bool(minor(asked.release or "")))
        points = zip(known, own or self._every, strict=True)
        apart = cache(partial(self._kernel.apart, curve))
        ranked = nsmallest(
            SHOWN,
            (
                (apart(point.curve) + slope * abs(point.concurrency - load), index, row)
                for index, (point, row) in enumerate(points)
                if without is None or row.source == measurements.OWN or key_of(row) != without
            ),
        )
        return tuple(Neighbor(row, far + distance) for distance, _, row in ranked)

    def nearest_with_unused(self, asked: Question) -> tuple[Neighbor, ...]:
        """The same with the nearest of the measurements that no estimate uses."""
        curve, load = _place(asked)
        found = []
        for row in unused(asked.model, asked.gpu):
            point = point_of(row.server, with_release=True)
            distance = self._kernel.apart(curve, point.curve)
            distance += self._kernel.slope * abs(point.concurrency - load)
            found.append(Neighbor(row, distance))
        found.sort(key=lambda near: near.distance)
        own = self.nearest(asked)[: SHOWN - 1] if self.of_model(asked.model) else ()
        return (*own, *found)[:SHOWN]

    def _new_points(self, model: str, with_release: bool) -> list[Point]:
        curves: dict[tuple[object, ...], Curve] = {}
        points = []
        for row in self.of_model(model) or self._every:
            key = (row.layout, row.isl, row.osl, *key_of(row)[1:], row.release, row.drafting)
            if key not in curves:
                curves[key] = point_of(row, with_release).curve
            points.append(Point(curves[key], log2(row.concurrency)))
        return points


def _place(asked: Question) -> Point:
    return point(asked, minor(asked.release or ""), "on" if asked.mtp else "")


@cache
def unused(model: str, gpu: str) -> Sequence[Row | DisaggregatedRow]:
    """Measurements of a model that no estimate uses: those on this GPU, or else all."""
    found = [row for row in measurements.unused() if row.server.model == model]
    return [row for row in found if row.server.gpu == gpu] or found
