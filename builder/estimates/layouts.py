"""Layouts as public listings write them.

Listings of a public benchmark write TP64/EP8 for 8 GPUs with EP 8, and other products like it; the
rows say so of every row that was repaired. A question in the words of such a listing is read as the
row is, and says it.
"""

from __future__ import annotations

from dataclasses import replace

from . import models
from .cells import Key, key_of
from .estimator import Estimator
from .measurements import layout_text
from .question import Question


def as_published(question: Question, estimator: Estimator) -> tuple[Question, str]:
    """The question with its layout as it was run, and a note where that is another one.

    Only where the rows of its cell are listed under that layout and none has it.
    """
    asked = (question.tp, question.attention_dp, question.ep)
    model = models.model_name(question.model)
    key = Key(
        model,
        models.gpu_name(question.gpu),
        models.precision_of(model, question.precision),
        models.engine_name(question.engine),
    )
    text = layout_text(*asked)
    rows = estimator.rows_of(key.model)
    listed = {row.layout for row in rows if row.published == text and row.engine == key.engine}
    if len(listed) != 1 or any(row.layout == asked for row in rows if key_of(row) == key):
        return question, ""
    tp, attention_dp, ep = listed.pop()
    note = f"{text} is read as {layout_text(tp, attention_dp, ep)}: so public listings write it"
    return replace(question, tp=tp, attention_dp=attention_dp, ep=ep), note
