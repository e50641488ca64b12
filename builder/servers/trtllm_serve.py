"""Target `trtllm_serve`: the engine's own OpenAI-compatible server on one node."""

from __future__ import annotations

from typing import Any

from ..contents import File
from ..facts import servers
from ..render import option_file, text
from . import START_TIMEOUT_S, Port, RenderContext, RenderedServer, ServerOptions, with_reasons

NAME = "trtllm_serve"


class Options(ServerOptions):
    """Where the server listens."""

    port: Port = 8000

    @property
    def ports(self) -> dict[str, int]:
        return {"http": self.port}


def render(context: RenderContext, options: Options) -> RenderedServer:
    deployment = context.deployment
    config = option_file(
        f"Engine options of {deployment.name} for TensorRT-LLM {context.release.name}. All "
        "settings live here; the command line names model, host and port only.",
        with_reasons(context.engine),
    )
    environment = {
        **context.checkpoints,
        "SERVE_HOST": options.host,
        "SERVE_HTTP_PORT": str(options.port),
    }
    script = text(
        f"{NAME}/serve.sh.j2",
        environment=environment,
        config_flag=context.release.config_flag,
        flags=context.flags,
        **context.layout,
    )
    record = servers.load(NAME)
    return RenderedServer(
        record,
        options,
        {
            f"{NAME}/config.yaml": config,
            f"{NAME}/serve.sh": File(script.encode(), executable=True),
        },
        {
            "argv": ["bash", f"{NAME}/serve.sh"],
            "host": options.host,
            "ports": options.ports,
            "environment": environment,
            **context.several_nodes,
            **_model_name(context),
            "ready": {"port": "http", "path": record.paths["ready"]},
            "start_timeout_s": START_TIMEOUT_S,
        },
    )


def _model_name(context: RenderContext) -> dict[str, Any]:
    """The name by which clients ask for the model, where the release has a flag for it."""
    known = (flag for flag in context.release.serve_flags if flag.name == "served_model_name")
    spelled = {spelling for flag in known for spelling in flag.spellings}
    names = [flag.value for flag in context.flags if flag.path in spelled]
    return {"model_name": names[0]} if names else {}
