"""A source of prompts of an exact length: text made from a tokenizer, token ids, or plain words."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from builder.diagnostics import Diagnostic
from builder.errors import BadFacts, BadInput, NotReady

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


class Tokens(Protocol):
    """`source` says in words what a prompt is made of and who counts its tokens."""

    @property
    def source(self) -> str: ...

    def make(self, count: int, chance: random.Random) -> Prompt:
        """A prompt of so many tokens."""

    def count(self, text: str) -> int | None:
        """The tokens of a text, where they can be counted here."""


@dataclass(frozen=True, slots=True)
class Text:
    """Words that the tokenizer of a folder takes for one token each, wherever they stand."""

    folder: Path
    tokenizer: Any = field(repr=False)
    words: tuple[str, ...] = field(repr=False)

    @property
    def source(self) -> str:
        return f"text of an exact token count by the tokenizer {self.folder}"

    def make(self, count: int, chance: random.Random) -> str:
        return "".join(chance.choices(self.words, k=count))

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text, add_special_tokens=False))


@dataclass(frozen=True, slots=True)
class Ids:
    """Token ids. Special tokens are first or last in the vocabularies known, so none is among
    them; that is assumed."""

    vocabulary_size: int

    @property
    def source(self) -> str:
        return f"token ids of a vocabulary of {self.vocabulary_size:,}; the server reads no text"

    def make(self, count: int, chance: random.Random) -> tuple[int, ...]:
        first, last = self.vocabulary_size // 8, self.vocabulary_size // 2
        return tuple(chance.choices(range(first, last), k=count))

    def count(self, text: str) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Words:
    """English words; only the server can say how many tokens they are."""

    @property
    def source(self) -> str:
        return "one common word for each token; the server's own count holds"

    def make(self, count: int, chance: random.Random) -> str:
        return "".join(f" {word}" for word in chance.choices(WORDS.split(), k=count))

    def count(self, text: str) -> None:
        return None


def of_folder(folder: Path) -> Text:
    """Raises `BadFacts` for a folder without a tokenizer, `NotReady` without the library."""
    file = folder / FILE
    if not file.is_file():
        remedy = f"give a folder with {FILE} by --tokenizer"
        raise BadFacts(Diagnostic(str(folder), f"has no {FILE}", remedy))
    try:
        from tokenizers import Tokenizer
    except ImportError:
        remedy = "install it with: pip install tokenizers"
        raise NotReady(Diagnostic("the library tokenizers", "is missing here", remedy)) from None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as fault:  # the library raises nothing more exact
        raise BadFacts(Diagnostic(str(file), f"is no tokenizer: {fault}")) from None
    return Text(folder, tokenizer, _words(tokenizer, file))


def vocabulary_size(config: Path) -> int:
    """As a checkpoint's configuration has it."""
    document = json.loads(config.read_text(encoding="utf-8"))
    size = {**document, **document.get("text_config", {})}.get("vocab_size")
    if not isinstance(size, int):
        raise BadInput(Diagnostic(str(config), "names no vocab_size"))
    return size


def _words(tokenizer: Any, file: Path) -> tuple[str, ...]:
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
