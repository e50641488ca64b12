"""A trace: requests with their times and shared blocks, replayed (mooncake's JSON lines)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from .request import Ask
from .tokens import Prompt, Tokens
from .workload import Style, Workload, chance_of, joined, text_of

# Tokens that one hash id stands for.
BLOCK_TOKENS = 512
MS_PER_S = 1000.0
NUMBERS = ("timestamp", "input_length", "output_length")
MOST_PROBLEMS = 10


def read(tokens: Tokens, file: Path, style: Style, seed: int = 0) -> Workload:
    """Rows have a `timestamp` in ms, `input_length`, `output_length` and `hash_ids`, each of which
    stands for the same block of prompt tokens wherever it comes. Raises `BadInput`."""
    rows = sorted(_rows(file), key=lambda row: float(row["timestamp"]))
    blocks: dict[object, Prompt] = {}

    def ask(place: int) -> Ask:
        row = rows[place % len(rows)]
        length = int(row["input_length"])
        ids = row.get("hash_ids", ())[: -(-length // BLOCK_TOKENS)]
        for block in ids:
            if block not in blocks:
                blocks[block] = tokens.make(BLOCK_TOKENS, chance_of(seed, "block", block))
        whole = length // BLOCK_TOKENS
        parts = [blocks[block] for block in ids[:whole]]
        if left := length - BLOCK_TOKENS * len(parts):
            # The beginning of a block: the same source of chance gives the same tokens.
            own = ("block", ids[-1]) if len(ids) > len(parts) else ("row", place)
            parts.append(tokens.make(left, chance_of(seed, *own)))
        return style.ask(joined(*parts), int(row["output_length"]))

    start_ms = rows[0]["timestamp"]
    times_s = [(row["timestamp"] - start_ms) / MS_PER_S for row in rows]
    return Workload("trace", _facts(file, rows, tokens), ask, times_s=times_s, size=len(rows))


def _facts(file: Path, rows: list[dict[str, Any]], tokens: Tokens) -> Mapping[str, Any]:
    isl, osl = (
        round(sum(row[name] for row in rows) / len(rows))
        for name in ("input_length", "output_length")
    )
    span_s = (rows[-1]["timestamp"] - rows[0]["timestamp"]) / MS_PER_S
    words = f"{len(rows)} requests of the trace {file.name} over {span_s:.0f} s, "
    words += f"on average {isl} prompt tokens and {osl} output tokens"
    facts = {"isl": isl, "osl": osl, "file": str(file), "rows": len(rows), "words": words}
    return {**facts, "prompts": tokens.source}


def _rows(file: Path) -> list[dict[str, Any]]:
    """Raises `BadInput` naming lines that are no rows."""
    rows, problems = [], []
    for number, line in enumerate(text_of(file).splitlines(), 1):
        try:
            if line.strip():
                rows.append(_row(json.loads(line)))
        except (ValueError, TypeError, KeyError) as fault:
            what = f"is no row of a trace: {type(fault).__name__}: {fault}"
            problems.append(Diagnostic(f"{file}:{number}", what))
    if not rows and not problems:
        problems.append(Diagnostic(str(file), "is empty"))
    if problems:
        raise BadInput(problems[:MOST_PROBLEMS])
    return rows


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    row = {**found, **{name: float(found[name]) for name in NUMBERS}}
    if min(row["input_length"], row["output_length"]) < 1:
        raise ValueError("a length is below 1")
    return row
