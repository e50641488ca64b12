"""Rooms keep to the budgets of ARCHITECTURE.md."""

from __future__ import annotations

import pytest

from maintenance import rooms
from maintenance.rooms import Module, Size

BUDGETS = rooms.budgets(
    "| room | m | l | c |\n| `builder/lint` | 42 | 9,000 | 40 | checks files |\n"
)


def test_every_room_keeps_to_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    status = rooms.main(["--check"])
    assert status == 0, capsys.readouterr().out


def test_a_row_of_the_table_is_a_budget() -> None:
    lint = {"builder/lint": Size(42, 9000, 40)}
    assert lint == BUDGETS
    assert list(rooms.faults({"builder/lint": Size(42, 9000, 40)}, BUDGETS)) == []


@pytest.mark.parametrize(
    ("size", "fault"),
    [
        (Size(43, 9000, 40), "has 43 modules, and its budget is 42"),
        (Size(42, 9001, 40), "has 9,001 lines, and its budget is 9,000"),
        (Size(42, 9000, 41), "has 41 classes, and its budget is 40"),
    ],
)
def test_a_room_beyond_its_budget_is_named(size: Size, fault: str) -> None:
    (found,) = rooms.faults({"builder/lint": size}, BUDGETS)
    assert fault in found


def test_a_room_without_a_row_and_a_row_without_a_room_are_named() -> None:
    found = list(rooms.faults({"builder/new": Size(1, 1, 1)}, BUDGETS))
    assert [row.split(" ", 1)[0] for row in found] == ["builder/new", "builder/lint"]


def test_three_classes_of_one_name_are_named() -> None:
    modules = [Module("a", 1, ("Row", "Plan")), Module("b", 1, ("Row",)), Module("c", 1, ("Row",))]
    assert list(rooms.namesakes(modules)) == ["3 classes are named Row; at most 2 may be"]
    assert list(rooms.namesakes(modules[:2])) == []
