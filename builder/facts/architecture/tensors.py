"""An architecture as a row of the table, and its tensors by name pattern, shape and role, with
the parts that most architectures share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Literal

from .fields import NESTED, Config, language_model, layer_kinds, normalized, spoiled_field

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
    layers: tuple[int, ...] | None = None
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


def other_layers(config: Config, some: Layers) -> Layers:
    """All decoder layers but some."""
    left_out = set(some)
    return tuple(i for i in range(config["num_hidden_layers"]) if i not in left_out)


def linear(
    pattern: str,
    out_features: int,
    in_features: int,
    role: Role,
    layers: tuple[int, ...] | None = None,
    experts: int = 0,
) -> Tensors:
    shape = (out_features, in_features)
    return Tensors(f"{pattern}.weight", shape, role, layers, experts, linear=True)


def as_mtp(*tensors: Tensors) -> list[Tensors]:
    """The tensors as those of multi-token-prediction layers."""
    return [replace(row, mtp=True) for row in tensors]


def gated_mlp(
    pattern: str,
    hidden: int,
    intermediate: int,
    role: Role,
    layers: tuple[int, ...] | None = None,
    experts: int = 0,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
) -> list[Tensors]:
    gate, up, down = names
    return [
        linear(f"{pattern}.{gate}", intermediate, hidden, role, layers, experts),
        linear(f"{pattern}.{up}", intermediate, hidden, role, layers, experts),
        linear(f"{pattern}.{down}", hidden, intermediate, role, layers, experts),
    ]


def ends(
    config: Config,
    prefix: str = "model",
    head: str = "lm_head",
    names: tuple[str, str] = ("embed_tokens", "norm"),
    tied: bool = False,
) -> list[Tensors]:
    """Embedding, final norm and, unless it is tied to the embedding, the output head.

    `tied` is what a config that does not say it means.
    """
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]
    embedding, norm = (f"{prefix}.{name}".removeprefix(".") for name in names)
    tensors = [
        Tensors(f"{embedding}.weight", (vocabulary, hidden), "embedding"),
        Tensors(f"{norm}.weight", (hidden,), "norm"),
    ]
    if not config.get("tie_word_embeddings", tied):
        tensors.append(linear(head, vocabulary, hidden, "lm_head"))
    return tensors


def layer_norms(layer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    hidden = (config["hidden_size"],)
    return [
        Tensors(f"{layer}.input_layernorm.weight", hidden, "norm", layers),
        Tensors(f"{layer}.post_attention_layernorm.weight", hidden, "norm", layers),
    ]


def plain_mlp(
    pattern: str,
    hidden: int,
    intermediate: int,
    role: Role,
    layers: tuple[int, ...] | None = None,
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
    layer: str, config: Config, layers: tuple[int, ...], gated: bool = False, bias: bool = False
) -> list[Tensors]:
    """Grouped-query attention; `gated` doubles the query projection by an output gate."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    query, key = heads * head_dim(config), config["num_key_value_heads"] * head_dim(config)
    tensors = []
    for name, out_features, in_features in (
        ("q_proj", query * (1 + gated), hidden),
        ("k_proj", key, hidden),
        ("v_proj", key, hidden),
        ("o_proj", hidden, query),
    ):
        module = f"{layer}.self_attn.{name}"
        tensors.append(linear(module, out_features, in_features, "attention", layers))
        if bias:
            tensors.append(Tensors(f"{module}.bias", (out_features,), "attention", layers))
    return tensors


def qk_norms(
    layer: str,
    query: int,
    key: int,
    layers: tuple[int, ...],
    names: tuple[str, str] = ("q_norm", "k_norm"),
) -> list[Tensors]:
    return [
        Tensors(f"{layer}.self_attn.{name}.weight", (size,), "norm", layers)
        for name, size in zip(names, (query, key), strict=True)
    ]


Attention = Literal["mla", "mla_dsa", "mla_hybrid", "gqa", "gqa_window", "hybrid", "compressed"]

# Config fields that tensor shapes need, of every architecture and of grouped-query attention.
COMMON = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
GQA = ("num_key_value_heads",)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Layers that keep a state of fixed size for a request in place of a KV cache.

    `state` are the FP32 values of one layer's recurrent state, `window` the BF16 ones that its
    convolution keeps.
    """

    layers: int
    state: int
    window: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the toolkit knows of one architecture.

    `required` are the config fields that the tensor shapes need. `experts_field` counts the routed
    experts, which with `optional_experts` some models of the family lack. `mtp_field` is the config
    field that counts the multi-token-prediction layers; `None` where none are published.
    `splits_embedding` says whether the engine splits the embedding over tensor-parallel ranks.
    A `draft_head` guesses tokens for another model and cannot be served alone. `text_config` is
    where the config nests the language model. `cached_layers` counts the layers that have a KV
    cache, `cached_values` the values that one of them keeps of a token where it is neither
    grouped-query nor plain latent attention, `cached_heads` lists the key-value heads of each of
    them and their width where they differ, `recurrent` tells of the layers that have none.
    """

    name: str
    attention: Attention
    required: tuple[str, ...]
    tensors: Callable[[Config], list[Tensors]]
    experts_field: str | None = None
    optional_experts: bool = False
    mtp_field: str | None = None
    text_config: str | None = None
    splits_embedding: bool = True
    draft_head: bool = False
    cached_layers: Callable[[Config], int] | None = None
    cached_values: Callable[[Config], float] | None = None
    cached_heads: Callable[[Config], list[tuple[int, int]]] | None = None
    recurrent: Callable[[Config], Recurrent] | None = None

    def text(self, config: Config) -> Config:
        """The language model's fields, under every name that the toolkit knows them by."""
        return normalized(config, self.nested(config))

    def written(self, config: Config) -> Config:
        """The language model's fields as the file has them."""
        return language_model(config, self.nested(config))

    def nested(self, config: Config) -> str | None:
        """Where this config nests the language model: published ones differ within a family."""
        places = (self.text_config, *NESTED) if self.text_config else ()
        if self.text_config and isinstance(config.get(self.text_config), Mapping):
            return self.text_config
        if "hidden_size" in config:
            return None
        return next((name for name in places if isinstance(config.get(name), Mapping)), None)

    def of(self, config: Config) -> Architecture:
        """This architecture as a config has it: some families have members without experts."""
        experts, text = self.experts_field, self.text(config)
        if self.optional_experts and experts:
            kinds = set(layer_kinds(text)) & {"moe", "mlp"}
            if text.get(experts) in (None, 0, 1) or kinds == {"mlp"}:
                return _without_experts(self)
        return self

    def attention_layers(self, text: Config) -> int:
        """The layers that keep every token in the KV cache."""
        count = self.cached_layers or (lambda fields: int(fields["num_hidden_layers"]))
        return count(text)

    def key_value_heads(self, text: Config) -> list[tuple[int, int]]:
        """The key-value heads of each of those layers with grouped-query attention, and the
        channels of one."""
        if self.cached_heads:
            return self.cached_heads(text)
        alike = int(text["num_key_value_heads"]), head_dim(text)
        return [alike] * self.attention_layers(text)

    def missing_fields(self, config: Config) -> list[str]:
        """Fields that the toolkit computes with and that are missing or no plausible count."""
        text = self.text(config)
        optional = {self.mtp_field or "", "head_dim", "max_position_embeddings"} & set(text)
        wrong = [name for name in self.required if not _is_count(name, text.get(name))]
        wrong += [name for name in sorted(optional - set(wrong)) if not _is_count(name, text[name])]
        wrong += [name for name in COUNTED & set(text) if not isinstance(text[name], int)]
        if self.experts_field and not wrong:
            count = text.get(self.experts_field)
            experts = text["num_hidden_layers"] * (count if isinstance(count, int) else 0)
            wrong += [self.experts_field] if experts > MAX_EXPERTS else []
        if not wrong:
            readers = (self.attention_layers, self.cached_values, self.recurrent, self.tensors)
            spoiled = spoiled_field(text, [read for read in readers if read])
            wrong += [] if spoiled is None else [spoiled]
        if self.experts_field and not wrong and not any(map(_has_experts, self.tensors(text))):
            wrong.append(next((name for name in _DENSE_LAYERS if name in text), self.experts_field))
        return wrong

    def mtp_layers(self, config: Config) -> int:
        return int(self.text(config).get(self.mtp_field) or 0) if self.mtp_field else 0


@cache
def _without_experts(architecture: Architecture) -> Architecture:
    return replace(architecture, experts_field=None, mtp_field=None)


# Far beyond every model: each layer and expert is walked, and sizes are multiplied.
MAX_LAYERS = 1_000
MAX_EXPERTS = 200_000  # of all layers together
MAX_COUNT = 1 << 31
_MAY_BE_ZERO = {
    *("first_k_dense_replace", "n_shared_experts", "num_nextn_predict_layers", "q_lora_rank"),
    *("num_hash_layers", "mlp_only_layers"),
}
# Counts that some models of an architecture have and others do not.
COUNTED = frozenset({"num_experts_per_tok", "moe_latent_size", "n_groups", "sliding_window"})


# Where families say which layers have an MLP in place of experts: of one with experts, never all.
_DENSE_LAYERS = (
    *("mlp_layer_types", "mlp_only_layers", "moe_layer_freq", "moe_layers_enum", "is_moe_layer"),
    *("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "dense_mlp_idx"),
)


def _has_experts(tensors: Tensors) -> bool:
    return tensors.role == "routed_expert" and bool(tensors.layers) and not tensors.mtp


def _is_count(name: str, value: object) -> bool:
    least = 0 if name in _MAY_BE_ZERO or name.startswith("mtp_") else 1
    most = MAX_LAYERS if "_layers" in name else MAX_COUNT
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
