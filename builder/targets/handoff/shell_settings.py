"""Shell variables and functions that the runbook's commands use."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from ...servers import PORT_STEP, RenderContext, RenderedServer

# Offset of the ports of a second server on the same machine, beyond those of all instances.
CANARY_STEP = 200
MAX_PORT = 65_535
# Files that only a client has, by the variables that name them.
CLIENT_FILES = {
    "TLS_CA": "who signed the certificate of the server",
    "TLS_CERTIFICATE": "your certificate as a client",
    "TLS_KEY": "the key of your certificate",
}


def settings(context: RenderContext, server: RenderedServer) -> str:
    """The checkpoint of a server, where it listens and how it is reached.

    `use` takes a bundle, and how far its ports are from the planned ones.
    """
    return "\n".join(_settings(context, server)) + "\n"


def canary_step(context: RenderContext) -> int:
    """How far from its ports a second server listens on the same machine."""
    highest = 0
    for server in context.servers.values():
        highest = max((highest, *server.ports.values()))
    return CANARY_STEP if highest + CANARY_STEP <= MAX_PORT else -CANARY_STEP


def _settings(context: RenderContext, server: RenderedServer) -> Iterator[str]:
    access, instances = _access(server), context.deployment.instances
    yield f"export SERVER={server.record.name}"
    for name in ("CHECKPOINT", "DRAFT_CHECKPOINT", "SERVE_KEY_FILE"):
        if value := server.environment.get(name):
            yield f"export {name}={shlex.quote(value)}"
    for name in access.values():
        if what := CLIENT_FILES.get(name):
            yield f'export {name}="${{{name}:?is not set; name the file of {what}}}"'
    if server.has_key and "inference" in server.entry.get("restricted_apis", ()):
        yield 'API_KEY=$(head -n 1 "$SERVE_KEY_FILE") && export API_KEY'
    if instances > 1:
        yield f"export INSTANCE=0  # of 0 to {instances - 1}; all that follows, for each"
    yield "use() {"
    yield from (f"  {line}" for line in _use(server, instances))
    yield "}"
    for name, command in (("ready", _ready(server)), ("metrics", _metrics(context, server))):
        yield f"{name}() {{"
        yield f"  {command}"
        yield "}"
    words = [f'{option} "${name}"' for option, name in access.items()]
    yield f"access=({' '.join(words)})"
    yield 'use "$BUNDLE" 0'


def _use(server: RenderedServer, instances: int) -> Iterator[str]:
    several = instances > 1
    yield 'export BUNDLE="$1" RUN="$1-run' + ("-$INSTANCE" if several else "") + '"'
    for name, port in server.ports.items():
        instance = f" + {PORT_STEP} * INSTANCE" if several else ""
        yield f"export SERVE_{name.upper()}_PORT=$(({port} + $2{instance}))"
    ports = {name: f"$SERVE_{name.upper()}_PORT" for name in server.ports}
    url = server.record.url(_address(server), ports, server.entry.get("model_name"))
    yield f'export URL="{url}"'
    for name, scheme in {"http": "http://", "grpc": ""}.items():
        if name in ports:
            yield f'export {name.upper()}_URL="{scheme}{_address(server)}:{ports[name]}"'


def _ready(server: RenderedServer) -> str:
    """A command that succeeds as soon as the server is ready."""
    path = server.entry["ready"].get("path")
    if path is None:
        return f'grep --quiet "{server.record.ready_log}" "$RUN/server.log"'
    url = f"http://{_address(server)}:$SERVE_HTTP_PORT{path}"
    return f'curl --silent --show-error --fail --max-time 5 --output /dev/null \\\n    "{url}"'


def _metrics(context: RenderContext, server: RenderedServer) -> str:
    """A command that prints the server's metrics, or the reason why it has no metrics."""
    record = server.record
    if record.metrics.protocol not in server.ports:
        return f'echo "# none: targets.{record.name}.{record.metrics.protocol} is off"'
    if not context.exports_metrics(server):
        return f'echo "# none: engine_config.{record.metrics.needs} is off"'
    port = f"$SERVE_{record.metrics.protocol.upper()}_PORT"
    url = f"http://{_address(server)}:{port}{record.paths['metrics']}"
    return f'curl --silent --show-error --fail --max-time 10 \\\n    "{url}"'


def _access(server: RenderedServer) -> Mapping[str, str]:
    """The files that a client shows, by options of `launch`, as the variables that name them."""
    found = {}
    if server.has_key:
        found["--key-file"] = "SERVE_KEY_FILE"
    if server.tls:
        found["--tls-ca"] = "TLS_CA"
    if server.tls and server.tls.client_ca:
        found |= {"--tls-certificate": "TLS_CERTIFICATE", "--tls-key": "TLS_KEY"}
    return found


def _address(server: RenderedServer) -> str:
    """The address to use on the server's own machine, as URLs have it."""
    host = server.local_host
    return f"[{host}]" if ":" in host else host
