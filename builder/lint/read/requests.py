"""Finds requests for structured output in scripts, programs and clients."""

from __future__ import annotations

import re
from functools import lru_cache

from ...diagnostics import Location
from .yaml_text import places

FIELD = "response_format"
# A request field, a client argument, or a parameter of the LLM API.
_ASKED = re.compile(rf"\\?[\"']?\b{FIELD}\\?[\"']?\s*[:=](?!=)|\bGuidedDecodingParams\(")
_ASKS_NOTHING = re.compile(r"[\s{\\\"']*type[\s\\\"':]*text\b|\s*(?:None|null|null,)")
_COMMENT = re.compile(r"(?:^|\n)\s*(?:#|//)[^\n]*\Z")


@lru_cache(maxsize=8)  # each release is checked with the same file
def structured_output(text: str) -> Location | None:
    """Returns the first place where a text requests structured output."""
    for found in _ASKED.finditer(text):
        is_comment = _COMMENT.search(text[: found.start()])
        if not is_comment and not _ASKS_NOTHING.match(text, found.end()):
            return places(text)(found.start())
    return None
