"""Families with grouped-query attention that one `Decoder` does not describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from . import tensors as parts
from .decoder import Decoder, Family
from .fields import Config, key_value_heads_of_block, width_of_block
from .tensors import Layers, Tensors, linear


def _eagle3(decoder: Decoder, config: Config) -> list[Tensors]:
    """A draft head: one decoder layer over the next token's embedding and fused hidden states.

    `fc` fuses the hidden states of three layers of the target model, the decoder layer's attention
    reads embedding and fused state side by side, and the head knows the most frequent tokens only,
    which `d2t` maps to those of the target. The embedding is the target's own.
    """
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    drafted = config.get("draft_vocab_size") or vocabulary
    target = config.get("target_hidden_size") or hidden
    query = config["num_attention_heads"] * parts.head_dim(config)
    key = config["num_key_value_heads"] * parts.head_dim(config)
    layer = "midlayer"
    tensors = [
        linear("fc", hidden, 3 * target, "draft_projection"),
        Tensors(f"{layer}.hidden_norm.weight", (hidden,), "norm"),
        Tensors(f"{layer}.input_layernorm.weight", (hidden,), "norm"),
        Tensors(f"{layer}.post_attention_layernorm.weight", (hidden,), "norm"),
        linear(f"{layer}.self_attn.q_proj", query, 2 * hidden, "attention"),
        linear(f"{layer}.self_attn.k_proj", key, 2 * hidden, "attention"),
        linear(f"{layer}.self_attn.v_proj", key, 2 * hidden, "attention"),
        linear(f"{layer}.self_attn.o_proj", hidden, query, "attention"),
        *parts.gated_mlp(f"{layer}.mlp", hidden, config["intermediate_size"], "dense_mlp"),
        Tensors("norm.weight", (hidden,), "norm"),
        linear("lm_head", drafted, hidden, "lm_head"),
    ]
    if drafted != vocabulary:
        tensors.append(Tensors("d2t", (drafted,), "vocabulary_map", dtype="I64"))
    return tensors


def _exaone(decoder: Decoder, config: Config) -> list[Tensors]:
    """LG EXAONE 3 and 3.5, with names of their own."""
    layer, every, hidden = "transformer.h.{layer}", parts.decoder_layers(config), "hidden_size"
    size, names = config[hidden], ("c_fc_0", "c_fc_1", "c_proj")
    width = config["intermediate_size"]
    return [
        *decoder.end_tensors(config),
        *decoder.norm_tensors(layer, config, every),
        *parts.gqa(f"{layer}.attn.attention", config, every, output="out_proj"),
        *parts.gated_mlp(f"{layer}.mlp", size, width, "dense_mlp", every, names=names),
    ]


def _blocks(config: Config, part: str) -> list[Mapping[str, Any]]:
    return [block[part] for block in config["block_configs"]]


def _nas_attention_layers(config: Config) -> int:
    blocks = _blocks(config, "attention")
    return sum(not (block.get("no_op") or block.get("replace_with_linear")) for block in blocks)


def _nas(decoder: Decoder, config: Config) -> list[Tensors]:
    """NVIDIA Llama-Nemotron: a search removed or replaced parts of Llama's layers.

    A layer without attention, or without an MLP, lacks its norm as well.
    """
    layer, hidden = decoder.layer, config["hidden_size"]
    tensors = decoder.end_tensors(config)

    def linear_instead(module: str, number: int) -> Tensors:
        return linear(f"{layer}.{module}", hidden, hidden, "dense_mlp", (number,))

    for i, block in enumerate(_blocks(config, "attention")):
        if block.get("replace_with_linear"):
            tensors.append(linear_instead("self_attn.linear_attn", i))
        elif not block.get("no_op"):
            keys = key_value_heads_of_block(config, block)
            tensors += parts.gqa(f"{layer}.self_attn", config, (i,), keys=keys)
        if not block.get("no_op"):
            tensors.append(Tensors(f"{layer}.input_layernorm.weight", (hidden,), "norm", (i,)))
    for i, block in enumerate(_blocks(config, "ffn")):
        if block.get("replace_with_linear"):
            tensors.append(linear_instead("mlp.linear_mlp", i))
        elif not block.get("no_op"):
            width = width_of_block(config, block)
            tensors += parts.gated_mlp(f"{layer}.mlp", hidden, width, "dense_mlp", (i,))
        if not block.get("no_op"):
            norm = f"{layer}.post_attention_layernorm.weight"
            tensors.append(Tensors(norm, (hidden,), "norm", (i,)))
    return tensors


_MLLAMA_EMBEDDED = 8  # the token of the picture and place holders, which the head does not know


def _mllama(decoder: Decoder, config: Config) -> list[Tensors]:
    """Llama 3.2 Vision: a Llama with additional layers that attend to the picture.

    The engine leaves the layers for pictures out, answers text alone and does not split the
    embedding (TensorRT-LLM, _torch/models/modeling_mllama.py@000a01de). The others keep their
    numbers among all `num_hidden_layers`, for which the KV cache is made.
    """
    listed, layer = config["cross_attention_layers"], decoder.layer
    cross, own = parts.split(parts.decoder_layers(config), lambda i: i in listed)
    embedding, *others = decoder.end_tensors(config)
    vocabulary = (config["vocab_size"] + _MLLAMA_EMBEDDED, config["hidden_size"])

    def layers_of(kind: Decoder, layers: Layers) -> list[Tensors]:
        makers = (kind.norm_tensors, kind.attention_tensors, kind.mlps)
        return list(chain.from_iterable(make(layer, config, layers) for make in makers))

    of_pictures = layers_of(replace(decoder, attention="cross_attn", qk_norm="head"), cross)
    for part in ("attn", "mlp"):
        of_pictures.append(Tensors(f"{layer}.cross_attn_{part}_gate", (1,), "norm", cross))
    return [
        replace(embedding, shape=vocabulary),
        *others,
        *layers_of(decoder, own),
        *(replace(row, role="left_out") for row in of_pictures),
    ]


def _phi4mm(decoder: Decoder, config: Config) -> list[Tensors]:
    """Microsoft Phi-4-multimodal: each linear layer has LoRA adapters for pictures and for speech.

    What reads pictures and sound is left out.
    """
    tensors = []
    for row in decoder.tensors(config):
        if not row.linear or row.layers is None:
            tensors.append(row)
            continue
        module, (rows, columns) = row.pattern.removesuffix(".weight"), row.shape
        tensors.append(replace(row, pattern=f"{module}.base_layer.weight"))
        for name in ("vision", "speech"):
            rank = config[f"{name}_lora"]["r"]
            tensors += [
                linear(f"{module}.lora_A.{name}", rank, columns, row.role, row.layers),
                linear(f"{module}.lora_B.{name}", rows, rank, row.role, row.layers),
            ]
    return tensors


def _gpt_oss(decoder: Decoder, config: Config) -> list[Tensors]:
    """All experts of a layer in one tensor, `[experts, in_features, out_features]`.

    Gate and up projection interleave in the columns of `gate_up_proj`.
    """
    every, sinks = parts.decoder_layers(config), f"{decoder.layer}.self_attn.sinks"
    return [
        *decoder.tensors(config, _gpt_oss_mlps),
        Tensors(sinks, (config["num_attention_heads"],), "attention", every),
    ]


def _gpt_oss_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    experts, mlp = config["num_local_experts"], f"{layer}.mlp"
    gate_up, down = f"{mlp}.experts.gate_up_proj", f"{mlp}.experts.down_proj"
    return [
        Tensors(f"{mlp}.router.weight", (experts, hidden), "router", layers),
        Tensors(f"{mlp}.router.bias", (experts,), "router", layers),
        parts.fused(gate_up, (experts, hidden, 2 * width), layers),
        Tensors(f"{gate_up}_bias", (experts, 2 * width), "routed_expert", layers),
        parts.fused(down, (experts, width, hidden), layers),
        Tensors(f"{down}_bias", (experts, hidden), "routed_expert", layers),
    ]


def _glm4_moe(decoder: Decoder, config: Config) -> list[Tensors]:
    """GLM-4.5 to 4.7; the MTP layer follows the last decoder layer in the numbering."""
    layer, mtp, experts = decoder.layer, parts.mtp_layers(config), decoder.experts
    if not mtp or experts is None:
        return decoder.tensors(config)
    return decoder.tensors(config) + parts.as_mtp(
        *parts.mtp_ends(layer, config, mtp),
        *decoder.norm_tensors(layer, config, mtp),
        *decoder.attention_tensors(layer, config, mtp),
        *experts.mlps(layer, config, mtp),
    )


def _minimax_m3(decoder: Decoder, config: Config) -> list[Tensors]:
    """The layers with experts are also those with sparse attention."""
    every, frequency = parts.decoder_layers(config), config.get("moe_layer_freq")
    sparse, dense = every, Layers()
    if isinstance(frequency, list):
        sparse, dense = parts.split(every, lambda i: i < len(frequency) and frequency[i])

    def mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
        width = config.get("dense_intermediate_size") or config["intermediate_size"]
        hidden, tensors = config["hidden_size"], list[Tensors]()
        if dense:
            tensors += parts.gated_mlp(f"{layer}.mlp", hidden, width, "dense_mlp", dense)
        return tensors + (decoder.experts.sparse(layer, config, sparse) if decoder.experts else [])

    tensors, index = decoder.tensors(config, mlps), config.get("sparse_attention_config")
    if not isinstance(index, dict):
        return tensors
    heads, dim = index["sparse_num_index_heads"], index["sparse_index_dim"]
    attention, hidden = f"{decoder.layer}.self_attn", config["hidden_size"]
    return [
        *tensors,
        linear(f"{attention}.index_q_proj", heads * dim, hidden, "indexer", sparse),
        linear(f"{attention}.index_k_proj", dim, hidden, "indexer", sparse),
        *parts.qk_norms(attention, dim, sparse, ("index_q_norm", "index_k_norm")),
    ]


def _ling(decoder: Decoder, config: Config) -> list[Tensors]:
    """inclusionAI Ling: query, key and value in one tensor, under names of GLM's."""
    hidden, width = config["hidden_size"], parts.head_dim(config)
    query, key = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    module, layers, joint = (
        f"{decoder.layer}.attention",
        parts.decoder_layers(config),
        query + 2 * key,
    )
    tensors = [
        *decoder.without_attention(config),
        linear(f"{module}.query_key_value", joint, hidden, "attention", layers),
        linear(f"{module}.dense", hidden, query, "attention", layers),
    ]
    if config.get("use_qkv_bias"):
        tensors.append(Tensors(f"{module}.query_key_value.bias", (joint,), "attention", layers))
    if config.get("use_bias"):
        tensors.append(Tensors(f"{module}.dense.bias", (hidden,), "attention", layers))
    if config.get("use_qk_norm"):
        tensors += parts.qk_norms(module, width, layers, ("query_layernorm", "key_layernorm"))
    return tensors


def _trinity(decoder: Decoder, config: Config) -> list[Tensors]:
    """Arcee Trinity: the attention's output goes through a gate of its width."""
    query, hidden = config["num_attention_heads"] * parts.head_dim(config), config["hidden_size"]
    gate, every = f"{decoder.layer}.self_attn.gate_proj", parts.decoder_layers(config)
    return [*decoder.tensors(config), linear(gate, query, hidden, "attention", every)]


FAMILIES = {
    "eagle3": Family(_eagle3),
    "exaone": Family(_exaone),
    "nas": Family(_nas, cached_layers=_nas_attention_layers),
    "mllama": Family(_mllama),
    "phi4mm": Family(_phi4mm),
    "gpt_oss": Family(_gpt_oss),
    "glm4_moe": Family(_glm4_moe),
    "minimax_m3": Family(_minimax_m3),
    "ling": Family(_ling),
    "trinity": Family(_trinity),
}
