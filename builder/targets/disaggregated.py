"""Disaggregated serving, whatever runs it: prefill and decode servers, and the router of both.

A deployment of role decode names its prefill servers in the options of a target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..deployment import Deployment, Strict
from ..diagnostics import Diagnostic
from ..facts.servers import Server
from .container import Count

# The targets that run both sides, each with an option `prefill`.
TARGETS = ("slurm", "kubernetes")

# Where the bundle of the prefill servers is in that of the whole service.
PREFILL_FOLDER = "prefill"

ROUTER = "router"
ROUTER_FILE = "disaggregated.yaml"
# The engine's own router cuts every answer off after 180 s by default.
# Source: TensorRT-LLM tensorrt_llm/commands/serve.py, `disaggregated --request_timeout`.
ROUTER_REQUEST_TIMEOUT_S = 3600


class Prefill(Strict):
    """The other side of disaggregated serving: a deployment of role prefill, and its servers.

    `deployment` is a mapping: in a deployment file, mostly the name of a file or a preset.
    """

    deployment: dict[str, Any] | str
    servers: Count = 1


def path(target: str) -> str:
    """Where a deployment names its prefill servers."""
    return f"targets.{target}.prefill.deployment"


def named(targets: Mapping[str, Any], target: str) -> Mapping[str, Any] | None:
    """The prefill servers in a target's options; `None` if it has none or they cannot be read."""
    options = targets.get(target)
    given = options.get("prefill") if isinstance(options, Mapping) else None
    return given if isinstance(given, Mapping) else None


def router_command(server: Server, file: str, start_timeout_s: int | None = None) -> list[str]:
    """The router before both sides. It waits for its servers, 180 s where nothing else is said."""
    limits = {"--request_timeout": ROUTER_REQUEST_TIMEOUT_S}
    if start_timeout_s is not None:
        limits["--server_start_timeout"] = start_timeout_s
    given: list[str] = []
    for flag, limit_s in limits.items():
        given += [flag, str(limit_s)]
    return [*(server.router or ()), *given, "-c", file]


def router_document(
    host: str, port: int, prefill: Sequence[str], decode: Sequence[str]
) -> dict[str, Any]:
    """The option file of the router; servers are given as `host:port`."""

    def servers(urls: Sequence[str]) -> dict[str, Any]:
        return {"num_instances": len(urls), "urls": list(urls)}

    return {
        "hostname": host,
        "port": port,
        "context_servers": servers(prefill),
        "generation_servers": servers(decode),
    }


def diagnostics(deployment: Deployment, target: str, number: str) -> Iterator[Diagnostic]:
    """Why a deployment with prefill servers is no service; `number` says how many decode servers
    there are."""
    where = f"targets.{target}.prefill"
    if deployment.role != "decode":
        what = f"is there, and role is {deployment.role}"
        yield Diagnostic(where, what, "set role: decode, or remove the prefill servers")
    if deployment.instances > 1:
        what = f"is there, and instances is {deployment.instances}"
        yield Diagnostic(where, what, f"set instances: 1, and the number by {number}")
