"""The GPUs that a service of dstack, a Truss or a task of SkyPilot asks for in its resources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..documents import Yaml, value_at
from .section import below
from .workers import Place

_KEYS = ("resources.gpu", "resources.accelerator", "resources.accelerators")
_NODES = "num_nodes"  # of a task, each of which may have a server
# `H100:8`, or the number first.
_ASKED = re.compile(
    r"(?:(?P<first>\d{1,6}):(?P<kind>[A-Za-z][\w-]*)|(?P<kind_first>[A-Za-z][\w-]*):(?P<last>\d{1,6}))"
    r"(?::\d+GB)?"
)

_NAME = re.compile(r"[A-Za-z][\w-]*")


class Asked(NamedTuple):
    """A number of GPUs, and what kind of them the file calls so."""

    kind: str
    gpus: Place


def of_service(document: Yaml, data: Mapping[str, Any], path: str) -> Asked | None:
    """What an object asks for; of several alternatives none."""
    for key in _KEYS if _NODES not in data else ():
        asked = value_at(data, key)
        if isinstance(asked, Mapping) and key == _KEYS[0]:
            asked = f"{asked.get('name')}:{asked.get('count')}"
        elif isinstance(asked, Mapping) and key == _KEYS[-1] and len(asked) == 1:
            [asked] = (f"{kind}:{count}" for kind, count in asked.items())
        if key == _KEYS[-1] and isinstance(asked, str) and _NAME.fullmatch(asked):
            asked = f"{asked}:1"
        found = _ASKED.fullmatch(str(asked))
        if found and (count := int(found["first"] or found["last"])):
            kind, where = str(found["kind"] or found["kind_first"]).lower(), below(path, key)
            return Asked(kind, Place(count, document.locate(where), where))
    return None
