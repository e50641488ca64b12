"""Families in which most layers keep a state of fixed size without Mamba: gated delta nets, KDA and
short convolutions."""

from __future__ import annotations

from functools import partial

from . import tensors as parts
from .decoder import Decoder, Experts, Family
from .fields import WIDTH_STEP, Config, layer_kinds
from .latent import mla
from .tensors import Layers, Recurrent, Role, Tensors, linear

_LINEAR_ATTENTION: Role = "linear_attention"
_EXPERT: Role = "routed_expert"


# Qwen3-Next and Qwen3.5


def _full_attention(config: Config) -> Layers:
    """The layers with full attention: listed, or every so many."""
    kinds = layer_kinds(config)
    if kinds and "full_attention_interval" not in config:
        return tuple(i for i, kind in enumerate(kinds) if kind == "full_attention")
    interval = config.get("full_attention_interval") or 4
    return tuple(i for i in parts.decoder_layers(config) if (i + 1) % interval == 0)


def _delta_net_sizes(config: Config) -> tuple[int, int]:
    """Channels of the values, and of what the convolution mixes: queries, keys and values."""
    value = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    key = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    return value, 2 * key + value


def _qwen_recurrent(config: Config) -> Recurrent:
    value, mixed = _delta_net_sizes(config)
    layers = config["num_hidden_layers"] - len(_full_attention(config))
    window = (config["linear_conv_kernel_dim"] - 1) * mixed
    return Recurrent(layers, value * config["linear_key_head_dim"], window)


def _gated_delta_net(layer: str, config: Config, layers: Layers, fused: bool) -> list[Tensors]:
    """The linear attention of Qwen: a convolution and a recurrent state, no KV cache.

    Qwen3-Next projects to all four inputs by two linear layers, Qwen3.5 by four.
    """
    hidden, role = config["hidden_size"], _LINEAR_ATTENTION
    heads, net = config["linear_num_value_heads"], f"{layer}.linear_attn"
    value, mixed = _delta_net_sizes(config)
    inputs = {"in_proj_qkv": mixed, "in_proj_z": value, "in_proj_b": heads, "in_proj_a": heads}
    if fused:
        inputs = {"in_proj_qkvz": mixed + value, "in_proj_ba": 2 * heads}
    convolution = (mixed, 1, config["linear_conv_kernel_dim"])
    return [
        *(linear(f"{net}.{name}", size, hidden, role, layers) for name, size in inputs.items()),
        Tensors(f"{net}.conv1d.weight", convolution, role, layers),
        Tensors(f"{net}.dt_bias", (heads,), role, layers),
        Tensors(f"{net}.A_log", (heads,), role, layers),
        Tensors(f"{net}.norm.weight", (config["linear_value_head_dim"],), "norm", layers),
        linear(f"{net}.out_proj", hidden, value, role, layers),
    ]


def _qwen_mlp(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden = config["hidden_size"]
    if "num_experts" not in config:
        width, mlp = config["intermediate_size"], f"{layer}.mlp"
        return parts.gated_mlp(mlp, hidden, width, "dense_mlp", layers)
    width, shared = config["moe_intermediate_size"], config["shared_expert_intermediate_size"]
    experts, expert = config["num_experts"], f"{layer}.mlp.experts.{{expert}}"
    return [
        Tensors(f"{layer}.mlp.gate.weight", (experts, hidden), "router", layers),
        *parts.gated_mlp(expert, hidden, width, "routed_expert", layers, experts),
        *parts.gated_mlp(f"{layer}.mlp.shared_expert", hidden, shared, "shared_expert", layers),
        linear(f"{layer}.mlp.shared_expert_gate", 1, hidden, "router", layers),
    ]


def _qwen_attention(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    module = f"{layer}.self_attn"
    return [
        *parts.gqa(module, config, layers, gated=True),
        *parts.qk_norms(module, parts.head_dim(config), layers),
    ]


def _qwen_hybrid(decoder: Decoder, config: Config, fused: bool = False) -> list[Tensors]:
    layer, hidden, full = decoder.layer, config["hidden_size"], _full_attention(config)
    _, recurrent = parts.split(parts.decoder_layers(config), lambda i: i in full)
    tensors = [
        *decoder.without_attention(config, lambda *_: []),
        *_gated_delta_net(layer, config, recurrent, fused),
        *_qwen_attention(layer, config, full),
        *_qwen_mlp(layer, config, parts.decoder_layers(config)),
    ]
    if mtp := tuple(range(config.get("mtp_num_hidden_layers") or 0)):
        layer = "mtp.layers.{layer}"
        tensors += parts.as_mtp(
            linear("mtp.fc", hidden, 2 * hidden, "mtp_projection"),
            Tensors("mtp.pre_fc_norm_embedding.weight", (hidden,), "norm"),
            Tensors("mtp.pre_fc_norm_hidden.weight", (hidden,), "norm"),
            Tensors("mtp.norm.weight", (hidden,), "norm"),
            *decoder.norm_tensors(layer, config, mtp),
            *_qwen_attention(layer, config, mtp),
            *_qwen_mlp(layer, config, mtp),
        )
    return tensors


# Kimi-Linear and Kimi-K3


def _kda(config: Config) -> Config:
    """The sizes of KDA; transformers 5 writes them at the top level and lists layer kinds."""
    found = config.get("linear_attn_config")
    if isinstance(found, dict):
        return found
    names = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    kinds = layer_kinds(config)
    if not kinds or any(name not in config for name in names):
        return {}
    full = [number for number, kind in enumerate(kinds, 1) if kind == "full_attention"]
    sizes = zip(("num_heads", "head_dim", "short_conv_kernel_size"), names, strict=True)
    return {"full_attn_layers": full, **{own: config[name] for own, name in sizes}}


def _kimi_full(config: Config) -> Layers:
    """The layers with latent attention; the config numbers them from 1."""
    listed = _kda(config).get("full_attn_layers", ())
    return tuple(number - 1 for number in listed if isinstance(number, int))


def _kimi_recurrent(config: Config) -> Recurrent:
    kda = _kda(config)
    width = kda["num_heads"] * kda["head_dim"]
    layers = config["num_hidden_layers"] - len(_kimi_full(config))
    window = (kda["short_conv_kernel_size"] - 1) * 3 * width
    return Recurrent(layers, width * kda["head_dim"], window)


def _kimi_delta(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    kda, hidden, role = _kda(config), config["hidden_size"], _LINEAR_ATTENTION
    heads, dim = kda["num_heads"], kda["head_dim"]
    width, attention = heads * dim, f"{layer}.self_attn"
    low_rank = config.get("kda_f_rank") or dim
    kernel = (width, 1, kda["short_conv_kernel_size"])
    tensors = []
    for name in ("q", "k", "v"):
        tensors.append(linear(f"{attention}.{name}_proj", width, hidden, role, layers))
        tensors.append(Tensors(f"{attention}.{name}_conv1d.weight", kernel, role, layers))
    return [
        *tensors,
        linear(f"{attention}.f_a_proj", low_rank, hidden, role, layers),
        linear(f"{attention}.f_b_proj", width, low_rank, role, layers),
        Tensors(f"{attention}.dt_bias", (width,), role, layers),
        Tensors(f"{attention}.A_log", (1, 1, heads, 1), role, layers),
        linear(f"{attention}.b_proj", heads, hidden, role, layers),
        linear(f"{attention}.g_a_proj", dim, hidden, role, layers),
        linear(f"{attention}.g_b_proj", width, dim, role, layers),
        Tensors(f"{attention}.o_norm.weight", (dim,), "norm", layers),
        linear(f"{attention}.o_proj", hidden, width, role, layers),
    ]


def _kimi_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """Experts in a narrower width where the model has latent ones."""
    hidden, dense = config["hidden_size"], config["first_k_dense_replace"]
    sparse, moe = layers[dense:], f"{layer}.block_sparse_moe"
    wide, width = config["intermediate_size"], config["moe_intermediate_size"]
    latent = config.get("routed_expert_hidden_size") or 0
    experts, shared = config["num_experts"], width * (config.get("n_shared_experts") or 0)
    expert, role = f"{moe}.experts.{{expert}}", _EXPERT
    tensors = [
        *parts.gated_mlp(f"{layer}.mlp", hidden, wide, "dense_mlp", layers[:dense]),
        Tensors(f"{moe}.gate.weight", (experts, hidden), "router", sparse),
        Tensors(f"{moe}.gate.e_score_correction_bias", (experts,), "router", sparse),
        *parts.gated_mlp(expert, latent or hidden, width, role, sparse, experts, parts.W),
        *parts.gated_mlp(f"{moe}.shared_experts", hidden, shared, "shared_expert", sparse),
    ]
    if latent:
        tensors += [
            linear(f"{moe}.down_latent_proj", latent, hidden, "expert_projection", sparse),
            linear(f"{moe}.up_latent_proj", hidden, latent, "expert_projection", sparse),
        ]
    return tensors


def _kimi_linear(decoder: Decoder, config: Config) -> list[Tensors]:
    layer, full = decoder.layer, _kimi_full(config)
    _, recurrent = parts.split(parts.decoder_layers(config), lambda i: i in full)
    tensors = [
        *decoder.without_attention(config, _kimi_mlps),
        *mla(layer, config, full),
        *_kimi_delta(layer, config, recurrent),
    ]
    if config.get("mla_use_output_gate"):
        gate, hidden = config["num_attention_heads"] * config["v_head_dim"], config["hidden_size"]
        tensors.append(linear(f"{layer}.self_attn.g_proj", gate, hidden, "attention", full))
    return tensors


# LFM2 of Liquid AI: short convolutions in most layers, attention in the others, experts in the
# larger ones.


def _attention_layers(config: Config) -> Layers:
    """Those of a kind, or by number; all where the file tells of none."""
    every, listed = range(config["num_hidden_layers"]), config.get("full_attn_idxs")
    kinds = layer_kinds(config)
    if kinds:
        return tuple(i for i in every if kinds[i] == "full_attention")
    return tuple(i for i in every if not isinstance(listed, list) or i in listed)


def _lfm2_recurrent(config: Config) -> Recurrent:
    layers = config["num_hidden_layers"] - len(_attention_layers(config))
    return Recurrent(layers, 0, (config["conv_L_cache"] - 1) * int(config["hidden_size"]))


def _width(config: Config) -> int:
    """Two thirds of what the file says where the model adjusts it, rounded up unless its factor is
    `null`."""
    width = int(config["intermediate_size"])
    if not config.get("block_auto_adjust_ff_dim", True):
        return width
    width, factor = int(2 * width / 3), config.get("block_ffn_dim_multiplier", 1)
    step = int(config.get("block_multiple_of", WIDTH_STEP))
    return -(-int(factor * width) // step) * step if factor else width


def _lfm2_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    mlp, hidden = f"{layer}.feed_forward", config["hidden_size"]
    if not config.get("num_experts"):
        width = _width(config)
        return parts.gated_mlp(mlp, hidden, width, "dense_mlp", layers, names=parts.W)
    first, width = config.get("num_dense_layers", 0), config["intermediate_size"]
    score = "expert_bias" if config.get("use_expert_bias", True) else None
    experts = Experts("num_experts", module="feed_forward", score=score, names=parts.W)
    return [
        *parts.gated_mlp(mlp, hidden, width, "dense_mlp", layers[:first], names=parts.W),
        *experts.sparse(layer, config, layers[first:]),
    ]


def _lfm2(decoder: Decoder, config: Config) -> list[Tensors]:
    layer, hidden, attention = decoder.layer, config["hidden_size"], _attention_layers(config)
    _, others = parts.split(parts.decoder_layers(config), lambda i: i in attention)
    module, norms = f"{layer}.self_attn", ("q_layernorm", "k_layernorm")
    kernel, conv = (hidden, 1, config["conv_L_cache"]), f"{layer}.conv"
    return [
        *decoder.without_attention(config, _lfm2_mlps),
        *parts.gqa(module, config, attention, output="out_proj"),
        *parts.qk_norms(module, parts.head_dim(config), attention, norms),
        linear(f"{conv}.in_proj", 3 * hidden, hidden, _LINEAR_ATTENTION, others),
        linear(f"{conv}.out_proj", hidden, hidden, _LINEAR_ATTENTION, others),
        Tensors(f"{conv}.conv.weight", kernel, _LINEAR_ATTENTION, others),
    ]


_QWEN_CACHES = (lambda config: len(_full_attention(config)), None, None, _qwen_recurrent)
FAMILIES = {
    "qwen_hybrid": Family(_qwen_hybrid, *_QWEN_CACHES),
    "qwen3_next": Family(partial(_qwen_hybrid, fused=True), *_QWEN_CACHES),
    "kimi_linear": Family(
        _kimi_linear, lambda config: len(_kimi_full(config)), recurrent=_kimi_recurrent
    ),
    "lfm2": Family(_lfm2, lambda config: len(_attention_layers(config)), recurrent=_lfm2_recurrent),
}
