"""Choices that need more than rows of heuristics, one function each.

They are parallelism, speculative decoding, the MoE backend and the environment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..facts.checkpoint import Checkpoint
from ..facts.memory import COPIES, Sharding
from ..facts.release.support import compute_capability, moe_backends
from ..facts.release.support import moe_backend as moe_backend_support
from ..rules import heuristics
from ..rules.heuristics import HeuristicRow
from .decision import Decision, concurrency_per_instance, gpus_per_instance
from .plan_builder import DRAFT_METHOD, PlanBuilder
from .requirements import check_division, check_gpus

SIZE, _STAGES = "tensor_parallel_size", "pipeline_parallel_size"
_MOE_BACKEND = "moe_config.backend"
_IN_THE_OPTION_FILE = "env_overrides"
_MANY_REQUESTS, _MANY_REQUESTS_PER_GPU = 4096, 512  # at once; from there on drafts cost others time


def layouts(checkpoint: Checkpoint, num_gpus: int) -> Iterator[Sharding]:
    """Every layout of a server: attention whole or split, experts whole or split."""
    if checkpoint.architecture.experts_field is None or num_gpus == 1:
        yield Sharding(num_gpus)
        return
    for attention_dp in (False, True):
        for ep in (1, num_gpus):
            yield Sharding(num_gpus, 1, attention_dp, ep)


def parallelism(builder: PlanBuilder) -> bool:
    """Tensor parallelism over the GPUs of an instance, then attention and experts.

    Returns whether there is a size to decide anything else with.
    """
    check_gpus(builder)
    gpus, stages = gpus_per_instance(builder.deployment), builder.value(_STAGES)
    if stages < 1 or gpus % stages:
        what = f"{stages} stages cannot share {gpus} GPUs"
        remedy = "give a divisor of them"
        builder.refuse(f"engine_config.{_STAGES}", what, remedy)
        return False
    copies = _copies(builder, gpus // stages)
    size = gpus // stages // copies
    reason = _parallel_reason(builder, size, stages, copies)
    counts = {"instances": builder.deployment.instances, _STAGES: stages}
    several = [f"{name} {count}" for name, count in counts.items() if count > 1]
    source = ", ".join([f"hardware.num_gpus {builder.deployment.hardware.num_gpus}", *several])
    builder.decide(SIZE, size, reason, "derived", source)
    chosen = builder.value(SIZE)
    if (used := chosen * stages * copies) != gpus:
        parts = [f"{chosen}", f"{_STAGES} {stages}"]
        parts += [f"{COPIES} {copies}"] if copies > 1 else []
        what = f"{' x '.join(parts)} uses {used} GPUs"
        owner = "hardware.num_gpus is" if builder.deployment.instances == 1 else "an instance has"
        builder.refuse(f"engine_config.{SIZE}", what, f"{owner} {gpus}")
    if chosen < 1:
        return False
    check_division(builder, chosen, builder.facts.checkpoint)
    if builder.facts.draft is not None:
        check_division(builder, chosen, builder.facts.draft)
    builder.apply("parallelism.rules")
    return True


def _copies(builder: PlanBuilder, gpus: int) -> int:
    """The number of attention replicas on the GPUs of a stage, each with separate requests."""
    if COPIES not in builder.facts.release.paths:
        return 1
    builder.apply("parallelism.copies")
    copies = int(builder.value(COPIES))
    if copies < 1 or gpus % copies:
        what = f"{copies} copies of the attention cannot share {gpus} GPUs"
        builder.refuse(f"engine_config.{COPIES}", what, "give a divisor of them")
        return 1
    return copies


def _parallel_reason(builder: PlanBuilder, size: int, stages: int, copies: int) -> str:
    """Why the layers are split over so many GPUs, or not."""
    if copies > 1 and size == 1:
        return "One GPU holds each copy of the attention: there is nothing to split."
    group = "an instance" if builder.deployment.instances > 1 else ""
    group = "a stage" if stages > 1 else group
    if size == 1:
        return f"One GPU holds every layer of {group or 'the model'}: there is nothing to split."
    group = "a copy of the attention" if copies > 1 else group
    whole = f"all GPUs of {group}" if group else "all GPUs"
    if (limit := builder.facts.gpu.gpus_per_node.value) < size:
        return f"Every layer is split over {whole}, on {-(-size // limit)} nodes."
    return f"Every layer is split over {whole}, which gives the lowest latency within one node."


def speculation(builder: PlanBuilder) -> None:
    """Speculative decoding: with the checkpoint's own MTP layer, or with a draft model."""
    if builder.deployment.draft:
        _draft_model(builder)
    elif builder.facts.checkpoint.mtp_layers:
        _mtp(builder)
    builder.apply("speculation.head")


def _mtp(builder: PlanBuilder) -> None:
    model, own = builder.facts.checkpoint, builder.facts.release.engine.draft_method
    if not builder.overriding(builder.facts.release.option_path(DRAFT_METHOD)):
        if not builder.is_valid_choice(DRAFT_METHOD, own):
            return
        if why := _without_drafts(builder):
            builder.leave_out(DRAFT_METHOD, *why)
            return
    builder.decide(
        DRAFT_METHOD,
        own,
        "The checkpoint carries a multi-token-prediction layer: several tokens per step at the "
        "same output.",
        "documented",
        f"config.json: {model.architecture.mtp_field} {model.mtp_layers}",
    )
    if builder.given(DRAFT_METHOD) == own:
        builder.apply("speculation.depth")


def _without_drafts(builder: PlanBuilder) -> tuple[str, str] | None:
    """Why drafts are off although the checkpoint has an MTP layer, and the source."""
    wanted = concurrency_per_instance(builder.deployment)
    if builder.published_options:
        if DRAFT_METHOD in builder.published_options:
            return None
        sources = sorted({row.source for row in builder.published})
        return "the published deployment of this shape drafts no tokens.", "; ".join(sources)
    many = max(_MANY_REQUESTS, _MANY_REQUESTS_PER_GPU * gpus_per_instance(builder.deployment))
    if builder.deployment.role != "agg" or wanted < many:
        return None
    why = (
        f"with {wanted:,} requests at once every step is full, and the time for rejected drafts "
        "would be that of other requests."
    )
    return why, "2 of 2: database of serving configurations, NVIDIA/TensorRT-LLM examples/configs"


def _draft_model(builder: PlanBuilder) -> None:
    """The release's names for the method and for the draft's path; the draft is small and local."""
    draft, release = builder.deployment.draft, builder.facts.release
    assert draft
    names = heuristics.method_names(release.engine)[draft.method]
    rows = release.paths[release.option_path(DRAFT_METHOD)]
    method = next((name for name in names if any(name in row["values"] for row in rows)), None)
    if method is None:
        what = f"release {release.name} does not know speculation with {draft.method}"
        builder.refuse("draft.method", what, "choose another release")
        return
    source = f"draft.checkpoint {draft.checkpoint}"
    reason = "The deployment names a draft model, whose tokens this model checks several at once."
    builder.decide(DRAFT_METHOD, method, reason, "derived", source)
    if builder.given(DRAFT_METHOD) != method:
        return
    reason = "Tokens that the draft proposes per step; the deployment sets them."
    tokens = f"draft.tokens {draft.tokens}"
    builder.decide("speculative_config.max_draft_len", draft.tokens, reason, "derived", tokens)
    reason = "Where the draft model lies; DRAFT_CHECKPOINT names another place at start."
    builder.decide("draft_model", draft.checkpoint, reason, "derived", source)
    if builder.facts.draft is not None:
        return
    what = (
        f"the memory budget leaves out the draft model {draft.checkpoint}, whose facts are unknown"
    )
    remedy = "keep its weights and its KV cache free on every GPU"
    builder.warn("draft.checkpoint", what, remedy)


def moe_backend(builder: PlanBuilder) -> None:
    """The MoE backend for this quantization on this GPU, and how its results travel.

    Where neither published configurations nor the release name one that is known to work here, the
    engine's own choice stays; a rule of the release warns of it.
    """
    checkpoint, gpu, release = builder.facts.checkpoint, builder.facts.gpu, builder.facts.release
    if checkpoint.architecture.experts_field is None:
        return
    published = [row.options.get(_MOE_BACKEND) for row in builder.published]
    if any(published):
        usual = [row.value for row in _supported_rows(builder)]
        names = list(dict.fromkeys([*usual, *(row["backend"] for row in _known_rows(builder))]))
        for used in (used for used in published if used and used not in names):
            builder.refused[_MOE_BACKEND] = (
                f"{used} is not made for {checkpoint.precision} on {gpu.name}, whose compute "
                f"capability is {compute_capability(gpu.sm.value)}; known to work there: "
                f"{', '.join(names) or 'none'}."
            )
    without = f"Without this key the engine uses {release.moe_engine_default}."
    if row := next(_supported_rows(builder), None):
        reason, evidence = f"{row.reason} {without}", builder.grade(row)
        builder.decide(_MOE_BACKEND, row.value, reason, evidence, row.source)
    elif best := next(_known_rows(builder), None):
        first = f"The first choice of those with kernels for {checkpoint.precision} on {gpu.name}."
        reason = f"{first} {without}"
        builder.decide(_MOE_BACKEND, best["backend"], reason, best["evidence"], best["source"])
    if builder.given(_MOE_BACKEND) is not None:
        builder.apply("moe.combine")


def _supported_rows(builder: PlanBuilder) -> Iterator[HeuristicRow]:
    """Rows of published configurations whose backend the release supports on this GPU."""
    quant_algo, sm = builder.facts.checkpoint.quantization.quant_algo, builder.facts.gpu.sm.value
    (heuristic,) = heuristics.section("moe.backend", builder.facts.release.engine)
    for row in heuristic.fitting(builder.inputs()):
        support = moe_backend_support(builder.facts.release, row.value, quant_algo, sm)
        if support.state == "supported" and builder.is_valid_choice(_MOE_BACKEND, row.value):
            yield row


def _known_rows(builder: PlanBuilder) -> Iterator[Mapping[str, Any]]:
    """Backends with kernels for this quantization on this GPU that no rule forbids."""
    quant_algo, sm = builder.facts.checkpoint.quantization.quant_algo, builder.facts.gpu.sm.value
    for row in moe_backends(builder.facts.release, quant_algo, sm):
        if builder.is_valid_choice(_MOE_BACKEND, row["backend"]):
            yield row


def environment(builder: PlanBuilder) -> Iterator[Decision]:
    """The variables that the heuristics set; those of the deployment win.

    The engine puts `engine_config.env_overrides` over both.
    """
    inputs, given = builder.inputs(), dict(builder.deployment.environment)
    written = _env_overrides(builder)
    reads = builder.facts.release.environment
    for name, value in written.items():
        if given.get(name, value) != value:
            what = f"{given[name]} is lost: engine_config.env_overrides sets {value}, and it wins"
            builder.warn(f"environment.{name}", what, "keep one")
    for heuristic in heuristics.section("environment.variables", builder.facts.release.engine):
        path = f"environment.{heuristic.option}"
        known = heuristic.everywhere or heuristic.option in reads
        row = next(heuristic.fitting(inputs), None) if known else None
        rules_value = row and not row.use_engine_default
        if heuristic.option in given or heuristic.option in written:
            reason = _environment_reason(heuristic.option in written, "")
            if row and rules_value:
                reason = f"{reason} The rule would give {row.value}: {row.reason}"
            set_here = given.pop(heuristic.option, "")
            value = written.get(heuristic.option, set_here)
            yield Decision(path, value, reason, "override", "deployment")
        elif row and rules_value:
            yield Decision(path, row.value, row.reason, row.evidence or "assumed", row.source)
    for name, value in given.items():
        reason = _environment_reason(name in written, "; no rule decides it")
        value = written.get(name, value)
        yield Decision(f"environment.{name}", value, reason, "override", "deployment")


def _env_overrides(builder: PlanBuilder) -> Mapping[str, str]:
    """Variables that the option file sets: mostly one mapping, or single ones by path."""
    whole: Any = builder.overrides.get(_IN_THE_OPTION_FILE)
    prefix = f"{_IN_THE_OPTION_FILE}."
    single = {
        path.removeprefix(prefix): value
        for path, value in builder.overrides.items()
        if path.startswith(prefix)
    }
    return {name: str(value) for name, value in (whole or single).items()}


def _environment_reason(written: bool, rest: str) -> str:
    if written:
        return f"Set in engine_config.env_overrides, which the engine puts over this{rest}."
    return f"Set in the deployment{rest}."
