"""Models whose layers differ in attention: most see a window, often with other heads or sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from .fields import Config, layer_kinds
from .grouped_query import FOUR_NORMS, REQUIRED, Decoder
from .mixtures import DenseLayers, Experts, shared_width
from .tensors import (
    COMMON,
    GQA,
    Architecture,
    Layers,
    Role,
    Tensors,
    as_mtp,
    ends,
    gated_mlp,
    head_dim,
    layer_norms,
    linear,
    qk_norms,
)

# Google Gemma 4: local and global attention of different sizes, experts in parallel with the MLP,
# and in small models an embedding per layer.
#
# Names and shapes: gemma4 of Hugging Face transformers 5.23.


_GEMMA4_PERIOD = 6  # every sixth layer sees all tokens, where the file does not list them
_GLOBAL_HEAD_DIM = 512


def _is_global(config: Config, layer: int) -> bool:
    kinds = layer_kinds(config)
    if layer == config["num_hidden_layers"] - 1:
        return True
    return kinds[layer] == "full_attention" if kinds else (layer + 1) % _GEMMA4_PERIOD == 0


def _cached_layers(config: Config) -> int:
    """The last layers may use keys and values of others."""
    return int(config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0))


def _key_value_heads(config: Config, is_global: bool) -> tuple[int, int]:
    """Those of a layer, and the channels of one of its heads, be they of queries or of keys."""
    keys = int(config["num_key_value_heads"])
    if not is_global:
        return keys, head_dim(config)
    own = config.get("num_global_key_value_heads") if config.get("attention_k_eq_v") else None
    return int(own or keys), int(config.get("global_head_dim") or _GLOBAL_HEAD_DIM)


def _gemma4_cached_heads(config: Config) -> list[tuple[int, int]]:
    """Keys and values are both cached even if values are computed from keys: their norms differ."""
    cached = range(_cached_layers(config))
    return [_key_value_heads(config, _is_global(config, layer)) for layer in cached]


def _gemma4_attention(layer: str, config: Config, layers: Layers, is_global: bool) -> list[Tensors]:
    """Layers of one kind. Global layers have heads of another width, and may use keys as values."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    keys, width = _key_value_heads(config, is_global)
    shared = bool(config.get("attention_k_eq_v")) and is_global
    module, own = f"{layer}.self_attn", tuple(i for i in layers if i < _cached_layers(config))
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


def _mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    wide = bool(config.get("use_double_wide_mlp"))
    own = tuple(i for i in layers if not wide or i < _cached_layers(config))
    tensors = gated_mlp(f"{layer}.mlp", hidden, width, "dense_mlp", own)
    if rest := tuple(i for i in layers if i not in set(own)):
        tensors += gated_mlp(f"{layer}.mlp", hidden, 2 * width, "dense_mlp", rest)
    count, expert = config.get("num_experts"), config.get("moe_intermediate_size", 0)
    if not count or not config.get("enable_moe_block", True):
        return tensors
    shapes = {"gate_up_proj": (count, 2 * expert, hidden), "down_proj": (count, hidden, expert)}
    norms = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2")
    return [
        *tensors,
        linear(f"{layer}.router.proj", count, hidden, "router", layers),
        Tensors(f"{layer}.router.scale", (hidden,), "router", layers),
        Tensors(f"{layer}.router.per_expert_scale", (count,), "router", layers),
        *(
            Tensors(f"{layer}.experts.{name}", shape, "routed_expert", layers, linear=True)
            for name, shape in shapes.items()
        ),
        *(
            Tensors(f"{layer}.{name}.weight", (hidden,), "norm", layers)
            for name in (*norms, "pre_feedforward_layernorm_2")
        ),
    ]


def per_layer_inputs(root: str, layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """A second, narrow embedding of every token for each layer."""
    width, hidden = config.get("hidden_size_per_layer_input", 0), config["hidden_size"]
    if not width:
        return []
    vocabulary = config.get("vocab_size_per_layer_input") or config["vocab_size"]
    every = len(layers) * width
    projection = f"{root}.per_layer_model_projection"
    return [
        Tensors(f"{root}.embed_tokens_per_layer.weight", (vocabulary, every), "embedding"),
        linear(projection, every, hidden, "attention_replicated"),
        Tensors(f"{root}.per_layer_projection_norm.weight", (width,), "norm"),
        linear(f"{layer}.per_layer_input_gate", width, hidden, "attention_replicated", layers),
        linear(f"{layer}.per_layer_projection", hidden, width, "attention_replicated", layers),
        Tensors(f"{layer}.post_per_layer_input_norm.weight", (hidden,), "norm", layers),
    ]


def _gemma4(root: str) -> Callable[[Config], list[Tensors]]:
    def tensors(config: Config) -> list[Tensors]:
        layer, every = f"{root}.layers.{{layer}}", tuple(range(config["num_hidden_layers"]))
        whole = tuple(i for i in every if _is_global(config, i))
        local = tuple(i for i in every if i not in set(whole))
        hidden = (config["hidden_size"],)
        return [
            *ends(config, root, tied=True),
            Tensors(f"{layer}.layer_scalar", (1,), "norm", every),
            *(Tensors(f"{layer}.{name}.weight", hidden, "norm", every) for name in FOUR_NORMS),
            *(_gemma4_attention(layer, config, local, is_global=False) if local else ()),
            *_gemma4_attention(layer, config, whole, is_global=True),
            *_mlps(layer, config, every),
            *per_layer_inputs(root, layer, config, every),
        ]

    return tensors


_GEMMA4_ROWS = tuple(
    Architecture(
        name,
        "gqa_window",
        REQUIRED,
        _gemma4(root),
        experts_field="num_experts",
        optional_experts=True,
        text_config=nested,
        cached_layers=_cached_layers,
        cached_heads=_gemma4_cached_heads,
    )
    for name, root, nested in (
        ("Gemma4ForCausalLM", "model", None),
        ("Gemma4ForConditionalGeneration", "model.language_model", "text_config"),
        ("Gemma4UnifiedForConditionalGeneration", "model.language_model", "text_config"),
    )
)


# Google Gemma 3n: four streams of hidden states, and an embedding per layer.
#
# Names and shapes: gemma3n of Hugging Face transformers 5.23. Published files also hold the keys
# and values of the last layers, which use those of others.


_ROLE: Role = "attention_replicated"


def _streams(root: str, layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """What predicts the other streams from one, mixes them again, and adds a narrow residual."""
    hidden, streams, rank = config["hidden_size"], config["altup_num_inputs"], config["laurel_rank"]
    altup, laurel = f"{layer}.altup", f"{layer}.laurel"
    return [
        Tensors(f"{altup}.correct_output_scale", (hidden,), "norm", layers),
        linear(f"{altup}.correction_coefs", streams, streams, _ROLE, layers),
        linear(f"{altup}.prediction_coefs", streams**2, streams, _ROLE, layers),
        linear(f"{altup}.modality_router", streams, hidden, _ROLE, layers),
        Tensors(f"{altup}.router_norm.weight", (hidden,), "norm", layers),
        linear(f"{laurel}.linear_left", rank, hidden, _ROLE, layers),
        linear(f"{laurel}.linear_right", hidden, rank, _ROLE, layers),
        Tensors(f"{laurel}.post_laurel_norm.weight", (hidden,), "norm", layers),
        *(
            linear(f"{root}.altup_{name}", hidden, hidden, _ROLE)
            for name in (
                *(f"projections.{index}" for index in range(streams - 1)),
                *(f"unembed_projections.{index}" for index in range(streams - 1)),
            )
        ),
    ]


def _gemma3n(config: Config, root: str) -> list[Tensors]:
    layer, every = f"{root}.layers.{{layer}}", tuple(range(config["num_hidden_layers"]))
    decoder = Decoder(root=root, norms=FOUR_NORMS, qk_norm="head", tied=True)
    return [
        *decoder(config),
        *_streams(root, layer, config, every),
        *per_layer_inputs(root, layer, config, every),
    ]


_GEMMA3N_ROWS = tuple(
    Architecture(
        name,
        "gqa_window",
        (*REQUIRED, "altup_num_inputs", "laurel_rank", "hidden_size_per_layer_input"),
        partial(_gemma3n, root=root),
        text_config=nested,
        cached_layers=lambda config: int(
            config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0)
        ),
    )
    for name, root, nested in (
        ("Gemma3nForCausalLM", "model", None),
        ("Gemma3nForConditionalGeneration", "model.language_model", "text_config"),
    )
)


# Xiaomi MiMo-V2: window layers have other head counts, and values are narrower than keys.
#
# Names and shapes: mimo_v2_flash of Hugging Face transformers 5.23 with its table of published
# names; of V2.5 and V2.6 the weights that vLLM (model_executor/models/mimo_v2.py) and
# radixark/miles (tools/convert_mimo_v2_to_bf16.py) read. The three layers for multi-token
# prediction, which not every file counts, and the towers for pictures and sound are left out.


_MIMO_PERIOD = (
    6  # every sixth layer and the first see all tokens, where the file does not list them
)


def _mimo_is_windowed(config: Config, layer: int) -> bool:
    kinds, listed = layer_kinds(config), config.get("hybrid_layer_pattern")
    if kinds:
        return kinds[layer] == "sliding_attention"
    if isinstance(listed, list):
        return bool(listed[layer])
    return layer != 0 and (layer + 1) % _MIMO_PERIOD != 0


def _sizes(config: Config, windowed: bool) -> tuple[int, int, int, int]:
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
    heads, keys, width, value = _sizes(config, windowed)
    rows = {"q_proj": heads * width, "k_proj": keys * width, "v_proj": keys * value}
    shards = 1
    if config.get("attention_projection_layout") == "fused_qkv":
        rows, shards = {"qkv_proj": sum(rows.values())}, config["num_key_value_heads"]
    tensors = [
        replace(linear(f"{module}.{name}", size, hidden, "attention", layers), shards=shards)
        for name, size in rows.items()
    ]
    tensors.append(linear(f"{module}.o_proj", hidden, heads * value, "attention", layers))
    sinks = "add_swa_attention_sink_bias" if windowed else "add_full_attention_sink_bias"
    if config.get(sinks, windowed):
        tensors.append(Tensors(f"{module}.attention_sink_bias", (heads,), "attention", layers))
    return tensors


def _mimo_cached_heads(config: Config) -> list[tuple[int, int]]:
    """Keys and values have widths of their own: half of both together is what one of them has."""
    found = (
        _sizes(config, _mimo_is_windowed(config, i)) for i in range(config["num_hidden_layers"])
    )
    return [(keys, (width + value) // 2) for _, keys, width, value in found]


_MIMO_DECODER = Decoder(
    bias="none",
    mlps=Experts(
        "n_routed_experts",
        score="gate.e_score_correction_bias",
        shared_width=shared_width,
        is_dense=DenseLayers(1, flags="moe_layer_freq"),
    ),
)


def _mimo(config: Config) -> list[Tensors]:
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    windowed = tuple(i for i in every if _mimo_is_windowed(config, i))
    whole = tuple(i for i in every if i not in set(windowed))
    return [
        *_MIMO_DECODER.without_attention(config),
        *_mimo_attention(layer, config, windowed, windowed=True),
        *_mimo_attention(layer, config, whole, windowed=False),
    ]


_MIMO_ROWS = tuple(
    Architecture(
        name,
        "gqa_window",
        (
            *(*COMMON, *GQA, "head_dim", "intermediate_size"),
            *("moe_intermediate_size", "n_routed_experts", "num_experts_per_tok"),
        ),
        _mimo,
        experts_field="n_routed_experts",
        cached_heads=_mimo_cached_heads,
    )
    for name in ("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM", "MiMoV2OmniForCausalLM")
)


# Poolside Laguna: window layers have more heads, and a gate scales the attention's output.
#
# Names and shapes: laguna of Hugging Face transformers 5.23 with its table of published names.


_LAGUNA_DECODER = Decoder(
    bias="none",
    mlps=Experts(
        "num_experts",
        score="experts.e_score_correction_bias",
        shared="shared_expert",
        shared_width=lambda config: int(config.get("shared_expert_intermediate_size", 0)),
        is_dense=DenseLayers(1, numbers="mlp_only_layers"),
    ),
)


def _layers_by_heads(config: Config) -> dict[int, Layers]:
    every, listed = range(config["num_hidden_layers"]), config.get("num_attention_heads_per_layer")
    heads = [listed[i] if listed else config["num_attention_heads"] for i in every]
    return {count: tuple(i for i in every if heads[i] == count) for count in dict.fromkeys(heads)}


def _gate_width(config: Config, heads: int) -> int:
    """Channels of the gate: one of a head, or one of every channel of a head; 0 without a gate."""
    gating = config.get("gating", True)
    if not gating:
        return 0
    return heads * head_dim(config) if gating == "per-element" else heads


def _laguna(config: Config) -> list[Tensors]:
    layer, hidden, width = "model.layers.{layer}", config["hidden_size"], head_dim(config)
    module, key = f"{layer}.self_attn", config["num_key_value_heads"] * width
    every = tuple(range(config["num_hidden_layers"]))
    tensors = [
        *_LAGUNA_DECODER.without_attention(config),
        linear(f"{module}.k_proj", key, hidden, "attention", every),
        linear(f"{module}.v_proj", key, hidden, "attention", every),
        *qk_norms(layer, width, width, every),
    ]
    for heads, layers in _layers_by_heads(config).items():
        tensors += [
            linear(f"{module}.q_proj", heads * width, hidden, "attention", layers),
            linear(f"{module}.o_proj", hidden, heads * width, "attention", layers),
        ]
        if gate := _gate_width(config, heads):
            tensors.append(linear(f"{module}.g_proj", gate, hidden, "attention", layers))
    return tensors


_LAGUNA_ROWS = (
    Architecture(
        "LagunaForCausalLM",
        "gqa_window",
        (
            *(*COMMON, *GQA, "head_dim", "intermediate_size"),
            *("moe_intermediate_size", "num_experts", "num_experts_per_tok"),
        ),
        _laguna,
        experts_field="num_experts",
    ),
)


# StepFun Step-3: queries are projected in two steps, for one key-value head. Its successors have
# the same experts.
#
# Names and shapes: vllm/model_executor/models/step3_text.py of vLLM 0.20.


_DENSE = 3  # so many layers have an MLP, where the file does not list those with experts


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


def experts_and_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """All experts of a layer lie in one tensor for each projection."""
    hidden, experts = config["hidden_size"], config["num_experts"]
    wide, width = config["intermediate_size"], config["moe_intermediate_size"]
    sparse = tuple(i for i in _sparse_layers(config) if i in layers)
    dense, moe = tuple(i for i in layers if i not in set(sparse)), f"{layer}.moe"
    shapes = {
        "gate_proj": (width, hidden),
        "up_proj": (width, hidden),
        "down_proj": (hidden, width),
    }
    shared = config.get("share_expert_dim") or width
    tensors = [
        *gated_mlp(f"{layer}.mlp", hidden, wide, "dense_mlp", dense),
        *gated_mlp(f"{layer}.share_expert", hidden, shared, "shared_expert", sparse),
        linear(f"{moe}.gate", experts, hidden, "router", sparse),
        *(
            Tensors(f"{moe}.{name}.weight", (experts, *shape), "routed_expert", sparse, linear=True)
            for name, shape in shapes.items()
        ),
    ]
    if config.get("use_moe_router_bias"):
        tensors.append(Tensors(f"{moe}.router_bias", (experts,), "router", sparse))
    return tensors


def _factored_attention(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width, module = config["hidden_size"], head_dim(config), f"{layer}.self_attn"
    heads, shared = config["num_attention_heads"], config["share_q_dim"]
    key = config["num_key_value_heads"] * width
    return [
        linear(f"{module}.q_proj", shared, hidden, "attention_replicated", layers),
        linear(f"{module}.k_proj", key, hidden, "attention_replicated", layers),
        linear(f"{module}.v_proj", key, hidden, "attention_replicated", layers),
        Tensors(f"{module}.inter_norm.weight", (shared,), "norm", layers),
        linear(f"{module}.wq", heads * width, shared, "attention", layers),
        linear(f"{module}.o_proj", hidden, heads * width, "attention", layers),
    ]


def _step3(config: Config) -> list[Tensors]:
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    return [
        *ends(config),
        *layer_norms(layer, config, every),
        *_factored_attention(layer, config, every),
        *experts_and_mlps(layer, config, every),
    ]


_STEP_REQUIRED = (
    *(*COMMON, *GQA, "intermediate_size"),
    *("num_experts", "num_experts_per_tok", "moe_intermediate_size"),
)

_STEP_ROWS = tuple(
    Architecture(
        name,
        "gqa",
        (*_STEP_REQUIRED, "share_q_dim"),
        _step3,
        experts_field="num_experts",
        text_config=nested,
    )
    for name, nested in (
        ("Step3TextForCausalLM", None),
        ("Step3VLForConditionalGeneration", "text_config"),
    )
)


# StepFun Step-3.5 and 3.7 Flash: windows in three of four layers, and a gate on every head.
#
# Names and shapes: step3p7 of Hugging Face transformers 5.23 with its table of published names,
# and TensorRT-LLM's _torch/models/modeling_step3p7.py.


_FLASH_PERIOD = 4  # every fourth layer sees all tokens, where the file does not list the kinds


def _flash_is_windowed(config: Config, layer: int) -> bool:
    kinds = layer_kinds(config)
    return kinds[layer] == "sliding_attention" if layer < len(kinds) else layer % _FLASH_PERIOD != 0


def _heads(config: Config, windowed: bool) -> tuple[int, int]:
    """Heads and key-value heads of the layers of a kind."""
    other = config.get("attention_other_setting") if windowed else None
    own = other if isinstance(other, Mapping) else {}
    heads = own.get("num_attention_heads") or config["num_attention_heads"]
    return int(heads), int(own.get("num_attention_groups") or config["num_key_value_heads"])


def _gated_attention(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width, module = config["hidden_size"], head_dim(config), f"{layer}.self_attn"
    tensors = qk_norms(layer, width, width, layers)
    for windowed in (True, False):
        chosen = tuple(i for i in layers if _flash_is_windowed(config, i) == windowed)
        heads, keys = _heads(config, windowed)
        tensors += [
            linear(f"{module}.q_proj", heads * width, hidden, "attention", chosen),
            linear(f"{module}.k_proj", keys * width, hidden, "attention", chosen),
            linear(f"{module}.v_proj", keys * width, hidden, "attention", chosen),
            linear(f"{module}.o_proj", hidden, heads * width, "attention", chosen),
            linear(f"{module}.g_proj", heads, hidden, "attention", chosen),
        ]
    return tensors


def _flash(config: Config) -> list[Tensors]:
    """The MTP layers follow the last decoder layer in the numbering, and have an MLP."""
    layer, hidden = "model.layers.{layer}", config["hidden_size"]
    count = config["num_hidden_layers"]
    mtp = tuple(range(count, count + config.get("num_nextn_predict_layers", 0)))
    head = f"{layer}.transformer.shared_head"

    def decoder(layers: Layers) -> list[Tensors]:
        return [
            *layer_norms(layer, config, layers),
            *_gated_attention(layer, config, layers),
            *experts_and_mlps(layer, config, layers),
        ]

    tensors = [*ends(config), *decoder(tuple(range(count)))]
    if not mtp:
        return tensors
    return tensors + as_mtp(
        Tensors(f"{layer}.enorm.weight", (hidden,), "norm", mtp),
        Tensors(f"{layer}.hnorm.weight", (hidden,), "norm", mtp),
        linear(f"{layer}.eh_proj", hidden, 2 * hidden, "mtp_projection", mtp),
        Tensors(f"{head}.norm.weight", (hidden,), "norm", mtp),
        linear(f"{head}.output", config["vocab_size"], hidden, "lm_head", mtp),
        *decoder(mtp),
    )


def _flash_cached_heads(config: Config) -> list[tuple[int, int]]:
    width = head_dim(config)
    return [
        (_heads(config, _flash_is_windowed(config, i))[1], width)
        for i in range(config["num_hidden_layers"])
    ]


_FLASH_ROWS = tuple(
    Architecture(
        name,
        "gqa_window",
        _STEP_REQUIRED,
        _flash,
        experts_field="num_experts",
        mtp_field="num_nextn_predict_layers",
        text_config=nested,
        cached_heads=_flash_cached_heads,
    )
    for name, nested in (
        ("Step3p5ForCausalLM", None),
        ("Step3p7ForConditionalGeneration", "text_config"),
    )
)


ROWS = (*_GEMMA4_ROWS, *_GEMMA3N_ROWS, *_MIMO_ROWS, *_LAGUNA_ROWS, *_STEP_ROWS, *_FLASH_ROWS)
