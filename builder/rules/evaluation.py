"""Evaluates conditions and expressions over rule inputs.

A condition is a mapping of words to tests: a scalar means that value, a list one of its values, a
mapping each of its relations. A test of an unknown or malformed value is undecided.
A compute capability is one of several values and has no order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from ..diagnostics import nearest
from ..documents import Variable
from ..facts import release as releases
from ..facts.release.support import features
from .rule_inputs import MATRIX, MISSING, RuleInputs, as_number, as_truth, option_of, words

Conditions = Mapping[str, Any]

PLACEHOLDER = re.compile(r"\{([\w.]+)\}")

_NUMBERS = ("at_least", "at_most", "above", "divides", "multiple_of")  # relations of numbers
_EXPRESSIONS = ("sum", "quotient", "sizes_up_to")
_BOUNDS = ("round_up_to", "at_most", "at_least", "every_up_to")


def all_hold(conditions: Conditions, inputs: RuleInputs) -> bool:
    """Whether every test certainly holds."""
    return all(holds(inputs, word, test) is True for word, test in conditions.items())


def holds(inputs: RuleInputs, word: str, test: Any) -> bool | None:
    """Whether a word passes a test; `None` if its value cannot be compared."""
    if not isinstance(test, dict):
        return _is(inputs, word, test)
    answers = (RELATIONS[name](inputs, word, other) for name, other in test.items())
    return _decided(answers, by=False)


def _decided(answers: Iterable[bool | None], by: bool) -> bool | None:
    """`by` as soon as one answer is `by`, `None` if one is undecided, else the opposite."""
    undecided = False
    for answer in answers:
        if answer is by:
            return by
        undecided = undecided or answer is None
    return None if undecided else not by


def _is(inputs: RuleInputs, word: str, expected: Any) -> bool | None:
    value = inputs.value(word)
    if not isinstance(expected, list | tuple):
        return _same(value, expected)
    return _decided((_same(value, item) for item in expected), by=True)


def _same(value: Any, expected: Any) -> bool | None:
    if value is MISSING:
        return None
    if isinstance(value, str) and isinstance(expected, str):
        unknown = isinstance(value, Variable) or isinstance(expected, Variable)
        return None if unknown else value.casefold() == expected.casefold()
    if isinstance(value, Variable) or isinstance(expected, Variable):
        return None
    if value is None or expected is None:
        return value is expected
    if isinstance(expected, bool):
        truth = as_truth(value)
        return None if truth is None else truth is expected
    if isinstance(expected, int | float):
        number = as_number(value)
        return None if number is None else number == expected
    return None


def _not(inputs: RuleInputs, word: str, other: Any) -> bool | None:
    result = _is(inputs, word, other)
    return None if result is None else not result


def _given(inputs: RuleInputs, word: str, expected: bool) -> bool | None:
    if isinstance(inputs.value(word), Variable):
        return None  # it may be null
    return (inputs.value(word) not in (MISSING, None)) is expected


def _in(inputs: RuleInputs, word: str, other: str) -> bool | None:
    values = inputs.value(other)
    return None if values is MISSING else _is(inputs, word, values)


def _compared(
    compare: Callable[[float, float], bool],
) -> Callable[[RuleInputs, str, str | float], bool | None]:
    def relation(inputs: RuleInputs, word: str, other: str | float) -> bool | None:
        one, two = inputs.number(word), inputs.number(other)
        return None if one is None or two is None else compare(one, two)

    return relation


RELATIONS: dict[str, Callable[[RuleInputs, str, Any], bool | None]] = {
    "given": _given,
    "not": _not,
    "in": _in,
    "equals": lambda inputs, word, other: same(inputs.value(word), inputs.value(other)),
    "at_least": _compared(lambda one, two: one >= two),
    "at_most": _compared(lambda one, two: one <= two),
    "above": _compared(lambda one, two: one > two),
    "divides": _compared(lambda one, two: one > 0 and two % one == 0),
    "multiple_of": _compared(lambda one, two: two <= 0 or one % two == 0),
}


def same(one: Any, two: Any) -> bool | None:
    """Whether two values mean the same to the engine; `None` if one is unknown or malformed."""
    if isinstance(one, list | dict) and type(one) is type(two):
        return bool(one == two)
    forward = _same(one, two) if two is not MISSING else None
    return forward if forward is not None or one is MISSING else _same(two, one)


def evaluate(value: Any, inputs: RuleInputs) -> Any:
    """A value that may be an expression over words.

    `{sum: [..]}` and `{quotient: [a, b]}` take numbers and words. Results may be rounded up to a
    multiple and bounded, `at_most` by several; unknown words are no bounds.
    `{sizes_up_to: word, every_up_to: n}` lists batch sizes.
    """
    if not isinstance(value, Mapping):
        return value

    def number(term: Any) -> int:
        found = inputs.number(term)
        assert found is not None, f"{term} is not known"
        return int(found)

    if "sizes_up_to" in value:
        return batch_sizes(number(value["sizes_up_to"]), value["every_up_to"])
    if "sum" in value:
        result = sum(map(number, value["sum"]))
    else:
        above, below = map(number, value["quotient"])
        result = above // below
    step = value.get("round_up_to", 1)
    result = -(-result // step) * step
    for most in _listed(value.get("at_most", [])):
        if inputs.number(most) is not None:
            result = min(result, number(most))
    return max(result, value.get("at_least", result))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def batch_sizes(largest: int, every_up_to: int) -> list[int]:
    """Every size up to `every_up_to`, powers of two above, and the largest.

    >>> batch_sizes(48, 4)
    [1, 2, 3, 4, 8, 16, 32, 48]
    """
    sizes = [*range(1, min(largest, every_up_to) + 1)]
    size = 2 * every_up_to
    while size < largest:
        sizes.append(size)
        size *= 2
    return [*sizes, largest] if largest > every_up_to else sizes


def condition_faults(conditions: Conditions) -> Iterator[tuple[str, str]]:
    """Errors in conditions: the path in them, and a text `what; how to fix it`."""
    for word, test in conditions.items():
        yield from word_faults(word, word)
        relations = test if isinstance(test, Mapping) else {}
        for relation, other in relations.items():
            path = f"{word}.{relation}"
            if relation not in RELATIONS:
                yield path, f"unknown relation; {nearest(relation, RELATIONS)}"
            elif relation in _NUMBERS and word == "sm":
                yield path, "a compute capability has no order; list the values that are meant"
            elif relation not in ("given", "not") and isinstance(other, str):
                yield from word_faults(other, path)


def text_faults(text: str, path: str) -> Iterator[tuple[str, str]]:
    """Errors in the placeholders of a message, in the same form."""
    for word in PLACEHOLDER.findall(text):
        yield from word_faults(word, path)


def value_faults(value: Any) -> Iterator[tuple[str, str]]:
    """Errors in a value that may be an expression, in the same form."""
    if not isinstance(value, Mapping):
        return
    for key in value:
        if key not in (*_EXPRESSIONS, *_BOUNDS):
            yield key, f"unknown key; {nearest(key, (*_EXPRESSIONS, *_BOUNDS))}"
    if sum(key in value for key in _EXPRESSIONS) != 1:
        yield "", f"is not an expression; give one of {', '.join(_EXPRESSIONS)}"
    for key, terms in value.items():
        for term in _listed(terms):
            if isinstance(term, str):
                yield from word_faults(term, key)


def word_faults(word: str, path: str) -> Iterator[tuple[str, str]]:
    """An error for a word that is no fact, no derived value and no option of any release."""
    option = option_of(word)
    if word in words() or word in _release_words():
        return
    if not option or not any(row.has(option) for row in releases.of_all_engines()):
        remedy = nearest(option or word, words() | _release_words())
        yield path, f"{word} is not a word or option; {remedy}"


@cache
def _release_words() -> frozenset[str]:
    """The options of all releases, those of servers too, and the columns of support matrices."""
    found: set[str] = set()
    for table in releases.of_all_engines():
        found.update(table.paths)
        found.update(flag.name for flag in table.serve_flags)
        for space in MATRIX:
            found.update(f"{space}.{name}" for name in features(table))
    return frozenset(found)
