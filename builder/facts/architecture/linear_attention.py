"""Models in which most layers keep a state of fixed size without Mamba: gated delta nets, KDA and
short convolutions."""

from __future__ import annotations

from functools import partial

from .fields import WIDTH_STEP, Config, layer_kinds
from .latent import mla
from .mixtures import Experts
from .tensors import (
    COMMON,
    GQA,
    Architecture,
    Layers,
    Recurrent,
    Role,
    Tensors,
    as_mtp,
    ends,
    gated_mlp,
    gqa,
    head_dim,
    layer_norms,
    linear,
    other_layers,
    qk_norms,
)

# Models in which most layers keep a state of fixed size: gated delta nets and KDA.
#
# Names and shapes: qwen3_5_moe, qwen3_next and kimi_linear of Hugging Face transformers
# 5.23, with its tables of published names.


_LINEAR_ATTENTION: Role = "linear_attention"


def _layers(config: Config) -> tuple[int, ...]:
    return tuple(range(config["num_hidden_layers"]))


# Qwen3-Next and Qwen3.5


def _full_attention(config: Config) -> tuple[int, ...]:
    """The layers with full attention: listed, or every so many."""
    kinds = layer_kinds(config)
    if kinds and "full_attention_interval" not in config:
        return tuple(i for i, kind in enumerate(kinds) if kind == "full_attention")
    interval = config.get("full_attention_interval") or 4
    return tuple(i for i in _layers(config) if (i + 1) % interval == 0)


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


def _gated_delta_net(
    layer: str, config: Config, layers: tuple[int, ...], fused: bool
) -> list[Tensors]:
    """The linear attention of Qwen: a convolution and a recurrent state, no KV cache.

    Qwen3-Next projects to all four inputs by two linear layers, Qwen3.5 by four.
    """
    hidden, role = config["hidden_size"], _LINEAR_ATTENTION
    heads, net = config["linear_num_value_heads"], f"{layer}.linear_attn"
    value, mixed = _delta_net_sizes(config)
    inputs = (
        {"in_proj_qkvz": mixed + value, "in_proj_ba": 2 * heads}
        if fused
        else {"in_proj_qkv": mixed, "in_proj_z": value, "in_proj_b": heads, "in_proj_a": heads}
    )
    convolution = (mixed, 1, config["linear_conv_kernel_dim"])
    return [
        *(linear(f"{net}.{name}", size, hidden, role, layers) for name, size in inputs.items()),
        Tensors(f"{net}.conv1d.weight", convolution, role, layers),
        Tensors(f"{net}.dt_bias", (heads,), role, layers),
        Tensors(f"{net}.A_log", (heads,), role, layers),
        Tensors(f"{net}.norm.weight", (config["linear_value_head_dim"],), "norm", layers),
        linear(f"{net}.out_proj", hidden, value, role, layers),
    ]


def _qwen_mlp(layer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    hidden = config["hidden_size"]
    if "num_experts" not in config:
        return gated_mlp(f"{layer}.mlp", hidden, config["intermediate_size"], "dense_mlp", layers)
    width, shared = config["moe_intermediate_size"], config["shared_expert_intermediate_size"]
    experts, expert = config["num_experts"], f"{layer}.mlp.experts.{{expert}}"
    return [
        Tensors(f"{layer}.mlp.gate.weight", (experts, hidden), "router", layers),
        *gated_mlp(expert, hidden, width, "routed_expert", layers, experts),
        *gated_mlp(f"{layer}.mlp.shared_expert", hidden, shared, "shared_expert", layers),
        linear(f"{layer}.mlp.shared_expert_gate", 1, hidden, "router", layers),
    ]


def _qwen_hybrid(config: Config, root: str = "model", fused: bool = False) -> list[Tensors]:
    layer, hidden = f"{root}.layers.{{layer}}", config["hidden_size"]
    every, full = _layers(config), _full_attention(config)
    recurrent = tuple(i for i in every if i not in set(full))
    width = head_dim(config)
    tensors = [
        *ends(config, root),
        *layer_norms(layer, config, every),
        *_gated_delta_net(layer, config, recurrent, fused),
        *gqa(layer, config, full, gated=True),
        *qk_norms(layer, width, width, full),
        *_qwen_mlp(layer, config, every),
    ]
    if mtp := tuple(range(config.get("mtp_num_hidden_layers") or 0)):
        layer = "mtp.layers.{layer}"
        tensors += as_mtp(
            linear("mtp.fc", hidden, 2 * hidden, "mtp_projection"),
            Tensors("mtp.pre_fc_norm_embedding.weight", (hidden,), "norm"),
            Tensors("mtp.pre_fc_norm_hidden.weight", (hidden,), "norm"),
            Tensors("mtp.norm.weight", (hidden,), "norm"),
            *layer_norms(layer, config, mtp),
            *gqa(layer, config, mtp, gated=True),
            *qk_norms(layer, width, width, mtp),
            *_qwen_mlp(layer, config, mtp),
        )
    return tensors


_QWEN = (
    *(*COMMON, *GQA, "head_dim"),
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim"),
    *("linear_value_head_dim", "linear_conv_kernel_dim"),
)
_QWEN_EXPERTS = ("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size")


def _qwen_row(
    name: str, nested: bool = False, moe: bool = True, fused: bool = False
) -> Architecture:
    root = "model.language_model" if nested else "model"
    return Architecture(
        name,
        "hybrid",
        (*_QWEN, *(_QWEN_EXPERTS if moe else ("intermediate_size",))),
        partial(_qwen_hybrid, root=root, fused=fused),
        experts_field="num_experts" if moe else None,
        mtp_field="mtp_num_hidden_layers",
        text_config="text_config" if nested else None,
        cached_layers=lambda config: len(_full_attention(config)),
        recurrent=_qwen_recurrent,
    )


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


def _kimi_full(config: Config) -> tuple[int, ...]:
    """The layers with latent attention; the config numbers them from 1."""
    listed = _kda(config).get("full_attn_layers", ())
    return tuple(number - 1 for number in listed if isinstance(number, int))


def _kimi_recurrent(config: Config) -> Recurrent:
    kda = _kda(config)
    width = kda["num_heads"] * kda["head_dim"]
    layers = config["num_hidden_layers"] - len(_kimi_full(config))
    window = (kda["short_conv_kernel_size"] - 1) * 3 * width
    return Recurrent(layers, width * kda["head_dim"], window)


def _kimi_delta(layer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    kda, hidden, role = _kda(config), config["hidden_size"], _LINEAR_ATTENTION
    heads, dim = kda["num_heads"], kda["head_dim"]
    width, attention = heads * dim, f"{layer}.self_attn"
    low_rank = config.get("kda_f_rank") or dim
    convolution = (width, 1, kda["short_conv_kernel_size"])
    return [
        *(
            linear(f"{attention}.{name}", width, hidden, role, layers)
            for name in ("q_proj", "k_proj", "v_proj")
        ),
        *(
            Tensors(f"{attention}.{name}_conv1d.weight", convolution, role, layers)
            for name in ("q", "k", "v")
        ),
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


def _kimi_linear(config: Config, root: str = "model", head: str = "lm_head") -> list[Tensors]:
    layer, hidden = f"{root}.layers.{{layer}}", config["hidden_size"]
    every, full = _layers(config), _kimi_full(config)
    dense = config["first_k_dense_replace"]
    sparse, moe = every[dense:], f"{layer}.block_sparse_moe"
    width, latent = config["moe_intermediate_size"], config.get("routed_expert_hidden_size") or 0
    experts, shared = config["num_experts"], width * (config.get("n_shared_experts") or 0)
    names = ("w1", "w3", "w2")
    tensors = [
        *ends(config, root, head),
        *layer_norms(layer, config, every),
        *mla(layer, config, full),
        *_kimi_delta(layer, config, tuple(i for i in every if i not in set(full))),
        *gated_mlp(f"{layer}.mlp", hidden, config["intermediate_size"], "dense_mlp", every[:dense]),
        Tensors(f"{moe}.gate.weight", (experts, hidden), "router", sparse),
        Tensors(f"{moe}.gate.e_score_correction_bias", (experts,), "router", sparse),
        *gated_mlp(
            f"{moe}.experts.{{expert}}",
            latent or hidden,
            width,
            "routed_expert",
            sparse,
            experts,
            names,
        ),
        *gated_mlp(f"{moe}.shared_experts", hidden, shared, "shared_expert", sparse),
    ]
    if config.get("mla_use_output_gate"):
        gate = config["num_attention_heads"] * config["v_head_dim"]
        tensors.append(linear(f"{layer}.self_attn.g_proj", gate, hidden, "attention", full))
    if latent:
        tensors += [
            linear(f"{moe}.down_latent_proj", latent, hidden, "expert_projection", sparse),
            linear(f"{moe}.up_latent_proj", hidden, latent, "expert_projection", sparse),
        ]
    return tensors


def _kimi_row(name: str, nested: bool) -> Architecture:
    required = (
        *(*COMMON, "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        *("q_lora_rank", "intermediate_size", "moe_intermediate_size", "num_experts"),
        *("first_k_dense_replace",),
    )
    root = ("language_model.model", "language_model.lm_head")
    return Architecture(
        name,
        "mla_hybrid",
        required,
        partial(_kimi_linear, root=root[0], head=root[1]) if nested else _kimi_linear,
        experts_field="num_experts",
        text_config="text_config" if nested else None,
        splits_embedding=False,
        cached_layers=lambda config: len(_kimi_full(config)),
        recurrent=_kimi_recurrent,
    )


_OWN_ROWS = (
    _qwen_row("Qwen3_5MoeForConditionalGeneration", nested=True),
    _qwen_row("Qwen3_5MoeForCausalLM"),
    _qwen_row("Qwen3_5ForConditionalGeneration", nested=True, moe=False),
    _qwen_row("Qwen3_5ForCausalLM", moe=False),
    _qwen_row("Qwen3NextForCausalLM", fused=True),
    _kimi_row("KimiLinearForCausalLM", nested=False),
    _kimi_row("KimiK3ForConditionalGeneration", nested=True),
)


# LFM2 of Liquid AI: short convolutions in most layers, attention in the others, experts in the
# larger ones.
#
# Names and shapes: lfm2 and lfm2_moe of Hugging Face transformers 5.23 with its table of
# published names.


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


_LFM2_ROWS = (
    _row("Lfm2ForCausalLM"),
    _row("Lfm2MoeForCausalLM", "num_experts", "num_experts_per_tok", "moe_intermediate_size"),
)


ROWS = (*_OWN_ROWS, *_LFM2_ROWS)
