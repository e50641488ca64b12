"""Writes the page of an upgrade: what changes, what it fixes, and in which order to roll it."""

from __future__ import annotations

import json
import re
from typing import Any

from .. import render
from ..facts import advisories
from ..targets.handoff.document import cells, chapters, code, fill, plain
from ..targets.handoff.runbook import rolling
from .comparison import Upgrade

# Inputs of the memory budget and their values in words.
_WORDS = {
    "mtp_kv_layers": "KV cache layers of multi-token prediction",
    "num_cuda_graphs": "CUDA graphs",
    "per_draft_token": "one for each draft token",
    "one": "one for all draft tokens",
}


def text(found: Upgrade) -> str:
    """The page in Markdown; `templates/upgrade/upgrade.md.j2` has its layout."""
    functions = {
        "cells": cells,
        "code": code,
        "plain": plain,
        "fill": lambda words: fill(words, {}),
        "value": _value,
        "number": _number,
        "score": advisories.score_text,
    }
    commands = chapters(rolling(found.after.context, found.before.context), 3)
    before, after = found.estimates
    values = {
        "found": found,
        "tables": found.tables,
        "old": found.tables.old,
        "new": found.tables.new,
        "before": before.get("output_tokens_per_s"),
        "after": after.get("output_tokens_per_s"),
        "fewer_gpus": after["num_gpus"] < before["num_gpus"],
        "rolling": "\n\n".join(commands),
        **functions,
    }
    return re.sub(r"\n{3,}", "\n\n", render.text("upgrade/upgrade.md.j2", **values))


def _value(value: Any, unset: str = "not set") -> str:
    return unset if value is None else code(json.dumps(value, ensure_ascii=False))


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _WORDS.get(str(value), str(value))
    return f"{value:,}"
