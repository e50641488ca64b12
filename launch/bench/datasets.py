"""Workloads from a user's file: ShareGPT conversations, and request traces with shared blocks."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder import files
from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from .prompts import Prompt, Prompts
from .request import LoadRequest
from .workload import BenchWorkload, filled, joined, seeded_random

# A prompt or an answer below this is dropped.
LEAST_TOKENS = 2
# Tokens per hash id.
BLOCK_TOKENS = 512
MS_PER_S = 1000.0
MOST_TOKENS = 10_000_000  # of a prompt or an answer of a trace
NUMBERS = ("timestamp", "input_length", "output_length")
MAX_DIAGNOSTICS = 10
MAX_BYTES = 1_000_000_000  # ShareGPT has 0.7 GB
LETTERS_PER_VALUE = 12  # conversations are text: a file of far shorter values holds none


def sharegpt(
    tokens: Prompts,
    file: Path,
    template: LoadRequest,
    seed: int = 0,
    osl: int | None = None,
    context: int | None = None,
) -> BenchWorkload:
    """Conversations are shuffled; the first turn of each is the prompt and the second one its
    answer, whose length is asked for unless `osl` is given. One of fewer than two tokens, or of
    more than `context` together, is dropped. Raises `BadInput`."""
    rows = [pair for row in _conversations(file) if (pair := _first_two(row))]
    random.Random(seed).shuffle(rows)
    kept = list(_kept(rows, tokens, osl, context))
    if not kept:
        what = f"has no conversation that the rule keeps, of {len(rows)} with two turns"
        raise BadInput(Diagnostic(str(file), what, "give a longer --context-length"))
    words = f"ShareGPT conversations of {file.name}, "
    words += f"{osl} output tokens" if osl else "output as long as their second turn"
    words += f", prompt and output at most {context} tokens" if context else ""
    facts = {"isl": None, "osl": osl, "context_length": context, "file": str(file), "words": words}
    facts |= {"conversations": len(kept), "prompts": tokens.source}
    return BenchWorkload(
        "sharegpt", facts, lambda place: filled(template, *kept[place % len(kept)]), size=len(kept)
    )


def _conversations(file: Path) -> Sequence[Any]:
    try:
        text = _read_text(file)
        values = max(files.MAX_JSON_VALUES, len(text) // LETTERS_PER_VALUE)
        document = files.parse_json(text, max_values=values)
    except ValueError as error:
        raise BadInput(Diagnostic(str(file), f"is not JSON: {error}")) from None
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        remedy = 'write [{"conversations": [{"value": "..."}, {"value": "..."}]}]'
        raise BadInput(Diagnostic(str(file), "must be a list of conversations", remedy))
    return document


def _first_two(row: Any) -> tuple[str, str] | None:
    turns = row.get("conversations") or row.get("conversation")
    first = [one for one in turns[:2] if isinstance(one, dict)] if isinstance(turns, list) else []
    match [turn.get("value", turn.get("content", "")) for turn in first]:
        case [str(prompt), str(answer)]:
            return prompt, answer
    return None


def _kept(
    rows: Sequence[tuple[str, str]], tokens: Prompts, osl: int | None, context: int | None
) -> Iterator[tuple[str, int]]:
    for prompt, answer in rows:
        count, out = tokens.count(prompt), osl or tokens.count(answer)
        if count is None or out is None:
            where, what = "ShareGPT conversations", "are chosen by their token counts"
            raise BadInput(
                Diagnostic(where, what, "give a folder with tokenizer.json by --tokenizer")
            )
        if min(count, out) >= LEAST_TOKENS and (not context or count + out <= context):
            yield prompt, out


def trace(tokens: Prompts, file: Path, template: LoadRequest, seed: int = 0) -> BenchWorkload:
    """Rows have a `timestamp` in ms, `input_length`, `output_length` and `hash_ids`; equal ids mean
    equal blocks of prompt tokens. Raises `BadInput`."""
    rows = sorted(_trace_rows(file), key=lambda row: float(row["timestamp"]))
    blocks: dict[object, Prompt] = {}

    def request(place: int) -> LoadRequest:
        row = rows[place % len(rows)]
        length = int(row["input_length"])
        ids = (row.get("hash_ids") or ())[: -(-length // BLOCK_TOKENS)]
        for block in ids:
            if block not in blocks:
                blocks[block] = tokens.make(BLOCK_TOKENS, seeded_random(seed, "block", block))
        whole = length // BLOCK_TOKENS
        parts = [blocks[block] for block in ids[:whole]]
        if left := length - BLOCK_TOKENS * len(parts):
            # The beginning of a block: the same source of chance gives the same tokens.
            own = ("block", ids[-1]) if len(ids) > len(parts) else ("row", place)
            parts.append(tokens.make(left, seeded_random(seed, *own)))
        return filled(template, joined(*parts), int(row["output_length"]))

    start_ms = rows[0]["timestamp"]
    times_s = [(row["timestamp"] - start_ms) / MS_PER_S for row in rows]
    return BenchWorkload(
        "trace", _trace_facts(file, rows, tokens), request, times_s=times_s, size=len(rows)
    )


def _trace_facts(file: Path, rows: list[dict[str, Any]], tokens: Prompts) -> Mapping[str, Any]:
    isl, osl = (
        round(sum(row[name] for row in rows) / len(rows))
        for name in ("input_length", "output_length")
    )
    span_s = (rows[-1]["timestamp"] - rows[0]["timestamp"]) / MS_PER_S
    words = f"{len(rows)} requests of the trace {file.name} over {span_s:.0f} s, "
    words += f"on average {isl} prompt tokens and {osl} output tokens"
    facts = {"isl": isl, "osl": osl, "file": str(file), "rows": len(rows), "words": words}
    return {**facts, "prompts": tokens.source}


def _trace_rows(file: Path) -> list[dict[str, Any]]:
    """Raises `BadInput` naming lines that are not rows."""
    rows, diagnostics = [], []
    for number, line in enumerate(_read_text(file).splitlines(), 1):
        try:
            if line.strip():
                rows.append(_trace_row(files.parse_json(line)))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            what = f"is not a row of a trace: {type(error).__name__}: {error}"
            diagnostics.append(Diagnostic(f"{file}:{number}", what))
    if not rows and not diagnostics:
        diagnostics.append(Diagnostic(str(file), "is empty"))
    if diagnostics:
        raise BadInput(diagnostics[:MAX_DIAGNOSTICS])
    return rows


def _trace_row(found: Mapping[str, Any]) -> dict[str, Any]:
    row = {**found, **{name: float(found[name]) for name in NUMBERS}}
    if not all(math.isfinite(row[name]) for name in NUMBERS):
        raise ValueError("a number is not finite")
    lengths = row["input_length"], row["output_length"]
    if not 1 <= min(lengths) <= max(lengths) <= MOST_TOKENS:
        raise ValueError(f"a length is not from 1 to {MOST_TOKENS}")
    ids = [] if row.get("hash_ids") is None else row["hash_ids"]
    if not isinstance(ids, list) or not all(isinstance(one, int | str) for one in ids):
        raise ValueError("hash_ids is no list of numbers")
    return row


def _read_text(file: Path) -> str:
    """A file of the user's. Raises `BadInput`."""
    return files.read_text(file, BadInput, MAX_BYTES)
