"""Result files of other tools as bench.json documents, and the known caveats of each tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from ...bench.results import KIND
from .. import json_object
from . import aiperf, guidellm, serving_benchmarks

# Whether a JSON value is the tool's, and its conversion.
READERS = (
    (aiperf.matches, aiperf.convert),
    (guidellm.matches, guidellm.convert),
    (serving_benchmarks.is_vllm, serving_benchmarks.convert_vllm),
)
SUPPORTED = "bench.json, aiperf, sglang.bench_serving, vllm bench serve and guidellm"

_SUITE = "trap suite on a server with a known schedule, 2026-11"
_TRUNCATED = "A stream that ends early without its final mark counts as a success"
_MESSAGES = (
    "Its ITL is the gap between messages: with several tokens in a message (speculative decoding, "
    "stream_interval) it is longer than a token takes"
)
_FIRST_LOADED = "At 64 streams on one core its TTFT was {} ms too long"

# What is known to mislead in the numbers of each tool: a statement and its source.
CAVEATS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "aiperf": (
        (f"{_TRUNCATED}; so does an error inside an answer with status 200.",
         f"{_SUITE}, aiperf 0.13.0"),
        (f"{_FIRST_LOADED.format(30)} and its TPOT 2.6 %.", f"{_SUITE}, aiperf 0.13.0"),
        ("On generate_stream with cumulative text it counted 1,275 tokens instead of 50.",
         f"{_SUITE}, aiperf 0.13.0"),
    ),
    "sglang.bench_serving": (
        (f"{_TRUNCATED} of full length: throughput 14 % too high, TPOT 12 to 13 % too low. "
         "So does an error inside an answer with status 200.",
         f"{_SUITE}, sglang 0.5.23"),
        ("Failed requests are dropped and not counted in its file.",
         f"{_SUITE}, sglang 0.5.23"),
        ("Without a usage message it takes the requested length for the real one.",
         f"{_SUITE}, sglang 0.5.23"),
        (f"{_MESSAGES}.", f"{_SUITE}, sglang 0.5.23"),
    ),
    "vllm bench serve": (
        (f"{_TRUNCATED}; so does an error inside an answer with status 200.",
         f"{_SUITE}, vllm 0.33.0"),
        ("reasoning_content is no token to it: with half of the tokens there, TTFT was six "
         "times too long and TPOT half.", f"{_SUITE}, vllm 0.33.0"),
        (f"{_MESSAGES}.", f"{_SUITE}, vllm 0.33.0"),
        (f"{_FIRST_LOADED.format(14)}.", f"{_SUITE}, vllm 0.33.0"),
    ),
    "guidellm": (
        (f"{_TRUNCATED}: throughput 14 % too high, TPOT 13 % too low.",
         f"{_SUITE}, guidellm 0.8.1"),
        (f"{_FIRST_LOADED.format(30)}.", f"{_SUITE}, guidellm 0.8.1"),
        ("Its ITL is a mean per request, shown as TPOT here; gaps are not in its file.",
         "guidellm, GenerativeMetrics"),
    ),
}  # fmt: skip


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
    raise BadInput(
        Diagnostic(where, "has no known result format", f"known are those of {SUPPORTED}")
    )


def _rows(path: Path) -> list[Any]:
    """The JSON value of a file, or one for every line."""
    text = json_object.read_text(path)
    try:
        return [json_object.load(text)]
    except (json.JSONDecodeError, RecursionError) as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            if len(lines) > 1:
                return [json_object.load(line) for line in lines]
        except (json.JSONDecodeError, RecursionError):
            pass  # the error of the whole file says more
        what = f"is neither JSON nor lines of JSON: {error}"
        remedy = f"give a run folder or a file of {SUPPORTED}"
        raise BadInput(Diagnostic(str(path), what, remedy)) from None
