"""The fields of a `config.json` as the toolkit computes with them, whoever wrote the file.

Writers differ in three ways: a field that does not apply is left out or is `null`; transformers 5
writes some counts under another name than the model's publisher did; and newer files list the kind
of every layer where older ones count layers or give their period.

`spoiled_field` finds the field that makes sizes wrong or impossible to compute. Only the functions
of a family show which optional fields it reads, and in which form, so it runs them on the config,
and again without each field that they read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any

from ...schema import Text
from .. import data_file

Config = Mapping[str, Any]
"""The fields of `config.json`; of its `text_config` where a model nests the language model."""

# Where a multimodal model keeps its language model, whatever its architecture's usual place.
NESTED = ("text_config", "llm_config", "language_config")

# Older names that transformers takes before the usual one (configuration_lfm2.py).
_BEFORE = {"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"}

# Fields that some files give for every layer, though all layers are alike.
_BY_LAYER = (
    *("num_experts_per_tok", "moe_intermediate_size", "num_experts", "n_shared_experts"),
    *("intermediate_size", "num_key_value_heads", "num_attention_heads"),
)

# Where `null` says that the model has no such part, which is not the same as no word about it.
_NULLS = {"q_lora_rank": 0, "block_ffn_dim_multiplier": 0}

# Fields that stand outside of a nested language model as well, and count there.
_OUTSIDE = ("tie_word_embeddings", "torch_dtype", "dtype")

WIDTH_STEP = 256  # what the width of an MLP that is told as a multiple is rounded up to

# Letters of `hybrid_override_pattern` (NVIDIA Nemotron-H, configuration_nemotron_h.py).
_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


# Other names of a field, in order, and what is meant where one is left out, by `model_type`.
FIELDS_FILE: Any = {"spellings": {"*": [Text]}, "defaults": {"*": {"*": int}}}


@cache
def known_names() -> Mapping[str, Any]:
    names: Mapping[str, Any] = data_file.shipped("config_fields.yaml", FIELDS_FILE)
    return names


def language_model(config: Config, nested: str | None) -> Config:
    """The fields of the language model as they are written."""
    part = config.get(nested) if nested else None
    return part if isinstance(part, Mapping) else config


def normalized(config: Config, nested: str | None) -> dict[str, Any]:
    """Those fields under every name that the toolkit knows them by, without `null`."""
    text = language_model(config, nested)
    outside = {name: config[name] for name in _OUTSIDE if config.get(name) is not None}
    fields = outside | {name: value for name, value in text.items() if value is not None}
    fields |= {name: none for name, none in _NULLS.items() if name in text and text[name] is None}
    fields |= {name: fields[older] for name, older in _BEFORE.items() if older in fields}
    for name, others in known_names()["spellings"].items():
        found = next((fields[other] for other in others if other in fields), None)
        if name not in fields and found is not None:
            fields[name] = found
    model_type = fields.get("model_type")
    if text is not config:
        fields = {**known_names()["defaults"].get(str(model_type), {}), **fields}
    if model_type == "llama" and "num_attention_heads" in fields:  # of before it had groups
        fields.setdefault("num_key_value_heads", fields["num_attention_heads"])
    fields = {**_of_blocks(fields), **fields}
    fields |= {name: _of_all(fields[name]) for name in _BY_LAYER if name in fields}
    kinds = layer_kinds(fields)
    if kinds and "num_hidden_layers" not in fields:
        fields["num_hidden_layers"] = len(kinds)
    dense = _first_dense(fields.get("mlp_layer_types"))
    return fields if dense is None else {**fields, "first_k_dense_replace": dense}


def _first_dense(kinds: object) -> int | None:
    """How many layers have an MLP, where those with experts follow; `None` in another order."""
    if not isinstance(kinds, list):
        return None
    dense = kinds.index("sparse") if "sparse" in kinds else len(kinds)
    return dense if kinds == ["dense"] * dense + ["sparse"] * (len(kinds) - dense) else None


def _of_blocks(fields: Config) -> dict[str, int]:
    """The most that a layer has, where the layers differ and are described one by one."""
    blocks = described_layers(fields)
    if not blocks:
        return {}
    if any("block_type" in block for block in blocks):  # which has the sizes by their usual names
        most: dict[str, int] = {}
        for name, size in chain.from_iterable(block.items() for block in blocks):
            if isinstance(size, int) and not isinstance(size, bool):
                most[name] = max(size, most.get(name, size))
        return most
    heads = (key_value_heads_of_block(fields, block.get("attention")) for block in blocks)
    widths = (width_of_block(fields, block.get("ffn")) for block in blocks)
    return {"num_key_value_heads": max(heads), "intermediate_size": max(widths)}


def described_layers(fields: Config, field: str = "block_configs") -> list[Mapping[str, Any]]:
    """What a file says of each layer by itself; nothing where it says it of all together."""
    listed = fields.get(field)
    if not isinstance(listed, list):
        return []
    return [each for each in listed if isinstance(each, Mapping)]


def key_value_heads_of_block(config: Config, attention: object) -> int:
    """Those of one layer; 0 of a layer without attention."""
    if own := _number(attention, "num_key_value_heads"):
        return int(own)
    group = _number(attention, "n_heads_in_group")
    return int(_number(config, "num_attention_heads") // group) if group else 0


def width_of_block(config: Config, mlp: object) -> int:
    """The channels of one layer's MLP; 0 of a layer without."""
    if own := _number(mlp, "intermediate_size"):
        return int(own)
    exact = int(2 * _number(mlp, "ffn_mult") * _number(config, "hidden_size") / 3)
    return -(-exact // WIDTH_STEP) * WIDTH_STEP


def _number(part: object, name: str) -> float:
    """A number in a part of the config; 0 if it is missing."""
    value = part.get(name) if isinstance(part, Mapping) else None
    return value if isinstance(value, int | float) else 0


def _of_all(value: object) -> object:
    """One number for a list that repeats it for every layer."""
    alike = isinstance(value, list) and value and all(each == value[0] for each in value)
    return value[0] if alike and isinstance(value, list) else value


def layer_kinds(config: Config) -> tuple[str, ...]:
    """The kind of every layer where the file lists them, else nothing."""
    for name in ("layers_block_type", "layer_types"):
        listed = config.get(name)
        if isinstance(listed, list | tuple) and all(isinstance(kind, str) for kind in listed):
            return tuple(listed)
    letters = config.get("hybrid_override_pattern")
    if isinstance(letters, str):
        return tuple(_LETTERS[letter] for letter in letters if letter in _LETTERS)
    return tuple(str(row["block_type"]) for row in described_layers(config) if "block_type" in row)


MAX_SIZE = 1 << 40  # values of one tensor

# What a reader raises over fields of a file that somebody wrote, whatever they hold.
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Spoiled(ValueError):
    """A reader's word that a field cannot be what it is."""

    def __init__(self, field: str) -> None:
        super().__init__(f"field {field} cannot be what it is")
        self.field = field


class _Fields(Mapping[str, Any]):
    """The fields of a config; `seen` lists the ones that were read, in order."""

    def __init__(self, fields: Config) -> None:
        self._fields = fields
        self.seen: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.seen.append(name)
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def is_negative(self, name: str) -> bool:
        """What sizes are computed from counts something: none of it can be below zero."""
        value = self._fields.get(name)
        return isinstance(value, int | float) and value < 0


def spoiled_field(fields: Config, readers: Iterable[Callable[[Config], Any]]) -> str | None:
    """The first field that stops one of `readers`, gives an impossible size, or is negative.

    `None` if the config has no such field.
    """
    for read in readers:
        trial = _Fields(fields)
        try:
            if not _is_plausible(read(trial)):
                return _to_blame(trial, read)
        except Spoiled as told:
            return told.field
        except KeyError as missing:
            inside = missing.args[0] not in trial.seen  # of a mapping that a field holds
            return _to_blame(trial, read) if inside else str(missing.args[0])
        except _UNREADABLE:
            return _to_blame(trial, read)
        if (negative := next(filter(trial.is_negative, trial.seen), None)) is not None:
            return negative
    return None


def _is_plausible(found: Any) -> bool:
    """Whether a number of layers, or all sizes of tensors, are whole numbers in reason."""
    if isinstance(found, int):
        return 0 < found <= MAX_SIZE
    if not isinstance(found, list):
        return True
    sizes = chain.from_iterable((*tensors.shape, tensors.experts + 1) for tensors in found)
    return all(isinstance(size, int) and 0 < size <= MAX_SIZE for size in sizes)


def _to_blame(trial: _Fields, read: Callable[[Config], Any]) -> str:
    """The strangest field that spoils it alone, or of all that were read; of equally strange ones
    the last."""
    there = [name for name in dict.fromkeys(reversed(trial.seen)) if name in trial]
    there.sort(key=lambda name: _strangeness(trial, name), reverse=True)
    return next((name for name in there if _spoils(trial, name, read)), there[0] if there else "")


def _spoils(trial: _Fields, name: str, read: Callable[[Config], Any]) -> bool:
    """Whether the reader goes on without a field, or with a plain count in its place."""
    others = {key: value for key, value in dict(trial).items() if key != name}
    for fields in (others, {**others, name: 1}):
        try:
            if _is_plausible(read(fields)):
                return True
        except _UNREADABLE:
            continue
    return False


def _strangeness(trial: _Fields, name: str) -> tuple[int, float]:
    """How far a value is from the count that most fields hold."""
    value = dict(trial)[name]
    if isinstance(value, bool | str):
        return 0, 0
    if isinstance(value, int):
        return (0, 0) if 0 < value < MAX_SIZE else (1, abs(value))
    return (2 if isinstance(value, list) else 3), 0
