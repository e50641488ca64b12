"""Decisions: deployment and facts in, every engine value with its reason out. Pure.

A value is decided in this order: what the user set in `engine_config`, what a published deployment
of the same checkpoint on the same GPUs used, the practice of published configurations. `decision`
is what goes in and comes out, `case` one plan in the making, `words` what the practice may ask for;
`parallelism`, `speculation`, `moe` and `environment` decide what needs more than rows of data,
`limits` refuses what cannot work, `memory_budget` says what it costs, `making` is the order.
"""

from __future__ import annotations

from .decision import Decision, Difference, Evidence, Facts, Plan
from .making import plan

__all__ = ["Decision", "Difference", "Evidence", "Facts", "Plan", "plan"]
