"""Layouts that cannot be, and layouts as public listings write them.

Listings of a public benchmark write TP64/EP8 for 8 GPUs with EP 8, and other products like it; the
rows say so of every row that was repaired. A question in the words of such a listing is read as the
row is, and says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..facts import hardware
from ..facts.checkpoint import Checkpoint
from . import models
from .measurements import Row, layout_text
from .question import Question


def impossible(asked: Question) -> str:
    """Why no server has the layout of a question, of a model by its name in the rows."""
    facts = models.facts_of(asked.model)
    heads = facts and int(facts.text_config["num_attention_heads"])
    if heads and heads % asked.tp:
        return f"{heads} attention heads cannot be shared by {asked.tp} GPUs"
    experts = facts and _experts(facts)
    for whole, what in (
        (asked.num_gpus, f"{asked.num_gpus} GPUs"),
        (experts, f"{experts} experts"),
    ):
        if whole and whole % asked.ep:
            return f"{what} cannot be shared by EP {asked.ep}"
    return ""


def as_run(question: Question, rows: Sequence[Row]) -> tuple[Question, str]:
    """The question with its layout as it was run, and a note where that is another one.

    As listings write it only where no node has so many GPUs, rows of the model and engine are
    listed under that layout and none of its GPU and precision has it.
    """
    facts = models.facts_of(question.model)
    if question.ep > 1 and facts and not _experts(facts):
        note = f"ep {question.ep} is read as 1: the model has no experts"
        return replace(question, ep=1), note
    model, engine = models.model_name(question.model), models.engine_name(question.engine)
    kind = models.gpu_name(question.gpu), models.precision_of(model, question.precision), engine
    asked = (question.tp, question.attention_dp, question.ep)
    text = layout_text(*asked)
    listed = {row.layout for row in rows if row.published == text and row.engine == engine}
    own = (row.layout for row in rows if (row.gpu, row.precision, row.engine) == kind)
    if len(listed) != 1 or asked in own or _fits_a_node(question.num_gpus, kind[0]):
        return question, ""
    tp, attention_dp, ep = listed.pop()
    note = f"{text} is read as {layout_text(tp, attention_dp, ep)}: so public listings write it"
    return replace(question, tp=tp, attention_dp=attention_dp, ep=ep), note


def _fits_a_node(num_gpus: int, gpu: str) -> bool:
    return gpu in hardware.known() and num_gpus <= hardware.load(gpu).gpus_per_node.value


def _experts(facts: Checkpoint) -> int:
    """Of a layer; 0 in a dense model."""
    field = facts.architecture.experts_field
    return int(facts.text_config[field]) if field else 0
