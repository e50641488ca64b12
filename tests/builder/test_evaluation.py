"""Relations of conditions, up to their bounds, and where a value is unknown."""

from __future__ import annotations

from typing import Any

import pytest

from builder.facts import release
from builder.rules.context import RuleContext
from builder.rules.evaluation import RELATIONS, batch_sizes, evaluate
from builder.rules.rule_inputs import MISSING, RuleInputs, as_number
from tests.tables import by_table

UNKNOWN = MISSING


def inputs(**known: Any) -> RuleInputs:
    return RuleInputs({}, RuleContext(release.load("1.2.1")), dict(known))


@pytest.mark.parametrize(
    ("relation", "one", "two", "expected"),
    [
        ("at_least", 3, 4, False),
        ("at_least", 4, 4, True),
        ("at_most", 4, 4, True),
        ("at_most", 5, 4, False),
        ("above", 4, 4, False),
        ("above", 5, 4, True),
        ("divides", 4, 8, True),
        ("divides", 8, 8, True),
        ("divides", 3, 8, False),
        ("divides", 16, 8, False),
        ("divides", 1, 0, True),
        # What is no divisor of anything, and not an error of Python.
        ("divides", 0, 8, False),
        ("divides", 0, 0, False),
        ("divides", -2, 8, False),
        ("multiple_of", 8, 4, True),
        ("multiple_of", 0, 4, True),
        ("multiple_of", 6, 4, False),
        # A size below 1 is another rule's matter.
        ("multiple_of", 6, 0, True),
        ("multiple_of", 6, -4, True),
        ("multiple_of", 6, 1, True),
        *(
            (name, one, two, None)
            for name in ("at_least", "at_most", "above", "divides", "multiple_of")
            for one, two in ((UNKNOWN, 4), (4, UNKNOWN), ("many", 4), (True, 4))
        ),
    ],
)
def test_numbers_are_compared_up_to_their_bounds(
    relation: str, one: Any, two: Any, expected: bool | None
) -> None:
    found = RELATIONS[relation](inputs(one=one, two=two), "one", "two")
    assert found is expected


@by_table
def test_an_expression_is_rounded_up_and_bounded(expression: Any, expected: Any) -> None:
    assert evaluate(expression, inputs(one=7, unknown=UNKNOWN)) == expected


@by_table
def test_batch_sizes_end_with_the_largest(
    largest: int, every_up_to: int, expected: list[int]
) -> None:
    assert batch_sizes(largest, every_up_to) == expected


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("least_gpus", {"model_weights_gib": 160.0, "gpu_memory_gib": 80.0}, 2),
        ("least_gpus", {"model_weights_gib": 160.1, "gpu_memory_gib": 80.0}, 3),
        ("roomy_gpus", {"model_weights_gib": 156.0, "gpu_memory_gib": 80.0}, 2),
        ("roomy_gpus", {"model_weights_gib": 156.1, "gpu_memory_gib": 80.0}, 3),
        ("roomy_gpus", {"model_weights_gib": 1.0, "gpu_memory_gib": 2.0}, UNKNOWN),
        ("most_room_gib", {"least_weights_gib": 80.0, "gpu_memory_gib": 80.0}, 0.0),
        ("most_room_gib", {"least_weights_gib": 80.1, "gpu_memory_gib": 80.0}, UNKNOWN),
        ("nodes", {"num_gpus": 8, "node_gpus": 8}, 1),
        ("nodes", {"num_gpus": 9, "node_gpus": 8}, 2),
    ],
)
def test_what_follows_from_gpus_is_rounded_up(
    word: str, known: dict[str, Any], expected: Any
) -> None:
    assert inputs(**known).value(word) == expected


@pytest.mark.parametrize("value", [2**53, -(2**53), float(2**53)])
def test_a_number_is_exact_up_to_its_bound(value: float) -> None:
    assert as_number(value) == value
    assert as_number(value * 2) is None
    assert as_number(int(value) + (1 if value > 0 else -1)) is None
