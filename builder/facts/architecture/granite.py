"""IBM Granite: mixtures of experts, and the hybrids whose other layers are Mamba-2.

Names and shapes: granitemoe, granitemoeshared and granitemoehybrid of Hugging Face transformers
5.23, with its table of published names.
"""

from __future__ import annotations

from .fields import Config, layer_kinds
from .grouped_query import Decoder, Layers
from .tensors import COMMON, GQA, Architecture, Recurrent, Tensors, linear

_MAMBA = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_d_conv", "mamba_n_groups")


def _mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """Experts, if any, and an MLP for every token; gate and up projection lie in one tensor."""
    hidden, tensors = config["hidden_size"], list[Tensors]()
    if experts := config.get("num_local_experts"):
        moe, width = f"{layer}.block_sparse_moe", config["intermediate_size"]
        tensors += [
            linear(f"{moe}.router.layer", experts, hidden, "router", layers),
            *(
                Tensors(f"{moe}.{name}.weight", shape, "routed_expert", layers, linear=True)
                for name, shape in (
                    ("input_linear", (experts, 2 * width, hidden)),
                    ("output_linear", (experts, hidden, width)),
                )
            ),
        ]
    if shared := config.get("shared_intermediate_size"):
        mlp = f"{layer}.shared_mlp"
        tensors += [
            linear(f"{mlp}.input_linear", 2 * shared, hidden, "shared_expert", layers),
            linear(f"{mlp}.output_linear", hidden, shared, "shared_expert", layers),
        ]
    return tensors


_DECODER = Decoder(tied=True, mlps=_mlps)


def _of_kind(config: Config, kind: str) -> Layers:
    names = (kind, {"mamba": "linear_attention", "attention": "full_attention"}[kind])
    return tuple(i for i, found in enumerate(layer_kinds(config)) if found in names)


def _sizes(config: Config) -> tuple[int, int]:
    """Inner channels of a Mamba-2 layer, and of what its convolution mixes."""
    inner = config["mamba_n_heads"] * config["mamba_d_head"]
    return inner, inner + 2 * config["mamba_n_groups"] * config["mamba_d_state"]


def _recurrent(config: Config) -> Recurrent:
    inner, mixed = _sizes(config)
    window = (config["mamba_d_conv"] - 1) * mixed
    return Recurrent(len(_of_kind(config, "mamba")), inner * config["mamba_d_state"], window)


def _mamba2(mixer: str, config: Config, layers: Layers) -> list[Tensors]:
    (inner, mixed), heads = _sizes(config), config["mamba_n_heads"]
    hidden, width = config["hidden_size"], config["mamba_d_conv"]
    return [
        linear(f"{mixer}.in_proj", inner + mixed + heads, hidden, "linear_attention", layers),
        Tensors(f"{mixer}.conv1d.weight", (mixed, 1, width), "linear_attention", layers),
        Tensors(f"{mixer}.conv1d.bias", (mixed,), "linear_attention", layers),
        *(
            Tensors(f"{mixer}.{name}", (heads,), "linear_attention", layers)
            for name in ("dt_bias", "A_log", "D")
        ),
        Tensors(f"{mixer}.norm.weight", (inner,), "norm", layers),
        linear(f"{mixer}.out_proj", hidden, inner, "linear_attention", layers),
    ]


def _hybrid(config: Config) -> list[Tensors]:
    layer, mamba = "model.layers.{layer}", _of_kind(config, "mamba")
    every = _DECODER(config)
    kept = _DECODER.attention_tensors(layer, config, _of_kind(config, "attention"))
    others = [row for row in every if ".self_attn." not in row.pattern]
    return [*others, *kept, *(_mamba2(f"{layer}.mamba", config, mamba) if mamba else [])]


def _moe(name: str) -> Architecture:
    required = (*COMMON, *GQA, "intermediate_size", "num_local_experts", "num_experts_per_tok")
    return Architecture(name, "gqa", required, _DECODER, experts_field="num_local_experts")


ROWS = (
    _moe("GraniteMoeForCausalLM"),
    _moe("GraniteMoeSharedForCausalLM"),
    Architecture(
        "GraniteMoeHybridForCausalLM",
        "hybrid",
        (*COMMON, *GQA, *_MAMBA, "intermediate_size"),
        _hybrid,
        experts_field="num_local_experts",
        optional_experts=True,
        cached_layers=lambda config: len(_of_kind(config, "attention")),
        recurrent=_recurrent,
    ),
)
