"""Hy3 of Tencent: experts with a shared one in all layers but the first.

Names and shapes: hy_v3 of Hugging Face transformers 5.23 with its table of published names. Its
layer for multi-token prediction is left out.
"""

from __future__ import annotations

from .fields import Config
from .grouped_query import Decoder
from .mixtures import Experts, shared_width
from .tensors import COMMON, GQA, Architecture


def _is_dense(config: Config, layer: int) -> bool:
    """Layers are listed by kind, or the first ones are dense."""
    if isinstance(kinds := config.get("mlp_layer_types"), list):
        return kinds[layer : layer + 1] == ["dense"]
    return layer < int(config.get("first_k_dense_replace", 1))


_HY3 = Decoder(
    qk_norm="head",
    bias="none",
    mlps=Experts(
        "num_experts",
        gate="router.gate",
        score="expert_bias",
        shared="shared_mlp",
        shared_width=shared_width,
        is_dense=_is_dense,
    ),
)

ROWS = (
    Architecture(
        "HYV3ForCausalLM",
        "gqa",
        (
            *(*COMMON, *GQA, "intermediate_size", "moe_intermediate_size"),
            *("num_experts", "num_experts_per_tok"),
        ),
        _HY3,
        experts_field="num_experts",
    ),
)
