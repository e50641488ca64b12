"""Known defects of exact releases of engines and servers: rows of `builder/data/defects/`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from ..documents import DATA
from ..facts import advisories, data_file
from ..facts.release.version import NO_VERSION, order
from ..schema import Check, Day, Text
from .evaluation import condition_faults, text_faults

FOLDER = DATA / "defects"


def _is_range(text: str) -> bool:
    first, dots, last = text.partition("..")
    if not dots:
        return order(first) is not None
    return (not first or order(first) is not None) and order(last.removeprefix("<")) is not None


Releases = Annotated[str, Check(_is_range, "write a release, FIRST..LAST or FIRST..<FIXED")]


_CERTAINTY = {
    "confirmed": "",
    "reported": ", according to a report",
    "assumed": ", which is assumed",
}


@dataclass(frozen=True, slots=True)
class Defect:
    """What goes wrong with some releases of a product, and the way around it.

    `releases` are exact ones or ranges: `A..B` has both ends, `A..<B` not the last, and `..` alone
    before a release means all older ones. `when` are tests of the plan in the words of the rules.
    `only_if` are conditions on the state of a machine, and `unseen` is one that no file tells:
    where they are not known, the defect holds only if they are true. `where` is the path to blame.
    """

    id: Text
    releases: tuple[Releases, ...]
    what: Text
    fix: Text
    source: Text
    date: Day
    confidence: Literal["confirmed", "reported", "assumed"]
    when: Mapping[str, Any] | None = None
    only_if: Mapping[str, Text] | None = None
    unseen: str = ""
    where: str = "model"
    rule: Literal["known-issue", "model-needs-release"] = "known-issue"

    def is_in(self, version: str) -> bool:
        """Whether a version has the defect; false for one that cannot be ordered."""
        here = order(version)
        return here is not None and any(_has(row, here) for row in self.releases)

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        """Unknown words in tests and texts."""
        for path, what in condition_faults(self.when or {}):
            yield f"when.{path}", what
        yield from text_faults(self.what, "what")
        yield from text_faults(self.fix, "fix")

    @property
    def statement(self) -> str:
        """What goes wrong, and how sure it is unless it is confirmed."""
        return f"{self.what}{_CERTAINTY[self.confidence]}"

    @property
    def condition(self) -> str:
        """What no deployment tells, in words; empty if the defect depends on nothing of it."""
        parts = [
            f"{path.removeprefix('pip.')} {f'is {test}' if test[0].isalnum() else test}"
            for path, test in (self.only_if or {}).items()
        ]
        return " and ".join(filter(None, (*parts, self.unseen)))


def _has(releases: str, here: tuple[Any, ...]) -> bool:
    first, dots, last = releases.partition("..")
    if not dots:
        return here == order(first)
    end = order(last.removeprefix("<")) or NO_VERSION
    return (order(first) or NO_VERSION) <= here and (here < end or (last[0] != "<" and here == end))


@dataclass(frozen=True, slots=True)
class ProductDefects:
    """The known defects of a product, searched for up to the day `as_of`."""

    product: Text
    name: Text
    as_of: Day
    source: Text
    defects: tuple[Defect, ...]

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        return data_file.repeated_ids("defects", self.defects)


def of_product(product: str) -> tuple[Defect, ...]:
    """Every known defect of a product; none for a product without a file."""
    path = FOLDER / f"{product}.yaml"
    return data_file.load(path, ProductDefects).defects if path.is_file() else ()


@lru_cache(maxsize=256)
def of_version(product: str, version: str) -> tuple[Defect, ...]:
    """The known defects of a version; that of a server may be named by its container."""
    if product in advisories.products():
        version = advisories.container(product, version)
    return tuple(row for row in of_product(product) if row.is_in(version))
