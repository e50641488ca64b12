"""Nemotron-H of NVIDIA and what Puzzle made of it: layers of Mamba-2, attention, MLPs and experts,
which with Puzzle have sizes of their own.

Names and shapes: nemotron_h of Hugging Face transformers 5.23 with its table of published names; of
Puzzle configuration_nemotron_h_puzzle.py beside its weights.
"""

from __future__ import annotations

from collections.abc import Callable

from .fields import Config, described_layers
from .mamba2 import Mamba2, layers_of_kind
from .tensors import (
    COMMON,
    GQA,
    Architecture,
    Role,
    Tensors,
    as_mtp,
    ends,
    head_dim,
    linear,
    plain_mlp,
)

_MAMBA = Mamba2("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel")


def _nemotron_moe(mixer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    """Experts of two linear layers, in a narrower width where the model has latent ones."""
    hidden, experts = config["hidden_size"], config["n_routed_experts"]
    latent = config.get("moe_latent_size") or 0
    shared = config["moe_shared_expert_intermediate_size"] * (config.get("n_shared_experts") or 1)
    tensors = [
        Tensors(f"{mixer}.gate.weight", (experts, hidden), "router", layers),
        Tensors(f"{mixer}.gate.e_score_correction_bias", (experts,), "router", layers),
        *plain_mlp(
            f"{mixer}.experts.{{expert}}",
            latent or hidden,
            config["moe_intermediate_size"],
            "routed_expert",
            layers,
            experts,
        ),
        *plain_mlp(f"{mixer}.shared_experts", hidden, shared, "shared_expert", layers),
    ]
    if latent:
        role: Role = "expert_projection"
        tensors += [
            linear(f"{mixer}.fc1_latent_proj", latent, hidden, role, layers),
            linear(f"{mixer}.fc2_latent_proj", hidden, latent, role, layers),
        ]
    return tensors


def _nemotron_attention(mixer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    hidden, width = config["hidden_size"], head_dim(config)
    query, key = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    sizes = {"q_proj": (query, hidden), "k_proj": (key, hidden), "v_proj": (key, hidden)}
    return [
        linear(f"{mixer}.{name}", *shape, "attention", layers)
        for name, shape in (sizes | {"o_proj": (hidden, query)}).items()
    ]


def _nemotron_mlp(mixer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    return plain_mlp(mixer, hidden, width, "dense_mlp", layers)


_NEMOTRON_LAYERS: dict[str, Callable[[str, Config, tuple[int, ...]], list[Tensors]]] = {
    "mamba": _MAMBA.tensors,
    "attention": _nemotron_attention,
    "mlp": _nemotron_mlp,
    "moe": _nemotron_moe,
}


def _by_sizes(config: Config, layers: tuple[int, ...]) -> list[tuple[Config, tuple[int, ...]]]:
    """The layers of a kind with the sizes that they have: those of the file, or each its own."""
    described = described_layers(config)
    if not described:
        return [(config, layers)]
    alike: list[tuple[Config, list[int]]] = []
    for i in layers:
        found = next((others for own, others in alike if own == described[i]), None)
        if found is None:
            alike.append((described[i], found := []))
        found.append(i)
    return [(_with(config, own), tuple(others)) for own, others in alike]


def _with(config: Config, own: Config) -> Config:
    return {**config, **{name: value for name, value in own.items() if value is not None}}


def _nemotron_h(config: Config) -> list[Tensors]:
    layer, hidden = "backbone.layers.{layer}", config["hidden_size"]
    mixer, every = f"{layer}.mixer", tuple(range(config["num_hidden_layers"]))
    tensors = [
        *ends(config, "backbone", names=("embeddings", "norm_f")),
        Tensors(f"{layer}.norm.weight", (hidden,), "norm", every),
    ]
    for kind, tensors_of in _NEMOTRON_LAYERS.items():
        if layers := layers_of_kind(config, kind):
            for sizes, some in _by_sizes(config, layers):
                tensors += tensors_of(mixer, sizes, some)
    if not (config.get("num_nextn_predict_layers") and layers_of_kind(config, "moe")):
        return tensors
    described = described_layers(config, "mtp_block_configs")
    of_moe = next((row for row in described if row.get("block_type") == "moe"), {})
    layer, first, second = "mtp.layers.{layer}", (0,), (1,)
    mixer = f"{layer}.mixer"
    return tensors + as_mtp(
        linear(f"{layer}.eh_proj", hidden, 2 * hidden, "mtp_projection", first),
        Tensors(f"{layer}.enorm.weight", (hidden,), "norm", first),
        Tensors(f"{layer}.hnorm.weight", (hidden,), "norm", first),
        Tensors(f"{layer}.norm.weight", (hidden,), "norm", (*first, *second)),
        Tensors(f"{layer}.final_layernorm.weight", (hidden,), "norm", second),
        *_nemotron_attention(mixer, config, first),
        *_nemotron_moe(mixer, _with(config, of_moe), second),
    )


_NEMOTRON = (*COMMON, *GQA, *_MAMBA.fields)

ROWS = tuple(
    Architecture(
        name,
        "hybrid",
        _NEMOTRON,
        _nemotron_h,
        experts_field="n_routed_experts",
        optional_experts=True,
        mtp_field="num_nextn_predict_layers",
        cached_layers=lambda config: len(layers_of_kind(config, "attention")),
        recurrent=_MAMBA.recurrent,
    )
    for name in ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM")
)
