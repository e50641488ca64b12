"""Known vulnerabilities of engine and server versions: rows of `builder/data/advisories/`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..diagnostics import Diagnostic
from ..documents import DATA
from ..errors import BadInput
from . import data_file
from .release.version import Order, order
from .schema import Check, Text

ADVISORIES = DATA / "advisories"

RULE = "vulnerable-version"

# Where a deployment takes versions that would be refused.
ACCEPTED = "accepted_advisories"

Version = Annotated[str, Check(lambda text: order(text) is not None, "must be a version")]
Day = Annotated[
    str, Check(lambda text: bool(re.fullmatch(r"\d{4}-\d\d-\d\d", text)), "must be YEAR-MONTH-DAY")
]

_folder = ADVISORIES
_NAMED = 3  # the worst ones; a warning is no place for dozens


@dataclass(frozen=True, slots=True)
class Advisory:
    """One vulnerability of a product.

    `fixed_in` is the first version without it, `None` where no fixed version is known. `cvss` is
    the base score, 0 to 10, `None` where it was not seen.
    """

    cve: Annotated[str, Check(lambda name: name.startswith("CVE-"), "must be CVE-YEAR-NUMBER")]
    cvss: Annotated[float, Check(lambda score: 0 <= score <= 10, "must be 0 to 10")] | None
    cwe: str | None
    fixed_in: Version | None
    bulletin: int
    published: Day
    areas: tuple[str, ...]
    verified: bool = True


def products() -> list[str]:
    return [path.stem for path in files()]


def files() -> list[Path]:
    return sorted(_folder.glob("*.yaml"))


def use(other: Path) -> None:
    """Read advisories from another folder from now on. Raises `BadInput` if they are wrong."""
    global _folder
    names = [shipped.name for shipped in ADVISORIES.glob("*.yaml")]
    diagnostics = [
        each for name in names for each in data_file.validate(other / name, ProductAdvisories)
    ]
    if diagnostics:
        raise BadInput(diagnostics)
    _folder = other


def open_for(product: str, version: str) -> list[Advisory]:
    """Advisories that a version is open to, worst first.

    A version that cannot be ordered, such as a development build's name, is taken for newer than
    all fixed ones: only advisories without a known fix are open.
    """
    given = order(container(product, version))
    found = [
        row
        for row in all_of(product)
        if row.fixed_in is None or (given is not None and given < _order(row.fixed_in))
    ]
    return sorted(found, key=lambda row: (-(row.cvss or 0), row.cve))


@dataclass(frozen=True, slots=True)
class Minimum:
    """The oldest version that may be deployed, and why it is this one."""

    version: Version
    reason: Text
    source: Text


@dataclass(frozen=True, slots=True)
class ServerVersions:
    """The container that first brought a version of the server itself."""

    source: Text
    containers: Mapping[Version, Version]


@dataclass(frozen=True, slots=True)
class ProductAdvisories:
    """What is known of one product: its advisories are complete up to the day `as_of`."""

    product: str
    name: Text
    as_of: Day
    source: Text
    minimum: Minimum
    advisories: tuple[Advisory, ...]
    server_versions: ServerVersions | None = None


def name(product: str) -> str:
    return _file(product).name


def minimum(product: str) -> Minimum:
    """What the data has decided; it may be older than `closes_all`."""
    return _file(product).minimum


def closes_all(product: str) -> str:
    return first_with_all_fixes(all_of(product))


def first_with_all_fixes(rows: Iterable[Advisory]) -> str:
    return max((row.fixed_in for row in rows if row.fixed_in is not None), key=_order)


def as_of(product: str) -> str:
    """The day to which the advisories are complete."""
    return _file(product).as_of


def is_refused(product: str, version: str) -> bool:
    """Whether a version is below the minimum; one that cannot be ordered is not."""
    given = order(container(product, version))
    return given is not None and given < _order(minimum(product).version)


def same(one: str, other: str) -> bool:
    """Whether two names are of one version: `26.02` and `26.02-trtllm-python-py3` are."""
    return one == other or (order(one) is not None and order(one) == order(other))


def diagnostic(product: str, version: str, where: str) -> Diagnostic | None:
    """What is to be said against a version: an error below the minimum, with every advisory that
    is open, else a warning; `None` if no newer version closes any."""
    found = open_for(product, version)
    if all(row.fixed_in is None for row in found):
        return None
    refused = is_refused(product, version)
    listed = found if refused else found[:_NAMED]
    scores = ", ".join(f"{row.cve} ({_score(row)})" for row in listed)
    more = f" and {len(found) - len(listed)} more" if len(found) > len(listed) else ""
    what = (
        f"{name(product)} {version} has {len(found)} known vulnerabilities, the worst of "
        f"CVSS {found[0].cvss}: {scores}{more} (as of {as_of(product)})"
    )
    if not refused:
        return Diagnostic(
            where, what, f"upgrade to {closes_all(product)} or later", RULE, "warning"
        )
    least = minimum(product)
    return Diagnostic(where, what, f"upgrade to {least.version} or later: {least.reason}", RULE)


def _score(row: Advisory) -> str:
    return "CVSS not known" if row.cvss is None else f"{row.cvss:.1f}"


def _order(version: str) -> Order:
    """The order of a version of the data, which always has one."""
    found = order(version)
    if found is None:
        raise ValueError(f"{version} is not a version")
    return found


def container(product: str, version: str) -> str:
    """The container of a server version: of the newest listed one that is not newer."""
    known = _file(product).server_versions
    listed = known.containers if known else {}
    given = order(version)
    older = [
        server
        for server in listed
        if given is not None and given[0][0] == _order(server)[0][0] and _order(server) <= given
    ]
    return listed[max(older, key=_order)] if older else version


def _file(product: str) -> ProductAdvisories:
    return data_file.load(_folder / f"{product}.yaml", ProductAdvisories)


def all_of(product: str) -> tuple[Advisory, ...]:
    """Every advisory of a product."""
    return _file(product).advisories
