"""The targets: what is rendered around the servers of a deployment. One module or folder for each.

A target module offers `Options`, the options of the target in a deployment file, and
`render(context, options)`, its files. It may also offer `diagnostics(deployment)`, why it cannot be
rendered, `prefill_diagnostics(deployment, prefill)`, why not with these prefill servers, and
`warnings(context, options)`, what a reader should know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any

from ..bundle import File
from ..deployment import Deployment, Strict
from ..diagnostics import Diagnostic, nearest
from ..facts import servers as records
from ..servers import RenderContext
from ..servers import load as load_server

# Targets that run one of the deployment's servers, and targets for servers of any role.
RUNNING_TARGETS = ("slurm", "kubernetes", "compose")
NON_SERVER_TARGETS = ("monitoring", "handoff")


def names() -> tuple[str, ...]:
    """Everything that a deployment can name as a target: servers first."""
    return (*records.names(), *RUNNING_TARGETS, *NON_SERVER_TARGETS)


def load(name: str) -> ModuleType:
    """The module of a target that is not a server."""
    return import_module(f"{__name__}.{name}")


def render(context: RenderContext) -> dict[str, File]:
    files: dict[str, File] = {}
    for name, given in context.deployment.targets.items():
        if name in context.servers:
            files |= context.servers[name].files
        else:
            target = load(name)
            files |= target.render(context, target.Options.of(given))
    return files


def diagnostics(deployment: Deployment) -> Iterator[Diagnostic]:
    """Why targets cannot be rendered, for reasons that need no plan; each once, with the names of
    the targets that share it."""
    stopped: dict[Diagnostic, list[str]] = {}
    for name, module in _around(deployment).items():
        found: Callable[[Deployment], Iterator[Diagnostic]] | None
        if found := getattr(module, "diagnostics", None):
            for row in found(deployment):
                stopped.setdefault(row, []).append(name)
    for row, names in stopped.items():
        several = f" (targets {' and '.join(names)})" if len(names) > 1 else ""
        yield replace(row, message=f"{row.message}{several}")


def prefill_diagnostics(deployment: Deployment, prefill: Deployment) -> Iterator[Diagnostic]:
    """Why targets that run prefill servers beside those of a deployment cannot."""
    for module in _around(deployment).values():
        found: Callable[[Deployment, Deployment], Iterator[Diagnostic]] | None
        if found := getattr(module, "prefill_diagnostics", None):
            yield from found(deployment, prefill)


def warnings(context: RenderContext) -> list[Diagnostic]:
    """What a reader should know of the targets of a deployment, each thing once."""
    rows: list[Diagnostic] = []
    for name, module in _around(context.deployment).items():
        found: Callable[[RenderContext, Any], Iterator[Diagnostic]] | None
        if found := getattr(module, "warnings", None):
            given = context.deployment.targets[name]
            rows += found(context, module.Options.of(given))
    return list(dict.fromkeys(rows))


def unpinned(where: str, image: str, pinned: str = "REFERENCE") -> Diagnostic:
    """An image that is named by a tag alone; `pinned` stands before the digest in the remedy."""
    what = f"{image} has no digest, and a tag can come to mean another image"
    host = image.removeprefix("docker://").replace("#", "/").partition("/")[0]
    remedy = f"run `python -m builder pin` on a machine that reaches {host}, or give "
    remedy += f"{pinned}@sha256:DIGEST, as your registry shows it"
    return Diagnostic(where, what, remedy, severity="warning")


def _around(deployment: Deployment) -> dict[str, ModuleType]:
    """The modules of the targets that are not servers."""
    return {name: load(name) for name in deployment.targets if name not in records.names()}


def selected_server(deployment: Deployment, named: str | None) -> str:
    """The server that another target runs: the one that it names, or the only one."""
    return named or _servers(deployment)[0]


def selection_diagnostics(
    deployment: Deployment, target: str, named: str | None
) -> Iterator[Diagnostic]:
    """Why it is not known which server the target is to run."""
    servers, where = _servers(deployment), f"targets.{target}.server"
    if not servers:
        engine = deployment.engine.name
        ours = [name for name in records.names() if engine in records.load(name).engines]
        yield Diagnostic(f"targets.{target}", "has no server to run", f"add {' or '.join(ours)}")
    elif named is None and len(servers) > 1:
        what = f"must be given: the deployment has {' and '.join(servers)}"
        yield Diagnostic(where, what, "name one of them")
    elif named is not None and named not in servers:
        what = f"{named} is not a target of the deployment"
        yield Diagnostic(where, what, nearest(named, servers))


def host_diagnostics(
    deployment: Deployment, target: str, server: str, host: str
) -> Iterator[Diagnostic]:
    """Why a server cannot listen where the target that runs it wants it to."""
    model: type[Strict] = load_server(server).Options
    for row in model.read({**deployment.targets[server], "host": host})[1]:
        yield Diagnostic(f"targets.{target}.host", row.message, row.fix)


def _servers(deployment: Deployment) -> list[str]:
    return [name for name in records.names() if name in deployment.targets]


def options_type(name: str) -> type[Strict]:
    """The options of a target, whose module is loaded when they are needed."""
    module = load_server(name) if name in records.names() else load(name)
    options: type[Strict] = module.Options
    return options
