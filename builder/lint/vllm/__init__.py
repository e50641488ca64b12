"""Files of vLLM: `may_hold` tells which they may be, `reader` reads them.

Most files are none, and these are told without what reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engine import ENGINE_FILE, VLLM, formats


def may_hold(name: str, text: str, data: Any) -> bool:
    """Whether a file may hold commands or options of the engine, told without its tables. `data` is
    that of its first document."""
    known = formats()
    wrapped = (*known.wrapped_in, known.wrapped_beside)
    names = (VLLM, VLLM.upper(), *known.signature, *known.marks, *wrapped)
    if any(each in text or each.replace("_", "-") in text for each in names):
        return True
    keys = [str(key) for key in data] if isinstance(data, Mapping) else []
    is_model = name == ENGINE_FILE and "model" in keys
    return is_model or any("-" in key for key in keys)
