"""Text comes out in whole characters and stops before a stop string, however tokens cut it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from builder.miniature.sizes import Vocabulary, _byte_characters
from tensorrt_llm.sampling import Detokenizer, StopStrings
from tests.reference.conftest import EngineOf

TEXTS = ["plain", "naïve café", "日本語のテキスト", "👩‍👩‍👧 family", "mixed 한국어 and 🎉🎉"]


@pytest.fixture(scope="session")
def tokenizer(engine: EngineOf) -> Any:
    return engine().tokenizer


def byte_tokens(data: bytes) -> list[int]:
    """One token for each byte, as a model may well produce them."""
    ids, characters = Vocabulary.build().ids, _byte_characters()
    return [ids[characters[byte]] for byte in data]


def pieces(tokenizer: Any, tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=True)
    return [detokenizer.push(token) for token in tokens] + [detokenizer.flush()]


@pytest.mark.parametrize("text", TEXTS)
def test_no_half_character_is_given(tokenizer: Any, text: str) -> None:
    given = pieces(tokenizer, byte_tokens(text.encode()))
    assert "".join(given) == text
    assert all("\ufffd" not in piece for piece in given)


def test_a_character_is_given_with_its_last_byte(tokenizer: Any) -> None:
    assert pieces(tokenizer, byte_tokens("é🎉".encode())) == ["", "é", "", "", "", "🎉", ""]


def test_a_character_that_never_ends_is_replaced_at_the_end_only(tokenizer: Any) -> None:
    cut = "ok 🎉".encode()[:-1]
    given = pieces(tokenizer, byte_tokens(cut))
    assert "".join(given[:-1]) == "ok "
    assert given[-1] == "\ufffd"


def test_bytes_that_are_no_text_hold_nothing_back_for_long(tokenizer: Any) -> None:
    given = pieces(tokenizer, byte_tokens(b"\xff" * 20 + b"a"))
    assert "".join(given) == "\ufffd" * 20 + "a"
    assert "".join(given[:15]).count("\ufffd") >= 14


def test_pieces_add_up_to_the_whole_text_for_any_tokens(tokenizer: Any) -> None:
    rng = random.Random(0)
    for _ in range(200):
        tokens = [rng.randrange(len(tokenizer)) for _ in range(rng.randrange(1, 40))]
        tokens += byte_tokens(rng.choice(TEXTS).encode())
        whole = tokenizer.decode(tokens, skip_special_tokens=True)
        assert "".join(pieces(tokenizer, tokens)) == whole


def stopped(stops: list[str], parts: list[str], include: bool = False) -> tuple[list[str], Any]:
    search = StopStrings(stops, include)
    given = []
    for part in parts:
        text, stop = search.push(part)
        given.append(text)
        if stop is not None:
            return given, stop
    return [*given, search.flush()], None


@pytest.mark.parametrize(
    ("stops", "parts", "include", "expected"),
    [
        (["END"], ["ab E", "N", "Dcd", "e"], False, (["ab ", "", ""], "END")),  # across tokens
        (["END"], ["ab E", "N", "x", "E"], False, (["ab ", "", "ENx", "", "E"], None)),
        (["END"], ["a", "ENDx"], True, (["a", "END"], "END")),
        (["two", "one"], ["a one two"], False, (["a "], "one")),  # the first one in the text
        (["aab"], ["a", "a", "a", "b", "c"], False, (["", "", "a", ""], "aab")),
    ],
)
def test_text_ends_at_the_first_stop_string(
    stops: list[str], parts: list[str], include: bool, expected: tuple[list[str], str | None]
) -> None:
    assert stopped(stops, parts, include) == expected
