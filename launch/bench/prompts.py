"""Prompts of an exact length: text made from a tokenizer, token ids, or plain words."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadFacts

Prompt = str | tuple[int, ...]

FILE = "tokenizer.json"
# Words that common tokenizers hold as one token each when a blank is before them.
WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea body information back"
)
# Prompts of made text are this many different words at most; more make no difference to a server.
VOCABULARY = 4096


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts made of pieces of one token each.

    `source` describes the pieces and who counts their tokens; without a `tokenizer` only the server
    can count them.
    """

    source: str
    pieces: Sequence[str] | Sequence[int] = field(repr=False)
    tokenizer: Any = field(default=None, repr=False)

    def make(self, count: int, chance: random.Random) -> Prompt:
        """A prompt of so many tokens."""
        chosen = chance.choices(self.pieces, k=count)
        if isinstance(self.pieces[0], int):
            return tuple(one for one in chosen if isinstance(one, int))
        return "".join(map(str, chosen))

    def count(self, text: str) -> int | None:
        """The tokens of a text, where they can be counted here."""
        if self.tokenizer is None:
            return None
        return len(self.tokenizer.encode(text, add_special_tokens=False))


def from_word_list() -> Prompts:
    """English words; only the server can say how many tokens they are."""
    source = "one common word for each token; the server's own count holds"
    return Prompts(source, [f" {word}" for word in WORDS.split()])


def from_token_ids(vocabulary_size: int) -> Prompts:
    """Token ids. Special tokens are first or last in the vocabularies known, so none is among
    them; that is assumed."""
    source = f"token ids of a vocabulary of {vocabulary_size:,}; the server reads no text"
    return Prompts(source, range(vocabulary_size // 8, vocabulary_size // 2))


def from_tokenizer(folder: Path) -> Prompts:
    """Words that the tokenizer of a folder takes for one token each, wherever they stand.

    Raises `BadFacts` for a folder without a tokenizer."""
    file = folder / FILE
    if not file.is_file():
        remedy = f"give a folder with {FILE} by --tokenizer"
        raise BadFacts(Diagnostic(str(folder), f"has no {FILE}", remedy))
    from tokenizers import Tokenizer  # of an extra

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more exact
        raise BadFacts(Diagnostic(str(file), f"is not a tokenizer: {error}")) from None
    source = f"text of an exact token count by the tokenizer {folder}"
    return Prompts(source, _single_token_words(tokenizer, file), tokenizer)


def _single_token_words(tokenizer: Any, file: Path) -> tuple[str, ...]:
    """Words with a blank before them that stay one token in the company of others."""
    texts = tokenizer.decode_batch([[token] for token in range(tokenizer.get_vocab_size())])
    likely = sorted({text for text in texts if text[:1] == " " and _is_plain(text[1:])})
    random.Random(len(likely)).shuffle(likely)
    words = _alone(tokenizer, likely[: 4 * VOCABULARY])[:VOCABULARY]
    if not words:
        raise BadFacts(
            Diagnostic(str(file), "has no token that is a plain word with a blank before")
        )
    return words


def _is_plain(word: str) -> bool:
    return word.isascii() and word.isalpha()


def _alone(tokenizer: Any, words: Sequence[str]) -> tuple[str, ...]:
    """Those of the words that are one token between two others of them."""
    rows = tokenizer.encode_batch([word * 3 for word in words], add_special_tokens=False)
    return tuple(word for word, row in zip(words, rows, strict=True) if len(row) == 3)
