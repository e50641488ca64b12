"""Families with Mamba layers: attention, MLPs and experts are between them or run side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import tensors as parts
from .decoder import Decoder, Family
from .fields import Config, Spoiled, described_layers, layer_kinds
from .tensors import Layers, Recurrent, Role, Tensors, linear

# The names that Granite and Falcon-H1 have the sizes under, in the order of `Mamba2`.
FIELDS = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")

# The names of layer kinds in transformers 5.23.
_WRITTEN = {"mamba": "linear_attention", "attention": "full_attention"}


def layers_of_kind(config: Config, kind: str) -> Layers:
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

    def layers(self, config: Config) -> Layers:
        if self.everywhere:
            return parts.decoder_layers(config)
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
        tensors = [
            linear(f"{mixer}.in_proj", inner + mixed + heads, hidden, "linear_attention", layers),
            Tensors(f"{mixer}.conv1d.weight", (mixed, 1, width), "linear_attention", layers),
            Tensors(f"{mixer}.conv1d.bias", (mixed,), "linear_attention", layers),
            Tensors(f"{mixer}.dt_bias", (heads,), "linear_attention", layers),
            Tensors(f"{mixer}.A_log", (heads,), "linear_attention", layers),
            Tensors(f"{mixer}.D", (heads,), "linear_attention", layers),
            linear(f"{mixer}.out_proj", hidden, inner, "linear_attention", layers),
        ]
        if self.norm is None or config.get(self.norm):
            tensors.append(Tensors(f"{mixer}.norm.weight", (inner,), "norm", layers))
        return tensors


# Falcon-H1 of TII: every layer has attention and Mamba-2 side by side.


_FALCON_H1_MAMBA = Mamba2(*FIELDS, everywhere=True, norm="mamba_rms_norm")


def _falcon_h1_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    return parts.gated_mlp(f"{layer}.feed_forward", hidden, width, "dense_mlp", layers)


def _falcon_h1(decoder: Decoder, config: Config) -> list[Tensors]:
    return [
        *decoder.tensors(config, _falcon_h1_mlps),
        *_FALCON_H1_MAMBA.tensors(f"{decoder.layer}.mamba", config),
    ]


# IBM Granite: mixtures of experts, and the hybrids whose other layers are Mamba-2.


_GRANITE_MAMBA = Mamba2(*FIELDS)


def _granite_mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """Experts, if any, and an MLP for every token; gate and up projection lie in one tensor."""
    hidden, tensors = config["hidden_size"], list[Tensors]()
    if experts := config.get("num_local_experts"):
        moe, width = f"{layer}.block_sparse_moe", config["intermediate_size"]
        tensors += [
            linear(f"{moe}.router.layer", experts, hidden, "router", layers),
            parts.fused(f"{moe}.input_linear.weight", (experts, 2 * width, hidden), layers),
            parts.fused(f"{moe}.output_linear.weight", (experts, hidden, width), layers),
        ]
    if shared := config.get("shared_intermediate_size"):
        mlp = f"{layer}.shared_mlp"
        tensors += [
            linear(f"{mlp}.input_linear", 2 * shared, hidden, "shared_expert", layers),
            linear(f"{mlp}.output_linear", hidden, shared, "shared_expert", layers),
        ]
    return tensors


def _granite_hybrid(decoder: Decoder, config: Config) -> list[Tensors]:
    layer, layers = decoder.layer, layers_of_kind(config, "attention")
    return [
        *decoder.without_attention(config, _granite_mlps),
        *decoder.attention_tensors(layer, config, layers),
        *_GRANITE_MAMBA.tensors(f"{layer}.mamba", config),
    ]


# Nemotron-H of NVIDIA and what Puzzle made of it: layers of Mamba-2, attention, MLPs and experts,
# which with Puzzle have sizes of their own.


_NEMOTRON_MAMBA = Mamba2(
    "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"
)


def _nemotron_moe(mixer: str, config: Config, layers: Layers) -> list[Tensors]:
    """Experts of two linear layers, in a narrower width where the model has latent ones."""
    hidden, experts = config["hidden_size"], config["n_routed_experts"]
    latent, width = config.get("moe_latent_size") or 0, config["moe_intermediate_size"]
    shared = config["moe_shared_expert_intermediate_size"] * (config.get("n_shared_experts") or 1)
    expert, inner = f"{mixer}.experts.{{expert}}", latent or hidden
    tensors = [
        Tensors(f"{mixer}.gate.weight", (experts, hidden), "router", layers),
        Tensors(f"{mixer}.gate.e_score_correction_bias", (experts,), "router", layers),
        *parts.plain_mlp(expert, inner, width, "routed_expert", layers, experts),
        *parts.plain_mlp(f"{mixer}.shared_experts", hidden, shared, "shared_expert", layers),
    ]
    if latent:
        tensors += [
            linear(f"{mixer}.fc1_latent_proj", latent, hidden, "expert_projection", layers),
            linear(f"{mixer}.fc2_latent_proj", hidden, latent, "expert_projection", layers),
        ]
    return tensors


def _nemotron_mlp(mixer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, width = config["hidden_size"], config["intermediate_size"]
    return parts.plain_mlp(mixer, hidden, width, "dense_mlp", layers)


_NEMOTRON_LAYERS: dict[str, Callable[[str, Config, Layers], list[Tensors]]] = {
    "mamba": _NEMOTRON_MAMBA.tensors,
    "attention": parts.gqa,
    "mlp": _nemotron_mlp,
    "moe": _nemotron_moe,
}


def _by_sizes(config: Config, layers: Layers) -> list[tuple[Config, Layers]]:
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


def _nemotron_h(decoder: Decoder, config: Config) -> list[Tensors]:
    layer, hidden, every = decoder.layer, config["hidden_size"], parts.decoder_layers(config)
    mixer = f"{layer}.mixer"
    tensors = [*decoder.end_tensors(config), *decoder.norm_tensors(layer, config, every)]
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
    return tensors + parts.as_mtp(
        *parts.mtp_input(layer, config, first),
        Tensors(f"{layer}.norm.weight", (hidden,), "norm", (*first, *second)),
        Tensors(f"{layer}.final_layernorm.weight", (hidden,), "norm", second),
        *parts.gqa(mixer, config, first),
        *_nemotron_moe(mixer, _with(config, of_moe), second),
    )


# Jamba of AI21: Mamba in most layers, attention in the others, experts in every second one.


def _is_of(config: Config, kind: str, layer: int) -> bool:
    """Whether a layer is of a kind that the config describes by a period and an offset."""
    period, offset = config[f"{kind}_layer_period"], config[f"{kind}_layer_offset"]
    if offset >= period:  # transformers refuses it: no layer would be one
        raise Spoiled(f"{kind}_layer_offset")
    return bool(layer % period == offset)


def _attention_layers(config: Config) -> Layers:
    return tuple(i for i in parts.decoder_layers(config) if _is_of(config, "attn", i))


def _inner(config: Config) -> int:
    return int(config["mamba_expand"] * config["hidden_size"])


def _jamba_recurrent(config: Config) -> Recurrent:
    inner = _inner(config)
    layers = config["num_hidden_layers"] - len(_attention_layers(config))
    window = (config["mamba_d_conv"] - 1) * inner
    return Recurrent(layers, inner * config["mamba_d_state"], window)


def _rank(config: Config) -> int:
    rank = config.get("mamba_dt_rank", "auto")
    return int(-(-config["hidden_size"] // 16) if rank == "auto" else rank)


def _mamba(mixer: str, config: Config, layers: Layers) -> list[Tensors]:
    inner, hidden = _inner(config), config["hidden_size"]
    state, rank = config["mamba_d_state"], _rank(config)
    part: Role = "linear_attention"
    biases = {"in_proj": 2 * inner, "out_proj": hidden} if config.get("mamba_proj_bias") else {}
    if config.get("mamba_conv_bias", True):
        biases["conv1d"] = inner
    tensors = [
        linear(f"{mixer}.in_proj", 2 * inner, hidden, part, layers),
        Tensors(f"{mixer}.conv1d.weight", (inner, 1, config["mamba_d_conv"]), part, layers),
        linear(f"{mixer}.x_proj", rank + 2 * state, inner, part, layers),
        linear(f"{mixer}.dt_proj", inner, rank, part, layers),
        linear(f"{mixer}.out_proj", hidden, inner, part, layers),
        Tensors(f"{mixer}.A_log", (inner, state), part, layers),
        Tensors(f"{mixer}.D", (inner,), part, layers),
    ]
    for name, size in (biases | {"dt_proj": inner}).items():
        tensors.append(Tensors(f"{mixer}.{name}.bias", (size,), part, layers))
    for name, size in (("dt", rank), ("b", state), ("c", state)):
        tensors.append(Tensors(f"{mixer}.{name}_layernorm.weight", (size,), "norm", layers))
    return tensors


def _jamba(decoder: Decoder, config: Config) -> list[Tensors]:
    layer, attention = decoder.layer, _attention_layers(config)
    _, others = parts.split(parts.decoder_layers(config), lambda i: i in attention)

    def mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
        """A layer of a single expert is a plain MLP."""
        experts = decoder.experts
        assert experts is not None  # in its row
        has_experts = config["num_experts"] != 1
        sparse, dense = parts.split(layers, lambda i: has_experts and _is_of(config, "expert", i))
        return [*experts.plain(layer, config, dense), *experts.sparse(layer, config, sparse)]

    return [
        *decoder.without_attention(config, mlps),
        *decoder.attention_tensors(layer, config, attention),
        *_mamba(f"{layer}.mamba", config, others),
    ]


def _of_attention(config: Config) -> int:
    return len(layers_of_kind(config, "attention"))


FAMILIES = {
    "falcon_h1": Family(_falcon_h1, recurrent=_FALCON_H1_MAMBA.recurrent),
    "granite_moe": Family(lambda decoder, config: decoder.tensors(config, _granite_mlps)),
    "granite_hybrid": Family(_granite_hybrid, _of_attention, recurrent=_GRANITE_MAMBA.recurrent),
    "nemotron_h": Family(_nemotron_h, _of_attention, recurrent=_NEMOTRON_MAMBA.recurrent),
    "jamba": Family(
        _jamba, lambda config: len(_attention_layers(config)), recurrent=_jamba_recurrent
    ),
}
