"""The tokenizer of every miniature: a byte-level BPE over a list of common words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..documents import DATA

BOS, EOS, USER, ASSISTANT = "<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>"
SPECIALS = (BOS, EOS, USER, ASSISTANT)
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
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": EOS,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 131072,
            "chat_template": CHAT_TEMPLATE,
        }
