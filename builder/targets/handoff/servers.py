"""The servers of a deployment as those see them who run them: addresses, limits, shell settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...facts.servers import Server
from ...servers import PORT_STEP, BundleContext, RenderedServer

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# A server beside this one, on the same machine, listens this far away: beyond all instances.
CANARY_STEP = 200
HIGHEST_PORT = 65_535
# What only a client has.
CLIENTS_OWN = {
    "TLS_CA": "who signed the certificate of the server",
    "TLS_CERTIFICATE": "your certificate as a client",
    "TLS_KEY": "the key of your certificate",
}


@dataclass(frozen=True, slots=True)
class RunbookServer:
    """One server as its operators see it.

    `exports` tells whether the engine's options let it show metrics.
    """

    rendered: RenderedServer
    instances: int
    exports: bool

    @property
    def record(self) -> Server:
        return self.rendered.record

    @property
    def entry(self) -> Mapping[str, Any]:
        """Its entry in `launch.json`."""
        return self.rendered.entry

    @property
    def ports(self) -> Mapping[str, int]:
        return self.rendered.ports

    @property
    def tls(self) -> Any:
        """What encrypts gRPC, if anything does."""
        return getattr(self.rendered.options, "grpc_tls", None)

    @property
    def at(self) -> str:
        """The address to ask on the server's own machine."""
        host = ANY_ADDRESS.get(self.entry["host"], self.entry["host"])
        return f"[{host}]" if ":" in host else host

    @property
    def url(self) -> str:
        """As `launch` takes it, with the ports as variables."""
        shown = {name: f"$SERVE_{name.upper()}_PORT" for name in self.ports}
        return self.record.url(self.at, shown, self.entry.get("model_name"))

    @property
    def metrics(self) -> str:
        """A command that prints its metrics, or why there are none."""
        protocol = self.record.metrics.protocol
        if protocol not in self.ports:
            return f'echo "# none: targets.{self.record.name}.{protocol} is off"'
        if not self.exports:
            return f'echo "# none: engine_config.{self.record.metrics.needs} is off"'
        port = f"$SERVE_{protocol.upper()}_PORT"
        url = f"http://{self.at}:{port}{self.record.paths.metrics}"
        return f'curl --silent --show-error --fail --max-time 10 \\\n    "{url}"'

    @property
    def ready(self) -> str:
        """A command that succeeds as soon as the server is ready."""
        path = self.entry["ready"].get("path")
        if path is None:
            return f'grep --quiet "{self.record.ready_log}" "$RUN/server.log"'
        url = f"http://{self.at}:$SERVE_HTTP_PORT{path}"
        return f'curl --silent --show-error --fail --max-time 5 --output /dev/null \\\n    "{url}"'

    @property
    def access(self) -> list[str]:
        """What a client of it shows, as options of `launch`: files of the client's own."""
        return [word for option, name in self._shown.items() for word in (option, f'"${name}"')]

    @property
    def needs(self) -> dict[str, str]:
        """Variables that only the client can set, and what each of them names."""
        return {name: CLIENTS_OWN[name] for name in self._shown.values() if name in CLIENTS_OWN}

    @property
    def _shown(self) -> dict[str, str]:
        found = {}
        if self.entry["environment"].get("SERVE_KEY_FILE"):
            found["--key-file"] = "SERVE_KEY_FILE"
        if self.tls:
            found["--tls-ca"] = "TLS_CA"
        if self.tls and self.tls.client_ca:
            found |= {"--tls-certificate": "TLS_CERTIFICATE", "--tls-key": "TLS_KEY"}
        return found


def of(context: BundleContext) -> tuple[RunbookServer, ...]:
    """The servers of a deployment, in its order."""
    return tuple(
        RunbookServer(
            server,
            context.deployment.instances,
            server.record.metrics.needs is None
            or bool(context.engine.options.get(server.record.metrics.needs)),
        )
        for server in context.servers.values()
    )


def settings(server: RunbookServer) -> str:
    """What a shell has to know of a server: its checkpoint, where it listens, how it is asked.

    `use` takes a bundle, and how far its ports are from the planned ones.
    """
    return "\n".join(_settings(server)) + "\n"


def _settings(server: RunbookServer) -> Iterator[str]:
    environment = server.entry["environment"]
    yield f"export SERVER={server.record.name}"
    for name in ("CHECKPOINT", "DRAFT_CHECKPOINT", "SERVE_KEY_FILE"):
        if value := environment.get(name):
            yield f"export {name}={shlex.quote(value)}"
    for name, what in server.needs.items():
        yield f': "${{{name}:?is not set; name the file of {what}}}"'
    if server.instances > 1:
        yield f"export INSTANCE=0  # of 0 to {server.instances - 1}; all that follows, for each"
    yield "use() {"
    yield from (f"  {line}" for line in _use(server))
    yield "}"
    for name, command in (("ready", server.ready), ("metrics", server.metrics)):
        yield f"{name}() {{"
        yield f"  {command}"
        yield "}"
    yield f"access=({' '.join(server.access)})"
    yield 'use "$BUNDLE" 0'


def _use(server: RunbookServer) -> Iterator[str]:
    several = server.instances > 1
    yield 'export BUNDLE="$1" RUN="$1-run' + ("-$INSTANCE" if several else "") + '"'
    for name, port in server.ports.items():
        instance = f" + {PORT_STEP} * INSTANCE" if several else ""
        yield f"export SERVE_{name.upper()}_PORT=$(({port} + $2{instance}))"
    yield f'export URL="{server.url}"'


def canary_step(servers: Sequence[RunbookServer]) -> int:
    """How far from its ports a second server listens on the same machine."""
    highest = max((port for server in servers for port in server.ports.values()), default=0)
    return CANARY_STEP if highest + CANARY_STEP <= HIGHEST_PORT else -CANARY_STEP
