"""The way out of known vulnerabilities: a release that a deployment can be rendered for, which of
them stay open there, and what its servers need."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..deployment import Deployment
from ..diagnostics import Diagnostic
from ..facts import advisories, engines, images, release, servers
from ..facts.release.version import is_stable, order

Trial = Callable[[str], Sequence[Diagnostic]]
"""Why a deployment cannot be rendered for another release of its engine; empty where it can."""


def of_engine(request: Deployment, current: str, trial: Trial) -> str:
    """What to do about the open advisories of the engine's release; empty where no version fixes
    any of them."""
    product = engines.load(request.engine.name).product
    if not any(row.fixed_in for row in advisories.open_for(product, current)):
        return ""
    refused: list[tuple[str, Diagnostic]] = []
    for name in _better(request, current):
        if faults := trial(name):
            refused.append((name, faults[0]))
        else:
            left = advisories.open_for(product, name)
            stays = f"{advisories.listed(left)} stay open there" if left else "none is open there"
            needs = "; ".join(need for _, need in _needs(request, name))
            return f"upgrade to {name}, which this deployment can be rendered for; {stays}; {needs}"
    if not refused:
        return "no release that closes any of them has an option table here"
    name, fault = refused[0]
    lacks = "; ".join(need for lacks, need in _needs(request, name) if lacks)
    return (
        "no release that closes any of them fits this deployment as it is: "
        f"for {name}, {fault.message}; {lacks or fault.fix}"
    )


def of_server(request: Deployment, product: str, needed: str) -> str:
    """The engine's release in the image of a server's version, where it is not the planned one."""
    for name in request.targets:
        if name in servers.names() and servers.load(name).image["product"] == product:
            held = images.release_in(name, needed)
            if held and order(held) != order(request.engine.release):
                title = engines.load(request.engine.name).title
                return f"{needed} has {title} {held}: set engine.release to it"
    return ""


def _better(request: Deployment, current: str) -> list[str]:
    """Later releases with an option table that close some: first those of which every server has an
    image, of these the ones that leave the fewest, then finished ones, then the nearest."""
    engine = engines.load(request.engine.name)
    here, now = order(current), len(advisories.open_for(engine.product, current))
    ranked = []
    for name in release.known(engine):
        at, left = order(name), len(advisories.open_for(engine.product, name))
        is_open = left >= now or advisories.is_refused(engine.product, name)
        if here and at and at > here and not is_open:
            lacking = sum(lacks for lacks, _ in _needs(request, name))
            ranked.append((lacking, left, not is_stable(name), at, name))
    return [name for *_, name in sorted(ranked)]


def _needs(request: Deployment, name: str) -> Iterator[tuple[bool, str]]:
    """What each server of the deployment needs to run with another release of the engine, and
    whether its user has to find that."""
    product = engines.load(request.engine.name).product
    for server in request.targets:
        if server not in servers.names():
            continue
        given, published = request.images.get(server), images.image(server, name)
        if given:
            if images.told_release(server, given, product) != name:
                yield published is None, f"images.{server} has to name an image with {name}"
        elif published:
            yield False, f"{server} needs {published.reference}"
        else:
            found = images.search_words(server)
            yield True, f"{server} needs an image of your own{f': {found}' if found else ''}"
