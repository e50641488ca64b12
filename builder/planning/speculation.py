"""Speculative decoding: with the checkpoint's own MTP layer, or with a draft model."""

from __future__ import annotations

from ..diagnostics import Diagnostic
from ..facts import heuristics as practice
from .case import Case

_TYPE = "speculative_config.decoding_type"


def decide(case: Case) -> None:
    if case.deployment.draft:
        _draft_model(case)
    elif case.facts.checkpoint.mtp_layers:
        _mtp(case)
    case.follow("speculation.head")


def _mtp(case: Case) -> None:
    config, layers = case.facts.checkpoint.architecture.mtp_field, case.facts.checkpoint.mtp_layers
    case.decide(
        _TYPE,
        "MTP",
        "The checkpoint carries a multi-token-prediction layer: several tokens per step at the "
        "same output.",
        "documented",
        f"config.json: {config} {layers}",
    )
    if case.given(_TYPE) == "MTP":
        case.follow("speculation.depth")


def _draft_model(case: Case) -> None:
    """The release's names for the method and for the draft's path; the draft is small and local."""
    draft, release = case.deployment.draft, case.facts.release
    assert draft
    known = next((name for name in practice.names()[draft.method] if _knows(case, name)), None)
    if known is None:
        what = f"release {release.name} does not know speculation with {draft.method}"
        case.diagnostics.append(Diagnostic("draft.method", what, "choose another release"))
        return
    source = f"draft.checkpoint {draft.checkpoint}"
    reason = "The deployment names a draft model, whose tokens this model checks several at once."
    case.decide(_TYPE, known, reason, "derived", source)
    if case.given(_TYPE) != known:
        return
    reason = "Tokens that the draft proposes per step; the deployment sets them."
    tokens = f"draft.tokens {draft.tokens}"
    case.decide("speculative_config.max_draft_len", draft.tokens, reason, "derived", tokens)
    reason = "Where the draft model lies; DRAFT_CHECKPOINT names another place at start."
    case.decide("draft_model", draft.checkpoint, reason, "derived", source)
    if case.facts.draft is not None:
        return
    what = (
        f"the memory budget leaves out the draft model {draft.checkpoint}, whose facts are unknown"
    )
    remedy = "keep its weights and its KV cache free on every GPU"
    case.warnings.append(Diagnostic("draft.checkpoint", what, remedy, severity="warning"))


def _knows(case: Case, name: str) -> bool:
    return any(name in row["values"] for row in case.facts.release.paths[_TYPE])
