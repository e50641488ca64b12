"""Models with Mamba layers: attention, MLPs and experts stand between them or run side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .fields import Config, Spoiled, described_layers, layer_kinds
from .grouped_query import REQUIRED, Decoder
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
    head_dim,
    linear,
    other_layers,
    plain_mlp,
)

# Layers of Mamba-2, whose sizes families have under names of their own.
#
# Names and shapes: nemotron_h, granitemoehybrid and falcon_h1 of Hugging Face transformers 5.23.


# The names that Granite and Falcon-H1 have the sizes under, in the order of `Mamba2`.
FIELDS = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")

# The names of layer kinds in transformers 5.23.
_WRITTEN = {"mamba": "linear_attention", "attention": "full_attention"}


def layers_of_kind(config: Config, kind: str) -> tuple[int, ...]:
    """The layers of a kind, by whichever of its words."""
    words = (kind, _WRITTEN.get(kind, kind))
    return tuple(i for i, found in enumerate(layer_kinds(config)) if found in words)


@dataclass(frozen=True, slots=True)
class Mamba2:
    """The config fields that a family has the sizes in: heads, their channels, the channels of the
    state, its groups and the width of the convolution.

    `everywhere` says that all layers have such a part, `norm` names the field that says whether its
    output has a norm, where that is not always so.
    """

    heads: str
    head_dim: str
    state: str
    groups: str
    convolution: str
    everywhere: bool = False
    norm: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        return self.heads, self.head_dim, self.state, self.groups, self.convolution

    def layers(self, config: Config) -> tuple[int, ...]:
        if self.everywhere:
            return tuple(range(config["num_hidden_layers"]))
        return layers_of_kind(config, "mamba")

    def _sizes(self, config: Config) -> tuple[int, int]:
        """Inner channels of a layer, and channels of its convolution."""
        inner = config[self.heads] * config[self.head_dim]
        return inner, inner + 2 * config[self.groups] * config[self.state]

    def recurrent(self, config: Config) -> Recurrent:
        inner, mixed = self._sizes(config)
        window = (config[self.convolution] - 1) * mixed
        return Recurrent(len(self.layers(config)), inner * config[self.state], window)

    def tensors(self, mixer: str, config: Config, some: Layers | None = None) -> list[Tensors]:
        """Those of all its layers, or of some that have sizes of their own."""
        layers = self.layers(config) if some is None else some
        inner, mixed = self._sizes(config)
        hidden, heads, width = config["hidden_size"], config[self.heads], config[self.convolution]
        normed = self.norm is None or bool(config.get(self.norm))
        return [
            linear(f"{mixer}.in_proj", inner + mixed + heads, hidden, "linear_attention", layers),
            Tensors(f"{mixer}.conv1d.weight", (mixed, 1, width), "linear_attention", layers),
            Tensors(f"{mixer}.conv1d.bias", (mixed,), "linear_attention", layers),
            *(
                Tensors(f"{mixer}.{name}", (heads,), "linear_attention", layers)
                for name in ("dt_bias", "A_log", "D")
            ),
            *([Tensors(f"{mixer}.norm.weight", (inner,), "norm", layers)] if normed else []),
            linear(f"{mixer}.out_proj", hidden, inner, "linear_attention", layers),
        ]


# Falcon-H1 of TII: every layer has attention and Mamba-2 side by side.
#
# Names and shapes: falcon_h1 of Hugging Face transformers 5.23.


_FALCON_H1_MAMBA = Mamba2(
    *FIELDS,
    everywhere=True,
    norm="mamba_rms_norm",
)


def _falcon_h1_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    return gated_mlp(f"{layer}.feed_forward", hidden, width, "dense_mlp", layers)


_FALCON_H1_DECODER = Decoder(
    ends=("embed_tokens", "final_layernorm"),
    norms=("input_layernorm", "pre_ff_layernorm"),
    mlps=_falcon_h1_mlps,
)


def _falcon_h1(config: Config) -> list[Tensors]:
    return [
        *_FALCON_H1_DECODER(config),
        *_FALCON_H1_MAMBA.tensors("model.layers.{layer}.mamba", config),
    ]


_FALCON_H1_ROWS = (
    Architecture(
        "FalconH1ForCausalLM",
        "hybrid",
        (*REQUIRED, *_FALCON_H1_MAMBA.fields),
        _falcon_h1,
        recurrent=_FALCON_H1_MAMBA.recurrent,
    ),
)


# IBM Granite: mixtures of experts, and the hybrids whose other layers are Mamba-2.
#
# Names and shapes: granitemoe, granitemoeshared and granitemoehybrid of Hugging Face transformers
# 5.23, with its table of published names.


_GRANITE_MAMBA = Mamba2(*FIELDS)


def _granite_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
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


_GRANITE_DECODER = Decoder(tied=True, mlps=_granite_mlps)


def _hybrid(config: Config) -> list[Tensors]:
    layer = "model.layers.{layer}"
    kept = _GRANITE_DECODER.attention_tensors(layer, config, layers_of_kind(config, "attention"))
    others = _GRANITE_DECODER.without_attention(config)
    return [*others, *kept, *_GRANITE_MAMBA.tensors(f"{layer}.mamba", config)]


def _moe(name: str) -> Architecture:
    required = (*COMMON, *GQA, "intermediate_size", "num_local_experts", "num_experts_per_tok")
    return Architecture(name, "gqa", required, _GRANITE_DECODER, experts_field="num_local_experts")


_GRANITE_ROWS = (
    _moe("GraniteMoeForCausalLM"),
    _moe("GraniteMoeSharedForCausalLM"),
    Architecture(
        "GraniteMoeHybridForCausalLM",
        "hybrid",
        (*COMMON, *GQA, *_GRANITE_MAMBA.fields, "intermediate_size"),
        _hybrid,
        experts_field="num_local_experts",
        optional_experts=True,
        cached_layers=lambda config: len(layers_of_kind(config, "attention")),
        recurrent=_GRANITE_MAMBA.recurrent,
    ),
)


# Nemotron-H of NVIDIA and what Puzzle made of it: layers of Mamba-2, attention, MLPs and experts,
# which with Puzzle have sizes of their own.
#
# Names and shapes: nemotron_h of Hugging Face transformers 5.23 with its table of published
# names; of Puzzle configuration_nemotron_h_puzzle.py in its repository.


_NEMOTRON_MAMBA = Mamba2(
    "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"
)


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
    "mamba": _NEMOTRON_MAMBA.tensors,
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


_NEMOTRON = (*COMMON, *GQA, *_NEMOTRON_MAMBA.fields)

_NEMOTRON_ROWS = tuple(
    Architecture(
        name,
        "hybrid",
        _NEMOTRON,
        _nemotron_h,
        experts_field="n_routed_experts",
        optional_experts=True,
        mtp_field="num_nextn_predict_layers",
        cached_layers=lambda config: len(layers_of_kind(config, "attention")),
        recurrent=_NEMOTRON_MAMBA.recurrent,
    )
    for name in ("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM")
)


# Jamba of AI21: Mamba in most layers, attention in the others, experts in every second one.
#
# Names and shapes: jamba of Hugging Face transformers 5.23 with its table of published names.


_JAMBA_MAMBA = ("mamba_d_conv", "mamba_d_state", "mamba_expand")


def _is_of(config: Config, kind: str, layer: int) -> bool:
    """Whether a layer is of a kind that the config describes by a period and an offset."""
    period, offset = config[f"{kind}_layer_period"], config[f"{kind}_layer_offset"]
    if offset >= period:  # transformers refuses it: no layer would be one
        raise Spoiled(f"{kind}_layer_offset")
    return bool(layer % period == offset)


def _attention_layers(config: Config) -> Layers:
    return tuple(i for i in range(config["num_hidden_layers"]) if _is_of(config, "attn", i))


def _mamba_layers(config: Config) -> Layers:
    return other_layers(config, _attention_layers(config))


def _inner(config: Config) -> int:
    return int(config["mamba_expand"] * config["hidden_size"])


def _recurrent(config: Config) -> Recurrent:
    inner = _inner(config)
    window = (config["mamba_d_conv"] - 1) * inner
    return Recurrent(len(_mamba_layers(config)), inner * config["mamba_d_state"], window)


_JAMBA_DECODER = Decoder(
    ends=("embed_tokens", "final_layernorm"),
    norms=("input_layernorm", "pre_ff_layernorm"),
    bias="none",
    mlps=Experts(
        "num_experts",
        "intermediate_size",
        "feed_forward",
        "router",
        # A layer of a single expert is a plain MLP.
        is_dense=lambda config, layer: (
            config["num_experts"] == 1 or not _is_of(config, "expert", layer)
        ),
        dense_module="feed_forward",
    ),
)


def _rank(config: Config) -> int:
    rank = config.get("mamba_dt_rank", "auto")
    return int(-(-config["hidden_size"] // 16) if rank == "auto" else rank)


def _mamba(mixer: str, config: Config) -> list[Tensors]:
    layers, inner, hidden = _mamba_layers(config), _inner(config), config["hidden_size"]
    state, rank = config["mamba_d_state"], _rank(config)
    part: Role = "linear_attention"
    biases = {"in_proj": 2 * inner, "out_proj": hidden} if config.get("mamba_proj_bias") else {}
    if config.get("mamba_conv_bias", True):
        biases["conv1d"] = inner
    return [
        linear(f"{mixer}.in_proj", 2 * inner, hidden, part, layers),
        Tensors(f"{mixer}.conv1d.weight", (inner, 1, config["mamba_d_conv"]), part, layers),
        linear(f"{mixer}.x_proj", rank + 2 * state, inner, part, layers),
        linear(f"{mixer}.dt_proj", inner, rank, part, layers),
        linear(f"{mixer}.out_proj", hidden, inner, part, layers),
        Tensors(f"{mixer}.A_log", (inner, state), part, layers),
        Tensors(f"{mixer}.D", (inner,), part, layers),
        *(
            Tensors(f"{mixer}.{name}.bias", (size,), part, layers)
            for name, size in (biases | {"dt_proj": inner}).items()
        ),
        *(
            Tensors(f"{mixer}.{name}_layernorm.weight", (size,), "norm", layers)
            for name, size in (("dt", rank), ("b", state), ("c", state))
        ),
    ]


def _jamba(config: Config) -> list[Tensors]:
    layer = "model.layers.{layer}"
    attention = _JAMBA_DECODER.attention_tensors(layer, config, _attention_layers(config))
    others = _JAMBA_DECODER.without_attention(config)
    return [*others, *attention, *_mamba(f"{layer}.mamba", config)]


_PERIODS = ("attn_layer_period", "expert_layer_period")

_JAMBA_ROWS = (
    Architecture(
        "JambaForCausalLM",
        "hybrid",
        (*COMMON, *GQA, *_JAMBA_MAMBA, *_PERIODS, "intermediate_size", "num_experts"),
        _jamba,
        experts_field="num_experts",
        optional_experts=True,
        cached_layers=lambda config: len(_attention_layers(config)),
        recurrent=_recurrent,
    ),
)


ROWS = (*_FALCON_H1_ROWS, *_GRANITE_ROWS, *_NEMOTRON_ROWS, *_JAMBA_ROWS)
