"""The tokenizer of a miniature, and its config with small sizes.

The tokenizer is a byte-level BPE over a list of common words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..documents import DATA
from ..facts import data_file
from ..facts.architecture.fields import known_names
from ..facts.checkpoint import Checkpoint
from ..schema import Positive

BOS, EOS, USER, ASSISTANT = "<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>"
# What the files of a miniature name as their producer.
PRODUCER = "builder miniature"
SPECIALS = (BOS, EOS, USER, ASSISTANT)
# A draft head knows all tokens but these, the first: special ones and single bytes.
NOT_DRAFTED = len(SPECIALS) + 256
WORDS = DATA / "miniature" / "words.txt"

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + ('assistant' if message['role'] == 'assistant' else 'user') + '|>' }}"
    "{{ message['content'] }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _byte_characters() -> dict[int, str]:
    """The printable character for each byte in byte-level BPE files (as in GPT-2)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        characters.setdefault(byte, chr(256 + len(characters) - len(printable)))
    return characters


@dataclass(frozen=True)
class Vocabulary:
    """Token ids, merges in order, and the ids of whole words."""

    ids: dict[str, int]
    merges: tuple[tuple[str, str], ...]
    words: frozenset[int]

    @classmethod
    def build(cls) -> Vocabulary:
        characters = _byte_characters()
        ids = {token: index for index, token in enumerate(SPECIALS)}
        for byte in range(256):
            ids[characters[byte]] = len(ids)
        merges: dict[tuple[str, str], None] = {}
        words = set()
        for word in WORDS.read_text(encoding="utf-8").split():
            spelled = [characters[byte] for byte in f" {word}".encode()]
            left = spelled[0]
            for right in spelled[1:]:
                merges[(left, right)] = None
                left += right
                ids.setdefault(left, len(ids))
            words.add(ids[left])
        return cls(ids, tuple(merges), frozenset(words))

    def tokenizer_json(self) -> dict[str, Any]:
        """The file that the `tokenizers` library reads."""
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": self.ids[token],
                    "content": token,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for token in SPECIALS
            ],
            "normalizer": None,
            "pre_tokenizer": {**byte_level, "use_regex": True},
            "post_processor": None,
            "decoder": {**byte_level, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": self.ids,
                "merges": [list(pair) for pair in self.merges],
            },
        }

    def tokenizer_config(self) -> dict[str, Any]:
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "producer": PRODUCER,
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": EOS,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 131072,
            "chat_template": CHAT_TEMPLATE,
        }


# The schema of `sizes.yaml`.
SIZES_FILE: Any = {"fields": {"*": Positive}, "parts": {"*": Positive}}


@cache
def limits() -> Mapping[str, Mapping[str, int]]:
    """The largest sizes of a miniature: of config fields in all spellings, and of their parts."""
    found = data_file.load(DATA / "miniature" / "sizes.yaml", SIZES_FILE)
    fields: dict[str, int] = dict(found["fields"])
    for name, limit in found["fields"].items():
        fields = dict.fromkeys(known_names()["spellings"].get(name, ()), limit) | fields
    return {"fields": fields, "parts": found["parts"]}


def shrunk(
    checkpoint: Checkpoint, vocabulary: Vocabulary, head_size: int | None = None
) -> dict[str, Any]:
    """The checkpoint's own config with every size reduced to its limit.

    `head_size` is the smallest that an engine's kernels support, if it is more than a limit here.
    """
    largest = dict(limits()["fields"])
    is_head = checkpoint.architecture.draft_head
    if checkpoint.architecture.attention.startswith("mla") or is_head:
        largest["num_key_value_heads"] = largest["num_attention_heads"]
    if head_size:
        largest |= _with_heads_of(head_size, checkpoint)

    layers = checkpoint.text_config["num_hidden_layers"]
    few = min(layers, largest["num_hidden_layers"])

    def shrink(written: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_left_out(checkpoint), **written}
        small = _at_most(fields, largest)
        lists = {  # one entry per layer, or one more for the MTP layer
            name: _cut(value, layers, few)
            for name, value in fields.items()
            if (isinstance(value, list) or (isinstance(value, str) and name.endswith("_pattern")))
            and len(value) in (layers, layers + 1)
        }
        parts = {
            name: {**value, **_at_most(value, limits()["parts"]), **_layer_numbers(value, few)}
            for name, value in fields.items()
            if name in ("linear_attn_config", "sparse_attention_config")
            and isinstance(value, Mapping)
        }
        return {**fields, **small, **lists, **parts, **ids}

    ids = {
        "vocab_size": len(vocabulary.ids),
        "bos_token_id": vocabulary.ids[BOS],
        "eos_token_id": vocabulary.ids[EOS],
        "pad_token_id": vocabulary.ids[EOS],
    }
    if is_head:
        ids["draft_vocab_size"] = len(vocabulary.ids) - NOT_DRAFTED
    config = dict(checkpoint.config)
    nested = checkpoint.architecture.nested(config)
    if nested is None:
        return shrink(config)
    config[nested] = shrink(config[nested])
    return config


def _with_heads_of(head_size: int, checkpoint: Checkpoint) -> dict[str, int]:
    """Fewer heads of the original size, if the config leaves the head size to be computed."""
    if checkpoint.architecture.attention.startswith("mla"):
        return {}  # its heads are made of several parts
    if checkpoint.text_config.get("head_dim"):
        return {"head_dim": head_size}
    heads = limits()["fields"]["hidden_size"] // head_size
    return {"num_attention_heads": heads, "num_key_value_heads": heads}


def _left_out(checkpoint: Checkpoint) -> dict[str, Any]:
    """The sizes that the file leaves to its class's defaults."""
    written = checkpoint.written_config
    spellings = known_names()["spellings"]
    return {
        name: checkpoint.text_config[name]
        for name in checkpoint.architecture.required
        if not any(written.get(other) is not None for other in (name, *spellings.get(name, ())))
        and isinstance(checkpoint.text_config.get(name), int)
    }


def _at_most(fields: Mapping[str, Any], most: Mapping[str, int]) -> dict[str, Any]:
    return {
        name: min(value, most[name])
        for name, value in fields.items()
        if name in most and isinstance(value, int)
    }


def _cut(entries: Any, layers: int, few: int) -> Any:
    """Entries for fewer layers, in order, with one of every kind that fits."""
    kinds = list(entries[:layers])
    chosen = {kinds.index(kind) for kind in kinds}
    chosen = set(sorted(chosen)[:few])
    for index in range(layers):
        if len(chosen) < few:
            chosen.add(index)
    kept = [_smaller(kinds[index]) for index in sorted(chosen)]
    return "".join(kept) if isinstance(entries, str) else [*kept, *entries[layers:]]


def _smaller(entry: Any) -> Any:
    """The smaller description of a layer: a kind, a number, or sizes by part."""
    if not isinstance(entry, Mapping):
        return entry
    return {name: _smaller(value) for name, value in entry.items()} | _at_most(
        entry, limits()["parts"]
    )


def _layer_numbers(fields: Mapping[str, Any], few: int) -> dict[str, list[int]]:
    """Lists of layers, counted from 1, for fewer layers."""
    return {
        name: [number for number in value if number <= few]
        for name, value in fields.items()
        if name.endswith("_layers") and isinstance(value, list)
    } | {
        name: value[:few]
        for name, value in fields.items()
        if name.endswith("_freq") and isinstance(value, list)
    }
