"""Target `triton_vllm`: Triton Inference Server with its vLLM backend on one node.

The backend makes the model's inputs and outputs itself, and reads the engine's options from
`model.json`, by the names of the engine's own arguments.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from ..bundle import File
from ..deployment import ModelName
from ..facts import servers
from ..render import text
from ..schema import After
from . import START_TIMEOUT_S, Host, Port, RenderContext, RenderedServer, ServerOptions
from .triton import json_filter, process, triton_address

EXIT_TIMEOUT_S = 300  # for requests that run when the server is told to stop
STOP_MARGIN_S = 30

CONFIG = """\
# The backend defines inputs and outputs; the engine's options are in 1/model.json.
backend: "vllm"
instance_group [ { count: 1, kind: KIND_MODEL } ]
"""


class BackendOptions(ServerOptions):
    """Where the server listens, and how the model is named."""

    host: Annotated[Host, After(triton_address)] = "127.0.0.1"
    http_port: Port = 8000
    grpc_port: Port = 8001
    metrics_port: Port = 8002
    model_name: ModelName | None = None

    @property
    def ports(self) -> dict[str, int]:
        return {"http": self.http_port, "grpc": self.grpc_port, "metrics": self.metrics_port}


Options = BackendOptions


def render(name: str, context: RenderContext, options: BackendOptions) -> RenderedServer:
    record = servers.load(name)
    named = options.model_name or context.deployment.served_model_name or record.default_model
    model_name = str(named)
    repository = f"{name}/model_repository/{model_name}"
    environment = {
        **context.checkpoints,
        "SERVE_HOST": options.host,
        **{f"SERVE_{key.upper()}_PORT": str(port) for key, port in options.ports.items()},
    }
    script = text(
        f"{name}/serve.sh.j2",
        environment=environment,
        model_name=model_name,
        checkpoint=json.dumps(context.deployment.checkpoint),
        unary_model=None,
        own_memory=False,
        **process(name, options.ports, EXIT_TIMEOUT_S),
        **context.layout,
    )
    return RenderedServer(
        record,
        options,
        {
            f"{repository}/config.pbtxt": File(CONFIG.encode()),
            f"{repository}/1/model.json": File(_model_json(context).encode()),
            f"{name}/serve.sh": File(script.encode(), executable=True),
            **json_filter(name),
        },
        {
            "argv": ["bash", f"{name}/serve.sh"],
            "host": options.host,
            "ports": options.ports,
            "environment": environment,
            **context.several_nodes,
            "ready": {"port": "http", "path": record.paths["ready"]},
            "model_name": model_name,
            "start_timeout_s": START_TIMEOUT_S,
            "stop_timeout_s": EXIT_TIMEOUT_S + STOP_MARGIN_S,
        },
    )


def _model_json(context: RenderContext) -> str:
    """The engine's arguments; the model stands first, alone on its line."""
    document: dict[str, Any] = {"model": context.deployment.checkpoint, **context.engine.options}
    return json.dumps(document, indent=2) + "\n"
