"""Llama-Nemotron models that a search over Llama's blocks made: layers differ, some lack attention.

Names and sizes: modeling_decilm.py and configuration_decilm.py beside the weights of
nvidia/Llama-3_3-Nemotron-Super-49B-v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .fields import Config, key_value_heads_of_block, width_of_block
from .tensors import COMMON, GQA, Architecture, Tensors, ends, gated_mlp, gqa, linear


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


ROWS = tuple(
    Architecture(name, "gqa", (*COMMON, *GQA), _decilm, cached_layers=_attention_layers)
    for name in ("DeciLMForCausalLM", "NemotronNASForCausalLM")
)
