"""Lists the published releases of an engine, and reads release names as people write them.

One row of `builder/data/published_releases/` is one release with its day. A release that is not
there may be newer: it is refused unless the user insists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

from ...diagnostics import Diagnostic, either
from ...documents import DATA
from ...general_rules import UNPUBLISHED_RELEASE
from ...schema import Day, Plain, Text
from .. import data_file
from ..engines import Engine
from .version import NO_VERSION, canonical, is_stable, is_version, oldest_first, order

RULE = UNPUBLISHED_RELEASE
WHERE = "engine.release"

# What a number in a deployment file can be: 1.2, not 1e300.
_LARGEST_NUMBER = 1000
_SERIES = re.compile(r"\d+(\.\d+)?")


# Releases that one source names, each with its day or `None`.
_LIST: Any = {"source": Text, "releases": {"*": (Day, None)}}


@dataclass(frozen=True, slots=True)
class PublishedReleases:
    """The releases of one engine that its sources name up to the day `as_of`."""

    as_of: Day
    lists: Annotated[Sequence[Mapping[str, Any]], Plain([_LIST])]

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        seen: set[str] = set()
        for index, row in enumerate(self.lists):
            for name, day in row["releases"].items():
                where = f"lists.{index}.releases.{name}"
                if not is_version(name) or canonical(name) != name:
                    yield where, "is not a version as package indexes spell it; correct it"
                if name in seen:
                    yield where, "is listed twice; keep one"
                if day and day > self.as_of:
                    yield where, f"is later than as_of, {self.as_of}; correct one of them"
                seen.add(name)


def of_engine(engine: Engine) -> PublishedReleases:
    return data_file.load(DATA / engine.published_releases, PublishedReleases)


def day(name: str, engine: Engine) -> str | None:
    """The day on which a release was published, where a source gives it."""
    return _days(engine).get(name)


def names(engine: Engine) -> list[str]:
    """Every published release, oldest first."""
    return sorted(_days(engine), key=oldest_first)


def is_published(name: str, engine: Engine) -> bool:
    """Whether a version, or the release that it is a build of, was published."""
    return name.partition("+")[0] in _days(engine)


def spelled(value: object) -> object:
    """A release as its publisher writes it: `v1.2.1` is 1.2.1, and a number, which is what YAML
    makes of 1.2, is its text. Paths of tables and what is no release stay as they are."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value) if abs(value) < _LARGEST_NUMBER else value
    if not isinstance(value, str) or value.endswith(".json"):
        return value
    return canonical(value)


def only_begun(value: object, engine: Engine, tables: Sequence[str]) -> Diagnostic | None:
    """The error of a version that is only the beginning of one. A number may have lost a zero:
    1.2 was 1.2 or 1.20. Of the releases with this beginning, one with a table is offered first,
    and none that is older than all tables."""
    name = str(spelled(value))
    if not _SERIES.fullmatch(name):
        return None
    usable = [each for each in names(engine) if oldest_first(each) >= oldest_first(tables[0])]
    beginnings = [f"{name}."] + [f"{name}0."] * isinstance(value, float)
    begun = [[each for each in usable if each.startswith(start)] for start in beginnings]
    meant = [_newest([each for each in row if each in tables] or row) for row in begun if row]
    if not meant:
        return None
    what = f"{name} is not a release of {engine.title}"
    return Diagnostic(WHERE, what, f"is {either(meant)} meant?", RULE)


def unknown(name: str, engine: Engine) -> Diagnostic | None:
    """The error of a version that is not known to be published."""
    if not is_version(name) or is_published(name, engine):
        return None
    what = f"{name} is not a known release of {engine.title} (list of {of_engine(engine).as_of})"
    near = either(_nearest(name, names(engine)))
    fix = f"use {near}, the nearest, or go on with --assume-release if it has come since"
    return Diagnostic(WHERE, what, fix, RULE)


def _days(engine: Engine) -> dict[str, str | None]:
    return dict(chain.from_iterable(row["releases"].items() for row in of_engine(engine).lists))


def _newest(known: list[str]) -> str:
    """The newest finished release, or else the newest candidate."""
    return ([name for name in known if is_stable(name)] or known)[-1]


def _nearest(name: str, known: list[str]) -> list[str]:
    """The releases before and after it; of what is newer than all, also the newest finished one."""
    here = order(name) or NO_VERSION
    older = [each for each in known if (order(each) or NO_VERSION) < here]
    newer = [each for each in known if (order(each) or NO_VERSION) > here]
    near = {*older[-1:], *newer[:1]} if newer else {known[-1], _newest(known)}
    return sorted(near, key=oldest_first)
