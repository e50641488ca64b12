"""A stand-in for TensorRT-LLM where none is installed: the same interface, computed with PyTorch.

It exists so that a deployment can be rehearsed without a GPU. It is never imported where the real
engine is wanted, and says what it is in its first log line, its version and its metrics.
"""

from __future__ import annotations

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .logger import __version__

if TYPE_CHECKING:
    from .llmapi import LLM, CompletionOutput, GuidedDecodingParams, RequestOutput, SamplingParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "GuidedDecodingParams",
    "RequestOutput",
    "SamplingParams",
    "__version__",
]

# PyTorch and transformers are millions of objects that stay: to look for circles of garbage after
# every 700, as Python does, took a fifth of a server's start.
gc.set_threshold(50_000)


def __getattr__(name: str) -> Any:
    """Names of `llmapi`, whose modules are heavy, when they are first used."""
    if name in __all__:
        return getattr(import_module(".llmapi", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
