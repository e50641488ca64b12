"""Result files of other tools as bench.json documents, told apart by what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from ...bench.document import KIND
from .. import fields
from . import aiperf, guidellm, sglang, vllm

READERS = (aiperf, guidellm, vllm)
KNOWN = "bench.json, aiperf, sglang.bench_serving, vllm bench serve and guidellm"


class Read(NamedTuple):
    """A document, and whether another tool measured what is in it."""

    document: Any
    foreign: bool


def read(path: Path) -> Read:
    """What a result file holds, whoever wrote it. Raises `BadInput`."""
    rows = _rows(path)
    where, name = str(path), path.stem
    if rows and sglang.owns(rows):
        return Read(sglang.convert(rows, where, name), True)
    found = rows[0] if len(rows) == 1 else None
    if isinstance(found, dict) and found.get("kind") == KIND:
        return Read(found, False)
    for reader in READERS:
        if reader.owns(found):
            return Read(reader.convert(found, where, name), True)
    raise BadInput(
        Diagnostic(where, "holds no results in a known form", f"known are those of {KNOWN}")
    )


def _rows(path: Path) -> list[Any]:
    """The JSON value of a file, or one for every line."""
    text = fields.read_text(path)
    try:
        return [fields.load(text)]
    except (json.JSONDecodeError, RecursionError) as fault:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            if len(lines) > 1:
                return [fields.load(line) for line in lines]
        except (json.JSONDecodeError, RecursionError):
            pass  # the fault of the whole says more
        what = f"is neither JSON nor lines of JSON: {fault}"
        remedy = f"give a run folder or a file of {KNOWN}"
        raise BadInput(Diagnostic(str(path), what, remedy)) from None
