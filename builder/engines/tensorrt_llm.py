"""TensorRT-LLM: its option table has the planner's own words, so nothing is left to translate."""

from __future__ import annotations

from .options import translate

__all__ = ["translate"]
