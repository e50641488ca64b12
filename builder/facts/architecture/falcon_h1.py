"""Falcon-H1 of TII: every layer has attention and Mamba-2 side by side.

Names and shapes: falcon_h1 of Hugging Face transformers 5.23.
"""

from __future__ import annotations

from .fields import Config
from .grouped_query import REQUIRED, Decoder
from .mamba2 import FIELDS, Mamba2
from .tensors import Architecture, Layers, Tensors, gated_mlp

_MAMBA = Mamba2(
    *FIELDS,
    everywhere=True,
    norm="mamba_rms_norm",
)


def _mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    return gated_mlp(f"{layer}.feed_forward", hidden, width, "dense_mlp", layers)


_DECODER = Decoder(
    ends=("embed_tokens", "final_layernorm"),
    norms=("input_layernorm", "pre_ff_layernorm"),
    mlps=_mlps,
)


def _falcon_h1(config: Config) -> list[Tensors]:
    return [*_DECODER(config), *_MAMBA.tensors("model.layers.{layer}.mamba", config)]


ROWS = (
    Architecture(
        "FalconH1ForCausalLM",
        "hybrid",
        (*REQUIRED, *_MAMBA.fields),
        _falcon_h1,
        recurrent=_MAMBA.recurrent,
    ),
)
