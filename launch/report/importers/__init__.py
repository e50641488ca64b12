"""Result files of other tools as bench.json documents, and the known caveats of each tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput
from builder.facts import data_file, plain_data

from ...bench.results import BENCH, KIND
from .. import json_object
from ..json_object import UnknownFormat
from . import aiperf, guidellm, serving_benchmarks

# Whether a JSON value is the tool's, and its conversion.
READERS = (
    (aiperf.matches, aiperf.convert),
    (guidellm.matches, guidellm.convert),
    (serving_benchmarks.is_vllm, serving_benchmarks.convert_vllm),
)
SUPPORTED = "bench.json, aiperf, sglang.bench_serving, vllm bench serve and guidellm"

CAVEATS = "benchmark_tools.yaml"


def caveats(tool: str) -> Sequence[Mapping[str, str]]:
    """What is known to mislead in the numbers of a tool: statements, each with its source."""
    found: Mapping[str, Sequence[Mapping[str, str]]] = data_file.shipped(
        CAVEATS, plain_data.BENCHMARK_TOOLS
    )
    return found.get(tool, ())


def read(path: Path) -> Any:
    """The bench.json document of a result file; `imported` is true in another tool's.

    Raises `BadInput`.
    """
    rows = _rows(path)
    where, name = str(path), path.stem
    if rows and serving_benchmarks.is_sglang(rows):
        return serving_benchmarks.convert_sglang(rows, where, name)
    found = rows[0] if len(rows) == 1 else None
    if isinstance(found, dict) and found.get("kind") == KIND:
        return {**found, "imported": False}
    for matches, convert in READERS:
        if matches(found):
            return convert(found, where, name)
    raise UnknownFormat(
        Diagnostic(where, "has no known result format", f"known are those of {SUPPORTED}")
    )


def _rows(path: Path) -> list[Any]:
    """The JSON value of a file, or one for every line."""
    text = json_object.read_text(path)
    try:
        return [json_object.load(text)]
    except ValueError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            if len(lines) > 1:
                return [json_object.load(line) for line in lines]
        except ValueError:
            pass  # the error of the whole file says more
        what = f"is neither JSON nor lines of JSON: {error}"
        remedy = f"give a run folder or a file of {SUPPORTED}"
        kind = BadInput if path.name == BENCH else UnknownFormat
        raise kind(Diagnostic(str(path), what, remedy)) from None
