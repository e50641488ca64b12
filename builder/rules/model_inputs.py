"""Rule inputs of a model on its GPUs: how ranks share it, what its weights take, MoE backends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import ceil, prod
from typing import Any, Protocol

from ..documents import Variable
from ..facts.release import support
from ..facts.release.support import Support
from .context import RuleContext


class Inputs(Protocol):
    """The values of words that other inputs follow from."""

    @property
    def context(self) -> RuleContext: ...

    def value(self, word: str) -> Any: ...

    def number(self, word: str | float) -> float | None: ...

    def count(self, word: str) -> int | None: ...


def _product(factors: Iterable[int | None]) -> int | None:
    known = list(factors)
    return None if None in known else prod(filter(None, known))


_LEAST_ROOM_GIB = 2  # of a GPU next to the weights; no published configuration leaves less

# Of every engine, and of engines that have them.
_SIZES = ("tensor_parallel_size", "pipeline_parallel_size")
_SIZES_OF_SOME = (
    "context_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
)


def _world_size(inputs: Inputs) -> int | None:
    """The GPUs of one server (mapping.py: world_size), with all copies of the attention."""
    known = inputs.context.release.top_level
    sizes = (name for name in (*_SIZES, *_SIZES_OF_SOME) if name in known or name in _SIZES)
    return _product(inputs.count(f"effective.{name}") for name in sizes)


def _requests_per_rank(inputs: Inputs) -> int | None:
    """Requests at once of each group of GPUs that shares the attention."""
    concurrency, size = inputs.context.concurrency, inputs.count("effective.tensor_parallel_size")
    if concurrency is None or size is None:
        return None
    if (copies := inputs.count("effective.data_parallel_size")) is not None:
        return ceil(concurrency / max(1, copies))
    return ceil(concurrency / (size if inputs.value("attention_dp") is True else 1))


def _attention_dp(inputs: Inputs) -> Any:
    """Whether whole requests stay on one rank: by a switch, or by copies of the attention."""
    copies = inputs.count("effective.data_parallel_size")
    return inputs.value("effective.enable_attention_dp") if copies is None else copies > 1


def _head_ranks(inputs: Inputs) -> int | None:
    """The ranks that share the attention heads; with attention DP each has all of them."""
    dp = inputs.value("attention_dp") is True
    return 1 if dp else inputs.count("effective.tensor_parallel_size")


def _head_sizes(inputs: Inputs) -> list[int] | None:
    """The sizes of tensor parallelism that share the heads evenly."""
    heads = inputs.count("num_attention_heads") or 0
    return [size for size in range(1, heads + 1) if heads % size == 0] or None


def _expert_width_ranks(inputs: Inputs) -> int | None:
    """The ranks that share each expert's width."""
    given = inputs.count("moe_tensor_parallel_size") or 0
    ranks, split = inputs.count("moe_ranks"), inputs.count("moe_expert_parallel_size") or 1
    if given > 0 or ranks is None:
        return given or None
    return ranks // split if split > 0 and ranks % split == 0 else None


def _model_weights_gib(inputs: Inputs) -> float | None:
    """The weights of the whole model, without those of MTP layers, which may be left out."""
    model = inputs.context.checkpoint
    if model is None:
        return None
    return round(sum(group.nbytes for group in model.loaded_groups if not group.mtp) / 2**30, 1)


def _least_weights_gib(inputs: Inputs) -> float | None:
    """The weights of each GPU, if every tensor were split over all of them."""
    total, world = inputs.number("model_weights_gib"), inputs.number("world_size")
    return None if total is None or not world else round(total / world, 1)


def _least_gpus(inputs: Inputs) -> int | None:
    """The fewest GPUs whose memory together holds the weights."""
    total, each = inputs.number("model_weights_gib"), inputs.number("gpu_memory_gib")
    return None if total is None or not each else ceil(total / each)


def _roomy_gpus(inputs: Inputs) -> int | None:
    """The fewest GPUs that also have room for the driver, activations and the KV cache."""
    total, each = inputs.number("model_weights_gib"), inputs.number("gpu_memory_gib")
    if total is None or each is None or each <= _LEAST_ROOM_GIB:
        return None
    return ceil(total / (each - _LEAST_ROOM_GIB))


def _most_room_gib(inputs: Inputs) -> float | None:
    """The most memory of a GPU that the weights leave, if they fit."""
    each, memory = inputs.number("least_weights_gib"), inputs.number("gpu_memory_gib")
    return None if each is None or memory is None or each > memory else round(memory - each, 1)


def _gpu_memory_gib(inputs: Inputs) -> float | None:
    gpu = inputs.context.gpu
    return None if gpu is None else round(gpu.memory_gib, 1)


def _nodes(inputs: Inputs) -> int | None:
    """The nodes of one server."""
    gpus, size = inputs.count("num_gpus"), inputs.count("node_gpus")
    return None if gpus is None or not size else ceil(gpus / size)


def _arithmetic(inputs: Inputs) -> str | None:
    """The arithmetic that the checkpoint needs of a GPU."""
    model = inputs.context.checkpoint
    return None if model is None else model.quantization.arithmetic


def _weights(inputs: Inputs) -> Support | None:
    """Support of the format of the weights in this release, on the GPU if it is known."""
    context = inputs.context
    if context.checkpoint is None:
        return None
    # Most files that are checked name no model.
    from ..facts.release.weight_formats import reading

    return reading(context.release, context.checkpoint.quantization, *_where(context))


def _weights_remedy(inputs: Inputs) -> str | None:
    context = inputs.context
    if context.checkpoint is None:
        return None
    from ..facts.release.weight_formats import remedy

    return remedy(context.release, context.checkpoint.quantization, *_where(context))


def _where(context: RuleContext) -> tuple[bool, int | None]:
    """Whether the model has experts, and the compute capability if a GPU is known."""
    return bool(context.has_experts), context.gpu.sm.value if context.gpu else None


def _moe_backends(inputs: Inputs) -> list[str] | None:
    """Backends with kernels for the checkpoint on the GPU, best first."""
    context = inputs.context
    if context.gpu is None or context.precision is None:
        return None
    rows = support.moe_backends(context.release, context.quant_algo, context.gpu.sm.value)
    return [row["backend"] for row in rows] or None


def _moe_backend_support(inputs: Inputs) -> Support | None:
    """Support of the chosen backend for the checkpoint on the GPU."""
    context, name = inputs.context, inputs.value("moe_config.backend")
    if context.gpu is None or not isinstance(name, str) or isinstance(name, Variable):
        return None
    sm = context.gpu.sm.value
    if context.precision is None:
        return support.moe_backend_on_gpu(context.release, name.upper(), sm)
    return support.moe_backend(context.release, name.upper(), context.quant_algo, sm)


def _moe_backend_remedy(inputs: Inputs) -> str:
    """Which backend to name instead."""
    if names := _moe_backends(inputs):
        return f"known to work there: {', '.join(names)}"
    default = inputs.context.release.moe_engine_default
    return f"no source names one; without the key the engine uses {default}"


def _precision_backends(inputs: Inputs) -> list[str] | None:
    """Backends that sources name for the precision on some GPU, if they name the chosen one too."""
    context, given = inputs.context, inputs.value("moe_config.backend")
    rows = support.moe_backends_by_precision(context.release)
    if not isinstance(given, str) or not any(given.upper() in names for names in rows.values()):
        return None
    return rows.get(str(context.precision))


DERIVED: Mapping[str, Callable[[Inputs], Any]] = {
    "arithmetic": _arithmetic,
    "weights_format": lambda inputs: getattr(_weights(inputs), "weights", None),
    "weights_support": lambda inputs: getattr(_weights(inputs), "state", None),
    "weights_evidence": lambda inputs: getattr(_weights(inputs), "evidence", None),
    "weights_remedy": _weights_remedy,
    "attention_dp": _attention_dp,
    "requests_per_rank": _requests_per_rank,
    "world_size": _world_size,
    "head_ranks": _head_ranks,
    "head_sizes": _head_sizes,
    "expert_width_ranks": _expert_width_ranks,
    "model_weights_gib": _model_weights_gib,
    "least_weights_gib": _least_weights_gib,
    "least_gpus": _least_gpus,
    "roomy_gpus": _roomy_gpus,
    "gpu_memory_gib": _gpu_memory_gib,
    "most_room_gib": _most_room_gib,
    "nodes": _nodes,
    "moe_backends": _moe_backends,
    "precision_backends": _precision_backends,
    "moe_backend_support": lambda inputs: getattr(_moe_backend_support(inputs), "state", None),
    "moe_backend_evidence": lambda inputs: getattr(_moe_backend_support(inputs), "evidence", None),
    "moe_backend_remedy": _moe_backend_remedy,
}
