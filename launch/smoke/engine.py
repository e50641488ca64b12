"""The engine behind a server, by the server's own word: its version, which tells a stand-in."""

from __future__ import annotations

import asyncio
from typing import Any

from . import metrics
from .client import Fault, NotOffered, Refused
from .endpoint import Endpoint
from .http import json_of, session

# What the reference engine's version ends with.
REFERENCE_MARK = "+reference"
# Where the toolkit's model tells it of the engine behind Triton, whose own version is another.
METRIC = ("trtllm_model_engine_info", "release")
TIMEOUT_S = 10.0


async def version(endpoint: Endpoint) -> str | None:
    """`None` where the server does not tell it."""
    try:
        if endpoint.kind == "triton":
            return metrics.label(await metrics.read(endpoint), *METRIC)
        async with session(endpoint.url or "", TIMEOUT_S) as http:
            found = (await json_of(http, "/version")).get("version")
            return None if found is None else str(found)
    except (Fault, Refused, NotOffered):
        return None


def ask(endpoint: Endpoint) -> dict[str, Any]:
    """For results: the version, and whether it is a rehearsal; `None` is what is not known."""
    told = asyncio.run(version(endpoint))
    rehearsal = endpoint.rehearsal or (None if told is None else is_reference(told))
    return {"version": told, "rehearsal": rehearsal}


def is_reference(version: str) -> bool:
    return version.endswith(REFERENCE_MARK)
