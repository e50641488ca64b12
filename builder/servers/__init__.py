"""The servers that a bundle can start: `openai` for those of engines, and a module for any other.

A server's module offers `Options`, its options in a deployment file, and `render(name, context,
options)`, its files and its entry in `launch.json`. Its record in `builder/facts/servers.py` holds
everything else.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Annotated, Any

from ..bundle import STARTERS, File
from ..deployment import Deployment, Strict
from ..engines import EngineConfig
from ..facts import engines
from ..facts import servers as records
from ..facts.advisories import fatal_requests
from ..facts.engines import Engine
from ..facts.hardware import load as load_gpu
from ..facts.images import Image, image
from ..facts.release import Release
from ..facts.servers import Server
from ..planning import Decision, Plan
from ..render import CommentedValue
from ..schema import Bounds

# A server loads hundreds of gigabytes before it answers.
START_TIMEOUT_S = 3600

# By this file, next to a start script, HAProxy refuses requests that would end the server.
JSON_FILTER = "json_depth.lua"

# Instances of one deployment listen this far apart.
PORT_STEP = 10

Host = Annotated[str, Bounds(pattern=r"^[0-9A-Za-z:][0-9A-Za-z.:-]*$")]
Port = Annotated[int, Bounds(ge=1, le=65535)]


def is_loopback(address: str) -> bool:
    """Whether an IP address is a loopback address. Raises `ValueError` for a name."""
    from ipaddress import ip_address

    return ip_address(address).is_loopback


def is_address(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    from ipaddress import ip_address  # for those who ask

    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class RenderedServer:
    """A server's options, its files by path inside the bundle, and its entry in `launch.json`.

    `settings` are those of the server's own model around the engine, if it has one; `unary_model`
    names a second model for unary calls.
    """

    record: Server
    options: Any
    files: Mapping[str, File]
    entry: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    unary_model: str | None = None

    @property
    def ports(self) -> Mapping[str, int]:
        """The ports of the enabled protocols."""
        ports: Mapping[str, int] = self.entry["ports"]
        return ports

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of the start script, with their defaults."""
        environment: Mapping[str, str] = self.entry["environment"]
        return environment

    @property
    def local_host(self) -> str:
        """The address for clients on the same machine."""
        host = str(self.entry["host"])
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)

    @property
    def has_key(self) -> bool:
        """Whether a key file for the restricted APIs is set."""
        return bool(self.environment.get("SERVE_KEY_FILE"))

    @property
    def json_filter(self) -> tuple[str, int] | None:
        """The file with which a proxy refuses JSON that would crash the server, and the nesting
        limit; `None` if no such JSON is known."""
        known = fatal_requests(self.record.image["product"])
        if known is None or "http" not in self.ports:
            return None
        return f"{self.record.name}/{JSON_FILTER}", known.most_nesting

    @property
    def tls(self) -> Any:
        """The TLS options of gRPC, or `None`."""
        return getattr(self.options, "grpc_tls", None)


@dataclass(frozen=True)
class RenderContext:
    """What servers and targets render from: a plan in the options of its engine.

    `prefill` is the context of the prefill servers, for targets that run both sides.
    """

    plan: Plan
    engine: EngineConfig
    prefill: RenderContext | None = None

    @cached_property
    def servers(self) -> dict[str, RenderedServer]:
        """The servers of the deployment in its order, each rendered once for all targets."""
        return {
            name: load(name).render(name, self, options_of(self.deployment, name))
            for name in self.deployment.targets
            if name in records.names()
        }

    @property
    def deployment(self) -> Deployment:
        return self.plan.deployment

    @property
    def release(self) -> Release:
        return self.plan.facts.release

    @property
    def engine_record(self) -> Engine:
        """The engine's record, which does not depend on the release."""
        return engines.load(self.deployment.engine.name)

    @property
    def flags(self) -> tuple[Decision, ...]:
        return self.plan.flags

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the engine's processes, with their values."""
        return variables(self.plan.environment)

    @property
    def reserved_environment(self) -> dict[str, str]:
        """The variables that start scripts set themselves, each with its server."""
        several = ("INSTANCE", "CUDA_VISIBLE_DEVICES") if self.deployment.instances > 1 else ()
        found: dict[str, str] = {}
        for name, server in self.servers.items():
            found |= dict.fromkeys((*server.environment, *several), name)
        return found

    def image(self, server: str) -> Image | None:
        """The container image of a server, or `None` if none is known for the release."""
        given = self.deployment.images.get(server)
        return image(server, self.deployment.engine.release, given)

    def exports_metrics(self, server: RenderedServer) -> bool:
        needed = server.record.metrics.needs
        return needed is None or bool(self.engine.options.get(needed))

    @property
    def checkpoints(self) -> dict[str, str]:
        """The variables that name the model's folder and the draft model's, if there is one."""
        draft = self.deployment.draft
        named = {"DRAFT_CHECKPOINT": draft.checkpoint} if draft else {}
        return {"CHECKPOINT": self.deployment.checkpoint, **named}

    @property
    def nodes(self) -> int:
        """The nodes of one server."""
        hardware = self.deployment.hardware
        gpus = hardware.num_gpus // self.deployment.instances
        return -(-gpus // load_gpu(hardware.gpu).gpus_per_node.value)

    @property
    def several_nodes(self) -> dict[str, int]:
        """The part of a server's entry that says that it needs several nodes."""
        return {"nodes": self.nodes} if self.nodes > 1 else {}

    @property
    def layout(self) -> dict[str, Any]:
        """The values for the shared parts of every start script."""
        gpus = self.deployment.hardware.num_gpus // self.deployment.instances
        return {
            "name": self.deployment.name,
            "engine_environment": dict(zip(self.environment, self.plan.environment, strict=True)),
            "nodes": self.nodes,
            "starters": [
                one.way for name, one in STARTERS.items() if name in self.deployment.targets
            ],
            "rank_launcher": self.engine_record.rank_launcher,
            "rank_variable": self.engine_record.rank_variable,
            "node_command": None,
            "instances": self.deployment.instances,
            "gpus_per_instance": gpus,
            "port_step": PORT_STEP,
            "draft": self.deployment.draft,
            "draft_option": self.release.option_path("draft_model").rpartition(".")[2],
        }


class ServerOptions(Strict):
    """The options of every server: where it listens, by default on this machine only."""

    host: Host = "127.0.0.1"

    @property
    def ports(self) -> dict[str, int]:
        raise NotImplementedError


def load(name: str) -> ModuleType:
    own = f"{__name__}.{name}"
    return import_module(own if own in sys.modules or find_spec(own) else f"{__name__}.openai")


def options_of(deployment: Deployment, name: str) -> Any:
    return load(name).Options.of(deployment.targets[name])


def variables(environment: tuple[Decision, ...]) -> dict[str, str]:
    return {row.path.partition(".")[2]: row.value for row in environment}


def served_name(context: RenderContext) -> dict[str, Any]:
    spelled: set[str] = set()
    for flag in context.release.serve_flags:
        if flag.name == "served_model_name":
            spelled.update(flag.spellings)
    names = [flag.value for flag in context.flags if flag.path in spelled]
    return {"model_name": names[0]} if names else {}


def with_reasons(engine: EngineConfig) -> dict[str, Any]:
    """The engine options in the order of their decisions, each with its reason."""
    reasons = {row.path: f"{row.reason} [{row.evidence}]" for row in engine.decisions}

    def walk(node: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        found = {}
        for key, value in node.items():
            path = f"{prefix}{key}"
            inner = walk(value, f"{path}.") if isinstance(value, Mapping) else value
            found[key] = CommentedValue(inner, reasons[path]) if reasons.get(path) else inner
        return found

    return walk(engine.options, "")
