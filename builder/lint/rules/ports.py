"""Checks the ports that servers listen on against ports that are opened, published or probed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from ...diagnostics import Diagnostic, Location, located, nearest
from ...documents import Variable, Yaml, value_at
from ...facts.release import Release
from ...general_rules import Rule
from ...rules.rule_inputs import as_number
from ..engine import MPI_STARTERS, formats, is_server
from ..model import OptionsBlock, Server, Statement, Word, below, is_open
from ..read.containers import (
    Around,
    beside,
    listed,
    may_open,
    named_rows,
    number_of,
    objects,
    port_of,
)
from . import FLAG_VALUE

PORT_UNREACHED = Rule(
    "port-unreached", "A port is opened, published or asked at which no server listens.", "warning"
)
PORT_TAKEN = Rule("port-taken", "Two servers want the same port of one machine.")
GPU_SHARED = Rule(
    "gpu-shared", "Two servers use the same GPU, and each takes most of its memory.", "warning"
)

PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
_WAYS = ("httpGet", "tcpSocket", "grpc")  # probes that connect from outside


def container_port_diagnostics(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Reports container ports on which the server does not listen."""
    for document in documents:
        for data, path, around, servers in objects(document):
            if (
                len(servers) != 1
                or servers[0].formats.dialect != "click"
                or not port_of(servers[0])
            ):
                continue
            if not (_ports(data) or _is_asked(data)):
                continue
            own = {port_of(servers[0]): "--port"}
            yield from opened_port_diagnostics(document, data, path, own, around)
            yield from _host_diagnostics(document, data, path, servers[0], around)


def _is_asked(data: Mapping[str, Any]) -> bool:
    """Whether a probe reaches a container from outside, not by a command inside it."""
    return any(value_at(data, f"{probe}.{way}") for probe, way in product(PROBES, _WAYS))


def _host_diagnostics(
    document: Yaml, data: Mapping[str, Any], path: str, server: Server, around: Around
) -> Iterator[Diagnostic]:
    """Reports a server that listens only inside its container although its ports are used."""
    words = [word for word, _ in server.texts]
    if any(is_open(word) for word in words) or not any(map(is_server, words)):
        return
    shares = str(data.get("network_mode", "")).startswith(("host", "service:", "container:"))
    if shares or around.pod.get("hostNetwork") is True:
        return
    if not _is_asked(data) and next(beside(around.pod, data), None):
        return  # another container of the pod may forward requests
    flag = server.flag(("--host",))
    host = flag[0].strip("\"'") if flag else server.formats.default_host
    if host in (server.formats.default_host, "127.0.0.1"):
        place = flag[1] if flag else server.place
        what = f"the server listens at {host} of its container, where nothing outside reaches it"
        yield located(place, path, what, "give --host 0.0.0.0", PORT_UNREACHED)


def opened_port_diagnostics(
    document: Yaml, data: Mapping[str, Any], path: str, own: Mapping[str, str], around: Around
) -> Iterator[Diagnostic]:
    """Checks the ports that a container opens and probes against its `own`, those of its server,
    each with its flag. The container starts exactly one server."""
    ports = _ports(data)
    if not own or not all(port.isdigit() for port in own):
        return
    port, flag = next(iter(own.items()))
    told = ", ".join(own)
    if found := _unreached(ports, own):
        extra, missing = found
        where = below(path, ports[extra[0]])
        what = f"the server listens at {told}, and {', '.join(extra)} is opened"
        fix = f"open {missing}, or give {own[missing]} {extra[0]}"
        yield located(document.locate(where), where, what, fix, PORT_UNREACHED)
    names = named_rows(data.get("ports")).keys() - {"None"}
    for probe, way in product(PROBES, ("httpGet", "tcpSocket")):
        inner = f"{probe}.{way}.port"
        asked = str(value_at(data, inner) or "")
        number, where = number_of(data, asked), below(path, inner)
        if number.isdigit() and number not in own and not may_open(around.pod, data, number):
            what = f"asks at {asked}, and the server listens at {told}"
            fix = f"give {port}, or {flag} {number}"
            yield located(document.locate(where), where, what, fix, PORT_UNREACHED)
        elif asked not in names and _PORT_NAME.fullmatch(asked):
            what = f"no port of the container is called {asked}, so the probe fails"
            fix = nearest(asked, names) if names else f"name the port, or give {port}"
            yield located(document.locate(where), where, what, fix, PORT_UNREACHED)


def _unreached(opened: Iterable[str], own: Mapping[str, str]) -> tuple[list[str], str] | None:
    """The opened ports at which no server listens, and one that is not opened in their place."""
    extra = [port for port in opened if port not in own]
    missing = [port for port in own if port not in opened]
    return (extra, missing[0]) if extra and missing else None


def _ports(data: Mapping[str, Any]) -> dict[str, str]:
    """The ports that a container opens, each with its path; empty if any is not a number."""
    ports: dict[str, str] = {}
    rows = data.get("ports")
    for index, row in enumerate(listed(rows)):
        key = next((key for key in ("containerPort", "target") if value_at(row, key)), None)
        text = str(value_at(row, key) if key else row).rpartition(":")[2].removesuffix("/tcp")
        if not text.isdigit():
            return {}
        ports[text] = f"ports.{index}.{key}" if key else f"ports.{index}"
    return ports


_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_PUBLISHED = re.compile(r"(?:[\d.]+:)?(?:\d+:)?(\d+)(?:/tcp)?")
# Commands that end or wait for a server before the next one starts.
_ENDS = frozenset(("kill", "pkill", "killall", "wait", "stop", "trap", "fuser"))
_ELSEWHERE = frozenset(("docker", "podman", "srun", "ssh", *MPI_STARTERS))
_VISIBLE_NAME = "CUDA_VISIBLE_DEVICES"
_VISIBLE = re.compile(rf"{_VISIBLE_NAME}=(\d+(?:,\d+)*)")
_SHARING = ("fraction", "utilization", "--config", "--extra")  # a file may also set it
_LAST_PORT = 65535
_ALL_HOSTS = "0.0.0.0"
_SAME_HOST = {
    **dict.fromkeys(("", "None", "::", "[::]", "*"), _ALL_HOSTS),
    **dict.fromkeys(("127.0.0.1", "::1", "[::1]"), "localhost"),
}


@dataclass(frozen=True, slots=True)
class Launch:
    """A server command of a script. `statements` contain the server, outermost first; `before` are
    the words before it. The server listens on `host` and `port`; `own_port` is the port from its
    flags. `share` is the fraction of a GPU's memory that it uses, if known."""

    statements: tuple[Statement, ...]
    before: Sequence[Word]
    start: Location | None
    port: str
    host: str
    own_port: str = ""
    option_file: Word | None = None
    model: Word | None = None
    share: float | None = None

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs that the command's line reserves for the server."""
        found: frozenset[str] = frozenset()
        for word in reversed(self.statements[0].words):
            if self.share is None and any(part in word.text for part in _SHARING):
                return frozenset()
            if row := _VISIBLE.fullmatch(word.text):
                found = frozenset(row[1].split(","))
        return found

    def clashes(self, other: Launch) -> bool:
        """Whether both servers need the same port of one address; 0.0.0.0 is every address."""
        ours, theirs = (_SAME_HOST.get(row.host, row.host) for row in (self, other))
        return (
            self.port.isdigit()
            and self.port == other.port
            and (ours == theirs or _ALL_HOSTS in (ours, theirs))
        )


def launches(
    commands: Sequence[OptionsBlock], release: Release, files: Mapping[str, Mapping[str, Any]]
) -> Iterator[Launch]:
    """Yields the servers that the statements of a script start. `files` are the options of each
    option file, by the last part of its name."""
    memory = formats(release.engine.name).memory_option
    for row in commands:
        line = row.command
        if line is None or not line.statements:
            continue
        name = row.option_file.text.rpartition("/")[2] if row.option_file else ""
        share = row.options.get(memory, value_at(files.get(name), memory))
        yield Launch(
            line.statements,
            line.before,
            line.start or line.statements[0].words[0].location,
            value_of(row, "port", release),
            str(row.options.get("host") or value_of(row, "host", release)),
            str(row.options.get("port", "")),
            row.option_file,
            row.model or next(iter(row.arguments), None),
            as_number(share),
        )


def value_of(block: OptionsBlock, name: str, release: Release) -> str:
    """The value of a server's option or its default; empty if neither is known."""
    value = block.options.get(name)
    if value is None and not (block.is_open or block.is_extended):
        has_file = release.engine.option_file_flag in block.options
        option = release.server_options.get(name)
        if option and not has_file:  # the file may set it too
            value = option["default"]
        elif not option:
            value = next((row.default for row in release.serve_flags if row.name == name), None)
    return "" if value is None or isinstance(value, Variable) else str(value)


def published_port_diagnostics(
    words: Sequence[Word], own: Mapping[str, str], host: str
) -> Iterator[Diagnostic]:
    """Checks the ports that a container publishes against its `own`, those of its server, each with
    its flag. `words` are the words before the server."""
    texts = [word.text for word in words]
    if not {"docker", "podman"} & {text.rpartition("/")[2] for text in texts}:
        return
    values, ports = [], []
    for word, following in pairwise(words):
        if word.text in ("-p", "--publish") and following.certain:
            values.append(following)
            if found := _PUBLISHED.fullmatch(following.text):
                ports.append(found[1])
    if not ports or len(ports) != len(values):
        return
    if all(port.isdigit() for port in own) and (left := _unreached(ports, own)):
        extra, missing = left
        what = f"{', '.join(extra)} of the container is published, and the server listens at "
        what += ", ".join(own)
        fix = f"publish {missing}, or give {own[missing]} {extra[0]}"
        yield located(values[0].location, "--publish", what, fix, PORT_UNREACHED)
    if host in ("localhost", "127.0.0.1"):
        what = f"the server listens at {host} of the container: published ports do not reach it"
        fix = "give --host 0.0.0.0"
        yield located(values[0].location, "--publish", what, fix, PORT_UNREACHED)


def port_number_diagnostics(port: str, place: Location, path: str) -> Iterator[Diagnostic]:
    """Reports a number that is too large for a port."""
    if port.isdigit() and int(port[:9]) > _LAST_PORT:
        what, fix = f"{port} is not a port", f"give one up to {_LAST_PORT}"
        yield located(place, path, what, fix, FLAG_VALUE)


def shared_port_diagnostics(
    rows: Sequence[Statement], servers: Sequence[Launch]
) -> Iterator[Diagnostic]:
    """Reports servers that run on one machine at the same time and need the same port."""
    by_location: dict[Location, list[Launch]] = {}
    for each in servers:
        by_location.setdefault(each.statements[0].words[0].location, []).append(each)
    running: list[Launch] = []
    for row in rows:
        words = {word.text for word in row.words}
        if not _ENDS.isdisjoint(" ".join(words).split()):  # also for `ssh HOST "pkill ..."`
            running.clear()
        own = by_location.get(row.words[0].location, ())
        if not own or not _ELSEWHERE.isdisjoint(word.rpartition("/")[2] for word in words):
            continue
        pairs = product(own, running)
        server, holder = next((pair for pair in pairs if pair[0].clashes(pair[1])), (own[0], None))
        if holder and server.start:
            line = holder.start.line if holder.start else 0
            what = f"wants port {server.port}, which the server of line {line} uses"
            yield located(server.start, "--port", what, "give it another port", PORT_TAKEN)
        elif row.end == "&":
            yield from _shared_gpu_diagnostics(server, running)
            running += own


def _shared_gpu_diagnostics(server: Launch, running: Sequence[Launch]) -> Iterator[Diagnostic]:
    """Reports a server on the GPU of another server, unless both limit their share of it."""
    for other in running:
        if (server.share or 1) + (other.share or 1) <= 1:
            continue
        if (both := server.gpus & other.gpus) and server.start and other.start:
            what = f"GPU {min(both)} is also used by the server of line {other.start.line}"
            what, fix = f"{what}, and each takes most of a GPU", "give each its own GPUs"
            yield located(server.start, _VISIBLE_NAME, what, fix, GPU_SHARED)
            return
