"""Estimates: an answer with an interval from measurements, or a refusal with what to measure.

`Estimator.load()` reads the rows and `estimate` answers a `Question`. `measurements` and `own_runs`
read rows, `rows` finds those of a model, a cell or near a question, and `names` maps the names of
sources to those of rows. `roofline` computes the times that physics asks for, `interpolation` adds
what the rows say beyond it, with `fits` as its parameters. `cells` has the curves of a model on a
GPU over load and lengths, with and without drafts; `intervals` are the errors of its times.
`refusals` are the reasons for no answer. `batch` and `plan_estimate` ask for files and for plans.
"""

from .estimator import Estimator
from .intervals import Interval
from .question import Estimate, Neighbor, Question, Refusal

__all__ = ["Estimate", "Estimator", "Interval", "Neighbor", "Question", "Refusal"]
