"""LFM2 of Liquid AI: short convolutions in most layers, attention in the others, experts
in the larger ones.

Names and shapes: lfm2 and lfm2_moe of Hugging Face transformers 5.23 with its table of published
names.
"""

from __future__ import annotations

from .fields import WIDTH_STEP, Config, layer_kinds
from .mixtures import Experts
from .tensors import (
    COMMON,
    GQA,
    Architecture,
    Layers,
    Recurrent,
    Tensors,
    ends,
    gated_mlp,
    head_dim,
    linear,
    other_layers,
    qk_norms,
)

_KERNEL = "conv_L_cache"
_NAMES = ("w1", "w3", "w2")


def _attention_layers(config: Config) -> Layers:
    """Those of a kind, or by number; all where the file tells of none."""
    every, listed = range(config["num_hidden_layers"]), config.get("full_attn_idxs")
    kinds = layer_kinds(config)
    if kinds:
        return tuple(i for i in every if kinds[i] == "full_attention")
    return tuple(i for i in every if not isinstance(listed, list) or i in listed)


def _convolutions(config: Config) -> Layers:
    return other_layers(config, _attention_layers(config))


def _recurrent(config: Config) -> Recurrent:
    return Recurrent(
        len(_convolutions(config)), 0, (config[_KERNEL] - 1) * int(config["hidden_size"])
    )


def _width(config: Config) -> int:
    """Two thirds of what the file says where the model adjusts it, rounded up unless its factor is
    `null`."""
    width = int(config["intermediate_size"])
    if not config.get("block_auto_adjust_ff_dim", True):
        return width
    width, factor = int(2 * width / 3), config.get("block_ffn_dim_multiplier", 1)
    step = int(config.get("block_multiple_of", WIDTH_STEP))
    return -(-int(factor * width) // step) * step if factor else width


def _dense(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    width, mlp = _width(config), f"{layer}.feed_forward"
    return gated_mlp(mlp, config["hidden_size"], width, "dense_mlp", layers, names=_NAMES)


def _sparse(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    first, experts = (
        config.get("num_dense_layers", 0),
        Experts(
            "num_experts",
            module="feed_forward",
            score="expert_bias" if config.get("use_expert_bias", True) else None,
            names=_NAMES,
        ),
    )
    mlp, width = f"{layer}.feed_forward", config["intermediate_size"]
    dense = gated_mlp(mlp, config["hidden_size"], width, "dense_mlp", layers[:first], names=_NAMES)
    return [*dense, *experts(layer, config, layers[first:])]


def _lfm2(config: Config) -> list[Tensors]:
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    hidden, width = config["hidden_size"], head_dim(config)
    query, key = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    attention, convolutions = _attention_layers(config), _convolutions(config)
    sizes = {"q_proj": (query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden)}
    kernel = (hidden, 1, config[_KERNEL])
    mlps = _sparse if config.get("num_experts") else _dense
    return [
        *ends(config, names=("embed_tokens", "embedding_norm"), tied=True),
        Tensors(f"{layer}.operator_norm.weight", (hidden,), "norm", every),
        Tensors(f"{layer}.ffn_norm.weight", (hidden,), "norm", every),
        *(
            linear(f"{layer}.self_attn.{name}", *shape, "attention", attention)
            for name, shape in (sizes | {"out_proj": (hidden, query)}).items()
        ),
        *qk_norms(layer, width, width, attention, ("q_layernorm", "k_layernorm")),
        linear(f"{layer}.conv.in_proj", 3 * hidden, hidden, "linear_attention", convolutions),
        linear(f"{layer}.conv.out_proj", hidden, hidden, "linear_attention", convolutions),
        Tensors(f"{layer}.conv.conv.weight", kernel, "linear_attention", convolutions),
        *mlps(layer, config, every),
    ]


def _row(name: str, *more: str) -> Architecture:
    return Architecture(
        name,
        "hybrid",
        (*COMMON, *GQA, _KERNEL, "intermediate_size", *more),
        _lfm2,
        experts_field="num_experts" if more else None,
        cached_layers=lambda config: len(_attention_layers(config)),
        recurrent=_recurrent,
    )


ROWS = (
    _row("Lfm2ForCausalLM"),
    _row("Lfm2MoeForCausalLM", "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
)
