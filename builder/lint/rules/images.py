"""Checks container images for vulnerable and unknown versions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain

from ...diagnostics import Diagnostic, located
from ..read.yaml_text import places


@dataclass(frozen=True, slots=True)
class Policy:
    """How to report vulnerable versions: as warnings, or as errors if `refuses`. Products and
    versions in `accepted` are never errors."""

    accepted: Collection[tuple[str, str]] = ()
    refuses: bool = False


def read_images(text: str, policy: Policy) -> tuple[int, list[Diagnostic]]:
    """Counts the publisher's images in a file and reports vulnerable and unknown versions."""
    if "/" not in text:
        return 0, []
    from ...facts import images  # imported late: short option files do not need it

    named = sum(1 for _ in chain(images.untold(text), images.contents(text)))
    return named, list(_vulnerable(text, policy)) if named else []


def _vulnerable(text: str, policy: Policy) -> Iterator[Diagnostic]:
    from ...facts import advisories, images

    place = places(text)
    for content in images.untold(text):
        row = advisories.unknown(content.product, content.version, "", strict=False)
        if (content.product, content.version) not in policy.accepted:
            yield located(place(content.start), "", row.message, row.fix, row.rule, row.severity)
    for content in images.contents(text):
        diagnostic = advisories.diagnostic(content.product, content.version, "")
        if diagnostic:
            taken = any(
                product == content.product and advisories.same(version, content.version)
                for product, version in policy.accepted
            )
            severity = diagnostic.severity if policy.refuses and not taken else "warning"
            here, rule = place(content.start), diagnostic.rule
            yield located(here, "", diagnostic.message, diagnostic.fix, rule, severity)
