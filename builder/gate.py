"""The gate of a deployment: versions with known vulnerabilities, refused unless it accepts them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from . import advisories, images, site, tags
from .deployment import Accepted, Deployment
from .errors import Problem


@dataclass(frozen=True, slots=True)
class Use:
    """A product that a deployment runs, and the path that says which version."""

    product: str
    version: str
    where: str


def uses(request: Deployment, release: str) -> list[Use]:
    """Each version of each product once. `release` is the engine's by its own name."""
    found: dict[tuple[str, str], Use] = {}
    engine = Use("tensorrt_llm", release, "engine.release")
    for use in (engine, *_usual(request), *_named(request)):
        found.setdefault((use.product, use.version), use)
    return list(found.values())


def _usual(request: Deployment) -> Iterator[Use]:
    """What is in the published image, where the deployment names none."""
    if "triton" in request.targets and "triton" not in request.images:
        image = images.image("triton", request.engine.release)
        if image and image.version:
            yield Use("triton", image.version, "targets.triton")


def _named(request: Deployment) -> Iterator[Use]:
    """What is in images that the deployment or its site profile names."""
    path = f"targets.{site.TARGET}.site"
    container = (request.targets.get(site.TARGET, {}).get("site") or {}).get("container", {})
    named = {"images": request.images, f"{path}.container.images": container.get("images", {})}
    for where, given in named.items():
        for server, reference in given.items():
            for content in tags.contents(reference):
                yield Use(content.product, content.version, f"{where}.{server}")


def problems(request: Deployment, release: str) -> Iterator[Problem]:
    """Versions below the minimum as errors, or as warnings where they are accepted; warnings about
    others with open advisories, and about exceptions for nothing."""
    found = uses(request, release)
    for use in found:
        problem = advisories.problem(use.product, use.version, use.where)
        row = _exception(request, use)
        if problem and row:
            yield replace(
                problem, what=f"{problem.what}, accepted: {row.reason}", severity="warning"
            )
        elif problem:
            yield _with_exception(problem, use)
    for index, row in enumerate(request.accepted_advisories):
        if not any(_is_for(row, use) and _is_open(use) for use in found):
            what = f"{row.product} {row.version} is not used here, or has no open advisory"
            yield Problem(f"{advisories.ACCEPTED}.{index}", what, "drop it", severity="warning")


def accepted(request: Deployment, release: str) -> dict[tuple[str, str], str]:
    """The reasons for which vulnerable versions are taken, by product and version."""
    found = ((use, _exception(request, use)) for use in uses(request, release) if _is_open(use))
    return {(use.product, use.version): row.reason for use, row in found if row}


def record(request: Deployment, release: str) -> list[dict[str, Any]]:
    """The exceptions with what is accepted by each, for the manifest."""
    return [
        {
            "product": product,
            "version": version,
            "reason": reason,
            "as_of": advisories.as_of(product),
            "open": [row.cve for row in advisories.open_for(product, version)],
        }
        for (product, version), reason in accepted(request, release).items()
    ]


def _is_open(use: Use) -> bool:
    return bool(advisories.open_for(use.product, use.version))


def _is_for(row: Accepted, use: Use) -> bool:
    return row.product == use.product and advisories.same(row.version, use.version)


def _exception(request: Deployment, use: Use) -> Accepted | None:
    return next((row for row in request.accepted_advisories if _is_for(row, use)), None)


def _with_exception(problem: Problem, use: Use) -> Problem:
    if problem.severity == "warning":
        return problem
    row = f'{{product: {use.product}, version: "{use.version}", reason: "..."}}'
    return replace(
        problem, remedy=f"{problem.remedy}; or accept it by {advisories.ACCEPTED}: [{row}]"
    )
