"""Measured rows to an estimate with an interval, or a refusal that says what to measure.

`Estimator.load()` reads the rows, `estimate` answers a `Question`. `measurements` are the rows,
`models` tells which of them are of the asked model, `roofline` is what physics asks for and
`kriging` what the rows say beyond it; `cells` has both for a model on a GPU, `surface` keeps
their order.
"""

from .estimator import Estimator
from .question import Estimate, Interval, Neighbor, Question, Refusal

__all__ = ["Estimate", "Estimator", "Interval", "Neighbor", "Question", "Refusal"]
