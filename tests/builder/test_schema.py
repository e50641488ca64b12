"""Data is checked against its class: each error has a file, a line, a key and a fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from builder.errors import BadFacts, BadInput
from builder.facts import data_file
from builder.schema import After, Before, Bounds, Plain, Positive, Sourced, Strict, Text, default
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

Range = Annotated[Mapping[str, Any], Plain({"low": int, "high?": int})]


@dataclass(frozen=True, slots=True)
class Port:
    name: Text
    number: Annotated[int, Bounds(ge=1)]


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    kind: Literal["gpu", "cpu"]
    memory_mib: Sourced[Positive]
    ports: tuple[Port, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    bounds: Range | None = None
    limit: int | str | Port = 0
    share: float = 0.5

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        if self.kind == "cpu" and self.ports:
            yield "ports", "a CPU has no ports; remove them"


GOOD = TABLES["GOOD"]


def faults(tmp_path: Path, text: str, name: str = "device.yaml") -> list[str]:
    path = tmp_path / name
    path.write_text(text)
    return [str(each).removeprefix(f"{path}") for each in data_file.validate(path, Device)]


def test_a_file_becomes_the_dataclass_that_describes_it(tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text(GOOD)
    assert data_file.load(path, Device) == Device(
        name="a",
        kind="gpu",
        memory_mib=Sourced(4, "data sheet", True),
        ports=(Port("one", 1),),
        labels={"x": "y"},
        bounds={"low": 1},
        limit=Port("p", 2),
        share=1,
    )


@by_table
def test_a_fault_names_file_line_key_and_remedy(
    old: str, new: str, fault: str, tmp_path: Path
) -> None:
    assert old in GOOD
    assert any(each.startswith(fault) for each in faults(tmp_path, GOOD.replace(old, new, 1)))


def test_all_faults_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = GOOD.replace("name: a\n", "").replace("value: 4", "value: x").replace("low", "lwo")
    lines = [int(each.split(":")[1]) for each in faults(tmp_path, text)]
    assert len(lines) == 4
    assert lines == sorted(lines)


def test_json_faults_have_lines_too(tmp_path: Path) -> None:
    text = '{"name": "a",\n "kind": "gpu",\n "memory_mib": {"value": 1,\n  "verified": true}\n}'
    assert faults(tmp_path, text, "a.json") == [":3: memory_mib.source: is missing; add it"]
    assert faults(tmp_path, text.replace("1,", "1"), "a.json")[0].startswith(":4: is not JSON")
    twice = text.replace('"kind"', '"name": "b", "kind"')
    assert any("is given twice" in each for each in faults(tmp_path, twice, "a.json"))


def test_loading_a_wrong_file_reports_its_faults(tmp_path: Path) -> None:
    path = tmp_path / "device.yaml"
    path.write_text("name: 1\n")
    with pytest.raises(BadFacts, match=r"device\.yaml:1: name: 1 is not text"):
        data_file.load(path, Device)
    assert "cannot be read" in str(data_file.validate(tmp_path / "none.yaml", Device)[0])


# Parts of deployment files.


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
        ({"share": 0}, "outer.share: 0 is out of range; must be > 0"),
        ({"share": 1}, "outer.share: 1 is out of range; must be < 1"),
        ({"share": "half"}, "outer.share: half is not a number; write one such as 0.5"),
        ({"names": 3}, "outer.names: 3 is not a list; write [ITEM, ...]"),
        (
            {"names": ["a", 1]},
            """outer.names.1: 1 is not text; write "1" in quotes (in a shell '"1"')""",
        ),
        ({"sizes": {"a": 1}}, "outer.sizes.a: a is not allowed; it must match ^[A-Z]$"),
        ({"price": {"x": "y"}}, "outer.price.x: y is not a number; write one such as 0.5"),
        ({"price": "y"}, "outer.price: y is not a number or a mapping; write one such as 0.5"),
        ({1: 2}, "outer.1: unknown key; Known: free, inner, kind, names, price, share, sizes"),
        ({"kind": "two"}, "outer: kind two needs names; add one"),
    ],
    ids=lambda row: str(row)[:40],
)
def test_an_error_names_the_path_and_the_fix(changes: dict[Any, Any], said: str) -> None:
    _, diagnostics = Outer.read({**LEAST, **changes}, "outer")
    assert [str(row) for row in diagnostics] == [said]


def test_inexact_numbers_may_be_text() -> None:
    assert Outer.of({**LEAST, "share": "0.5"}).share == 0.5
    assert Outer.of({**LEAST, "price": 1}).price == 1


def test_a_credential_is_not_repeated() -> None:
    _, diagnostics = Outer.read({**LEAST, "kind": "hf_" + "a" * 30}, "outer")
    assert [str(row) for row in diagnostics] == [
        "outer.kind: [credential] is not allowed; Known: one, two"
    ]
