"""How the model is spread over the GPUs of one instance."""

from __future__ import annotations

from collections.abc import Callable

from ..diagnostics import Diagnostic
from ..facts.checkpoint import Checkpoint
from .case import Case

_SIZE, _STAGES = "tensor_parallel_size", "pipeline_parallel_size"
_SEVERAL_NODES = {"kubernetes", "slurm"}  # the targets that can start a server on them


def decide(case: Case) -> bool:
    """Tensor parallelism over the GPUs of an instance, then attention and experts.

    Returns whether there is a size to decide anything else with.
    """
    _check_gpus(case)
    gpus, stages = case.num_gpus, case.value(_STAGES)
    if stages < 1 or gpus % stages:
        what = f"{stages} stages cannot share {gpus} GPUs"
        remedy = "give a divisor of them"
        case.diagnostics.append(Diagnostic(f"engine_config.{_STAGES}", what, remedy))
        return False
    size = gpus // stages
    case.decide(_SIZE, size, _reason(case, size, stages), "derived", _source(case, stages))
    given = case.value(_SIZE)
    if given * stages != gpus:
        what = f"{given} x {_STAGES} {stages} uses {given * stages} GPUs"
        owner = "hardware.num_gpus is" if case.deployment.instances == 1 else "an instance has"
        case.diagnostics.append(Diagnostic(f"engine_config.{_SIZE}", what, f"{owner} {gpus}"))
    if given < 1:
        return False
    _check_division(case, given, case.facts.checkpoint)
    if case.facts.draft is not None:
        _check_division(case, given, case.facts.draft)
    case.follow("parallelism.rules")
    return True


def _check_gpus(case: Case) -> None:
    """The GPUs are shared evenly, and stand in one node or in whole nodes of a Slurm job."""
    total, instances = case.deployment.hardware.num_gpus, case.deployment.instances
    if total % instances:
        what = f"{total} GPUs cannot be shared by {instances} instances"
        case.diagnostics.append(
            Diagnostic("instances", what, "give a divisor of hardware.num_gpus")
        )
    name, limit = case.facts.gpu.name, case.facts.gpu.gpus_per_node.value
    if case.num_gpus <= limit:
        return
    what = f"{case.num_gpus} GPUs need more than one node: a {name} node has {limit}"
    if not _SEVERAL_NODES & case.deployment.targets.keys():
        takers = " or ".join(sorted(_SEVERAL_NODES))
        remedy = f"give at most {limit}, or add the target {takers}, which takes several"
        case.diagnostics.append(Diagnostic("hardware.num_gpus", what, remedy))
    elif case.num_gpus % limit:
        remedy = f"give a multiple of {limit}: whole nodes"
        case.diagnostics.append(Diagnostic("hardware.num_gpus", what, remedy))


def _reason(case: Case, size: int, stages: int) -> str:
    """Why the layers are split over so many GPUs, in words that hold for one GPU as well."""
    group = "a stage" if stages > 1 else "an instance" if case.deployment.instances > 1 else ""
    if size == 1:
        return f"One GPU holds every layer of {group or 'the model'}: there is nothing to split."
    whole = f"all GPUs of {group}" if group else "all GPUs"
    if (limit := case.facts.gpu.gpus_per_node.value) < size:
        return f"Every layer is split over {whole}, on {size // limit} nodes."
    return f"Every layer is split over {whole}, which gives the lowest latency within one node."


def _source(case: Case, stages: int) -> str:
    counts = {"instances": case.deployment.instances, _STAGES: stages}
    several = [f"{name} {count}" for name, count in counts.items() if count > 1]
    return ", ".join([f"hardware.num_gpus {case.deployment.hardware.num_gpus}", *several])


# What tensor parallelism splits; key-value heads may also be duplicated evenly.
_SPLIT: dict[str, Callable[[int, int], bool]] = {
    "num_attention_heads": lambda value, size: value % size == 0,
    "num_key_value_heads": lambda value, size: value % size == 0 or size % value == 0,
    "moe_intermediate_size": lambda value, size: value % size == 0,
    "intermediate_size": lambda value, size: value % size == 0,
}


def _check_division(case: Case, size: int, checkpoint: Checkpoint) -> None:
    config = checkpoint.text_config
    wrong = [name for name in _SPLIT if name in config and not _SPLIT[name](config[name], size)]
    if not wrong:
        return
    overridden = _SIZE in case.overrides
    where = f"engine_config.{_SIZE}" if overridden else "hardware.num_gpus"
    listing = ", ".join(f"{name} {config[name]}" for name in wrong)
    limit = max(case.facts.gpu.gpus_per_node.value, size)
    sizes = [n for n in range(1, limit + 1) if all(_SPLIT[name](config[name], n) for name in wrong)]
    of_draft = f" of the draft model {checkpoint.name}" if checkpoint is case.facts.draft else ""
    what = f"tensor parallelism over {size} GPUs does not divide {listing}{of_draft}"
    case.diagnostics.append(Diagnostic(where, what, f"give one of {', '.join(map(str, sizes))}"))
