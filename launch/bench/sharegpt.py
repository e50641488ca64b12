"""Conversations of a ShareGPT-style file, chosen by the rule of published results."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput

from .tokens import Tokens
from .workload import Style, Workload, text_of

# A prompt or an answer below this is dropped.
LEAST_TOKENS = 2


def read(
    tokens: Tokens,
    file: Path,
    style: Style,
    seed: int = 0,
    osl: int | None = None,
    context: int | None = None,
) -> Workload:
    """Conversations are shuffled; the first turn of each is the prompt and the second one its
    answer, whose length is asked for unless `osl` is given. One of fewer than two tokens, or of
    more than `context` together, is dropped. Raises `BadInput`."""
    rows = [pair for row in _rows(file) if (pair := _first_two(row))]
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
    return Workload(
        "sharegpt", facts, lambda place: style.ask(*kept[place % len(kept)]), size=len(kept)
    )


def _rows(file: Path) -> Sequence[Any]:
    try:
        document = json.loads(text_of(file))
    except ValueError as fault:
        raise BadInput(Diagnostic(str(file), f"is no JSON: {fault}")) from None
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        remedy = 'write [{"conversations": [{"value": "..."}, {"value": "..."}]}]'
        raise BadInput(Diagnostic(str(file), "is no list of conversations", remedy))
    return document


def _first_two(row: Any) -> tuple[str, str] | None:
    turns = row.get("conversations") or row.get("conversation") or ()
    texts = [turn.get("value", turn.get("content", "")) for turn in turns[:2]]
    return (texts[0], texts[1]) if len(texts) == 2 else None


def _kept(
    rows: Sequence[tuple[str, str]], tokens: Tokens, osl: int | None, context: int | None
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
