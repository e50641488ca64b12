"""A target of a bundle: the server that it starts, its addresses, ports and credentials."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builder import bundle as bundles
from builder.bundle import STARTERS, Bundle
from builder.diagnostics import Diagnostic, nearest
from builder.errors import BadInput, DamagedBundle, NotReady
from builder.facts import model_names, servers
from builder.facts import release as releases
from builder.files import is_folder, reason
from supervisor.ports import free_ports, listen

from . import access
from .access import Access, ClientFiles

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# Variables that name checkpoints: that of the model, and of a draft if it has one.
CHECKPOINTS = ("CHECKPOINT", "DRAFT_CHECKPOINT")
# Variables that name files of this machine.
FILES = ("SERVE_KEY_FILE", "SERVE_TLS_CERTIFICATE", "SERVE_TLS_KEY", "SERVE_TLS_CLIENT_CA")
# What a server without a word on it may take to stop: running requests, and a little more.
STOP_TIMEOUT_S = 330.0


@dataclass(frozen=True, slots=True)
class Target:
    """An entry of `launch.json`. `environment` holds what the target's script reads."""

    name: str
    folder: Path
    argv: tuple[str, ...]
    ports: Mapping[str, int]
    environment: Mapping[str, str]
    ready_port: str
    ready_path: str | None
    start_timeout_s: float
    stop_timeout_s: float
    model_name: str | None
    restricted_apis: tuple[str, ...]
    release: str
    engine: str
    nodes: int = 1
    client_files: ClientFiles = field(default_factory=ClientFiles)
    server_name: str | None = None

    @property
    def host(self) -> str:
        """The address to ask: a server on all addresses is asked on this machine's own."""
        host = self.environment["SERVE_HOST"]
        return ANY_ADDRESS.get(host, host)

    @property
    def command(self) -> list[str]:
        """`argv` for any working folder: names of the bundle's files are made absolute."""
        files = [self.folder / word for word in self.argv]
        return [
            str(file) if file.is_file() else word
            for file, word in zip(files, self.argv, strict=True)
        ]

    @property
    def checkpoints(self) -> dict[str, str]:
        return {name: self.environment[name] for name in CHECKPOINTS if name in self.environment}

    @property
    def urls(self) -> dict[str, str]:
        host = f"[{self.host}]" if ":" in self.host else self.host
        addresses = {name: f"{host}:{port}" for name, port in self.ports.items()}
        paths = {"http": "", "metrics": self.server.paths["metrics"]}
        return {
            name: f"http://{address}{paths[name]}" if name in paths else address
            for name, address in addresses.items()
        }

    @property
    def server(self) -> servers.Server:
        return servers.load(self.name)

    def access(self) -> Access:
        """What a client has to show. Raises `BadInput` for a file that cannot be read."""
        return access.read(self.environment, self.client_files, self.server_name)

    def as_set_in(self, environment: Mapping[str, str]) -> Target:
        """The target with the address, ports and files that variables of an environment name.

        They mean what they mean to the target's script alone. Raises `BadInput` for a port that is
        none.
        """
        ports = {name: f"SERVE_{name.upper()}_PORT" for name in self.ports}
        names = {"SERVE_HOST", *FILES, *ports.values()} & {*self.environment}
        named = {name: environment[name] for name in names if environment.get(name)}
        numbers = {
            name: _port(variable, named[variable])
            for name, variable in ports.items()
            if variable in named
        }
        return replace(self, ports={**self.ports, **numbers}).with_environment(**named)

    def on_checkpoints_of(self, environment: Mapping[str, str]) -> Target:
        """The target on the checkpoints that variables of an environment name, where it has them.

        Raises `BadInput` for every path that is no folder.
        """
        named = named_checkpoints(environment)
        return self.with_environment(
            **{name: value for name, value in named.items() if name in self.environment}
        )

    def with_environment(self, **changes: str) -> Target:
        return replace(self, environment={**self.environment, **changes})

    def on_free_ports(self) -> Target:
        """The same target on ports of this machine that nothing listens on."""
        numbers = dict(zip(self.ports, free_ports(len(self.ports), self.host), strict=True))
        variables = {f"SERVE_{name.upper()}_PORT": str(port) for name, port in numbers.items()}
        return replace(self, ports=numbers, environment={**self.environment, **variables})

    def check_nodes(self) -> None:
        """Raises `BadInput` for a server of several nodes, whose script starts one rank of it."""
        if self.nodes > 1:
            found = [one for one in STARTERS.values() if (self.folder / one.path).exists()]
            ways = [one.remedy for one in found]
            remedy = "; or ".join(ways) or "render it for slurm or kubernetes, which start several"
            raise BadInput(
                Diagnostic(f"target {self.name}", f"needs {self.nodes} nodes, this is one", remedy)
            )

    def check_ports(self) -> None:
        """Raises `NotReady` naming every port that is taken."""
        diagnostics = []
        for name, port in self.ports.items():
            try:
                listen(self.host, port).close()
            except OSError as error:
                remedy = f"stop what listens there, or set SERVE_{name.upper()}_PORT to another"
                where = f"{self.name}: {name} port {port}"
                what = f"cannot be used on {self.host}: {reason(error)}"
                diagnostics.append(Diagnostic(where, what, remedy))
        if diagnostics:
            raise NotReady(diagnostics)


def named_checkpoints(environment: Mapping[str, str]) -> dict[str, str]:
    """The checkpoints that variables of an environment name, folders by their whole paths.

    Raises `BadInput` for every path that is no folder.
    """
    named = {name: environment[name] for name in CHECKPOINTS if environment.get(name)}
    missing = []
    for name, value in named.items():
        if is_folder(folder := Path(os.path.expanduser(value))):  # noqa: PTH111, as of no user
            named[name] = str(folder.resolve())
        elif model_names.is_path(value):
            row = model_names.no_folder(value)
            missing.append(Diagnostic(name, f"{row.where}: {row.message}", row.fix))
    if missing:
        raise BadInput(missing)
    return named


def _port(variable: str, text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0
    if not 0 < number < 65536:
        raise BadInput(Diagnostic(variable, f"{text!r} is not a port", "write 1 to 65535"))
    return number


def read(bundle: Bundle, name: str) -> Target:
    """Raises `BadInput` if the bundle has no such target."""
    entries: Mapping[str, Any] = bundle.launch["targets"]
    if name not in entries:
        raise BadInput(Diagnostic(f"target {name}", "is not in the bundle", nearest(name, entries)))
    if name not in servers.names():
        what = f"{bundles.LAUNCH} names the target {name}, which is not a server"
        raise DamagedBundle(Diagnostic(str(bundle.folder), what, "render again"))
    entry = entries[name]
    return Target(
        name=name,
        folder=bundle.folder,
        argv=tuple(entry["argv"]),
        ports=dict(entry["ports"]),
        environment={"SERVE_HOST": entry["host"], **entry["environment"]},
        ready_port=entry["ready"]["port"],
        ready_path=entry["ready"].get("path"),
        start_timeout_s=entry["start_timeout_s"],
        stop_timeout_s=entry.get("stop_timeout_s", STOP_TIMEOUT_S),
        model_name=entry.get("model_name"),
        restricted_apis=tuple(entry.get("restricted_apis", ())),
        release=releases.resolve(bundle.launch["engine"]["release"], bundle.folder),
        engine=bundle.launch["engine"]["name"],
        nodes=entry.get("nodes", 1),
    )


def read_all(bundle: Bundle, wanted: Sequence[str]) -> list[Target]:
    """The wanted targets, or all of them. Raises `BadInput` if the bundle lacks one."""
    return [read(bundle, name) for name in dict.fromkeys(wanted or bundle.launch["targets"])]


def read_one(bundle: Bundle, wanted: str | None) -> Target:
    """The wanted target, or the only one. Raises `BadInput` if that leaves a choice."""
    known = list(bundle.launch["targets"])
    if wanted is None and len(known) > 1:
        what = f"is needed: the bundle has {len(known)} targets"
        raise BadInput(Diagnostic("--target", what, f"choose one of {', '.join(known)}"))
    return read(bundle, wanted or known[0])
