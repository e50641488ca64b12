"""EXAONE of LG: 3 and 3.5, whose tensors have names of their own, and K-EXAONE.

Names and shapes: modeling_exaone.py beside the weights of LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct, and
exaone_moe of Hugging Face transformers 5.23 with its table of published names.
"""

from __future__ import annotations

from .fields import Config
from .grouped_query import REQUIRED, Decoder
from .mixtures import Experts
from .tensors import COMMON, GQA, Architecture, Tensors, ends, gated_mlp, head_dim, linear


def _exaone(config: Config) -> list[Tensors]:
    layer, hidden = "transformer.h.{layer}", config["hidden_size"]
    every = tuple(range(config["num_hidden_layers"]))
    query = config["num_attention_heads"] * head_dim(config)
    key = config["num_key_value_heads"] * head_dim(config)
    sizes = {"q_proj": (query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden)}
    return [
        *ends(config, "transformer", names=("wte", "ln_f")),
        Tensors(f"{layer}.ln_1.weight", (hidden,), "norm", every),
        Tensors(f"{layer}.ln_2.weight", (hidden,), "norm", every),
        *(
            linear(f"{layer}.attn.attention.{name}", *shape, "attention", every)
            for name, shape in (sizes | {"out_proj": (hidden, query)}).items()
        ),
        *gated_mlp(
            f"{layer}.mlp",
            hidden,
            config["intermediate_size"],
            "dense_mlp",
            every,
            names=("c_fc_0", "c_fc_1", "c_proj"),
        ),
    ]


def _is_dense(config: Config, layer: int) -> bool:
    """Layers are listed by kind or by a flag each, or the first ones are dense."""
    kinds, flags = config.get("mlp_layer_types"), config.get("is_moe_layer")
    if isinstance(kinds, list):
        return bool(kinds[layer] == "dense")
    if isinstance(flags, list):
        return not flags[layer]
    return layer < int(config.get("first_k_dense_replace", 1))


def _shared(config: Config) -> int:
    return int(config["moe_intermediate_size"] * config.get("num_shared_experts", 1))


_K_EXAONE = Decoder(
    qk_norm="head",
    bias="none",
    mlps=Experts(
        "num_experts", score="e_score_correction_bias", shared_width=_shared, is_dense=_is_dense
    ),
)


ROWS = (
    Architecture("ExaoneForCausalLM", "gqa", REQUIRED, _exaone),
    *(
        Architecture(
            name,
            "gqa_window",
            (*COMMON, *GQA, "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
            _K_EXAONE,
            experts_field="num_experts",
        )
        for name in ("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM")
    ),
)
