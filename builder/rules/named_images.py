"""The container images that a deployment and its site profile name, and an engine release in one
that is not the planned one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import site
from ..deployment import Deployment
from ..diagnostics import Diagnostic
from ..facts import engines, images, servers
from ..facts.release.version import order
from ..general_rules import IMAGE_OF_ANOTHER_RELEASE

RULE = IMAGE_OF_ANOTHER_RELEASE


@dataclass(frozen=True, slots=True)
class NamedImage:
    """The image of a server, and the path that names it."""

    server: str
    reference: str
    where: str


def named(request: Deployment) -> Iterator[NamedImage]:
    """The images that can run here. A site profile has images of all services of a cluster: only
    the image of the server in the job counts."""
    for server, reference in request.images.items():
        yield NamedImage(server, reference, f"images.{server}")
    slurm = request.targets.get(site.TARGET, {})
    container = (slurm.get("site") or {}).get("container", {})
    for server, reference in container.get("images", {}).items():
        if server in request.targets and slurm.get("server") in (None, server):
            yield NamedImage(server, reference, f"{site.PATH}.container.images.{server}")


def diagnostics(request: Deployment, release: str) -> Iterator[Diagnostic]:
    """Images with another engine release by their names: the plan is for `release`."""
    product = engines.load(request.engine.name).product
    for image in named(request):
        if image.server not in servers.names() or order(release) is None:
            continue
        told = images.told_release(image.server, image.reference, product)
        if told and order(told) not in (None, order(release)):
            what = f"has release {told} of the engine by its name, and the plan is for {release}"
            fix = f"name an image of {release}, or plan what the image has: engine.release: {told}"
            yield Diagnostic(image.where, what, fix, RULE, "warning")
