"""Llama 3.2 Vision: a Llama with layers between that attend to the picture.

Names and shapes: mllama of Hugging Face transformers 5.23 with its table of published names. The
engine leaves the layers for pictures out and answers text alone (TensorRT-LLM,
_torch/models/modeling_mllama.py), but its KV cache counts them, and so do the weights here.
"""

from __future__ import annotations

from dataclasses import replace

from .fields import Config
from .grouped_query import REQUIRED, Decoder
from .tensors import Architecture, Tensors

_ROOT, _HEAD = "language_model.model", "language_model.lm_head"
_EMBEDDED = 8  # the token of the picture and place holders, which the head does not know
_SELF = Decoder(root=_ROOT, head=_HEAD, bias="none")
_CROSS = replace(_SELF, attention="cross_attn", qk_norm="head")


def _mllama(config: Config) -> list[Tensors]:
    layer, embedding = f"{_ROOT}.layers.{{layer}}", f"{_ROOT}.embed_tokens.weight"
    every, listed = range(config["num_hidden_layers"]), config["cross_attention_layers"]
    cross = tuple(i for i in every if i in listed)
    own = tuple(i for i in every if i not in listed)
    rows = [row for row in _SELF(config) if ".self_attn." not in row.pattern]
    vocabulary = (config["vocab_size"] + _EMBEDDED, config["hidden_size"])
    return [
        *(replace(row, shape=vocabulary) if row.pattern == embedding else row for row in rows),
        *_SELF.attention_tensors(layer, config, own),
        *_CROSS.attention_tensors(layer, config, cross),
        *(
            Tensors(f"{layer}.cross_attn_{part}_gate", (1,), "attention", cross)
            for part in ("attn", "mlp")
        ),
    ]


ROWS = (
    Architecture(
        "MllamaForConditionalGeneration", "gqa", REQUIRED, _mllama, text_config="text_config"
    ),
)
