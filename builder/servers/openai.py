"""Renders the engines' own OpenAI-compatible servers: a start script and an option file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..bundle import File
from ..facts import servers
from ..render import CommentedValue, option_file, plain, text
from . import (
    START_TIMEOUT_S,
    Port,
    RenderContext,
    RenderedServer,
    ServerOptions,
    served_name,
    with_reasons,
)


class Options(ServerOptions):
    """Where the server listens."""

    port: Port = 8000

    @property
    def ports(self) -> dict[str, int]:
        return {"http": self.port}


def render(name: str, context: RenderContext, options: Options) -> RenderedServer:
    record, deployment = servers.load(name), context.deployment
    config = option_file(
        f"Engine options of {deployment.name} for {context.engine_record.title} "
        f"{context.release.name}. All settings live here; the command line names model, host and "
        "port only.",
        _options(context),
    )
    environment = {
        **context.checkpoints,
        "SERVE_HOST": options.host,
        "SERVE_HTTP_PORT": str(options.port),
    }
    script = text(
        "_shared/openai_serve.sh.j2",
        title=record.title,
        program=record.program,
        environment=environment,
        config_flag=context.release.config_flag,
        flags=context.flags,
        **{**context.layout, "node_command": record.node_command},
    )
    return RenderedServer(
        record,
        options,
        {
            f"{name}/config.yaml": config,
            f"{name}/serve.sh": File(script.encode(), executable=True),
        },
        {
            "argv": ["bash", f"{name}/serve.sh"],
            "host": options.host,
            "ports": options.ports,
            "environment": environment,
            **context.several_nodes,
            **served_name(context),
            "ready": {"port": "http", "path": record.paths["ready"]},
            "start_timeout_s": START_TIMEOUT_S,
        },
    )


def _options(context: RenderContext) -> dict[str, Any]:
    """The engine options; groups become JSON text if the release reads nothing else."""
    options = with_reasons(context.engine)
    if not context.release.flat_option_file:
        return options
    return {name: _as_text(value) for name, value in options.items()}


def _as_text(value: Any) -> Any:
    inner = plain(value)
    if not isinstance(inner, Mapping):
        return value
    reasons = [row.reason for row in value.values() if isinstance(row, CommentedValue)]
    return CommentedValue(json.dumps(inner), " ".join(reasons))
