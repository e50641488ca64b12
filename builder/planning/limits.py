"""What a deployment must keep to: the GPU, the release, the model's context, the draft model."""

from __future__ import annotations

from ..diagnostics import Diagnostic
from ..facts import release as releases
from ..facts.checkpoint import Checkpoint
from .case import Case


def check_request(case: Case) -> None:
    """The GPU has the checkpoint's arithmetic, the release the model, the model the context."""
    facts, workload = case.facts, case.deployment.workload
    _check_arithmetic(case, facts.checkpoint, case.deployment.checkpoint, "hardware.gpu")
    _check_support(case, facts.checkpoint, "engine.release")
    if "model" in case.overrides:
        remedy = "name the model by checkpoint"
        case.diagnostics.append(Diagnostic("engine_config.model", "is set by the toolkit", remedy))
    length = workload.isl + workload.osl
    longest = facts.checkpoint.text_config.get("max_position_embeddings")
    if longest is not None and length > longest:
        what = f"isl + osl is {length} tokens, the model's longest context is {longest}"
        case.diagnostics.append(Diagnostic("workload", what, "shorten isl or osl"))


def check_draft(case: Case) -> None:
    """The draft model runs on this GPU and release, and speaks the model's vocabulary.

    The draft head of EAGLE may know fewer tokens and maps them; a whole draft model may not.
    """
    draft, facts = case.facts.draft, case.facts.checkpoint
    if draft is None or case.deployment.draft is None:
        return
    where = "draft.checkpoint"
    _check_arithmetic(case, draft, case.deployment.draft.checkpoint, where)
    _check_support(case, draft, where)
    sizes = [model.text_config.get("vocab_size") for model in (draft, facts)]
    if case.deployment.draft.method == "draft_target" and sizes[0] != sizes[1]:
        what = f"{draft.name} has {sizes[0]} tokens in its vocabulary, {facts.name} has {sizes[1]}"
        remedy = "take a draft model of the same family, which shares the tokenizer"
        case.diagnostics.append(Diagnostic(where, what, remedy))


def _check_arithmetic(case: Case, checkpoint: Checkpoint, name: str, where: str) -> None:
    precision, gpu = checkpoint.precision, case.facts.gpu
    if precision not in gpu.precisions.value:
        what = f"{gpu.name} has no {precision} arithmetic, which {name} needs"
        remedy = (
            f"use a checkpoint in {', '.join(gpu.precisions.value)}, or a GPU that has {precision}"
        )
        case.diagnostics.append(Diagnostic(where, what, remedy))


def _check_support(case: Case, checkpoint: Checkpoint, where: str) -> None:
    """An architecture that the release refuses is an error, one that no source names a warning."""
    name, release = checkpoint.architecture.name, case.facts.release
    support = release.architecture_support(name)
    if support.state == "unsupported":
        what = f"release {release.name} does not serve {name}: {support.evidence}"
        case.diagnostics.append(Diagnostic(where, what, "choose a later release"))
    elif support.state == "unknown":
        what = f"nothing is known of {name} in release {release.name}: {support.evidence}"
        others = [other for other in releases.known() if name in releases.load(other).architectures]
        remedy = "start it with the real engine before you rely on this plan"
        remedy += f", or choose release {' or '.join(others)}, which names it" if others else ""
        case.warnings.append(Diagnostic(where, what, remedy, severity="warning"))


def check_batch(case: Case) -> bool:
    """Whether a batch holds a request at all."""
    batch = case.value("max_batch_size")
    if batch is not None and batch < 1:
        what = f"{batch} is too small for the workload"
        case.diagnostics.append(Diagnostic("engine_config.max_batch_size", what, "give at least 1"))
        return False
    return True
