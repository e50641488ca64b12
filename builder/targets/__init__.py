"""The targets: what a bundle can be started with. One small module and one template folder each.

A target module offers `Options`, the options of the target in a deployment file, and
`render(request, options)`, its files and its entry in `launch.json`; a target that is no server
has none. `slurm` runs one of the others. A module may also offer `problems(deployment)`, why it
cannot be rendered, and `warnings(request, options)`, what a reader should know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from ipaddress import ip_address
from typing import Annotated, Any, Protocol, cast

from pydantic import Field

from ..bundle import File
from ..deployment import Deployment, Strict
from ..diagnostics import Diagnostic
from ..engines.translation import EngineConfig
from ..facts import servers
from ..facts.hardware import load as load_gpu
from ..facts.images import Image, image
from ..facts.release import Release
from ..planning import Decision, Plan

NAMES = (*servers.names(), "slurm", "kubernetes", "compose", "monitoring", "handoff")

# Targets that are about a server, whatever its role is.
NON_SERVER_TARGETS = ("monitoring", "handoff")

# Where the bundle of the prefill servers is in that of the whole service.
PREFILL_FOLDER = "prefill"

# A server loads hundreds of gigabytes before it answers.
START_TIMEOUT_S = 3600

# Instances of one deployment listen this far apart.
PORT_STEP = 10

Host = Annotated[str, Field(pattern=r"^[0-9A-Za-z:][0-9A-Za-z.:-]*$")]
Port = Annotated[int, Field(ge=1, le=65535)]


def is_address(host: str) -> bool:
    """Whether a host is given by an IP address, and not by a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Request:
    """What every target renders from; `prefill` is the other side of disaggregated serving."""

    plan: Plan
    engine: EngineConfig
    prefill: Request | None = None

    @property
    def deployment(self) -> Deployment:
        return self.plan.deployment

    @property
    def release(self) -> Release:
        return self.plan.facts.release

    @property
    def flags(self) -> tuple[Decision, ...]:
        return self.plan.flags

    @property
    def environment(self) -> tuple[Decision, ...]:
        return self.plan.environment

    @property
    def server_names(self) -> list[str]:
        """The targets of the deployment that are servers, in its own order."""
        return [name for name in self.deployment.targets if name in servers.names()]

    @property
    def entries(self) -> dict[str, Mapping[str, Any]]:
        """The entries in `launch.json` of the deployment's servers, by target."""
        found = {}
        for name, given in self.deployment.targets.items():
            if name in servers.names():
                target = load(name)
                entry = target.render(self, target.Options.model_validate(given)).launch
                assert entry is not None  # a server has one
                found[name] = entry
        return found

    def image(self, server: str) -> Image | None:
        """The container image of a server, `None` where none is known for the release."""
        given = self.deployment.images.get(server)
        return image(server, self.deployment.engine.release, given)

    @property
    def checkpoints(self) -> dict[str, str]:
        """The variables that name the model's folder, and the draft model's if there is one."""
        draft = self.deployment.draft
        named = {"DRAFT_CHECKPOINT": draft.checkpoint} if draft else {}
        return {"CHECKPOINT": self.deployment.checkpoint, **named}

    @property
    def instance_variables(self) -> tuple[str, ...]:
        """What the shared parts of every start script set, where there are several instances."""
        return ("INSTANCE", "CUDA_VISIBLE_DEVICES") if self.deployment.instances > 1 else ()

    @property
    def nodes(self) -> int:
        """The nodes of one server."""
        hardware = self.deployment.hardware
        gpus = hardware.num_gpus // self.deployment.instances
        return -(-gpus // load_gpu(hardware.gpu).gpus_per_node.value)

    @property
    def several_nodes(self) -> dict[str, int]:
        """What the entry of a server says that cannot be started on one node alone."""
        return {"nodes": self.nodes} if self.nodes > 1 else {}

    @property
    def layout(self) -> dict[str, Any]:
        """What the shared parts of every start script render."""
        gpus = self.deployment.hardware.num_gpus // self.deployment.instances
        return {
            "name": self.deployment.name,
            "engine_environment": dict(
                zip(variables(self.environment), self.environment, strict=True)
            ),
            "nodes": self.nodes,
            "instances": self.deployment.instances,
            "gpus_per_instance": gpus,
            "port_step": PORT_STEP,
            "draft": self.deployment.draft,
            "draft_option": self.release.spell("draft_model").rpartition(".")[2],
        }


@dataclass(frozen=True, slots=True)
class Rendered:
    """A target's files by path inside the bundle, and its entry in `launch.json` if it has one."""

    files: Mapping[str, File]
    launch: Mapping[str, Any] | None


class Target(Protocol):
    Options: type[Strict]

    def render(self, request: Request, options: Any) -> Rendered: ...


def variables(environment: tuple[Decision, ...]) -> dict[str, str]:
    """Environment variables by name."""
    return {row.path.partition(".")[2]: row.value for row in environment}


def own_variables(request: Request) -> dict[str, str]:
    """The variables that the start scripts set themselves, each with the target that does."""
    found: dict[str, str] = {}
    for name, entry in request.entries.items():
        found |= dict.fromkeys([*entry["environment"], *request.instance_variables], name)
    return found


def load(name: str) -> Target:
    home = "servers" if name in servers.names() else "targets"
    return cast(Target, import_module(f"builder.{home}.{name}"))


def problems(deployment: Deployment) -> Iterator[Diagnostic]:
    """Why targets cannot be rendered, as far as that is known without a plan."""
    for name in deployment.targets:
        found: Callable[[Deployment], Iterator[Diagnostic]] | None
        if found := getattr(load(name), "problems", None):
            yield from found(deployment)


def warnings(request: Request) -> list[Diagnostic]:
    """What a reader should know of the targets of a deployment, each thing once."""
    rows: list[Diagnostic] = []
    for name, given in request.deployment.targets.items():
        target = load(name)
        found: Callable[[Request, Any], Iterator[Diagnostic]] | None
        if found := getattr(target, "warnings", None):
            rows += found(request, target.Options.model_validate(given))
    return list(dict.fromkeys(rows))


class OptionTypes(Mapping[str, type[Strict]]):
    """The options of every target by its name; a target's module is loaded when it is asked for."""

    def __getitem__(self, name: str) -> type[Strict]:
        if name not in NAMES:
            raise KeyError(name)
        return load(name).Options

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)

    def __contains__(self, name: object) -> bool:
        return name in NAMES


@dataclass(frozen=True, slots=True)
class OptionLine:
    """One line of a rendered option file; a mapping's own line has no value."""

    depth: int
    key: str
    value: Any
    is_mapping: bool
    reason: str | None


def option_lines(engine: EngineConfig) -> list[OptionLine]:
    """The engine options in the order of their decisions, each with its reason."""
    reasons = {row.path: row for row in engine.decisions}

    def walk(node: Mapping[str, Any], prefix: str, depth: int) -> list[OptionLine]:
        lines: list[OptionLine] = []
        for key, value in node.items():
            path = f"{prefix}.{key}" if prefix else key
            reason = _reason(reasons.get(path))
            if isinstance(value, Mapping) and value:
                lines.append(OptionLine(depth, key, None, True, reason))
                lines += walk(value, path, depth + 1)
            else:
                lines.append(OptionLine(depth, key, value, False, reason))
        return lines

    return walk(engine.options, "", 0)


def _reason(decision: Decision | None) -> str | None:
    return f"{decision.reason} [{decision.evidence}]" if decision else None
