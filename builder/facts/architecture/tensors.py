"""Tensors by name pattern, shape and role, and the parts that most architectures share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from .fields import Config

Role = Literal[
    "embedding",
    "lm_head",
    "norm",
    "attention",  # split over tensor-parallel ranks
    "attention_replicated",  # latent projections of MLA, whole on every rank
    "indexer",  # sparse attention, whole on every rank
    "linear_attention",
    "expert_projection",  # into and out of the width of latent experts, whole on every rank
    "router",
    "routed_expert",
    "shared_expert",
    "dense_mlp",
    "mtp_projection",
    "draft_projection",
    "vocabulary_map",
    "left_out",  # in the files only: the engine does not load it
]


Layers = tuple[int, ...]

# The linear layers of a gated MLP, and the names that many mixtures of experts have for them.
GATED, W = ("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")


@dataclass(frozen=True, slots=True)
class Tensors:
    """All tensors that share a name pattern, a shape and a role.

    `pattern` holds `{layer}` and `{expert}` where those numbers stand; `layers` is `None` for a
    tensor outside of all layers. `shape` is the shape before
    quantization: `[out_features, in_features]` for a linear layer, `[experts, in_features,
    out_features]` where one tensor holds all experts. `dtype` is that of tensors which are never
    quantized. `shards` are the parts of its rows that were quantized each by itself.
    """

    pattern: str
    shape: tuple[int, ...]
    role: Role
    layers: Layers | None = None
    experts: int = 0
    linear: bool = False
    mtp: bool = False
    dtype: str = "BF16"
    shards: int = 1

    @property
    def count(self) -> int:
        return (1 if self.layers is None else len(self.layers)) * max(1, self.experts)

    @property
    def parameters(self) -> int:
        return self.count * prod(self.shape)

    def names(self) -> Iterator[str]:
        for layer in (None,) if self.layers is None else self.layers:
            for expert in range(self.experts) if self.experts else (None,):
                yield self.pattern.format(layer=layer, expert=expert)


def decoder_layers(config: Config) -> Layers:
    return tuple(range(config["num_hidden_layers"]))


def mtp_layers(config: Config) -> Layers:
    """Layers for multi-token prediction that follow the decoder layers in the numbering."""
    first = config["num_hidden_layers"]
    return tuple(range(first, first + (config.get("num_nextn_predict_layers") or 0)))


def split(layers: Layers, is_chosen: Callable[[int], bool]) -> tuple[Layers, Layers]:
    """The chosen layers, and the others."""
    chosen = tuple(filter(is_chosen, layers))
    return chosen, tuple(i for i in layers if i not in set(chosen))


def linear(
    pattern: str,
    out_features: int,
    in_features: int,
    role: Role,
    layers: Layers | None = None,
    experts: int = 0,
) -> Tensors:
    shape = (out_features, in_features)
    return Tensors(f"{pattern}.weight", shape, role, layers, experts, linear=True)


def fused(pattern: str, shape: tuple[int, int, int], layers: Layers) -> Tensors:
    """All experts of a layer in one tensor."""
    return Tensors(pattern, shape, "routed_expert", layers, linear=True)


def as_mtp(*tensors: Tensors) -> list[Tensors]:
    """The tensors as those of multi-token-prediction layers."""
    return [replace(row, mtp=True) for row in tensors]


def gated_mlp(
    pattern: str,
    hidden: int,
    intermediate: int,
    role: Role,
    layers: Layers | None = None,
    experts: int = 0,
    names: tuple[str, str, str] = GATED,
) -> list[Tensors]:
    gate, up, down = names
    return [
        linear(f"{pattern}.{gate}", intermediate, hidden, role, layers, experts),
        linear(f"{pattern}.{up}", intermediate, hidden, role, layers, experts),
        linear(f"{pattern}.{down}", hidden, intermediate, role, layers, experts),
    ]


def plain_mlp(
    pattern: str,
    hidden: int,
    intermediate: int,
    role: Role,
    layers: Layers | None = None,
    experts: int = 0,
    names: tuple[str, str] = ("up_proj", "down_proj"),
    bias: bool = False,
) -> list[Tensors]:
    """Two linear layers with an activation between them."""
    up, down = (f"{pattern}.{name}" for name in names)
    tensors = [
        linear(up, intermediate, hidden, role, layers, experts),
        linear(down, hidden, intermediate, role, layers, experts),
    ]
    if bias:
        tensors.append(Tensors(f"{up}.bias", (intermediate,), role, layers, experts))
        tensors.append(Tensors(f"{down}.bias", (hidden,), role, layers, experts))
    return tensors


def head_dim(config: Config) -> int:
    """Channels of one attention head, which older configs leave to be computed."""
    heads = config["num_attention_heads"]
    return int(config.get("head_dim") or config["hidden_size"] // heads)


def gqa(
    module: str,
    config: Config,
    layers: Layers,
    heads: int | None = None,
    keys: int | None = None,
    gated: bool = False,
    output: str = "o_proj",
) -> list[Tensors]:
    """The projections of grouped-query attention; `heads` and `keys` are those of the config.

    `gated` doubles the query projection by an output gate.
    """
    hidden, width = config["hidden_size"], head_dim(config)
    query = (heads or config["num_attention_heads"]) * width
    key = (keys or config["num_key_value_heads"]) * width
    return [
        linear(f"{module}.q_proj", query * (1 + gated), hidden, "attention", layers),
        linear(f"{module}.k_proj", key, hidden, "attention", layers),
        linear(f"{module}.v_proj", key, hidden, "attention", layers),
        linear(f"{module}.{output}", hidden, query, "attention", layers),
    ]


def qk_norms(
    module: str, width: int, layers: Layers, names: tuple[str, str] = ("q_norm", "k_norm")
) -> list[Tensors]:
    return [Tensors(f"{module}.{name}.weight", (width,), "norm", layers) for name in names]


def mtp_input(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """What joins the hidden state and the embedding of the next token."""
    hidden = config["hidden_size"]
    return [
        linear(f"{layer}.eh_proj", hidden, 2 * hidden, "mtp_projection", layers),
        Tensors(f"{layer}.enorm.weight", (hidden,), "norm", layers),
        Tensors(f"{layer}.hnorm.weight", (hidden,), "norm", layers),
    ]


def mtp_ends(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """The input of a layer for multi-token prediction, with its own embedding and head."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    return [
        Tensors(f"{layer}.embed_tokens.weight", (vocabulary, hidden), "embedding", layers),
        *mtp_input(layer, config, layers),
        Tensors(f"{layer}.shared_head.norm.weight", (hidden,), "norm", layers),
        linear(f"{layer}.shared_head.head", vocabulary, hidden, "lm_head", layers),
    ]


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Layers that keep a state of fixed size for a request in place of a KV cache.

    `state` are the FP32 values of one layer's recurrent state, `window` the BF16 ones that its
    convolution keeps.
    """

    layers: int
    state: int
    window: int
