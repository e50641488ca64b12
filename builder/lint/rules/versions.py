"""Checks the versions of images and pinned packages against advisories and known defects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...diagnostics import Diagnostic, located
from ...errors import BadInput
from ...facts import engines, release
from ...rules import constraints
from ...rules.context import RuleContext
from ...rules.rule_inputs import RuleInputs
from ..read.versions import NamedVersion


@dataclass(frozen=True, slots=True)
class Policy:
    """How to report vulnerable versions: as warnings, or as errors if `refuses`. Products and
    versions in `accepted` are never errors."""

    accepted: Collection[tuple[str, str]] = ()
    refuses: bool = False


def image_diagnostics(images: Sequence[NamedVersion], policy: Policy) -> Iterator[Diagnostic]:
    """Reports images with a vulnerable version, or with one that is unknown and not accepted."""
    if not images:
        return
    from ...facts import advisories  # most files name no image

    for image in images:
        is_accepted = any(
            name == image.name and advisories.same(version, image.version)
            for name, version in policy.accepted
        )
        if image.version != advisories.UNKNOWN:
            found = advisories.diagnostic(image.name, image.version, "")
        elif not is_accepted:
            found = advisories.unknown(image.name, image.version, "", strict=False)
        else:
            continue
        if found:
            severity = found.severity if policy.refuses and not is_accepted else "warning"
            yield located(image.location, "", found.message, found.fix, found.rule, severity)


def package_diagnostics(packages: Mapping[str, NamedVersion]) -> Iterator[Diagnostic]:
    """Reports defects of a pinned engine that need another package in the version pinned here."""
    state = {f"pip.{name}": row.version for name, row in packages.items()}
    for engine in map(engines.load, engines.names()):
        if engine.package not in packages:
            continue
        version = packages[engine.package].version
        try:
            table = release.load(version, engine=engine).judges[0]
        except BadInput:  # too old to be known
            continue
        inputs = RuleInputs({}, RuleContext(table))
        for found in constraints.known_defects(engine.product, version, inputs, state):
            needs = [path.removeprefix("pip.") for path in found.row.only_if or {}]
            if needs and found.is_certain:
                place, problem = packages[needs[0]].location, found.problem
                yield located(place, needs[0], problem.message, problem.fix, problem.rule)
