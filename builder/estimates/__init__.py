"""Measured rows to an estimate with an interval, or a refusal that says what to measure.

`Estimator.load()` reads the rows, `estimate` answers a `Question`. `measurements` are the rows,
`models` which of them are of the asked model, `roofline` is what physics asks for, `kriging` what
the rows say beyond it.
"""

from .estimator import Estimator
from .question import Estimate, Interval, Neighbor, Question, Refusal

__all__ = ["Estimate", "Estimator", "Interval", "Neighbor", "Question", "Refusal"]
