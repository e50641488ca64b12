"""The containers of one pod, and the ports that each opens by number or name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..documents import value_at


def beside(pod: Mapping[str, Any], data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The containers that run in a pod beside one of it."""
    for key in ("containers", "initContainers"):
        for row in listed(pod.get(key)):
            stays = key == "containers" or value_at(row, "restartPolicy") == "Always"
            if stays and isinstance(row, Mapping) and row is not data:
                yield row


def may_open(pod: Mapping[str, Any], data: Mapping[str, Any], port: str) -> bool:
    """Whether a container of a pod beside one of it may listen at a port, by number or name: one
    that says nothing of ports may at any."""
    for row in beside(pod, data):
        ports = listed(row.get("ports"))
        if not ports or port in _ends(ports):
            return True
    return False


def opens(data: Mapping[str, Any], port: str) -> bool:
    """Whether a container opens a port, by number or name."""
    return port in _ends(listed(data.get("ports")))


def _ends(ports: Sequence[Any]) -> set[str]:
    return {str(value_at(row, key)) for row in ports for key in ("containerPort", "name")}


def number_of(data: Mapping[str, Any], port: str) -> str:
    """The number of a port that a container may have named."""
    row = named_rows(data.get("ports")).get(port)
    return str(row.get("containerPort")) if row else port


def named_rows(rows: Any) -> dict[str, Mapping[str, Any]]:
    """The mappings of a list by what each has as its name."""
    return {str(row.get("name")): row for row in listed(rows) if isinstance(row, Mapping)}


def listed(rows: Any) -> Sequence[Any]:
    return rows if isinstance(rows, list) else ()
