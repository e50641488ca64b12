"""Target `slurm`: a job that runs another target of the deployment under Slurm.

The batch scripts are thin: they start the supervisor, a package that is copied byte for byte. What
it runs on which nodes and GPUs is in `service.json`. Each file is read back as it was meant.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from ...bundle import File, to_json
from ...facts.hardware import load as load_gpu
from ...files import resource_root
from ...render import text, yaml_document
from ...servers import RenderContext
from .. import selected_server
from ..disaggregated import PREFILL_FOLDER, ROUTER_FILE
from . import layout, service
from .options import SlurmOptions as Options
from .options import diagnostics, warnings
from .service import ServingSide, SlurmService

__all__ = ["Options", "diagnostics", "render", "steps", "warnings"]

FOLDER = "slurm"
SUPERVISOR = "supervisor"
BENCH_LIMIT_S = 3600


def render(context: RenderContext, options: Options) -> dict[str, File]:
    found = _service(context, options)
    files = {**_scripts(found), "service.json": File(to_json(service.document(found)))}
    for path in sorted(resource_root(SUPERVISOR).glob("*.py")):  # what the scripts start
        files[f"{SUPERVISOR}/{path.name}"] = File(path.read_bytes())
    if found.is_disaggregated:
        files[ROUTER_FILE] = yaml_document(
            f"The router of the prefill and decode servers of {found.deployment.name}. The "
            "supervisor replaces a server's name in braces by its host.",
            service.sides_document(found),
        )
    elif found.has_router:
        files[service.HAPROXY_FILE] = File(_haproxy(found).encode())
    by_itself = [
        side.context
        for side in found.sides
        if service.rank_launcher(options.site, side.context) is None
    ]
    scripts = ["alone.sh"] if by_itself else []
    if any(side.nodes > 1 for side in by_itself):
        scripts.append("node.sh")
    for name in scripts:
        script = resource_root("templates") / FOLDER / name
        files[name] = File(script.read_bytes(), executable=True)
    return {f"{FOLDER}/{name}": file for name, file in files.items()}


def steps(context: RenderContext, options: Options) -> list[dict[str, Any]]:
    """The steps of a job as in `service.json`, for targets that refer to them."""
    return service.steps(_service(context, options))


def _service(context: RenderContext, options: Options) -> SlurmService:
    deployment = context.deployment
    target = selected_server(deployment, options.server)
    sides: tuple[ServingSide, ...]
    if context.prefill and options.prefill:
        sides = (
            _side("prefill", context.prefill, target, options, options.prefill.servers),
            _side("decode", context, target, options, options.servers),
        )
    else:
        sides = (_side("server", context, target, options, deployment.instances),)
    size = load_gpu(deployment.hardware.gpu).gpus_per_node.value
    return SlurmService(target, options, sides, layout.place([side.group for side in sides], size))


def _side(
    name: str, context: RenderContext, target: str, options: Options, servers: int
) -> ServingSide:
    """So many servers of a deployment, listening where the job wants them."""
    deployment, entry = context.deployment, context.servers[target].entry
    gpus = deployment.hardware.num_gpus // deployment.instances
    ranks = gpus if service.rank_launcher(options.site, context) else context.nodes
    folder = f"{PREFILL_FOLDER}/" if name == "prefill" else ""
    return ServingSide(
        name, context, entry, folder, layout.ServerGroup(deployment.role, servers, gpus, ranks)
    )


def _scripts(found: SlurmService) -> dict[str, File]:
    name, options, nodes = found.deployment.name, found.options, found.layout
    points = _concurrencies(found.deployment.workload.concurrency)
    parts = {
        "serve": layout.serve_directives(name, options, nodes),
        "preflight": layout.preflight_directives(name, options, nodes, service.PREFLIGHT_TIMEOUT_S),
    }
    if options.site.toolkit:
        parts["bench"] = layout.bench_directives(name, options, len(points), BENCH_LIMIT_S)
    return {
        f"{script}.sbatch": _script(script, lines, found, points) for script, lines in parts.items()
    }


def _script(
    name: str, directives: list[list[str]], found: SlurmService, points: Sequence[int]
) -> File:
    """A batch script that Slurm reads as it was meant."""
    rendered = text(
        f"{FOLDER}/{name}.sbatch.j2",
        name=found.deployment.name,
        parts=directives,
        site=found.site,
        concurrencies=points,
    )
    if (read := _directives(rendered)) != directives:
        raise AssertionError(f"{name}.sbatch reads back as {read}, meant was {directives}")
    return File(rendered.encode(), executable=True)


def _directives(script: str) -> list[list[str]]:
    """The words of the lines for sbatch, those of each part of a job, as Slurm splits them."""
    parts: list[list[str]] = [[]]
    for line in takewhile(lambda line: line.startswith("#"), script.splitlines()):
        words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        if words == ["hetjob"]:
            parts.append([])
        elif line.startswith("#SBATCH"):
            parts[-1] += words
    return parts


def _haproxy(found: SlurmService) -> str:
    server = found.sides[0].context.servers[found.target]
    json_filter, json_depth = server.json_filter or (None, None)
    return text(
        f"{FOLDER}/{service.HAPROXY_FILE}.j2",
        name=found.deployment.name,
        host=found.options.bind_host,
        front=found.frontend_ports,
        servers=found.servers,
        json_filter=json_filter,
        json_depth=json_depth,
        ready=found.sides[0].entry["ready"]["path"],
        drain_s=found.options.drain_s,
    )


def _concurrencies(most: int) -> list[int]:
    """Doubling from one up to the workload's."""
    points = [1]
    while points[-1] * 2 < most:
        points.append(points[-1] * 2)
    return [*points, most] if most > 1 else points
