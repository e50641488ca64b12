"""Jamba of AI21: Mamba in most layers, attention in the others, experts in every second one.

Names and shapes: jamba of Hugging Face transformers 5.23 with its table of published names.
"""

from __future__ import annotations

from .fields import Config
from .grouped_query import Decoder
from .mixtures import Experts
from .tensors import (
    COMMON,
    GQA,
    Architecture,
    Layers,
    Recurrent,
    Role,
    Tensors,
    linear,
    other_layers,
)
from .trial import Spoiled

_MAMBA = ("mamba_d_conv", "mamba_d_state", "mamba_expand")


def _is_of(config: Config, kind: str, layer: int) -> bool:
    """Whether a layer is one of those that the file gives by their period and the first of them."""
    period, offset = config[f"{kind}_layer_period"], config[f"{kind}_layer_offset"]
    if offset >= period:  # transformers refuses it: no layer would be one
        raise Spoiled(f"{kind}_layer_offset")
    return bool(layer % period == offset)


def _attention_layers(config: Config) -> Layers:
    return tuple(i for i in range(config["num_hidden_layers"]) if _is_of(config, "attn", i))


def _mamba_layers(config: Config) -> Layers:
    return other_layers(config, _attention_layers(config))


def _inner(config: Config) -> int:
    return int(config["mamba_expand"] * config["hidden_size"])


def _recurrent(config: Config) -> Recurrent:
    inner = _inner(config)
    window = (config["mamba_d_conv"] - 1) * inner
    return Recurrent(len(_mamba_layers(config)), inner * config["mamba_d_state"], window)


def _is_dense(config: Config, layer: int) -> bool:
    """A layer of a single expert is a plain MLP."""
    return bool(config["num_experts"] == 1 or not _is_of(config, "expert", layer))


_DECODER = Decoder(
    ends=("embed_tokens", "final_layernorm"),
    norms=("input_layernorm", "pre_ff_layernorm"),
    bias="none",
    mlps=Experts(
        "num_experts",
        "intermediate_size",
        "feed_forward",
        "router",
        is_dense=_is_dense,
        dense_module="feed_forward",
    ),
)


def _rank(config: Config) -> int:
    rank = config.get("mamba_dt_rank", "auto")
    return int(-(-config["hidden_size"] // 16) if rank == "auto" else rank)


def _mamba(mixer: str, config: Config) -> list[Tensors]:
    layers, inner, hidden = _mamba_layers(config), _inner(config), config["hidden_size"]
    state, rank = config["mamba_d_state"], _rank(config)
    part: Role = "linear_attention"
    biases = {"in_proj": 2 * inner, "out_proj": hidden} if config.get("mamba_proj_bias") else {}
    if config.get("mamba_conv_bias", True):
        biases["conv1d"] = inner
    return [
        linear(f"{mixer}.in_proj", 2 * inner, hidden, part, layers),
        Tensors(f"{mixer}.conv1d.weight", (inner, 1, config["mamba_d_conv"]), part, layers),
        linear(f"{mixer}.x_proj", rank + 2 * state, inner, part, layers),
        linear(f"{mixer}.dt_proj", inner, rank, part, layers),
        linear(f"{mixer}.out_proj", hidden, inner, part, layers),
        Tensors(f"{mixer}.A_log", (inner, state), part, layers),
        Tensors(f"{mixer}.D", (inner,), part, layers),
        *(
            Tensors(f"{mixer}.{name}.bias", (size,), part, layers)
            for name, size in (biases | {"dt_proj": inner}).items()
        ),
        *(
            Tensors(f"{mixer}.{name}_layernorm.weight", (size,), "norm", layers)
            for name, size in (("dt", rank), ("b", state), ("c", state))
        ),
    ]


def _jamba(config: Config) -> list[Tensors]:
    layer = "model.layers.{layer}"
    attention = _DECODER.attention_tensors(layer, config, _attention_layers(config))
    others = _DECODER.without_attention(config)
    return [*others, *attention, *_mamba(f"{layer}.mamba", config)]


_PERIODS = ("attn_layer_period", "expert_layer_period")

ROWS = (
    Architecture(
        "JambaForCausalLM",
        "hybrid",
        (*COMMON, *GQA, *_MAMBA, *_PERIODS, "intermediate_size", "num_experts"),
        _jamba,
        experts_field="num_experts",
        optional_experts=True,
        cached_layers=lambda config: len(_attention_layers(config)),
        recurrent=_recurrent,
    ),
)
