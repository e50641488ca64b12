"""Gemma 4 of Google: attention of two kinds with sizes of their own, experts beside the MLP, and in
the small ones an embedding for every layer.

Names and shapes: gemma4 of Hugging Face transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable

from .fields import Config, layer_kinds
from .grouped_query import FOUR_NORMS, REQUIRED
from .tensors import Architecture, Layers, Tensors, ends, gated_mlp, head_dim, linear

_PERIOD = 6  # every sixth layer sees all tokens, where the file does not list them
_GLOBAL_HEAD_DIM = 512


def _is_global(config: Config, layer: int) -> bool:
    kinds = layer_kinds(config)
    if layer == config["num_hidden_layers"] - 1:
        return True
    return kinds[layer] == "full_attention" if kinds else (layer + 1) % _PERIOD == 0


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


def _cached_heads(config: Config) -> list[tuple[int, int]]:
    """Where values are made of the keys, both are kept: each has a norm of its own."""
    cached = range(_cached_layers(config))
    return [_key_value_heads(config, _is_global(config, layer)) for layer in cached]


def _attention(layer: str, config: Config, layers: Layers, is_global: bool) -> list[Tensors]:
    """Layers of one kind. Those that see all tokens have heads of their own width, and may take
    the keys for values too."""
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
            *(_attention(layer, config, local, is_global=False) if local else ()),
            *_attention(layer, config, whole, is_global=True),
            *_mlps(layer, config, every),
            *per_layer_inputs(root, layer, config, every),
        ]

    return tensors


ROWS = tuple(
    Architecture(
        name,
        "gqa_window",
        REQUIRED,
        _gemma4(root),
        experts_field="num_experts",
        optional_experts=True,
        text_config=nested,
        cached_layers=_cached_layers,
        cached_heads=_cached_heads,
    )
    for name, root, nested in (
        ("Gemma4ForCausalLM", "model", None),
        ("Gemma4ForConditionalGeneration", "model.language_model", "text_config"),
        ("Gemma4UnifiedForConditionalGeneration", "model.language_model", "text_config"),
    )
)
