"""Checks what a deployment needs: GPUs, release, context, draft model and batch."""

from __future__ import annotations

from collections.abc import Iterator

from ..diagnostics import either
from ..facts import servers
from ..facts.checkpoint import Checkpoint
from ..facts.release import Release, weight_formats
from ..facts.release.support import architecture, named_by
from .decision import gpus_per_instance
from .plan_builder import PlanBuilder

_SIZE, _KV_HEADS = "tensor_parallel_size", "num_key_value_heads"
_SEVERAL_NODES = {"kubernetes", "slurm"}  # the targets that can start a server on them


def check_request(builder: PlanBuilder) -> None:
    """Checks the GPU's arithmetic, the release's models and formats, and the longest context."""
    facts, workload = builder.facts, builder.deployment.workload
    _check_arithmetic(builder, facts.checkpoint, builder.deployment.checkpoint, "hardware.gpu")
    _check_support(builder, facts.checkpoint, "engine.release")
    _check_format(builder, facts.checkpoint, "checkpoint")
    if facts.checkpoint.is_bare:
        what = "its folder holds no weights: their sizes are assumed to be the architecture's"
        builder.warn("checkpoint", what, "copy the weights and the tokenizer before you start it")
    if "model" in builder.overrides:
        remedy = "name the model by checkpoint"
        builder.refuse("engine_config.model", "is set by the toolkit", remedy)
    length = workload.isl + workload.osl
    longest = facts.checkpoint.text_config.get("max_position_embeddings")
    if longest is not None and length > longest:
        what = f"isl + osl is {length} tokens, the model's longest context is {longest}"
        builder.refuse("workload", what, "shorten isl or osl")


def check_draft(builder: PlanBuilder) -> None:
    """Checks that the draft model runs on this GPU and release, with the model's vocabulary.

    The draft head of EAGLE may have fewer tokens and maps them; a whole draft model may not.
    """
    draft, facts = builder.facts.draft, builder.facts.checkpoint
    if draft is None or builder.deployment.draft is None:
        return
    where = "draft.checkpoint"
    _check_arithmetic(builder, draft, builder.deployment.draft.checkpoint, where)
    _check_support(builder, draft, where)
    _check_format(builder, draft, where)
    sizes = [model.text_config.get("vocab_size") for model in (draft, facts)]
    if builder.deployment.draft.method == "draft_target" and sizes[0] != sizes[1]:
        what = f"{draft.name} has {sizes[0]} tokens in its vocabulary, {facts.name} has {sizes[1]}"
        remedy = "take a draft model of the same family, which shares the tokenizer"
        builder.refuse(where, what, remedy)


def _check_arithmetic(builder: PlanBuilder, checkpoint: Checkpoint, name: str, where: str) -> None:
    gpu = builder.facts.gpu
    needed = checkpoint.quantization.arithmetics
    if lacking := [one for one in needed if one not in gpu.precisions.value]:
        precision = lacking[0]
        what = f"{gpu.name} has no {precision} arithmetic, which {name} needs"
        remedy = f"use a checkpoint in {', '.join(gpu.precisions.value)}"
        builder.refuse(where, what, f"{remedy}, or a GPU that has {precision}")


def _check_format(builder: PlanBuilder, checkpoint: Checkpoint, where: str) -> None:
    """Refuses weights that the release cannot read on this GPU; a rule warns of unknown ones."""
    release, gpu = builder.facts.release, builder.facts.gpu
    has_experts = checkpoint.architecture.experts_field is not None
    query = release, checkpoint.quantization, has_experts, gpu.sm.value
    found = weight_formats.reading(*query)
    if found is not None and found.state == "unsupported":
        what = f"release {release.name} does not read weights in {found.weights} on {gpu.name}"
        builder.refuse(where, f"{what}: {found.evidence}", weight_formats.remedy(*query))


def _check_support(builder: PlanBuilder, checkpoint: Checkpoint, where: str) -> None:
    """Refuses an architecture that the release does not support; warns if no source names it."""
    name, release = checkpoint.architecture.name, builder.facts.release
    support = architecture(release, name)
    if support.state == "unsupported":
        what = f"release {release.name} does not serve {name}: {support.evidence}"
        remedy = "; or ".join(_readers(release, name)) or "choose a later release"
        builder.refuse(where, what, remedy)
    elif support.state == "unknown":
        what = f"nothing is known of {name} in release {release.name}: {support.evidence}"
        remedy = "start it with the real engine before you rely on this plan"
        builder.warn(where, what, "; or ".join([remedy, *_readers(release, name)]))


def _readers(release: Release, name: str) -> Iterator[str]:
    """Releases that a source says support an architecture: of this engine, and of others."""
    found = named_by(name)
    if own := found.pop(release.engine, []):
        yield f"choose release {either(own)}"
    for engine, names in found.items():
        yield f"serve it with {engine.title} {either(names)}"


def check_batch(builder: PlanBuilder) -> bool:
    """Whether a batch holds at least one request."""
    batch = builder.value("max_batch_size")
    if batch is not None and batch < 1:
        what = f"{batch} is too small for the workload"
        builder.refuse("engine_config.max_batch_size", what, "give at least 1")
        return False
    return True


def check_gpus(builder: PlanBuilder) -> None:
    """Checks that instances share the GPUs evenly, in one node or in whole nodes."""
    total, instances = builder.deployment.hardware.num_gpus, builder.deployment.instances
    if total % instances:
        what = f"{total} GPUs cannot be shared by {instances} instances"
        builder.refuse("instances", what, "give a divisor of hardware.num_gpus")
    name, limit = builder.facts.gpu.name, builder.facts.gpu.gpus_per_node.value
    gpus = gpus_per_instance(builder.deployment)
    if gpus <= limit:
        return
    what = f"{gpus} GPUs need more than one node: a {name} node has {limit}"
    targets = builder.deployment.targets.keys()
    takers = _takers(builder)
    if builder.deployment.role != "prefill" and not takers & targets:
        remedy = f"give at most {limit}"
        if takers:
            remedy += f", or add the target {' or '.join(sorted(takers))}, which takes several"
        elif (alone := _of_one_node(builder)) < targets & set(servers.names()):
            remedy += f", or leave {' and '.join(sorted(alone))} out, of one node only"
        if not takers and total % limit == 0:
            remedy += f"; instances: {total // limit} are so many servers, one on each node"
        builder.refuse("hardware.num_gpus", what, remedy)
    elif gpus % limit:
        remedy = f"give a multiple of {limit}: whole nodes"
        builder.refuse("hardware.num_gpus", what, remedy)


def _takers(builder: PlanBuilder) -> set[str]:
    """The targets that can start a server on several nodes: by ranks, or by a command on each."""
    if builder.facts.release.engine.rank_launcher:
        return _SEVERAL_NODES
    return set() if _of_one_node(builder) else _SEVERAL_NODES


def _of_one_node(builder: PlanBuilder) -> set[str]:
    """The servers of the deployment that no command on each node starts."""
    targets = builder.deployment.targets.keys() & set(servers.names())
    return {name for name in targets if servers.load(name).node_command is None}


# What tensor parallelism splits; key-value heads may also be duplicated evenly.
_SPLIT = ("num_attention_heads", _KV_HEADS, "moe_intermediate_size", "intermediate_size")


def _divides(name: str, value: int, size: int) -> bool:
    return value % size == 0 or (name == _KV_HEADS and size % value == 0)


def undivided(checkpoint: Checkpoint, size: int) -> list[str]:
    """Sizes that tensor parallelism over so many GPUs does not divide evenly."""
    config = checkpoint.text_config
    return [name for name in _SPLIT if name in config and not _divides(name, config[name], size)]


def check_division(builder: PlanBuilder, size: int, checkpoint: Checkpoint) -> None:
    config = checkpoint.text_config
    if not (wrong := undivided(checkpoint, size)):
        return
    overridden = _SIZE in builder.overrides
    where = f"engine_config.{_SIZE}" if overridden else "hardware.num_gpus"
    listing = ", ".join(f"{name} {config[name]}" for name in wrong)
    limit = max(builder.facts.gpu.gpus_per_node.value, size)
    sizes = [n for n in range(1, limit + 1) if not set(wrong) & set(undivided(checkpoint, n))]
    of_draft = f" of the draft model {checkpoint.name}" if checkpoint is builder.facts.draft else ""
    what = f"tensor parallelism over {size} GPUs does not divide {listing}{of_draft}"
    builder.refuse(where, what, f"give one of {', '.join(map(str, sizes))}")
