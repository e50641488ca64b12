"""Llama 3.2 Vision: a Llama with layers between that attend to the picture.

Names and shapes: mllama of Hugging Face transformers 5.23 with its table of published names. The
engine leaves the layers for pictures out, answers text alone and does not split the embedding
(TensorRT-LLM, _torch/models/modeling_mllama.py@000a01de). The others keep their numbers among all
`num_hidden_layers`, for which the KV cache is made.
"""

from __future__ import annotations

from dataclasses import replace

from .fields import Config
from .grouped_query import REQUIRED, Decoder
from .tensors import Architecture, Layers, Tensors, ends

_ROOT, _HEAD = "language_model.model", "language_model.lm_head"
_LAYER = f"{_ROOT}.layers.{{layer}}"
_GATED = ("attn", "mlp")
_EMBEDDED = 8  # the token of the picture and place holders, which the head does not know
_SELF = Decoder(root=_ROOT, head=_HEAD, bias="none")
_CROSS = replace(_SELF, attention="cross_attn", qk_norm="head")


def _decoder_layers(decoder: Decoder, config: Config, layers: Layers) -> list[Tensors]:
    parts = (decoder.norm_tensors, decoder.attention_tensors, decoder.mlp_tensors)
    return [row for part in parts for row in part(_LAYER, config, layers)]


def _mllama(config: Config) -> list[Tensors]:
    every, listed = range(config["num_hidden_layers"]), config["cross_attention_layers"]
    cross = tuple(i for i in every if i in listed)
    own = tuple(i for i in every if i not in listed)
    embedding, *others = ends(config, _ROOT, _HEAD)
    vocabulary = (config["vocab_size"] + _EMBEDDED, config["hidden_size"])
    of_pictures = [
        *_decoder_layers(_CROSS, config, cross),
        *(Tensors(f"{_LAYER}.cross_attn_{part}_gate", (1,), "left_out", cross) for part in _GATED),
    ]
    return [
        replace(embedding, shape=vocabulary),
        *others,
        *_decoder_layers(_SELF, config, own),
        *(replace(row, role="left_out") for row in of_pictures),
    ]


ROWS = (
    Architecture(
        "MllamaForConditionalGeneration",
        "gqa",
        REQUIRED,
        _mllama,
        text_config="text_config",
        splits_embedding=False,
    ),
)
