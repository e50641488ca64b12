"""What the toolkit knows of one architecture: the form of a row of this package's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from .tensors import Config, Tensors

Attention = Literal["mla", "mla_dsa", "gqa", "gqa_window", "hybrid"]

# Config fields that tensor shapes need, of every architecture and of grouped-query attention.
COMMON = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
GQA = ("num_key_value_heads",)


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the toolkit knows of one architecture.

    `required` are the config fields that the tensor shapes need. `mtp_field` is the config field
    that counts the multi-token-prediction layers; `None` where none are published.
    `splits_embedding` says whether the engine splits the embedding over tensor-parallel ranks.
    A `draft_head` guesses tokens for another model and cannot be served alone.
    """

    name: str
    attention: Attention
    required: tuple[str, ...]
    tensors: Callable[[Config], list[Tensors]]
    experts_field: str | None = None
    mtp_field: str | None = None
    text_config: str | None = None
    splits_embedding: bool = True
    draft_head: bool = False

    def text(self, config: Config) -> Config:
        """The language model's own fields."""
        nested = config.get(self.text_config) if self.text_config else None
        return nested if isinstance(nested, Mapping) else config

    def missing_fields(self, config: Config) -> list[str]:
        """Fields that the toolkit computes with and that are missing or no plausible count."""
        text = self.text(config)
        optional = {self.mtp_field or "", "head_dim", "max_position_embeddings"} & set(text)
        wrong = [name for name in self.required if not _is_count(name, text.get(name))]
        return wrong + [
            name
            for name in sorted(optional - set(wrong))
            if text[name] is not None and not _is_count(name, text[name])
        ]

    def mtp_layers(self, config: Config) -> int:
        return int(self.text(config).get(self.mtp_field) or 0) if self.mtp_field else 0


_MAY_BE_ZERO = {"first_k_dense_replace", "n_shared_experts", "num_nextn_predict_layers"}


def _is_count(name: str, value: object) -> bool:
    least = 0 if name in _MAY_BE_ZERO or name.startswith("mtp_") else 1
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
