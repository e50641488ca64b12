"""The tensors of each supported model architecture: names, shapes and roles, from its config.

An `Architecture`, a row of `builder/data/architectures.yaml`, is all that the rest of the toolkit
knows about one. Checkpoint checks, the memory budget and miniatures read the same rows. What a row
cannot describe is code of its `Family`, in the module of its kind of attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal

from ...documents import DATA
from ...schema import Reference, Text
from .. import data_file
from . import grouped_query, latent, linear_attention, state_space, windowed
from .decoder import Decoder, Family
from .fields import NESTED, Config, language_model, layer_kinds, normalized, spoiled_field
from .tensors import Recurrent, Role, Tensors, head_dim

__all__ = [
    "NESTED",
    "Architecture",
    "Attention",
    "Config",
    "Recurrent",
    "Role",
    "Tensors",
    "architectures",
]

FILE = DATA / "architectures.yaml"
FAMILIES: Mapping[str, Family] = {
    **grouped_query.FAMILIES,
    **windowed.FAMILIES,
    **latent.FAMILIES,
    **linear_attention.FAMILIES,
    **state_space.FAMILIES,
}

Attention = Literal["mla", "mla_dsa", "mla_hybrid", "gqa", "gqa_window", "hybrid", "compressed"]

# Config fields that tensor shapes of every architecture need.
COMMON = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


_LLAMA, _NO_FAMILY = Decoder(), Family()


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the toolkit knows of an architecture; those in `also` differ in name only.

    `source` is where names and shapes of its tensors are. `fields` are the config fields that the
    shapes need besides those of every architecture. `family` names what `decoder` cannot describe.
    `experts_field` counts the routed experts, which with `optional_experts` some models of the
    family lack. `mtp_field` is the config field that counts the multi-token-prediction layers;
    `None` where none are published. `splits_embedding` says whether the engine splits the embedding
    over tensor-parallel ranks. A `draft_head` guesses tokens for another model and cannot be served
    alone. `text_config` is where the config nests the language model.
    """

    name: Text
    source: Text
    attention: Attention
    fields: tuple[Text, ...]
    also: tuple[Text, ...] = ()
    decoder: Decoder = _LLAMA
    family: Annotated[str, Reference(lambda: FAMILIES)] | None = None
    experts_field: Text | None = None
    optional_experts: bool = False
    mtp_field: Text | None = None
    text_config: Text | None = None
    splits_embedding: bool = True
    draft_head: bool = False

    @property
    def required(self) -> tuple[str, ...]:
        return (*COMMON, *self.fields)

    @property
    def code(self) -> Family:
        return FAMILIES[self.family] if self.family else _NO_FAMILY

    def tensors(self, text: Config) -> list[Tensors]:
        return self.code.tensors(self.decoder, text)

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
        count = self.code.cached_layers or (lambda fields: int(fields["num_hidden_layers"]))
        return count(text)

    def key_value_heads(self, text: Config) -> list[tuple[int, int]]:
        """The key-value heads of each of those layers with grouped-query attention, and the
        channels of one."""
        if self.code.cached_heads:
            return self.code.cached_heads(text)
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
            code = self.code
            readers = (self.attention_layers, code.cached_values, code.recurrent, self.tensors)
            spoiled = spoiled_field(text, [read for read in readers if read])
            wrong += [] if spoiled is None else [spoiled]
        if self.experts_field and not wrong and not any(map(_has_experts, self.tensors(text))):
            wrong.append(next((name for name in _DENSE_LAYERS if name in text), self.experts_field))
        return wrong

    def mtp_layers(self, config: Config) -> int:
        return int(self.text(config).get(self.mtp_field) or 0) if self.mtp_field else 0


@cache
def architectures() -> Mapping[str, Architecture]:
    found: dict[str, Architecture] = {}
    for row in data_file.load(FILE, tuple[Architecture, ...]):
        found |= {name: replace(row, name=name) for name in (row.name, *row.also)}
    return found


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
