"""The high-level interface of the engine; its modules are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..results import CompletionOutput, RequestError, RequestOutput
    from ..sampling_params import GuidedDecodingParams, SamplingParams
    from .llm import LLM

__all__ = [
    "LLM",
    "CompletionOutput",
    "GuidedDecodingParams",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
]

_HOMES = {
    "LLM": ".llm",
    "CompletionOutput": "..results",
    "GuidedDecodingParams": "..sampling_params",
    "RequestError": "..results",
    "RequestOutput": "..results",
    "SamplingParams": "..sampling_params",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
