"""Services of a Compose file on one host: ports and GPUs that two of them take, and files that a
service does not see."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, closest, located
from ..documents import Yaml, value_at
from . import mounts
from .containers import listed, objects, port_of, started
from .mounts import Mount
from .section import below
from .workers import Worker

_DEVICES = "deploy.resources.reservations.devices"
_PUBLISHED = re.compile(r"(?:(?P<host>[\d.]+):)?(?P<port>\d+):\d+(?:/tcp)?")
_FRACTION = "kv_cache_config.free_gpu_memory_fraction"


@dataclass(frozen=True, slots=True)
class _Service:
    """A service that starts one server, where it stands, and which files it reads."""

    name: str
    path: str
    data: Mapping[str, Any]
    worker: Worker


def diagnostics(
    document: Yaml, files: Mapping[str, Mapping[str, Any]], folder: Path
) -> Iterator[Diagnostic]:
    """All of that, of a file in a folder. `files` are the options of each file that servers read,
    by the last part of its name."""
    rows = [
        _Service(path.removeprefix("services."), path, data, servers[0])
        for data, path, around in objects(document)
        if path.startswith("services.") and path.count(".") == 1
        if len(servers := list(started(document, data, path, around))) == 1
    ]
    for row in rows:
        given = row.worker.file_flag
        mounted = mounts.of_rows(row.data.get("volumes")) + mounts.of_rows(row.data.get("configs"))
        if given:
            yield from mounts.lost(row.worker.file_path, given[1], row.path, mounted)
            yield from _missing(row, mounted, folder)
    together = [row for row in rows if not row.data.get("profiles")]
    yield from _ports(document, together)
    yield from _gpus(document, together, files)


def _missing(row: _Service, mounted: Sequence[Mount], folder: Path) -> Iterator[Diagnostic]:
    """An option file that is not in the folder beside the file that is mounted, where one of almost
    the same name is."""
    given = row.worker.file_flag
    outside = next((path for mount in mounted if (path := mount.outside(row.worker.file_path))), "")
    file = folder / outside
    if not given or not outside.startswith(("./", "../")) or file.exists():
        return
    try:
        there = [each.name for each in file.parent.iterdir()]
    except OSError:
        return  # made elsewhere
    if near := closest(file.name, there):
        what, fix = f"{outside} is not there", f"did you mean {near}?"
        yield located(given[1], row.path, what, fix, "missing-option-file")


def _ports(document: Yaml, rows: Collection[_Service]) -> Iterator[Diagnostic]:
    """Ports of the host that two services publish, or at which two of its servers listen."""
    owners: dict[str, str] = {}
    for row in rows:
        for port, path in _published(row):
            if (owner := owners.setdefault(port, row.name)) != row.name:
                what = f"{owner} has port {port} of the host as well"
                fix = "publish another one, as HOST:CONTAINER"
                yield located(document.locate(path), path, what, fix, "port-taken")


def _published(row: _Service) -> Iterator[tuple[str, str]]:
    """The ports that a service takes of its host, each with its path."""
    if row.data.get("network_mode") == "host":
        given = row.worker.flag(("--port",))
        yield port_of(row.worker), below(row.path, "command" if given else "network_mode")
        return
    for index, port in enumerate(listed(row.data.get("ports"))):
        found = _PUBLISHED.fullmatch(str(port))
        number = found["port"] if found else value_at(port, "published")
        is_any_host = not (found["host"] if found else value_at(port, "host_ip"))
        if number and is_any_host and str(number).isdigit():
            yield str(number), below(row.path, f"ports.{index}")


def _gpus(
    document: Yaml, rows: Collection[_Service], files: Mapping[str, Mapping[str, Any]]
) -> Iterator[Diagnostic]:
    """GPUs that two servers have. A number of GPUs is the first ones of the host: docker keeps no
    account of who has them (moby, daemon/nvidia_linux.go)."""
    owners: dict[str, _Service] = {}
    for row in rows:
        devices, path = _devices(row)
        for device in devices:
            owner = owners.setdefault(device, row)
            if owner is row:
                continue
            if _fraction(owner, files) + _fraction(row, files) <= 1:
                continue
            what = f"GPU {device} is that of {owner.name} too, and each server takes most of one"
            fix = "give each service device_ids of its own, or both a small KV cache fraction"
            yield located(document.locate(path), path, what, fix, "gpu-shared", "warning")
            break


def _devices(row: _Service) -> tuple[list[str], str]:
    """The numbers of the GPUs of a service, with their path."""
    for index, device in enumerate(listed(value_at(row.data, _DEVICES))):
        where = below(row.path, f"{_DEVICES}.{index}")
        ids, count = value_at(device, "device_ids"), value_at(device, "count")
        if isinstance(ids, list):
            return [str(each) for each in ids], below(where, "device_ids")
        if isinstance(count, int):
            return [str(each) for each in range(min(count, 64))], below(where, "count")
    return [], ""


def _fraction(row: _Service, files: Mapping[str, Mapping[str, Any]]) -> float:
    """The part of a GPU's free memory that a server takes for its KV cache."""
    flag = row.worker.flag(("--kv_cache_free_gpu_memory_fraction", "--free_gpu_memory_fraction"))
    given = flag[0] if flag else value_at(row.worker.given(files) or {}, _FRACTION)
    try:
        return float(str(given))
    except ValueError:
        return 0.9
