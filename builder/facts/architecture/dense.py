"""Dense models with grouped-query attention that one `Decoder` does not describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from .fields import Config, key_value_heads_of_block, width_of_block
from .grouped_query import REQUIRED, Decoder
from .tensors import (
    COMMON,
    GQA,
    Architecture,
    Layers,
    Tensors,
    ends,
    gated_mlp,
    gqa,
    head_dim,
    linear,
)

# LG EXAONE 3 and 3.5.
#
# Names and shapes: modeling_exaone.py in LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct.


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


_EXAONE_ROWS = (Architecture("ExaoneForCausalLM", "gqa", REQUIRED, _exaone),)


# NVIDIA Llama-Nemotron: a search removed or replaced parts of Llama's layers.
#
# Names and sizes: modeling_decilm.py and configuration_decilm.py in the repository of
# nvidia/Llama-3_3-Nemotron-Super-49B-v1.


def _blocks(config: Config, part: str) -> list[Mapping[str, Any]]:
    return [block[part] for block in config["block_configs"]]


def _attention_layers(config: Config) -> int:
    blocks = _blocks(config, "attention")
    return sum(not (block.get("no_op") or block.get("replace_with_linear")) for block in blocks)


def _decilm(config: Config) -> list[Tensors]:
    """A layer without attention, or without an MLP, lacks its norm as well."""
    layer, hidden = "model.layers.{layer}", config["hidden_size"]
    tensors = ends(config)
    for i, block in enumerate(_blocks(config, "attention")):
        if block.get("replace_with_linear"):
            tensors.append(_replacement(f"{layer}.self_attn.linear_attn", config, i))
        elif not block.get("no_op"):
            heads = key_value_heads_of_block(config, block)
            tensors += gqa(layer, {**config, "num_key_value_heads": heads}, (i,))
        if not block.get("no_op"):
            tensors.append(Tensors(f"{layer}.input_layernorm.weight", (hidden,), "norm", (i,)))
    for i, block in enumerate(_blocks(config, "ffn")):
        if block.get("replace_with_linear"):
            tensors.append(_replacement(f"{layer}.mlp.linear_mlp", config, i))
        elif not block.get("no_op"):
            width = width_of_block(config, block)
            tensors += gated_mlp(f"{layer}.mlp", hidden, width, "dense_mlp", (i,))
        if not block.get("no_op"):
            norm = f"{layer}.post_attention_layernorm.weight"
            tensors.append(Tensors(norm, (hidden,), "norm", (i,)))
    return tensors


def _replacement(module: str, config: Config, layer: int) -> Tensors:
    return linear(module, config["hidden_size"], config["hidden_size"], "dense_mlp", (layer,))


_NAS_ROWS = tuple(
    Architecture(name, "gqa", (*COMMON, *GQA), _decilm, cached_layers=_attention_layers)
    for name in ("DeciLMForCausalLM", "NemotronNASForCausalLM")
)


# Llama 3.2 Vision: a Llama with additional layers that attend to the picture.
#
# Names and shapes: mllama of Hugging Face transformers 5.23 with its table of published names.
# The engine leaves the layers for pictures out, answers text alone and does not split the
# embedding (TensorRT-LLM, _torch/models/modeling_mllama.py@000a01de). The others keep their
# numbers among all `num_hidden_layers`, for which the KV cache is made.


_ROOT, _HEAD = "language_model.model", "language_model.lm_head"
_LAYER = f"{_ROOT}.layers.{{layer}}"
_GATED = ("attn", "mlp")
_EMBEDDED = 8  # the token of the picture and place holders, which the head does not know
_SELF = Decoder(root=_ROOT, head=_HEAD, bias="none")
_CROSS = replace(_SELF, attention="cross_attn", qk_norm="head")


def _decoder_layers(decoder: Decoder, config: Config, layers: Layers) -> list[Tensors]:
    parts = (decoder.norm_tensors, decoder.attention_tensors, decoder.mlp_tensors)
    return list(chain.from_iterable(part(_LAYER, config, layers) for part in parts))


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


_MLLAMA_ROWS = (
    Architecture(
        "MllamaForConditionalGeneration",
        "gqa",
        REQUIRED,
        _mllama,
        text_config="text_config",
        splits_embedding=False,
    ),
)


# Microsoft Phi-4-multimodal: each linear layer has LoRA adapters for pictures and for speech.
#
# Names and shapes: modeling_phi4mm.py in microsoft/Phi-4-multimodal-instruct.
# What reads pictures and sound is left out.


_ADAPTERS = ("vision", "speech")
_DECODER = Decoder(bias="none", fused=True, tied=True)


def _adapters(row: Tensors, module: str, config: Config) -> list[Tensors]:
    out_features, in_features = row.shape
    tensors = []
    for name in _ADAPTERS:
        rank = config[f"{name}_lora"]["r"]
        tensors += [
            linear(f"{module}.lora_A.{name}", rank, in_features, row.role, row.layers),
            linear(f"{module}.lora_B.{name}", out_features, rank, row.role, row.layers),
        ]
    return tensors


def _phi4mm(config: Config) -> list[Tensors]:
    tensors = []
    for row in _DECODER(config):
        if not row.linear or row.layers is None:
            tensors.append(row)
            continue
        module = row.pattern.removesuffix(".weight")
        tensors.append(replace(row, pattern=f"{module}.base_layer.weight"))
        tensors += _adapters(row, module, config)
    return tensors


_PHI4MM_ROWS = (Architecture("Phi4MMForCausalLM", "gqa", REQUIRED, _phi4mm),)


ROWS = (*_EXAONE_ROWS, *_NAS_ROWS, *_MLLAMA_ROWS, *_PHI4MM_ROWS)
