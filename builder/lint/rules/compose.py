"""Checks Compose services on one host: shared ports, shared GPUs and missing files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic, closest, located
from ...documents import Yaml, value_at
from ...files import is_there
from ..engine import TENSORRT_LLM, formats
from ..model import Server, below, side_of
from ..read.containers import VISIBLE, command_texts, environment, listed, objects, port_of
from ..read.option_file import read_option_file
from . import GPU_SHARED, MISSING_OPTION_FILE, PORT_TAKEN, PORT_UNREACHED
from .files import Mount, lost_path, of_rows
from .sides import different_models, other_side

_DEVICES = "deploy.resources.reservations.devices"
_PUBLISHED = re.compile(r"(?:(?P<host>[\d.]+):)?(?P<port>\d+):\d+(?:/tcp)?")
_NUMBER = re.compile(r"(?<![\w$.-])\d{1,3}(?![\w.-])")  # of a GPU; UUIDs are names too


@dataclass(frozen=True, slots=True)
class Service:
    """A service that starts one server, with its path in the document and its mounts."""

    name: str
    path: str
    data: Mapping[str, Any]
    worker: Server
    mounts: Sequence[Mount]

    @property
    def outside(self) -> str:
        """The path of the option file relative to the Compose file; empty if it is unknown."""
        found = (row.outside(self.worker.file_path) for row in self.mounts)
        return next((path for path in found if path and path.startswith(("./", "../"))), "")


def service_files(services: Sequence[Service], folder: Path) -> dict[str, Mapping[str, Any]]:
    """Reads the option files that servers use from the folder of the Compose file. The keys are the
    last parts of the file names in the container."""
    rows = [(row.worker.file, row.outside) for row in services]
    found = {name: read_option_file(path, folder) for name, path in rows if path}
    return {name: options for name, options in found.items() if options}


def services(document: Yaml, engine: str = TENSORRT_LLM) -> Sequence[Service]:
    """Returns the services of a Compose file that start exactly one server of this engine."""
    found = []
    for data, path, _, servers in objects(document):
        is_service = path.startswith("services.") and path.count(".") == 1
        if not is_service or len(servers) != 1 or servers[0].engine != engine:
            continue
        mounted = [*of_rows(data.get("volumes")), *of_rows(data.get("configs"))]
        found.append(Service(path.removeprefix("services."), path, data, servers[0], mounted))
    return found


def compose_diagnostics(
    document: Yaml,
    rows: Sequence[Service],
    files: Mapping[str, Mapping[str, Any]],
    folder: Path,
) -> Iterator[Diagnostic]:
    """Runs all checks on the services of a Compose file in a folder. `files` holds the options of
    each file that servers read, by the last part of its name."""
    for row in rows:
        if given := row.worker.file_flag:
            made = command_texts(row.data)
            yield from lost_path(row.worker.file_path, given[1], row.path, row.mounts, made)
            yield from _missing_on_disk(row, folder)
    yield from _sides(rows)
    yield from _urls(rows, files)
    together = [row for row in rows if not row.data.get("profiles") and not _is_placed(row)]
    yield from _ports(document, together)
    yield from _gpus(document, together, files)


def _is_placed(row: Service) -> bool:
    """Whether a swarm chooses the host of a service."""
    return value_at(row.data, "deploy.placement") is not None


def _sides(rows: Sequence[Service]) -> Iterator[Diagnostic]:
    """Compares the models and option files of prefill and decode services, found by their names."""
    known = [replace(row.worker, role=side) for row in rows if (side := side_of(row.name))]
    if {row.role for row in known} == {"prefill", "decode"}:
        yield from different_models(known)
        for worker in known:
            yield from other_side(worker)


def _urls(rows: Sequence[Service], files: Mapping[str, Mapping[str, Any]]) -> Iterator[Diagnostic]:
    """Reports URLs in a router's configuration whose port is not the one its server listens on."""
    known = {row.name: row for row in rows if port_of(row.worker)}
    routers = [row.worker for row in rows if row.worker.is_disaggregated]
    for side in ("context_servers", "generation_servers"):
        for url in (url for row in routers for url in listed(_servers(row, side, files))):
            host, _, port = str(url).rpartition(":")
            row = known.get(host)
            own = port_of(row.worker) if row else ""
            if row and port.isdigit() and own.isdigit() and own != port:
                place = (row.worker.flag(("--port",)) or row.worker.words[0])[1]
                what = f"the router asks {host} at {port}, and its server listens at {own}"
                fix = f"give --port {port}, or the router {host}:{own}"
                yield located(place, row.path, what, fix, PORT_UNREACHED, "warning")


def _servers(router: Server, side: str, files: Mapping[str, Mapping[str, Any]]) -> Any:
    return value_at(router.given(files) or {}, f"{side}.urls")


def _missing_on_disk(row: Service, folder: Path) -> Iterator[Diagnostic]:
    """Reports a missing option file if a file with a similar name is in its folder."""
    given = row.worker.file_flag
    file = folder / row.outside
    if not given or not row.outside or is_there(file):
        return
    try:
        there = [each.name for each in file.parent.iterdir()]
    except (OSError, ValueError):
        return  # the folder is created elsewhere
    if file.name not in there and (near := closest(file.name, there)):
        what, fix = f"{row.outside} is not there", f"did you mean {near}?"
        yield located(given[1], row.path, what, fix, MISSING_OPTION_FILE)


def _ports(document: Yaml, rows: Collection[Service]) -> Iterator[Diagnostic]:
    """Reports host ports that two services publish, or on which two servers listen."""
    owners: dict[str, str] = {}
    for row in rows:
        for port, path in _published(row):
            if (owner := owners.setdefault(port, row.name)) != row.name:
                what = f"{owner} also uses port {port} of the host"
                fix = "publish another one, as HOST:CONTAINER"
                yield located(document.locate(path), path, what, fix, PORT_TAKEN)


def _published(row: Service) -> Iterator[tuple[str, str]]:
    """The host ports that a service uses, each with its path."""
    if row.data.get("network_mode") == "host":
        given, port = row.worker.flag(("--port",)), port_of(row.worker)
        if port.isdigit():
            yield port, below(row.path, "command" if given else "network_mode")
        return
    for index, port in enumerate(listed(row.data.get("ports"))):
        found = _PUBLISHED.fullmatch(str(port))
        number = found["port"] if found else value_at(port, "published")
        is_any_host = not (found["host"] if found else value_at(port, "host_ip"))
        if number and is_any_host and str(number).isdigit():
            yield str(number), below(row.path, f"ports.{index}")


def _gpus(
    document: Yaml, rows: Collection[Service], files: Mapping[str, Mapping[str, Any]]
) -> Iterator[Diagnostic]:
    """Reports GPUs that two services share. A plain GPU count means the first GPUs of the host:
    Docker does not track which container uses them (moby, daemon/nvidia_linux.go)."""
    owners: dict[str, Service] = {}
    for row in rows:
        devices, path = _devices(row)
        for device in devices:
            owner = owners.setdefault(device, row)
            if owner is row:
                continue
            if _fraction(owner, files) + _fraction(row, files) <= 1:
                continue
            what = f"GPU {device} is also used by {owner.name}, and each server takes most of a GPU"
            fix = "give each service its own device_ids, or both a small KV cache fraction"
            yield located(document.locate(path), path, what, fix, GPU_SHARED, "warning")
            break


def _devices(row: Service) -> tuple[list[str], str]:
    """The GPU numbers of a service after its visibility variables are applied, and their path."""
    chosen = {name: (text, path) for name, text, path in environment(row.data) if name in VISIBLE}
    if any(VISIBLE[0] in text for text in command_texts(row.data)):
        return [], ""  # the command sets the variable itself
    found, where = _reserved(row)
    if every := chosen.get(VISIBLE[1]):
        found, where = _NUMBER.findall(every[0]), below(row.path, every[1])
    if part := chosen.get(VISIBLE[0]):
        indices = [int(each) for each in _NUMBER.findall(part[0])]
        found = [found[index] for index in indices if index < len(found)]
        where = below(row.path, part[1])
    return found, where


def _reserved(row: Service) -> tuple[list[str], str]:
    """The GPU numbers that a service reserves, and their path."""
    for index, device in enumerate(listed(value_at(row.data, _DEVICES))):
        where = below(row.path, f"{_DEVICES}.{index}")
        ids, count = value_at(device, "device_ids"), value_at(device, "count")
        if isinstance(ids, list):
            return [str(each) for each in ids], below(where, "device_ids")
        if isinstance(count, int):
            return [str(each) for each in range(min(count, 64))], below(where, "count")
    return [], ""


def _fraction(row: Service, files: Mapping[str, Mapping[str, Any]]) -> float:
    """The fraction of a GPU's free memory that a server uses for its KV cache."""
    known = formats(row.worker.engine)
    flag = row.worker.flag(known.memory_flags)
    given = flag[0] if flag else value_at(row.worker.given(files) or {}, known.memory_option)
    try:
        return float(str(given))
    except ValueError:
        return 0.9
