"""Target `trtllm_serve`: the engine's own OpenAI-compatible server on one node."""

from __future__ import annotations

from ..bundle import File
from ..deployment import Strict
from ..render import text, yaml_text
from ..targets import START_TIMEOUT_S, Host, Port, Rendered, Request, option_lines


class Options(Strict):
    """Where the server listens: this machine only, unless another address is asked for."""

    host: Host = "127.0.0.1"
    port: Port = 8000

    @property
    def ports(self) -> dict[str, int]:
        return {"http": self.port}


def render(request: Request, options: Options) -> Rendered:
    deployment = request.deployment
    config = yaml_text(
        "trtllm_serve/config.yaml.j2",
        expected=request.engine.options,
        name=deployment.name,
        release=request.release.name,
        options=option_lines(request.engine),
    )
    environment = {
        **request.checkpoints,
        "SERVE_HOST": options.host,
        "SERVE_HTTP_PORT": str(options.port),
    }
    script = text(
        "trtllm_serve/serve.sh.j2",
        environment=environment,
        config_flag=request.release.config_flag,
        flags=request.flags,
        **request.layout,
    )
    return Rendered(
        {
            "trtllm_serve/config.yaml": File(config.encode()),
            "trtllm_serve/serve.sh": File(script.encode(), executable=True),
        },
        {
            "argv": ["bash", "trtllm_serve/serve.sh"],
            "host": options.host,
            "ports": options.ports,
            "environment": environment,
            **request.several_nodes,
            "ready": {"port": "http", "path": "/health"},
            "start_timeout_s": START_TIMEOUT_S,
        },
    )
