"""Decisions: deployment and facts in, every engine value with its reason out. Pure.

A value is decided in this order: what the user set in `engine_config`, what a published deployment
of the same checkpoint on the same GPUs used, the practice of published configurations. `case` holds
one plan in the making, `engine_options` and `environment` decide, `limits` refuses what cannot
work, `memory_budget` says what it costs.
"""

from __future__ import annotations

from .case import Decision, Difference, Evidence, Facts, Plan
from .making import plan

__all__ = ["Decision", "Difference", "Evidence", "Facts", "Plan", "plan"]
