"""Known vulnerabilities of engine and server versions: rows of `builder/data/advisories/`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .documents import load_yaml
from .errors import Problem
from .release.version import Order, order

ADVISORIES = Path(__file__).parent / "data" / "advisories"

RULE = "vulnerable-version"

_NAMED = 3  # the worst ones; a listing of dozens helps nobody


@dataclass(frozen=True, slots=True)
class Advisory:
    """One vulnerability of one product.

    `fixed_in` is the first version without it, `None` where no fixed version is known. `cvss` is
    the base score, 0 to 10, `None` where it was not seen.
    """

    cve: str
    product: str
    cvss: float | None
    cwe: str | None
    fixed_in: str | None
    bulletin: int
    published: str
    areas: tuple[str, ...]
    verified: bool


def products() -> list[str]:
    return sorted(path.stem for path in ADVISORIES.glob("*.yaml"))


def open_for(product: str, version: str) -> list[Advisory]:
    """Advisories that a version is open to, worst first.

    A version that cannot be ordered, such as a development build's name, is taken for newer than
    all fixed ones: only advisories without a known fix are open.
    """
    given = order(_container(product, version))
    found = [
        row
        for row in all_of(product)
        if row.fixed_in is None or (given is not None and given < _order(row.fixed_in))
    ]
    return sorted(found, key=lambda row: (-(row.cvss or 0), row.cve))


def minimum(product: str) -> str:
    """The first version that has every known fix."""
    fixes = [row.fixed_in for row in all_of(product) if row.fixed_in is not None]
    return max(fixes, key=_order)


def as_of(product: str) -> str:
    """The day to which the advisories are complete."""
    return str(_file(product)["as_of"])


def problem(product: str, version: str, where: str) -> Problem | None:
    """A warning about a version with open advisories; `None` if no newer version closes any."""
    found = open_for(product, version)
    if all(row.fixed_in is None for row in found):
        return None
    worst = ", ".join(row.cve for row in found[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    what = (
        f"{_file(product)['name']} {version} has {len(found)} known vulnerabilities, the worst of "
        f"CVSS {found[0].cvss}: {worst}{more} (as of {as_of(product)})"
    )
    return Problem(where, what, f"take {minimum(product)} or later", RULE, "warning")


def _order(version: str) -> Order:
    """The order of a version of the data, which always has one."""
    found = order(version)
    if found is None:
        raise ValueError(f"{version} is no version")
    return found


def _container(product: str, version: str) -> str:
    """The container of a server version: of the newest listed one that is not newer."""
    listed = _file(product).get("server_versions", {}).get("containers", {})
    given = order(version)
    older = [
        server
        for server in listed
        if given is not None and given[0][0] == _order(server)[0][0] and _order(server) <= given
    ]
    return str(listed[max(older, key=_order)]) if older else version


@cache
def _file(product: str) -> Mapping[str, Any]:
    text = (ADVISORIES / f"{product}.yaml").read_text(encoding="utf-8")
    document: Mapping[str, Any] = load_yaml(text)
    return document


@cache
def all_of(product: str) -> tuple[Advisory, ...]:
    """Every advisory of a product."""
    return tuple(
        Advisory(
            cve=row["cve"],
            product=product,
            cvss=row["cvss"],
            cwe=row["cwe"],
            fixed_in=row["fixed_in"],
            bulletin=row["bulletin"],
            published=row["published"],
            areas=tuple(row["areas"]),
            verified=row.get("verified", True),
        )
        for row in _file(product)["advisories"]
    )
