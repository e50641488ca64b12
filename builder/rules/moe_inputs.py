"""Rule inputs of MoE backends: which are known to have kernels for a checkpoint on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..documents import Variable
from ..facts.release import support
from ..facts.release.support import Support
from .model_inputs import Inputs


def _moe_backends(inputs: Inputs) -> list[str] | None:
    """Backends with kernels for the checkpoint on the GPU, best first."""
    context = inputs.context
    if context.gpu is None or context.precision is None:
        return None
    rows = support.moe_backends(context.release, context.quant_algo, context.gpu.sm.value)
    return [row["backend"] for row in rows] or None


def _moe_backend_support(inputs: Inputs) -> Support | None:
    """What is known of the given backend for the checkpoint on the GPU."""
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
    """Backends that are named for the precision on some GPU, where the given one is named too."""
    context, given = inputs.context, inputs.value("moe_config.backend")
    rows = support.moe_backends_by_precision(context.release)
    if not isinstance(given, str) or not any(given.upper() in names for names in rows.values()):
        return None
    return rows.get(str(context.precision))


DERIVED: Mapping[str, Callable[[Inputs], Any]] = {
    "moe_backends": _moe_backends,
    "precision_backends": _precision_backends,
    "moe_backend_support": lambda inputs: getattr(_moe_backend_support(inputs), "state", None),
    "moe_backend_evidence": lambda inputs: getattr(_moe_backend_support(inputs), "evidence", None),
    "moe_backend_remedy": _moe_backend_remedy,
}
