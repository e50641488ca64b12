"""Known vulnerabilities of engine and server versions, and requests that end a server's process.

Vulnerabilities are rows of `builder/data/advisories/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from ..diagnostics import Diagnostic
from ..documents import DATA
from ..errors import BadInput
from ..general_rules import UNKNOWN_VERSION, VULNERABLE_VERSION
from ..schema import Check, Day, Plain, Positive, Text
from . import data_file
from .release.version import Order, is_stable, order

ADVISORIES = DATA / "advisories"

RULE = VULNERABLE_VERSION
UNKNOWN_RULE = UNKNOWN_VERSION
UNKNOWN = "unknown"  # the way to accept an unknown version in a deployment

# From this score on, a version is refused as soon as a stable one has the fix.
CRITICAL_CVSS = 9.0

# The key by which a deployment accepts versions that would be refused.
ACCEPTED = "accepted_advisories"

Version = Annotated[str, Check(lambda text: order(text) is not None, "must be a version")]

_FOLDER: ContextVar[Path] = ContextVar("advisories", default=ADVISORIES)
_NAMED = 3  # only the worst ones, to keep a warning short
NO_FIX = "no version fixes them yet: let only clients that you trust reach the server"


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


@dataclass(frozen=True, slots=True)
class Minimum:
    """The oldest version that may be deployed, and the reason."""

    version: Version
    reason: Text
    source: Text


# The container that first brought each version of the server itself.
_SERVER_VERSIONS: Any = {"source": Text, "containers": {"*": Version}}


@dataclass(frozen=True, slots=True)
class ProductAdvisories:
    """The advisories of one product, complete up to the day `as_of`."""

    product: str
    name: Text
    as_of: Day
    source: Text
    minimum: Minimum
    advisories: tuple[Advisory, ...]
    server_versions: Annotated[Mapping[str, Any], Plain(_SERVER_VERSIONS)] | None = None


def products() -> list[str]:
    return [path.stem for path in files()]


def files() -> list[Path]:
    return sorted(_FOLDER.get().glob("*.yaml"))


@contextmanager
def of_folder(other: Path) -> Iterator[None]:
    """Uses the advisories of another folder within a `with` block. Raises `BadInput` if they are
    wrong."""
    diagnostics: list[Diagnostic] = []
    for shipped in ADVISORIES.glob("*.yaml"):
        diagnostics += data_file.validate(other / shipped.name, ProductAdvisories)
    if diagnostics:
        raise BadInput(diagnostics)
    before = _FOLDER.set(other)
    try:
        yield
    finally:
        _FOLDER.reset(before)


def _file(product: str) -> ProductAdvisories:
    return data_file.load(_FOLDER.get() / f"{product}.yaml", ProductAdvisories)


def all_of(product: str) -> tuple[Advisory, ...]:
    return _file(product).advisories


def open_for(product: str, version: str) -> list[Advisory]:
    """Advisories that affect a version, worst first.

    A version without an order, such as the name of a development build, counts as newer than all
    fixes: only advisories without a known fix affect it.
    """
    given = order(container(product, version))
    found = [
        row
        for row in all_of(product)
        if row.fixed_in is None or (given is not None and given < _order(row.fixed_in))
    ]
    return sorted(found, key=lambda row: (-(row.cvss or 0), row.cve))


def name(product: str) -> str:
    return _file(product).name


def minimum(product: str) -> Minimum:
    """The minimum in the data; it may be older than `closes_all`."""
    return _file(product).minimum


def closes_all(product: str) -> str:
    return first_with_all_fixes(all_of(product))


def first_with_all_fixes(rows: Iterable[Advisory]) -> str:
    return max((row.fixed_in for row in rows if row.fixed_in is not None), key=_order)


def as_of(product: str) -> str:
    """The day to which the advisories are complete."""
    return _file(product).as_of


def is_refused(product: str, version: str) -> bool:
    """Whether a version is below the minimum, or open to a critical advisory that a stable version
    has fixed; one that cannot be ordered is not."""
    given = order(container(product, version))
    return given is not None and given < _order(least(product, version))


def least(product: str, version: str) -> str:
    """The oldest version to deploy instead of this one."""
    fixes = [
        row.fixed_in
        for row in open_for(product, version)
        if row.fixed_in and (row.cvss or 0) >= CRITICAL_CVSS and is_stable(row.fixed_in)
    ]
    return max((minimum(product).version, *fixes), key=_order)


def same(one: str, other: str) -> bool:
    """Whether two names mean the same version, such as `26.02` and `26.02-trtllm-python-py3`."""
    return one == other or (order(one) is not None and order(one) == order(other))


def diagnostic(product: str, version: str, where: str) -> Diagnostic | None:
    """The diagnostic of a version with open advisories, the worst by name: an error if the version
    is refused, else a warning. `None` without open advisories."""
    return _diagnostic(_FOLDER.get(), product, version, where)


@lru_cache(maxsize=512)  # a folder of files names the same image again and again
def _diagnostic(folder: Path, product: str, version: str, where: str) -> Diagnostic | None:
    found = open_for(product, version)
    if not found:
        return None
    refused = is_refused(product, version)
    rest = f"; all are in {folder.name}/{product}.yaml" if refused else ""
    what = (
        f"{name(product)} {version} has {number_text(len(found))}, the worst of CVSS "
        f"{score_text(found[0].cvss)}: {listed(found)} (as of {as_of(product)}{rest})"
    )
    if refused:
        needed, usual = least(product, version), minimum(product)
        why = usual.reason if needed == usual.version else "it fixes the worst of them"
        return Diagnostic(where, what, f"upgrade to {needed} or later: {why}", RULE)
    if not any(row.fixed_in for row in found):
        return Diagnostic(where, what, NO_FIX, RULE, "warning")
    fix, unfixed = f"upgrade to {closes_all(product)} or later", open_for_all(product)
    if unfixed:
        fix += f"; {listed(unfixed)} stay open: no version fixes them yet"
    return Diagnostic(where, what, fix, RULE, "warning")


def listed(rows: Sequence[Advisory], most: int = _NAMED) -> str:
    """Advisories with their scores, the first ones by name."""
    scores = ", ".join(f"{row.cve} ({score_text(row.cvss)})" for row in rows[:most])
    return f"{scores} and {len(rows) - most} more" if len(rows) > most else scores


def open_for_all(product: str) -> list[Advisory]:
    """Advisories that no version fixes, worst first."""
    return open_for(product, closes_all(product))


def unknown(product: str, version: str, where: str, strict: bool) -> Diagnostic:
    """The diagnostic of a version that is unknown or has no order: an error if `strict`."""
    what = f"{version} is not a version that can be compared with others"
    if version == UNKNOWN:
        what = "the name of this image does not contain its version"
    message = f"{what}: which known vulnerabilities of {name(product)} it has is unknown"
    accept = f'{ACCEPTED}: [{{product: {product}, version: {version}, reason: "..."}}]'
    fix = f"name the publisher's version, with a digest too; or accept it by {accept}"
    return Diagnostic(where, message, fix, UNKNOWN_RULE, "error" if strict else "warning")


def number_text(count: int) -> str:
    return "1 known vulnerability" if count == 1 else f"{count} known vulnerabilities"


def score_text(cvss: float | None) -> str:
    return "not known" if cvss is None else f"{cvss:.1f}"


def _order(version: str) -> Order:
    """The order of a version from the data, which always has one."""
    found = order(version)
    if found is None:
        raise ValueError(f"{version} is not a version")
    return found


def container(product: str, version: str) -> str:
    """The container of a server version: the newest listed one that is not newer."""
    listed = (_file(product).server_versions or {}).get("containers", {})
    given = order(version)
    older = [
        server
        for server in listed
        if given is not None and given[0][0] == _order(server)[0][0] and _order(server) <= given
    ]
    return listed[max(older, key=_order)] if older else version


FATAL_REQUESTS = DATA / "fatal_requests.yaml"


# One kind of request; `fixed_in` is the first version of the product that refuses it.
_FATAL_REQUEST: Any = {
    **dict.fromkeys(("request", "detail", "fixed_in", "cve", "remedy", "source"), Text),
    "signal": Literal["SEGV", "FPE"],
}


@dataclass(frozen=True, slots=True)
class FatalRequests:
    """Fatal requests of a product, as seen in one version, and the limits that a proxy enforces."""

    seen_in: Text
    most_nesting: Positive
    safe_body_bytes: Positive
    requests: Annotated[Sequence[Mapping[str, str]], Plain([_FATAL_REQUEST])]

    def causes(self) -> dict[str, str]:
        """Signals that end the server, each with the requests that are known to cause it."""
        found: dict[str, str] = {}
        for row in self.requests:
            cause = "{request} ({cve}, fixed in {fixed_in}): {remedy}".format(**row)
            signal = row["signal"]
            found[signal] = f"{found[signal]}; {cause}" if signal in found else cause
        return found


def fatal_requests(product: str) -> FatalRequests | None:
    """The fatal requests of a product, or `None` if none are known."""
    known: FatalRequests | None = data_file.load(FATAL_REQUESTS, Mapping[str, FatalRequests]).get(
        product
    )
    return known
