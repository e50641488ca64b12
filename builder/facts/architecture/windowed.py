"""Families whose layers differ in attention: most see a window, often with other heads or sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from . import tensors as parts
from .decoder import Decoder, Family
from .fields import Config, layer_kinds
from .tensors import Layers, Recurrent, Role, Tensors, linear

# Google Gemma 4: local and global attention of different sizes, experts in parallel with the MLP,
# and in small models an embedding per layer.


_GEMMA4_PERIOD = 6  # every sixth layer sees all tokens, where the file does not list them
_GLOBAL_HEAD_DIM = 512


def _is_global(config: Config, layer: int) -> bool:
    kinds = layer_kinds(config)
    if layer == config["num_hidden_layers"] - 1:
        return True
    return kinds[layer] == "full_attention" if kinds else (layer + 1) % _GEMMA4_PERIOD == 0


def _gemma_cached_layers(config: Config) -> int:
    """The last layers may use keys and values of others."""
    return int(config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0))


def _gemma4_heads(config: Config, is_global: bool) -> tuple[int, int]:
    """Key-value heads of a layer, and the channels of one of its heads, of queries or of keys."""
    keys = int(config["num_key_value_heads"])
    if not is_global:
        return keys, parts.head_dim(config)
    own = config.get("num_global_key_value_heads") if config.get("attention_k_eq_v") else None
    return int(own or keys), int(config.get("global_head_dim") or _GLOBAL_HEAD_DIM)


def _gemma4_cached_heads(config: Config) -> list[tuple[int, int]]:
    """Keys and values are both cached even if values are computed from keys: their norms differ."""
    cached = range(_gemma_cached_layers(config))
    return [_gemma4_heads(config, _is_global(config, layer)) for layer in cached]


def _gemma4_attention(layer: str, config: Config, layers: Layers, is_global: bool) -> list[Tensors]:
    """Layers of one kind. Global layers have heads of another width, and may use keys as values."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    keys, width = _gemma4_heads(config, is_global)
    shared = bool(config.get("attention_k_eq_v")) and is_global
    module, own = f"{layer}.self_attn", tuple(i for i in layers if i < _gemma_cached_layers(config))
    tensors = [
        linear(f"{module}.q_proj", heads * width, hidden, "attention", layers),
        linear(f"{module}.o_proj", hidden, heads * width, "attention", layers),
        Tensors(f"{module}.q_norm.weight", (width,), "norm", layers),
        Tensors(f"{module}.k_norm.weight", (width,), "norm", own),
        linear(f"{module}.k_proj", keys * width, hidden, "attention", own),
    ]
    if not shared:
        tensors.append(linear(f"{module}.v_proj", keys * width, hidden, "attention", own))
    return tensors


def _gemma4_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    wide, cached = bool(config.get("use_double_wide_mlp")), _gemma_cached_layers(config)
    own, rest = parts.split(layers, lambda i: not wide or i < cached)
    tensors = parts.gated_mlp(f"{layer}.mlp", hidden, width, "dense_mlp", own)
    if rest:
        tensors += parts.gated_mlp(f"{layer}.mlp", hidden, 2 * width, "dense_mlp", rest)
    count, expert = config.get("num_experts"), config.get("moe_intermediate_size", 0)
    if not count or not config.get("enable_moe_block", True):
        return tensors
    tensors += [
        linear(f"{layer}.router.proj", count, hidden, "router", layers),
        Tensors(f"{layer}.router.scale", (hidden,), "router", layers),
        Tensors(f"{layer}.router.per_expert_scale", (count,), "router", layers),
        parts.fused(f"{layer}.experts.gate_up_proj", (count, 2 * expert, hidden), layers),
        parts.fused(f"{layer}.experts.down_proj", (count, hidden, expert), layers),
    ]
    for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2"):
        tensors.append(Tensors(f"{layer}.{name}.weight", (hidden,), "norm", layers))
    norm = f"{layer}.pre_feedforward_layernorm_2.weight"
    return [*tensors, Tensors(norm, (hidden,), "norm", layers)]


def _gemma_inputs(decoder: Decoder, config: Config) -> list[Tensors]:
    """A second, narrow embedding of every token for each layer."""
    width, hidden = config.get("hidden_size_per_layer_input", 0), config["hidden_size"]
    if not width:
        return []
    root, layer, layers = decoder.root, decoder.layer, parts.decoder_layers(config)
    vocabulary = config.get("vocab_size_per_layer_input") or config["vocab_size"]
    every, role = len(layers) * width, _REPLICATED
    return [
        Tensors(f"{root}.embed_tokens_per_layer.weight", (vocabulary, every), "embedding"),
        linear(f"{root}.per_layer_model_projection", every, hidden, role),
        Tensors(f"{root}.per_layer_projection_norm.weight", (width,), "norm"),
        linear(f"{layer}.per_layer_input_gate", width, hidden, role, layers),
        linear(f"{layer}.per_layer_projection", hidden, width, role, layers),
        Tensors(f"{layer}.post_per_layer_input_norm.weight", (hidden,), "norm", layers),
    ]


_REPLICATED: Role = "attention_replicated"


def _gemma4(decoder: Decoder, config: Config) -> list[Tensors]:
    layer, every = decoder.layer, parts.decoder_layers(config)
    whole, local = parts.split(every, lambda i: _is_global(config, i))
    return [
        *decoder.without_attention(config, _gemma4_mlps),
        Tensors(f"{layer}.layer_scalar", (1,), "norm", every),
        *(_gemma4_attention(layer, config, local, is_global=False) if local else ()),
        *_gemma4_attention(layer, config, whole, is_global=True),
        *_gemma_inputs(decoder, config),
    ]


# Google Gemma 3n: four streams of hidden states, and an embedding per layer. Published files also
# hold the keys and values of the last layers, which use those of others.


def _gemma3n(decoder: Decoder, config: Config) -> list[Tensors]:
    """Streams: what predicts the others from one, mixes them again, and adds a narrow residual."""
    hidden, streams, rank = config["hidden_size"], config["altup_num_inputs"], config["laurel_rank"]
    layer, layers, role = decoder.layer, parts.decoder_layers(config), _REPLICATED
    altup, laurel = f"{layer}.altup", f"{layer}.laurel"
    tensors = [
        *decoder.tensors(config),
        Tensors(f"{altup}.correct_output_scale", (hidden,), "norm", layers),
        linear(f"{altup}.correction_coefs", streams, streams, role, layers),
        linear(f"{altup}.prediction_coefs", streams**2, streams, role, layers),
        linear(f"{altup}.modality_router", streams, hidden, role, layers),
        Tensors(f"{altup}.router_norm.weight", (hidden,), "norm", layers),
        linear(f"{laurel}.linear_left", rank, hidden, role, layers),
        linear(f"{laurel}.linear_right", hidden, rank, role, layers),
        Tensors(f"{laurel}.post_laurel_norm.weight", (hidden,), "norm", layers),
    ]
    for i in range(streams - 1):
        tensors += [
            linear(f"{decoder.root}.altup_projections.{i}", hidden, hidden, role),
            linear(f"{decoder.root}.altup_unembed_projections.{i}", hidden, hidden, role),
        ]
    return tensors + _gemma_inputs(decoder, config)


# Xiaomi MiMo-V2: window layers have other head counts, and values are narrower than keys. The three
# layers for multi-token prediction, which not every file counts, and the towers for pictures and
# sound are left out.


_MIMO_PERIOD = 6  # without a list in the file, the first and every sixth layer see all tokens


def _mimo_is_windowed(config: Config, layer: int) -> bool:
    kinds, listed = layer_kinds(config), config.get("hybrid_layer_pattern")
    if kinds:
        return kinds[layer] == "sliding_attention"
    if isinstance(listed, list):
        return bool(listed[layer])
    return layer != 0 and (layer + 1) % _MIMO_PERIOD != 0


def _mimo_sizes(config: Config, windowed: bool) -> tuple[int, int, int, int]:
    """Heads, key-value heads, and the channels of a key and of a value, of the layers of a kind."""

    def size(name: str, otherwise: int) -> int:
        own = config.get(f"swa_{name}") if windowed else config.get(name)
        return int(own or otherwise)

    heads = size("num_attention_heads", config["num_attention_heads"])
    keys = size("num_key_value_heads", config["num_key_value_heads"])
    width = size("head_dim", config["head_dim"])
    return heads, keys, width, size("v_head_dim", config.get("v_head_dim") or width)


def _mimo_attention(layer: str, config: Config, layers: Layers, windowed: bool) -> list[Tensors]:
    hidden, module = config["hidden_size"], f"{layer}.self_attn"
    heads, keys, width, value = _mimo_sizes(config, windowed)
    rows = {"q_proj": heads * width, "k_proj": keys * width, "v_proj": keys * value}
    shards = 1
    if config.get("attention_projection_layout") == "fused_qkv":
        rows, shards = {"qkv_proj": sum(rows.values())}, config["num_key_value_heads"]
    tensors = [linear(f"{module}.o_proj", hidden, heads * value, "attention", layers)]
    for name, size in rows.items():
        row = linear(f"{module}.{name}", size, hidden, "attention", layers)
        tensors.append(replace(row, shards=shards))
    sinks = "add_swa_attention_sink_bias" if windowed else "add_full_attention_sink_bias"
    if config.get(sinks, windowed):
        tensors.append(Tensors(f"{module}.attention_sink_bias", (heads,), "attention", layers))
    return tensors


def _mimo_cached_heads(config: Config) -> list[tuple[int, int]]:
    """Keys and values have widths of their own: half of both together is what one of them has."""
    found = []
    for i in range(config["num_hidden_layers"]):
        _, keys, width, value = _mimo_sizes(config, _mimo_is_windowed(config, i))
        found.append((keys, (width + value) // 2))
    return found


def _mimo(decoder: Decoder, config: Config) -> list[Tensors]:
    every, layer = parts.decoder_layers(config), decoder.layer
    windowed, whole = parts.split(every, lambda i: _mimo_is_windowed(config, i))
    return [
        *decoder.without_attention(config),
        *_mimo_attention(layer, config, windowed, windowed=True),
        *_mimo_attention(layer, config, whole, windowed=False),
    ]


# Poolside Laguna: window layers have more heads, and a gate scales the attention's output.


def _laguna(decoder: Decoder, config: Config) -> list[Tensors]:
    """The gate has a channel for a head, or for every channel of a head."""
    layer, hidden, width = decoder.layer, config["hidden_size"], parts.head_dim(config)
    module, every = f"{layer}.self_attn", parts.decoder_layers(config)
    listed, gating = config.get("num_attention_heads_per_layer"), config.get("gating", True)
    counts = [listed[i] if listed else config["num_attention_heads"] for i in every]
    tensors = [*decoder.without_attention(config), *parts.qk_norms(module, width, every)]
    for heads in dict.fromkeys(counts):
        layers = tuple(i for i in every if counts[i] == heads)
        tensors += parts.gqa(module, config, layers, heads)
        if gating:
            gate = heads * width if gating == "per-element" else heads
            tensors.append(linear(f"{module}.g_proj", gate, hidden, "attention", layers))
    return tensors


# StepFun Step-3: queries are projected in two steps, for one key-value head. Its successors have
# the same experts, windows in three of four layers, and a gate on every head.


_DENSE = 3  # so many layers have an MLP, where the file does not list those with experts
_FLASH_PERIOD = 4  # every fourth layer sees all tokens, where the file does not list the kinds


def _sparse_layers(config: Config) -> Layers:
    """The layers with experts, which the file lists in a text or a list, or by kind."""
    every, listed = range(config["num_hidden_layers"]), config.get("moe_layers_enum")
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list):
        return tuple(i for i in every if kinds[i] == "sparse")
    if isinstance(listed, str):
        listed = [int(number) for number in listed.split(",") if number.strip()]
    if isinstance(listed, list):
        return tuple(i for i in every if i in listed)
    return tuple(every[_DENSE:])


def _step_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """All experts of a layer lie in one tensor for each projection."""
    hidden, experts = config["hidden_size"], config["num_experts"]
    wide, width = config["intermediate_size"], config["moe_intermediate_size"]
    with_experts = _sparse_layers(config)
    sparse, dense = parts.split(layers, lambda i: i in with_experts)
    shared, moe = config.get("share_expert_dim") or width, f"{layer}.moe"
    tensors = [
        *parts.gated_mlp(f"{layer}.mlp", hidden, wide, "dense_mlp", dense),
        *parts.gated_mlp(f"{layer}.share_expert", hidden, shared, "shared_expert", sparse),
        linear(f"{moe}.gate", experts, hidden, "router", sparse),
        parts.fused(f"{moe}.gate_proj.weight", (experts, width, hidden), sparse),
        parts.fused(f"{moe}.up_proj.weight", (experts, width, hidden), sparse),
        parts.fused(f"{moe}.down_proj.weight", (experts, hidden, width), sparse),
    ]
    if config.get("use_moe_router_bias"):
        tensors.append(Tensors(f"{moe}.router_bias", (experts,), "router", sparse))
    return tensors


def _step3(decoder: Decoder, config: Config) -> list[Tensors]:
    hidden, width, layers = (
        config["hidden_size"],
        parts.head_dim(config),
        parts.decoder_layers(config),
    )
    heads, shared, module = config["num_attention_heads"], config["share_q_dim"], "self_attn"
    key, module = config["num_key_value_heads"] * width, f"{decoder.layer}.{module}"
    return [
        *decoder.without_attention(config, _step_mlps),
        linear(f"{module}.q_proj", shared, hidden, _REPLICATED, layers),
        linear(f"{module}.k_proj", key, hidden, _REPLICATED, layers),
        linear(f"{module}.v_proj", key, hidden, _REPLICATED, layers),
        Tensors(f"{module}.inter_norm.weight", (shared,), "norm", layers),
        linear(f"{module}.wq", heads * width, shared, "attention", layers),
        linear(f"{module}.o_proj", hidden, heads * width, "attention", layers),
    ]


def _flash_is_windowed(config: Config, layer: int) -> bool:
    kinds = layer_kinds(config)
    return kinds[layer] == "sliding_attention" if layer < len(kinds) else layer % _FLASH_PERIOD != 0


def _flash_heads(config: Config, windowed: bool) -> tuple[int, int]:
    """Heads and key-value heads of the layers of a kind."""
    other = config.get("attention_other_setting") if windowed else None
    own = other if isinstance(other, Mapping) else {}
    heads = own.get("num_attention_heads") or config["num_attention_heads"]
    return int(heads), int(own.get("num_attention_groups") or config["num_key_value_heads"])


def _flash_attention(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width, module = config["hidden_size"], parts.head_dim(config), f"{layer}.self_attn"
    tensors = parts.qk_norms(module, width, layers)
    for windowed in (True, False):
        chosen = tuple(i for i in layers if _flash_is_windowed(config, i) == windowed)
        heads, keys = _flash_heads(config, windowed)
        tensors += parts.gqa(module, config, chosen, heads, keys)
        tensors.append(linear(f"{module}.g_proj", heads, hidden, "attention", chosen))
    return tensors


def _flash(decoder: Decoder, config: Config) -> list[Tensors]:
    """The MTP layers follow the last decoder layer in the numbering, and have an MLP."""
    layer, hidden, mtp = decoder.layer, config["hidden_size"], parts.mtp_layers(config)
    head = f"{layer}.transformer.shared_head"
    tensors = [
        *decoder.without_attention(config, _step_mlps),
        *_flash_attention(layer, config, parts.decoder_layers(config)),
    ]
    if not mtp:
        return tensors
    return tensors + parts.as_mtp(
        *parts.mtp_input(layer, config, mtp),
        Tensors(f"{head}.norm.weight", (hidden,), "norm", mtp),
        linear(f"{head}.output", config["vocab_size"], hidden, "lm_head", mtp),
        *decoder.norm_tensors(layer, config, mtp),
        *_flash_attention(layer, config, mtp),
        *_step_mlps(layer, config, mtp),
    )


def _flash_cached_heads(config: Config) -> list[tuple[int, int]]:
    width, layers = parts.head_dim(config), range(config["num_hidden_layers"])
    return [(_flash_heads(config, _flash_is_windowed(config, i))[1], width) for i in layers]


# Inkling of Thinking Machines: windows in five of six layers, with key-value heads of their own,
# short convolutions in every layer, and shared experts that the router weighs too. The heads for
# multi-token prediction and the towers for pictures and sound are left out.


_INKLING_PERIOD = 6  # every sixth layer sees all tokens, where the file does not list the others


def _inkling_is_windowed(config: Config, layer: int) -> bool:
    kinds, listed = layer_kinds(config), config.get("local_layer_ids")
    if kinds:
        return kinds[layer] == "hybrid_sliding"
    return layer in listed if isinstance(listed, list) else (layer + 1) % _INKLING_PERIOD != 0


def _inkling_heads(config: Config, windowed: bool) -> tuple[int, int, int]:
    """Heads, key-value heads and the channels of one, of the layers of a kind."""
    names = ("num_attention_heads", "num_key_value_heads", "head_dim")
    of_kind = [config.get(f"swa_{name}") if windowed else None for name in names]
    heads, keys, width = (own or config[name] for own, name in zip(of_kind, names, strict=True))
    return int(heads), int(keys), int(width)


def _inkling_dense_layers(config: Config) -> Layers:
    kinds, every = config.get("mlp_layer_types"), range(config["num_hidden_layers"])
    if isinstance(kinds, list):
        return tuple(i for i in every if kinds[i] == "dense")
    return tuple(every[: config.get("dense_mlp_idx", 0)])


def _inkling_kernel(config: Config) -> int:
    return int(config.get("sconv_kernel_size") or config.get("conv_kernel_size", 4))


def _convolution(module: str, channels: int, config: Config, layers: Layers) -> Tensors:
    shape = (channels, 1, _inkling_kernel(config))
    return Tensors(f"{module}.weight", shape, _REPLICATED, layers)


def _inkling_attention(layer: str, config: Config, layers: Layers, windowed: bool) -> list[Tensors]:
    hidden, module = config["hidden_size"], f"{layer}.attn"
    (heads, keys, width), relative = _inkling_heads(config, windowed), config.get("d_rel", 16)
    extent = config.get("sliding_window_size", 512) if windowed else config.get("rel_extent", 1024)
    return [
        linear(f"{module}.wq_du", heads * width, hidden, "attention", layers),
        linear(f"{module}.wk_dv", keys * width, hidden, "attention", layers),
        linear(f"{module}.wv_dv", keys * width, hidden, "attention", layers),
        linear(f"{module}.wr_du", heads * relative, hidden, "attention", layers),
        linear(f"{module}.wo_ud", hidden, heads * width, "attention", layers),
        _convolution(f"{module}.k_sconv", keys * width, config, layers),
        _convolution(f"{module}.v_sconv", keys * width, config, layers),
        Tensors(f"{module}.rel_logits_proj.proj", (relative, extent), "attention", layers),
        *parts.qk_norms(module, width, layers),
    ]


def _inkling_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """A field of its own has the channels of an MLP or of an expert, the plain one the other."""
    mlp, hidden, plain = f"{layer}.mlp", config["hidden_size"], config["intermediate_size"]
    wide = int(config.get("dense_intermediate_size") or plain)
    width = int(config.get("moe_intermediate_size") or plain)
    listed = _inkling_dense_layers(config)
    dense, sparse = parts.split(layers, lambda i: i in listed)
    count, shared = config["n_routed_experts"], config.get("n_shared_experts", 0)
    experts, both = f"{mlp}.experts", f"{mlp}.shared_experts.shared"
    tensors = [
        linear(f"{mlp}.w13_dn", 2 * wide, hidden, "dense_mlp", dense),
        linear(f"{mlp}.w2_md", hidden, wide, "dense_mlp", dense),
        Tensors(f"{mlp}.global_scale", (1,), "dense_mlp", dense),
        linear(f"{mlp}.gate", count + shared, hidden, "router", sparse),
        Tensors(f"{mlp}.gate.bias", (count,), "router", sparse),
        Tensors(f"{mlp}.gate.global_scale", (1,), "router", sparse),
        parts.fused(f"{experts}.w13_weight", (count, 2 * width, hidden), sparse),
        parts.fused(f"{experts}.w2_weight", (count, hidden, width), sparse),
    ]
    if shared:
        tensors += [
            Tensors(f"{both}_w13_weight", (shared, 2 * width, hidden), "shared_expert", sparse),
            Tensors(f"{both}_w2_weight", (shared, hidden, width), "shared_expert", sparse),
        ]
    return tensors


def _inkling(decoder: Decoder, config: Config) -> list[Tensors]:
    layer, every, hidden = decoder.layer, parts.decoder_layers(config), config["hidden_size"]
    windowed, whole = parts.split(every, lambda i: _inkling_is_windowed(config, i))
    vocabulary, root = (config["vocab_size"], hidden), decoder.root
    return [
        Tensors(f"{root}.embed.weight", vocabulary, "embedding"),
        Tensors(f"{root}.embed_norm.weight", (hidden,), "norm"),
        Tensors(f"{root}.norm.weight", (hidden,), "norm"),
        linear(f"{root}.unembed", *vocabulary, "lm_head"),
        *decoder.norm_tensors(layer, config, every),
        _convolution(f"{layer}.attn_sconv", hidden, config, every),
        _convolution(f"{layer}.mlp_sconv", hidden, config, every),
        *_inkling_attention(layer, config, windowed, windowed=True),
        *_inkling_attention(layer, config, whole, windowed=False),
        *_inkling_mlps(layer, config, every),
    ]


def _inkling_cached_heads(config: Config) -> list[tuple[int, int]]:
    layers = range(config["num_hidden_layers"])
    found = (_inkling_heads(config, _inkling_is_windowed(config, i)) for i in layers)
    return [(keys, width) for _, keys, width in found]


def _inkling_recurrent(config: Config) -> Recurrent:
    """What the four convolutions of a layer keep of a request, in FP32 as they compute."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads = _inkling_cached_heads(config)
    channels = sum(2 * (keys * width + hidden) for keys, width in heads)
    return Recurrent(layers, (_inkling_kernel(config) - 1) * (channels // layers), 0)


FAMILIES = {
    "gemma4": Family(_gemma4, _gemma_cached_layers, cached_heads=_gemma4_cached_heads),
    "gemma3n": Family(_gemma3n, _gemma_cached_layers),
    "mimo": Family(_mimo, cached_heads=_mimo_cached_heads),
    "laguna": Family(_laguna),
    "step3": Family(_step3),
    "step_flash": Family(_flash, cached_heads=_flash_cached_heads),
    "inkling": Family(_inkling, cached_heads=_inkling_cached_heads, recurrent=_inkling_recurrent),
}
