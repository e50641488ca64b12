"""What is said of mutants: where each is, which survived, and which of those are judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maintenance import mutations
from maintenance.mutations import Judgement, Mutant, Room

ROOM = Room("room", ("package/*.py",), ("tests",))
# As mutmut writes it: the original function, and each of its versions.
DROPPED = """\
@staticmethod
def x_double__mutmut_1(number):
    # twice
    return 3 * number
found['x_double__mutmut_1'] = x_double__mutmut_1
"""
MUTATED = f"""\
found = {{}}
def x_double__mutmut_orig(number):
    # twice
    return 2 * number
{DROPPED}class Lock:
    async def xǁLockǁtake__mutmut_orig(self, path):
        open(path)
    async def xǁLockǁtake__mutmut_1(self, path):
        open(None)
found['xǁLockǁtake__mutmut_1'] = Lock.xǁLockǁtake__mutmut_1
"""
DOUBLE = Mutant("package/module.py double", "return 2 * number => return 3 * number", 1)
TAKE = Mutant("package/module.py Lock.take", "open(path) => open(None)", 0)

EVERY = Judgement("a reason", frozenset({(TAKE.place, TAKE.change)}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where mutmut has tried two mutants, of which one survived."""
    module = tmp_path / "mutants" / "package" / "module.py"
    module.parent.mkdir(parents=True)
    module.write_text(MUTATED)
    codes = {"package.module.x_double__mutmut_1": 1, "package.module.xǁLockǁtake__mutmut_1": 0}
    text = json.dumps({"exit_code_by_key": codes, "other": 7})
    module.with_name("module.py.meta").write_text(text)
    return tmp_path


def test_a_mutant_is_told_by_its_function_and_its_lines(folder: Path) -> None:
    assert list(mutations.mutants(folder)) == [DOUBLE, TAKE]


def test_survivors_are_tried_again(folder: Path) -> None:
    mutations.forget(folder)
    assert [one.exit_code for one in mutations.mutants(folder)] == [1, None]


def test_a_sample_leaves_no_other_mutants_in_the_modules(folder: Path) -> None:
    mutations.reduce(folder, {"package.module.xǁLockǁtake__mutmut_1"})
    assert [one.place for one in mutations.mutants(folder)] == [TAKE.place]
    left = (folder / "mutants" / "package" / "module.py").read_text()
    assert left == MUTATED.replace(DROPPED, "")


def test_a_survivor_that_nobody_judged_is_listed_and_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not mutations.report(ROOM, [DOUBLE] * 9 + [TAKE], [])
    assert capsys.readouterr().out == (
        "room: 10 mutants, 90.0 % caught; 1 survived, 0 of them where no test goes, 1 not judged\n"
        "  package/module.py Lock.take:\n"
        '  - "open(path) => open(None)"\n'
    )


@pytest.mark.parametrize(("caught", "is_enough"), [(9, True), (4, False)])
def test_survivors_may_be_judged_but_no_more_than_the_score_allows(
    caught: int, is_enough: bool
) -> None:
    judged = Judgement("a reason", frozenset({(TAKE.place, TAKE.change)}))
    assert mutations.report(ROOM, [DOUBLE] * caught + [TAKE], [judged]) is is_enough


def test_what_did_not_run_counts_neither_way(capsys: pytest.CaptureFixture[str]) -> None:
    left = Mutant(TAKE.place, TAKE.change, None)
    assert mutations.report(ROOM, [DOUBLE, left], [])
    assert "room: 1 mutants, 100.0 % caught" in capsys.readouterr().out


def test_the_same_seed_is_the_same_sample_and_another_is_not() -> None:
    names = [f"mutant{number}" for number in range(1000)]
    one, same, other = (mutations.chosen_of(names, 50, seed) for seed in (1, 1, 2))
    assert one == same != other
    assert len(set(one)) == 50
    assert mutations.chosen_of(names, 5000, 1) == mutations.chosen_of(names, None, 1) == names


def test_the_score_of_a_sample_has_its_interval(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutations.report(ROOM, [DOUBLE] * 140 + [TAKE] * 10, [EVERY], whole=2000)
    shown = "room: 150 of 2000 mutants, 93.3 % caught (95 %: 88.2 to 96.3); 10 survived, 0 of them"
    assert capsys.readouterr().out.startswith(shown)


def test_every_room_and_judgement_names_what_there_is() -> None:
    rooms, judged = mutations.read()
    for room in rooms.values():
        assert all(mutations.sources(room, pattern) for pattern in room.modules), room.name
        assert all((mutations.ROOT / path).exists() for path in room.tests), room.name
    assert all(len(row.because) > 20 for row in judged)
    places = {place.split()[0] for row in judged for place, _ in row.mutants}
    names = {
        name
        for room in rooms.values()
        for one in room.modules
        for name in mutations.sources(room, one)
    }
    assert places <= names
