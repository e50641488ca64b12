"""Target `triton`: Triton Inference Server with the toolkit's own model on one node."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from ..bundle import File
from ..deployment import ModelName, Strict
from ..facts import servers
from ..facts.advisories import fatal_requests
from ..files import resource_root
from ..render import option_file, text
from ..schema import After, Bounds, default
from . import (
    JSON_FILTER,
    START_TIMEOUT_S,
    Host,
    Port,
    RenderContext,
    RenderedServer,
    ServerOptions,
    is_address,
    is_loopback,
    with_reasons,
)

# A file of this name stops Python from writing bytecode into the model's folder, where unlisted
# code could hide; the interpreter that Triton embeds reads no variables that would forbid it.
_NO_BYTECODE = b"No bytecode is kept here: a bundle stays as it was rendered.\n"

PROTOCOLS = ("http", "grpc", "metrics")
# The server may take so much longer to exit than the model to drain, until it is killed than that,
# and the launcher than all of them.
EXIT_MARGIN_S = 60
KILL_MARGIN_S = 10
STOP_MARGIN_S = 30
# For what Triton still has to send without the process of the engine's model, until it is killed.
WITHOUT_ENGINE_S = 3
# Requests that may run or wait, in batches: enough to keep the engine busy, few enough to answer.
BATCHES_AHEAD = 4
FEWEST_REQUESTS, REQUESTS_OF_AN_UNKNOWN_BATCH = 64, 4096
# One in so many of these, and of the batch, is reserved for requests whose client is watched.
KEPT_PART = 8
# The longest text that has so few tokens, but for one made of blanks and rules.
BYTES_PER_TOKEN = 32
# The HTTP body without its inputs, and the most characters that JSON needs for one of their bytes.
# Without the option Triton takes 64 MiB, and what unpacks to them.
# Source: triton-inference-server/server#8174 and #8432.
BODY_BYTES, JSON_BYTES = 2**20, 6
# The slowest pace of an answer where the deployment has no target, and time for the prompts.
SLOWEST_ITL_MS, PROMPTS_S = 50, 60

ServerFile = Annotated[str, Bounds(pattern=r"^(/(\.?[A-Za-z0-9_+=@%:,-][A-Za-z0-9._+=@%:,-]*)?)+$")]
Api = Literal[
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
]
Count = Annotated[int, Bounds(ge=1)]
# What can change the server, or tells more of it than a client needs.
MANAGEMENT: tuple[Api, ...] = (
    *("shared-memory", "model-repository", "model-config"),
    *("statistics", "trace", "logging"),
)


def triton_address(host: str) -> str:
    """Triton takes a name as well, says nothing, and then listens on 255.255.255.255 for HTTP.

    Source: measured on Triton 2.51, --http-address localhost.
    """
    if not is_address(host):
        what = f"{host} is a name, and Triton listens on addresses only"
        raise ValueError(f"{what}; give one, such as 127.0.0.1, or 0.0.0.0 for all of the machine")
    return host


class Tls(Strict):
    """PEM files on the server's machine. With `client_ca`, clients need a certificate as well."""

    certificate: ServerFile
    key: ServerFile
    client_ca: ServerFile | None = None


class Options(ServerOptions):
    """Where the server listens, who may do what, and how the model is named and answers.

    A decoupled model streams and serves the stream RPC, `/generate` and `/generate_stream`; one
    that is not decoupled serves unary requests only. Unless `unary_model` is false, a decoupled
    model comes with a second one, `<model_name>_unary`, which serves unary requests with the same
    engine.

    `restricted_apis` need the key in the first line of `key_file`, a file on the server's machine.
    Without one the server makes a random key at every start, which closes them. Triton takes the
    key from its command line only, where programs on the same machine and in the same process
    namespace can read it.

    Triton has TLS for gRPC only. Without `model_name` the model has the deployment's
    `served_model_name`, else the usual one. The rest are the settings of the model's own
    `triton_config`.
    """

    host: Annotated[Host, After(triton_address)] = "127.0.0.1"
    http: bool = True
    http_port: Port = 8000
    grpc: bool = True
    grpc_port: Port = 8001
    grpc_tls: Tls | None = None
    grpc_max_response_pool_size: Count = 1024
    metrics: bool = True
    metrics_port: Port = 8002
    restricted_apis: list[Api] = default(lambda: list(MANAGEMENT))
    key_file: ServerFile | None = None
    model_name: ModelName | None = None
    decoupled: bool = True
    unary_model: bool = True
    cancellation_check_period_ms: Count = 150
    sender_threads: Annotated[int, Bounds(ge=1, le=8)] = 4
    max_requests: Count | None = None
    max_prompt_bytes: Count | None = None
    max_tokens_per_request: Count | None = None
    max_seconds_per_request: Annotated[float, Bounds(gt=0, exact=False)] | None = None
    drain_timeout_s: Count = 240
    engine_stall_timeout_s: Count | None = 120

    @property
    def ports(self) -> dict[str, int]:
        return {name: getattr(self, f"{name}_port") for name in PROTOCOLS if getattr(self, name)}

    def check(self) -> None:
        if not self.http and not self.grpc:
            raise ValueError("http and grpc are both off; leave one of them on")
        if len(set(self.ports.values())) < len(self.ports):
            names = " and ".join(f"{name}_port" for name in self.ports)
            names = names.replace(" and ", ", ", len(self.ports) - 2)
            raise ValueError(f"{names} collide; give each its own number")
        if self.grpc_tls and not self.grpc:
            raise ValueError("grpc_tls is there, but grpc is off; set grpc: true")
        if self.grpc_tls and self.http and not is_loopback(self.host):
            what = f"grpc_tls protects gRPC only, and HTTP on {self.host} would stay readable"
            raise ValueError(f"{what}; set http: false")


def render(name: str, context: RenderContext, options: Options) -> RenderedServer:
    record = servers.load(name)
    assert record.default_model is not None  # this server has a model of its own
    model_name = options.model_name or context.deployment.served_model_name or record.default_model
    environment = _environment(context, options)
    triton_config = settings(context, options)
    most_bytes = triton_config["max_prompt_bytes"]
    model_files = _model_files(record.default_model)
    unary = _unary_files(model_files) if options.decoupled and options.unary_model else {}
    unary_model = f"{model_name}{record.unary_suffix}" if unary else None
    script = text(
        f"{name}/serve.sh.j2",
        environment=environment,
        on={protocol: protocol in options.ports for protocol in PROTOCOLS},
        tls=options.grpc_tls,
        restricted_apis=",".join(options.restricted_apis),
        pool_size=options.grpc_max_response_pool_size,
        most_body_bytes=most_bytes and BODY_BYTES + JSON_BYTES * most_bytes,
        # Of Triton's Python backend, which pass responses on; 32 where nothing is said. Each waits
        # for the thread of the model that sends, so that more of them than senders only take turns,
        # and are woken for it: 2 more cost a tenth of the CPU time per response (Triton 2.51). None
        # can wait for another, since this model makes no inference requests of its own.
        # Source: triton-inference-server/python_backend@01809ec, src/python_be.cc.
        backend_threads=options.sender_threads,
        model_name=model_name,
        unary_model=unary_model,
        own_memory=True,
        **process(name, options.ports, options.drain_timeout_s + EXIT_MARGIN_S),
        **context.layout,
    )
    repository = f"{name}/model_repository/{model_name}"
    files = {
        **{f"{repository}/{path}": File(data) for path, data in sorted(model_files.items())},
        **{f"{repository}{record.unary_suffix}/{path}": File(d) for path, d in unary.items()},
    }
    ready = {"port": "http", "path": record.paths["ready"]} if options.http else {"port": "grpc"}
    return RenderedServer(
        record,
        options,
        {
            **files,
            f"{repository}/1/model.yaml": _model_yaml(context, triton_config),
            f"{name}/serve.sh": File(script.encode(), executable=True),
            **json_filter(name),
        },
        {
            "argv": ["bash", f"{name}/serve.sh"],
            "host": options.host,
            "ports": options.ports,
            "environment": environment,
            **context.several_nodes,
            "ready": ready,
            "model_name": model_name,
            "restricted_apis": options.restricted_apis,
            "start_timeout_s": START_TIMEOUT_S,
            "stop_timeout_s": options.drain_timeout_s + EXIT_MARGIN_S + STOP_MARGIN_S,
        },
        triton_config,
        unary_model,
    )


def process(server: str, ports: Mapping[str, int], exit_timeout_s: int) -> dict[str, Any]:
    """Values for the shared part of the start scripts: how Triton is run, watched and stopped."""
    known = fatal_requests(servers.load(server).image["product"])
    ended = "Triton was ended by SIG{}; what is known to do that: {}"
    causes = known.causes() if known else {}
    return {
        "script": f"{server}/serve.sh",
        "exit_timeout_s": exit_timeout_s,
        "kill_after_s": exit_timeout_s + KILL_MARGIN_S,
        "watched_port": f"SERVE_{next(iter(ports)).upper()}_PORT",
        "without_engine_s": WITHOUT_ENGINE_S,
        "fatal_signals": {signal: ended.format(signal, words) for signal, words in causes.items()},
    }


def json_filter(server: str) -> dict[str, File]:
    """The files that a proxy in front of the server needs."""
    source = resource_root("templates") / "_shared" / JSON_FILTER
    return {f"{server}/{JSON_FILTER}": File(source.read_bytes())}


def _environment(context: RenderContext, options: Options) -> dict[str, str]:
    """The variables of the start script, with their defaults. Files are named, never read."""
    name, tls = context.deployment.name, options.grpc_tls
    files = {"SERVE_KEY_FILE": options.key_file or ""} if options.restricted_apis else {}
    if tls:
        files |= {"SERVE_TLS_CERTIFICATE": tls.certificate, "SERVE_TLS_KEY": tls.key}
    if tls and tls.client_ca:
        files["SERVE_TLS_CLIENT_CA"] = tls.client_ca
    return {
        **context.checkpoints,
        "SERVE_HOST": options.host,
        **{f"SERVE_{key.upper()}_PORT": str(port) for key, port in options.ports.items()},
        **files,
        "SERVE_ID": name,
        "SERVE_SHM_PREFIX": name,
    }


def _model_yaml(context: RenderContext, triton_config: Mapping[str, Any]) -> File:
    base = {"model": context.deployment.checkpoint}
    if "backend" not in context.engine.options:
        base["backend"] = "pytorch"
    return option_file(
        f"Model and engine options of {context.deployment.name} for TensorRT-LLM "
        f"{context.release.name}. The engine options are those of trtllm-serve. Triton's own "
        "settings, which config.pbtxt must not hold, stand under triton_config.",
        {"triton_config": triton_config, **base, **with_reasons(context.engine)},
    )


def settings(context: RenderContext, options: Options) -> dict[str, Any]:
    """The model's settings; unknown limits are left out."""
    engine = context.engine.options
    ranks = engine.get("tensor_parallel_size", 1) if engine.get("enable_attention_dp") else 1
    batch = engine.get("max_batch_size", 0) * ranks
    ahead = BATCHES_AHEAD * batch or REQUESTS_OF_AN_UNKNOWN_BATCH
    most = options.max_requests or max(FEWEST_REQUESTS, ahead)
    limits = {
        "max_requests": most,
        "max_unary_http_requests": _without_kept(most),
        "max_unary_http_running": _without_kept(batch),
        **_limits_of_a_request(context, options),
    }
    return {
        "max_batch_size": 0,
        "decoupled": options.decoupled,
        "cancellation_check_period_ms": options.cancellation_check_period_ms,
        "sender_threads": options.sender_threads,
        **{key: value for key, value in limits.items() if value is not None},
        "drain_timeout_s": options.drain_timeout_s,
        "engine_stall_timeout_s": options.engine_stall_timeout_s,
    }


def _without_kept(places: int) -> int | None:
    """The number of slots for requests whose client is not watched."""
    return places - max(1, places // KEPT_PART) if places > 1 else None


def _limits_of_a_request(context: RenderContext, options: Options) -> dict[str, Any]:
    """Limits of one request, from the options or from the plan's longest request.

    `max_seq_len` of the engine bounds its tokens. The time is what the last of the accepted
    requests needs at the slowest planned pace.
    """
    config, slo = context.plan.facts.checkpoint.text_config, context.deployment.slo
    longest = context.engine.options.get("max_seq_len") or config.get("max_position_embeddings")
    most_bytes, most_s = None, None
    if longest:
        itl_s = ((slo and slo.itl_ms) or SLOWEST_ITL_MS) / 1000
        most_bytes = BYTES_PER_TOKEN * longest
        most_s = PROMPTS_S + math.ceil(longest * itl_s) * (BATCHES_AHEAD + 1)
    return {
        "max_prompt_bytes": options.max_prompt_bytes or most_bytes,
        "max_tokens_per_request": options.max_tokens_per_request,
        "max_seconds_per_request": options.max_seconds_per_request or most_s,
    }


def _unary_files(model: Mapping[str, bytes]) -> dict[str, bytes]:
    """The second model: the same inputs and outputs, and one module of the first."""
    return {
        "1/__pycache__": _NO_BYTECODE,
        "1/model.py": model["1/trtllm_model/unary.py"],
        "config.pbtxt": model["config.pbtxt"],
    }


def _model_files(model: str) -> dict[str, bytes]:
    """The hand-written model, byte for byte."""
    root: Path = resource_root("model_repository") / model
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.suffix in (".py", ".pbtxt")
    }
    folders = {PurePosixPath(name).parent for name in files if name.endswith(".py")}
    return {f"{folder}/__pycache__": _NO_BYTECODE for folder in folders} | files
