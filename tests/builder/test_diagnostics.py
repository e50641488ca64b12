"""What a diagnostic suggests: the name that was misspelt, and nothing for another name."""

from __future__ import annotations

from typing import Any

from builder.diagnostics import closest, nearest
from builder.facts import hardware, model_names, release
from tests.tables import by_table

FLAGS = ["--tp_size", "--pp_size", "--ep_size", "--max_batch_size", "--max_num_tokens", "--host"]
KNOWN: dict[str, Any] = {
    "options": [*release.load("1.2.1").top_level],
    "models": [*model_names.known_names()],
    "gpus": hardware.known(),
    "flags": FLAGS,
}


@by_table
def test_a_misspelt_name_is_recognised(
    given: str, meant: str | None, known: str | list[str]
) -> None:
    """As people mistype: letters that changed places, are lost, doubled or wrong, separators,
    capitals, a part of a name for the whole."""
    assert closest(given, KNOWN.get(str(known), known)) == meant


@by_table
def test_another_name_is_not_taken_for_a_misspelt_one(given: str, known: str | list[str]) -> None:
    """Names of their own, for which another one would be wrong help."""
    assert closest(given, KNOWN.get(str(known), known)) is None


def test_without_a_suggestion_a_short_list_is_given_whole() -> None:
    assert nearest("fp4", ["auto", "fp8"]) == "Known: auto, fp8"
    many = [f"name_{letter}" for letter in "abcdefghijklmnopqrst"]
    assert nearest("other", many) == "one of 20 known names is expected"
    told = nearest("eagle9", [*many, "eagle", "eagle_3", "beagle"])
    assert told == "one of 23 known names is expected, as eagle or eagle_3"
