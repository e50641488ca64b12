"""How the model is spread over the GPUs of one instance."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import Problem
from .case import Case


def decide(case: Case) -> bool:
    """Tensor parallelism over all GPUs of an instance, then attention and experts.

    Returns whether there is a size to decide anything else with.
    """
    instances, gpus, gpu = case.deployment.instances, case.num_gpus, case.facts.gpu
    each = " of an instance" if instances > 1 else ""
    case.decide(
        "tensor_parallel_size",
        gpus,
        f"Every layer is split over all GPUs{each}, which gives the lowest latency within one "
        "node.",
        "derived",
        f"hardware.num_gpus {case.deployment.hardware.num_gpus}"
        + (f", instances {instances}" if instances > 1 else ""),
    )
    if case.deployment.hardware.num_gpus % instances:
        what = f"{case.deployment.hardware.num_gpus} GPUs cannot be shared by {instances} instances"
        case.problems.append(Problem("instances", what, "give a divisor of hardware.num_gpus"))
    if gpus > gpu.gpus_per_node:
        what = f"{gpus} GPUs need more than one node: a {gpu.name} node has {gpu.gpus_per_node}"
        remedy = f"give at most {gpu.gpus_per_node}; several nodes are not rendered yet"
        case.problems.append(Problem("hardware.num_gpus", what, remedy))
    size, pipeline = case.value("tensor_parallel_size"), case.value("pipeline_parallel_size")
    if size < 1 or pipeline < 1 or size * pipeline != gpus:
        what = f"{size} x pipeline_parallel_size {pipeline} uses {size * pipeline} GPUs"
        where, remedy = "engine_config.tensor_parallel_size", f"hardware.num_gpus is {gpus}"
        if instances > 1:
            remedy = f"an instance has {gpus}"
        case.problems.append(Problem(where, what, remedy))
    if size < 1:
        return False
    _check_division(case, size)
    case.follow("parallelism.rules")
    return True


# What tensor parallelism splits; key-value heads may also be duplicated evenly.
_SPLIT: dict[str, Callable[[int, int], bool]] = {
    "num_attention_heads": lambda value, size: value % size == 0,
    "num_key_value_heads": lambda value, size: value % size == 0 or size % value == 0,
    "moe_intermediate_size": lambda value, size: value % size == 0,
    "intermediate_size": lambda value, size: value % size == 0,
}


def _check_division(case: Case, size: int) -> None:
    config = case.facts.checkpoint.text_config
    wrong = [name for name in _SPLIT if name in config and not _SPLIT[name](config[name], size)]
    if wrong:
        overridden = "tensor_parallel_size" in case.overrides
        where = "engine_config.tensor_parallel_size" if overridden else "hardware.num_gpus"
        listing = ", ".join(f"{name} {config[name]}" for name in wrong)
        limit = case.facts.gpu.gpus_per_node
        sizes = [
            n for n in range(1, limit + 1) if all(_SPLIT[name](config[name], n) for name in wrong)
        ]
        what = f"tensor parallelism over {size} GPUs does not divide {listing}"
        remedy = f"give one of {', '.join(map(str, sizes))}"
        case.problems.append(Problem(where, what, remedy))
