"""Inkling of Thinking Machines: windows in five of six layers, with key-value heads of their own,
short convolutions in every layer, and shared experts that the router weighs too.

Names and shapes: inkling of Hugging Face transformers 5.23 with its table of published names. The
heads for multi-token prediction and the towers for pictures and sound are left out.
"""

from __future__ import annotations

from .fields import Config, layer_kinds
from .tensors import COMMON, GQA, Architecture, Layers, Recurrent, Tensors, linear

_PERIOD = 6  # every sixth layer sees all tokens, where the file does not list the others


def _is_windowed(config: Config, layer: int) -> bool:
    kinds, listed = layer_kinds(config), config.get("local_layer_ids")
    if kinds:
        return kinds[layer] == "hybrid_sliding"
    return layer in listed if isinstance(listed, list) else (layer + 1) % _PERIOD != 0


def _heads(config: Config, windowed: bool) -> tuple[int, int, int]:
    """Heads, key-value heads and the channels of one, of the layers of a kind."""
    names = ("num_attention_heads", "num_key_value_heads", "head_dim")
    of_kind = [config.get(f"swa_{name}") if windowed else None for name in names]
    heads, keys, width = (own or config[name] for own, name in zip(of_kind, names, strict=True))
    return int(heads), int(keys), int(width)


def _dense_layers(config: Config) -> Layers:
    kinds, every = config.get("mlp_layer_types"), range(config["num_hidden_layers"])
    if isinstance(kinds, list):
        return tuple(i for i in every if kinds[i] == "dense")
    return tuple(every[: config.get("dense_mlp_idx", 0)])


def _widths(config: Config) -> tuple[int, int]:
    """The channels of an MLP and of an expert, which has the plain field if the MLP has its own."""
    plain, dense = config["intermediate_size"], config.get("dense_intermediate_size")
    return int(dense or plain), int(config.get("moe_intermediate_size") or plain)


def _convolution(module: str, channels: int, config: Config, layers: Layers) -> Tensors:
    shape = (channels, 1, _kernel(config))
    return Tensors(f"{module}.weight", shape, "attention_replicated", layers)


def _kernel(config: Config) -> int:
    return int(config.get("sconv_kernel_size") or config.get("conv_kernel_size", 4))


def _attention(layer: str, config: Config, layers: Layers, windowed: bool) -> list[Tensors]:
    hidden, module = config["hidden_size"], f"{layer}.attn"
    (heads, keys, width), relative = _heads(config, windowed), config.get("d_rel", 16)
    extent = config.get("sliding_window_size", 512) if windowed else config.get("rel_extent", 1024)
    sizes = {
        "wq_du": (heads * width, hidden),
        "wk_dv": (keys * width, hidden),
        "wv_dv": (keys * width, hidden),
        "wr_du": (heads * relative, hidden),
        "wo_ud": (hidden, heads * width),
    }
    return [
        *(linear(f"{module}.{name}", *shape, "attention", layers) for name, shape in sizes.items()),
        _convolution(f"{module}.k_sconv", keys * width, config, layers),
        _convolution(f"{module}.v_sconv", keys * width, config, layers),
        Tensors(f"{module}.rel_logits_proj.proj", (relative, extent), "attention", layers),
        Tensors(f"{module}.q_norm.weight", (width,), "norm", layers),
        Tensors(f"{module}.k_norm.weight", (width,), "norm", layers),
    ]


def _dense(mlp: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, (width, _) = config["hidden_size"], _widths(config)
    return [
        linear(f"{mlp}.w13_dn", 2 * width, hidden, "dense_mlp", layers),
        linear(f"{mlp}.w2_md", hidden, width, "dense_mlp", layers),
        Tensors(f"{mlp}.global_scale", (1,), "dense_mlp", layers),
    ]


def _sparse(mlp: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, (_, width) = config["hidden_size"], _widths(config)
    count, shared = config["n_routed_experts"], config.get("n_shared_experts", 0)
    experts, both = f"{mlp}.experts", f"{mlp}.shared_experts.shared"
    tensors = [
        linear(f"{mlp}.gate", count + shared, hidden, "router", layers),
        Tensors(f"{mlp}.gate.bias", (count,), "router", layers),
        Tensors(f"{mlp}.gate.global_scale", (1,), "router", layers),
        Tensors(
            f"{experts}.w13_weight",
            (count, 2 * width, hidden),
            "routed_expert",
            layers,
            linear=True,
        ),
        Tensors(
            f"{experts}.w2_weight", (count, hidden, width), "routed_expert", layers, linear=True
        ),
    ]
    if shared:
        tensors += [
            Tensors(f"{both}_w13_weight", (shared, 2 * width, hidden), "shared_expert", layers),
            Tensors(f"{both}_w2_weight", (shared, hidden, width), "shared_expert", layers),
        ]
    return tensors


def _inkling(config: Config) -> list[Tensors]:
    layer, hidden, every = (
        "model.llm.layers.{layer}",
        config["hidden_size"],
        tuple(range(config["num_hidden_layers"])),
    )
    windowed = tuple(i for i in every if _is_windowed(config, i))
    whole, dense = tuple(i for i in every if i not in set(windowed)), _dense_layers(config)
    vocabulary = (config["vocab_size"], hidden)
    return [
        Tensors("model.llm.embed.weight", vocabulary, "embedding"),
        Tensors("model.llm.embed_norm.weight", (hidden,), "norm"),
        Tensors("model.llm.norm.weight", (hidden,), "norm"),
        linear("model.llm.unembed", *vocabulary, "lm_head"),
        Tensors(f"{layer}.attn_norm.weight", (hidden,), "norm", every),
        Tensors(f"{layer}.mlp_norm.weight", (hidden,), "norm", every),
        _convolution(f"{layer}.attn_sconv", hidden, config, every),
        _convolution(f"{layer}.mlp_sconv", hidden, config, every),
        *_attention(layer, config, windowed, windowed=True),
        *_attention(layer, config, whole, windowed=False),
        *_dense(f"{layer}.mlp", config, dense),
        *_sparse(f"{layer}.mlp", config, tuple(i for i in every if i not in set(dense))),
    ]


def _cached_heads(config: Config) -> list[tuple[int, int]]:
    found = (_heads(config, _is_windowed(config, i)) for i in range(config["num_hidden_layers"]))
    return [(keys, width) for _, keys, width in found]


def _recurrent(config: Config) -> Recurrent:
    """What the four convolutions of a layer keep of a request, in FP32 as they compute."""
    channels = sum(
        2 * (keys * width + config["hidden_size"]) for keys, width in _cached_heads(config)
    )
    layers = config["num_hidden_layers"]
    return Recurrent(layers, (_kernel(config) - 1) * (channels // layers), 0)


ROWS = tuple(
    Architecture(
        name,
        "gqa_window",
        (
            *(*COMMON, *GQA, "head_dim", "intermediate_size"),
            *("n_routed_experts", "num_experts_per_tok"),
        ),
        _inkling,
        experts_field="n_routed_experts",
        text_config="text_config",
        cached_heads=_cached_heads,
        recurrent=_recurrent,
    )
    for name in ("InklingForConditionalGeneration", "InklingForCausalLM")
)
