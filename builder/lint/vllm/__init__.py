"""Checks files of vLLM: `may_hold` finds candidates quickly, `reader` reads and checks them.

Most files do not belong to vLLM, and `may_hold` skips them without importing the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine import ENGINE_FILE, VLLM, formats


def may_hold(name: str, text: str, data: Any) -> bool:
    """Whether a file may contain commands or options of vLLM, without loading the release tables.
    `data` is the content of the first document."""
    known = formats()
    wrapped = (*known.wrapped_in, known.wrapped_beside)
    names = (VLLM, VLLM.upper(), *known.signature, *known.marks, *wrapped)
    if any(each in text or each.replace("_", "-") in text for each in names):
        return True
    keys = [str(key) for key in data] if isinstance(data, Mapping) else []
    is_model = name == ENGINE_FILE and "model" in keys
    return is_model or any("-" in key for key in keys)
