"""vLLM: the aliases of its option tables spell the planner's words; what is left is one table."""

from __future__ import annotations

from .options import translate

__all__ = ["translate"]
