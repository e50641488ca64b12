"""Container images that a file names: those of versions that are vulnerable or not told."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

from ..diagnostics import Diagnostic, Location, located
from ..facts import advisories

if TYPE_CHECKING:
    from ..facts import images


def read(text: str, accepted: Collection[tuple[str, str]]) -> tuple[int, list[Diagnostic]]:
    """How many of the publisher's images a file names, and those of vulnerable or unknown
    versions."""
    if "/" not in text:
        return 0, []
    from ..facts import images  # short option files are checked without

    named = sum(1 for _ in chain(images.untold(text), images.contents(text)))
    return named, list(_vulnerable(text, accepted)) if named else []


def _vulnerable(text: str, accepted: Collection[tuple[str, str]]) -> Iterator[Diagnostic]:
    from ..facts import images

    for content in images.untold(text):
        row = advisories.unknown(content.product, content.version, "", strict=False)
        if (content.product, content.version) not in accepted:
            yield located(_place(text, content), "", row.message, row.fix, row.rule, row.severity)
    told = cache(lambda product, version: advisories.diagnostic(product, version, ""))
    for content in images.contents(text):
        diagnostic = told(content.product, content.version)
        if diagnostic:
            taken = any(
                product == content.product and advisories.same(version, content.version)
                for product, version in accepted
            )
            severity = "warning" if taken else diagnostic.severity
            place = _place(text, content)
            yield located(place, "", diagnostic.message, diagnostic.fix, diagnostic.rule, severity)


def _place(text: str, content: images.Content) -> Location:
    before = text[: content.start]
    return Location(before.count("\n") + 1, content.start - before.rfind("\n"))
