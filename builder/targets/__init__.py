"""The targets: what a bundle can be started with. One small module and one template folder each.

A target module offers `Options`, the options of the target in a deployment file, and
`render(request, options)`, its files and its entry in `launch.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Protocol, cast

from pydantic import Field

from ..bundle import File
from ..deployment import Deployment, Strict
from ..engine import EngineConfig
from ..plan import Decision
from ..release import Release

NAMES = ("trtllm_serve", "triton")

# Targets that can serve one side of disaggregated serving: all published ones are trtllm-serve.
ONE_SIDE = ("trtllm_serve",)

# A server loads hundreds of gigabytes before it answers.
START_TIMEOUT_S = 3600

# Instances of one deployment listen this far apart.
PORT_STEP = 10

Host = Annotated[str, Field(pattern=r"^[0-9A-Za-z:][0-9A-Za-z.:-]*$")]
Port = Annotated[int, Field(ge=1, le=65535)]


@dataclass(frozen=True, slots=True)
class Request:
    """What every target renders from."""

    deployment: Deployment
    release: Release
    engine: EngineConfig
    flags: tuple[Decision, ...]
    environment: tuple[Decision, ...] = ()

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
    def layout(self) -> dict[str, Any]:
        """What the shared parts of every start script render."""
        gpus = self.deployment.hardware.num_gpus // self.deployment.instances
        return {
            "name": self.deployment.name,
            "engine_environment": dict(
                zip(variables(self.environment), self.environment, strict=True)
            ),
            "instances": self.deployment.instances,
            "gpus_per_instance": gpus,
            "port_step": PORT_STEP,
            "draft": self.deployment.draft,
            "draft_option": self.release.spell("draft_model").rpartition(".")[2],
        }


@dataclass(frozen=True, slots=True)
class Rendered:
    """A target's files by path inside the bundle, and its entry in `launch.json`."""

    files: Mapping[str, File]
    launch: Mapping[str, Any]


class Target(Protocol):
    Options: type[Strict]

    def render(self, request: Request, options: Any) -> Rendered: ...


def variables(environment: tuple[Decision, ...]) -> dict[str, str]:
    """Environment variables by name."""
    return {row.path.partition(".")[2]: row.value for row in environment}


def own_variables(request: Request) -> dict[str, str]:
    """The variables that the start scripts set themselves, each with the target that does."""
    found: dict[str, str] = {}
    for name, given in request.deployment.targets.items():
        target = load(name)
        entry = target.render(request, target.Options.model_validate(given)).launch
        found |= dict.fromkeys([*entry["environment"], *request.instance_variables], name)
    return found


def load(name: str) -> Target:
    return cast(Target, import_module(f"{__name__}.{name}"))


def options() -> dict[str, type[Strict]]:
    return {name: load(name).Options for name in NAMES}


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
