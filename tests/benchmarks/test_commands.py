"""The benchmark of the commands: ratios within a round, and bounds on time and ratio together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import commands
from benchmarks.commands import TimedCommand
from builder.errors import ChecksFailed

QUICK = TimedCommand("quick", ("-c", "pass"), limit_ms=100, limit_ratio=8)
SLOW = TimedCommand("slow", ("-m", "builder", "--help"), limit_ms=100, limit_ratio=8)


def test_a_ratio_is_taken_within_its_round() -> None:
    empty, row = commands.rows([QUICK], {"quick": [(20, 10), (90, 30), (44, 11)]})
    assert (row["ms"], row["range_ms"], row["runs"]) == (44, [20, 90], 3)
    assert (row["ratio"], row["range_ratio"]) == (3, [2, 4])
    assert (empty["command"], empty["ms"], empty["range_ms"]) == ("empty interpreter", 11, [10, 30])


@pytest.mark.parametrize(
    ("ms", "ratio", "missed"), [(99, 9, False), (500, 7.9, False), (100, 8, True), (500, 40, True)]
)
def test_a_bound_is_missed_where_both_time_and_ratio_are(
    ms: float, ratio: float, missed: bool
) -> None:
    violation = commands.violation({"command": "a", "ms": ms, "ratio": ratio, **LIMITS})
    assert (violation is not None) is missed


LIMITS = {"limit_ms": 100, "limit_ratio": 8}


def test_the_empty_interpreter_has_no_bound() -> None:
    empty, _ = commands.rows([QUICK], {"quick": [(20, 10)]})
    assert commands.violation(empty) is None


def test_a_command_that_fails_is_named() -> None:
    wrong = TimedCommand("wrong", ("-c", "import sys; sys.exit('no such thing')"), 100, 8)
    with pytest.raises(ChecksFailed, match="wrong: ended with 1: no such thing"):
        commands.samples([wrong], 1)


def test_commands_are_measured_and_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "commands", lambda _: (QUICK, SLOW))
    file = tmp_path / "rows.json"
    assert commands.main(["--rounds", "1", "--json", str(file)]) == 0
    empty, quick, slow = json.loads(file.read_text())
    assert empty["runs"] == 2
    assert 0 < quick["ms"] < slow["ms"]
    strict = (TimedCommand("strict", QUICK.words, limit_ms=0, limit_ratio=0),)
    monkeypatch.setattr(commands, "commands", lambda _: strict)
    assert commands.main(["--rounds", "1", "--check"]) == 6
    assert "it must be below 0 ms or 0 times" in capsys.readouterr().err


def test_every_command_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each runs once before the first round; what is to take long is made short."""
    gpus = "[b200, b300, h200, gb200]"
    assert gpus in commands.OPEN
    monkeypatch.setattr(commands, "OPEN", commands.OPEN.replace(gpus, "[b200]").replace("8}", "4}"))
    monkeypatch.setattr(commands, "MANY", 30)
    assert commands.samples(commands.commands("llama-tiny"), 0)
