"""Parts of a deployment file: what fits, what is said of what does not, and what they hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest

from builder.errors import BadInput
from builder.schema import After, Before, Bounds, Strict, default


def _even(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} is odd; add one")
    return number


class Inner(Strict):
    size: Annotated[int, Bounds(ge=1, le=9), After(_even)]
    word: Annotated[str, Bounds(pattern=r"^[a-z]+$", max_length=3)] | None = None


class Outer(Strict):
    inner: Inner
    kind: Literal["one", "two"] = "one"
    share: Annotated[float, Bounds(gt=0, lt=1, exact=False)] | None = None
    names: Annotated[
        list[str], Before(lambda given: given.split() if isinstance(given, str) else given)
    ] = default(list)
    sizes: dict[Annotated[str, Bounds(pattern="^[A-Z]$")], int] = default(dict)
    price: float | dict[str, float] | None = None
    free: Any = None

    def check(self) -> None:
        if self.kind == "two" and not self.names:
            raise ValueError("kind two needs names; add one")


LEAST = {"inner": {"size": 2}}


def found(**changes: Any) -> list[str]:
    _, diagnostics = Outer.read({**LEAST, **changes}, "outer")
    return [str(row) for row in diagnostics]


def test_what_is_not_given_has_its_default() -> None:
    part = Outer.of(LEAST)
    assert part.inner.size == 2 and part.inner.word is None and part.kind == "one"
    assert part.names == [] and part.names is not Outer.of(LEAST).names


def test_a_part_gives_back_what_was_read() -> None:
    given = {"inner": {"size": 2, "word": None}, "free": {"a": None}, "sizes": {"A": 1}}
    data = Outer.of(given).data()
    assert Outer.of(data).data() == data and data["sizes"] == {"A": 1}
    assert Outer.of(given).data(exclude_none=True) == {
        "inner": {"size": 2},
        "kind": "one",
        "names": [],
        "sizes": {"A": 1},
        "free": {"a": None},
    }


def test_a_part_never_changes_but_can_be_replaced() -> None:
    part = Outer.of(LEAST)
    with pytest.raises(AttributeError, match="kind"):
        part.kind = "two"  # type: ignore[misc]
    assert part.replaced(kind="two").kind == "two" and part.kind == "one"
    assert part == Outer.of(LEAST) != part.replaced(kind="two")


def test_all_errors_are_found_at_once_each_at_its_path() -> None:
    _, diagnostics = Outer.read({"kind": "three", "inner": {"size": 0, "wrod": "x"}, "x": 1}, "at")
    assert [row.where for row in diagnostics] == [
        "at.inner.size",
        "at.inner.wrod",
        "at.kind",
        "at.x",
    ]
    with pytest.raises(BadInput):
        Outer.of({})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inner": 3}, "outer.inner: 3 is not a mapping; write inner: {KEY: VALUE}"),
        ({"inner": {}}, "outer.inner.size: is missing; add it"),
        (
            {"inner": {"size": True}},
            "outer.inner.size: True is not an integer; write one such as 8",
        ),
        ({"inner": {"size": 10}}, "outer.inner.size: 10 is out of range; must be <= 9"),
        ({"inner": {"size": 3}}, "outer.inner.size: 3 is odd; add one"),
        (
            {"inner": {"size": 2, "word": "abcd"}},
            "outer.inner.word: abcd is too long; write at most 3 characters",
        ),
        (
            {"inner": {"size": 2, "word": "a\n"}},
            "outer.inner.word: a\\n is not allowed; it must match ^[a-z]+$",
        ),
        (
            {"inner": {"size": 2, "word": 7}},
            """outer.inner.word: 7 is not text; write "7" in quotes (in a shell '"7"')""",
        ),
        ({"kind": "three"}, "outer.kind: three is not allowed; Known: one, two"),
        ({"share": 0}, "outer.share: 0 is out of range; must be > 0"),
        ({"share": 1}, "outer.share: 1 is out of range; must be < 1"),
        (
            {"share": "half"},
            "outer.share: half is not a number; write one such as 0.5",
        ),
        ({"names": 3}, "outer.names: 3 is not a list; write [ITEM, ...]"),
        (
            {"names": ["a", 1]},
            """outer.names.1: 1 is not text; write "1" in quotes (in a shell '"1"')""",
        ),
        ({"sizes": {"a": 1}}, "outer.sizes.a: a is not allowed; it must match ^[A-Z]$"),
        ({"price": {"x": "y"}}, "outer.price.x: y is not a number; write one such as 0.5"),
        ({"price": "y"}, "outer.price: y is not a number or a mapping; write one such as 0.5"),
        (
            {"naems": []},
            "outer.naems: unknown key; did you mean names? "
            "Known: free, inner, kind, names, price, share, sizes",
        ),
        ({1: 2}, "outer.1: unknown key; Known: free, inner, kind, names, price, share, sizes"),
        ({"kind": "two"}, "outer: kind two needs names; add one"),
    ],
    ids=lambda row: str(row)[:40],
)
def test_what_does_not_fit_is_said_in_the_words_of_the_file(
    changes: dict[Any, Any], said: str
) -> None:
    _, diagnostics = Outer.read({**LEAST, **changes}, "outer")
    assert [str(row) for row in diagnostics] == [said]


def test_numbers_may_be_texts_only_where_that_is_said() -> None:
    assert Outer.of({**LEAST, "share": "0.5"}).share == 0.5
    assert Outer.of({**LEAST, "price": 1}).price == 1


def test_what_may_be_a_credential_is_not_repeated() -> None:
    assert found(kind="hf_" + "a" * 30) == [
        "outer.kind: [credential] is not allowed; Known: one, two"
    ]
