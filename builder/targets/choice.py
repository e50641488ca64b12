"""Which server of a deployment another target runs: the one that it names, or the only one."""

from __future__ import annotations

from collections.abc import Iterator

from ..deployment import Deployment
from ..diagnostics import Diagnostic, nearest
from ..facts import servers as records


def server_of(deployment: Deployment, named: str | None) -> str:
    """The server that runs; `problems` has seen that there is one."""
    return named or _servers(deployment)[0]


def problems(deployment: Deployment, target: str, named: str | None) -> Iterator[Diagnostic]:
    """Why it is not known which server the target is to run."""
    servers, where = _servers(deployment), f"targets.{target}.server"
    if not servers:
        yield Diagnostic(
            "targets", f"{target} has no server to run", f"add {' or '.join(records.names())}"
        )
    elif named is None and len(servers) > 1:
        what = f"is needed: the deployment has {' and '.join(servers)}"
        yield Diagnostic(where, what, "name one of them")
    elif named is not None and named not in servers:
        what = f"{named} is no target of the deployment"
        yield Diagnostic(where, what, nearest(named, servers))


def _servers(deployment: Deployment) -> list[str]:
    return [name for name in records.names() if name in deployment.targets]
