"""Whether the GPUs of a row or a question hold the KV cache of all its requests at a time.

Where they do not, requests wait for others to end: the time to the first token is then one of the
queue, many times that of the prompt, and measured rows tell nothing of it.
"""

from __future__ import annotations

from functools import cache
from math import inf

from ..facts import hardware
from .roofline import Load
from .shapes import WEIGHT_BYTES, Shape

USABLE = 0.9  # of a GPU's memory, for weights and KV cache: engines leave that much
KV_VALUE_BYTES = 1.0  # FP8; where it is wider, fewer requests fit than is told here
FULL = 0.8  # of the KV cache: from here on, measured requests wait


def filled(load: Load, model: Shape, gpu: str) -> float:
    """The share of the KV cache that all requests fill half way through their answers; infinite
    where the weights leave no room for one."""
    weights = model.dense / load.tp + model.routed / (load.tp * load.attention_dp)
    free = USABLE * _memory_bytes(gpu) - weights * WEIGHT_BYTES[load.precision]
    context = load.isl + load.osl / 2
    values = model.kv_values * (1.0 if model.is_latent else 1 / load.tp)
    kv = load.concurrency / load.attention_dp * context * values * KV_VALUE_BYTES
    return kv / free if free > 0 else inf


@cache
def _memory_bytes(gpu: str) -> float:
    return hardware.load(gpu).memory_nominal_gb.value * 1e9
