"""Target `triton`: Triton Inference Server with the toolkit's own model on one node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from ..bundle import File
from ..deployment import Strict
from ..render import resource_root, text, yaml_text
from . import START_TIMEOUT_S, Host, Port, Rendered, Request, option_lines

# A file of this name keeps Python from writing bytecode beside the model, where unlisted code could
# hide; the interpreter that Triton embeds reads no variables that would forbid it.
_NO_BYTECODE = ("1/__pycache__", b"No bytecode is kept here: a bundle stays as it was rendered.\n")


class Options(Strict):
    """Where the server listens, and how the model is named and answers.

    A decoupled model streams and serves the stream RPC, `/generate` and `/generate_stream`; one
    that is not decoupled serves unary requests only.
    """

    host: Host = "127.0.0.1"
    http_port: Port = 8000
    grpc_port: Port = 8001
    metrics_port: Port = 8002
    model_name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")] = "tensorrt_llm"
    decoupled: bool = True

    @model_validator(mode="after")
    def _distinct_ports(self) -> Self:
        if len({self.http_port, self.grpc_port, self.metrics_port}) < 3:
            raise ValueError(
                "http_port, grpc_port and metrics_port collide; give each its own number"
            )
        return self


def render(request: Request, options: Options) -> Rendered:
    deployment = request.deployment
    triton_config = {
        "max_batch_size": 0,
        "decoupled": options.decoupled,
        "cancellation_check_period_ms": 100,
    }
    options_given = request.engine.options
    base = {"model": deployment.checkpoint}
    if "backend" not in options_given:
        base["backend"] = "pytorch"
    model_yaml = yaml_text(
        "triton/model.yaml.j2",
        expected={"triton_config": triton_config, **base, **options_given},
        name=deployment.name,
        release=request.release.name,
        triton_config=triton_config,
        base=base,
        options=option_lines(request.engine),
    )
    environment = {
        **request.checkpoints,
        "SERVE_HOST": options.host,
        "SERVE_HTTP_PORT": str(options.http_port),
        "SERVE_GRPC_PORT": str(options.grpc_port),
        "SERVE_METRICS_PORT": str(options.metrics_port),
        "SERVE_ID": deployment.name,
        "SERVE_SHM_PREFIX": deployment.name,
    }
    script = text(
        "triton/serve.sh.j2",
        environment=environment,
        model_name=options.model_name,
        **request.layout,
    )
    repository = f"triton/model_repository/{options.model_name}"
    files = {f"{repository}/{path}": File(data) for path, data in sorted(_model_files().items())}
    return Rendered(
        {
            **files,
            f"{repository}/1/model.yaml": File(model_yaml.encode()),
            "triton/serve.sh": File(script.encode(), executable=True),
        },
        {
            "argv": ["bash", "triton/serve.sh"],
            "host": options.host,
            "ports": {
                "http": options.http_port,
                "grpc": options.grpc_port,
                "metrics": options.metrics_port,
            },
            "environment": environment,
            "ready": {"port": "http", "path": "/v2/health/ready"},
            "model_name": options.model_name,
            "start_timeout_s": START_TIMEOUT_S,
        },
    )


def _model_files() -> dict[str, bytes]:
    """The hand-written model, byte for byte, kept as it is."""
    root: Path = resource_root("model_repository") / "tensorrt_llm"
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.suffix in (".py", ".pbtxt")
    }
    return dict([_NO_BYTECODE]) | files
