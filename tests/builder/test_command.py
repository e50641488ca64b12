"""What both command lines say of a verb or an option that is missing or misspelt."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from builder import command
from builder.diagnostics import Diagnostic
from builder.errors import NotReady
from tests import prefork
from tests.conftest import ROOT
from tests.tables import by_table


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return prefork.shared().run(words, ROOT, program).done


@pytest.mark.parametrize("streams", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_change_no_result(streams: str) -> None:
    for verb, code in (("presets", 0), ("plan nothing", 2)):
        command = f"exec {sys.executable} -m builder {verb} {streams}"
        done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == code
        assert b"bug" not in done.stderr


@pytest.mark.parametrize("verb", ["presets", "plan nothing"])
def test_a_full_disk_behind_the_output_is_an_error_in_words(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what is left is written at the end
    for stream in ("1", "2"):
        command = f"exec {sys.executable} -m builder {verb} {stream}>/dev/full"
        done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == (2 if "plan" in verb or stream == "1" else 0)
        assert b"bug" not in done.stderr and b"Traceback" not in done.stderr
    assert b"no space left" in done.stderr or stream == "2"


@by_table
def test_without_a_verb_the_help_lists_them(words: Sequence[str], verb: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stderr) == (2, "")
    assert f"\n    {verb}" in done.stdout


@by_table
def test_a_misspelt_verb_or_option_gets_the_nearest(words: Sequence[str], said: str) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: {said}" in done.stderr.splitlines()[-1]


@by_table
def test_a_misspelt_value_gets_the_nearest(words: Sequence[str], said: str) -> None:
    done = run("builder", *words)
    assert done.returncode == 2
    assert said in done.stderr


def test_what_looks_like_an_option_behind_two_dashes_is_none() -> None:
    assert "unknown option" not in run("builder", "explain", "bundle", "--", "--tool_parser").stderr


def test_the_beginning_of_an_option_stands_for_it() -> None:
    assert run("builder", "plan", "llama-tiny", "--js").returncode == 0


def test_of_very_many_errors_the_first_are_told_and_the_rest_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def verb() -> None:
        raise NotReady([Diagnostic(f"file {number}", "is wrong") for number in range(1000)])

    assert command.run(verb) == NotReady.exit_code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == command.MOST_ERRORS + 1
    assert lines[-1] == f"error: {1000 - command.MOST_ERRORS} more; fix these first"


def test_lines_of_a_log_stand_below_their_error_each_on_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def verb() -> None:
        log = ("loading", "KeyError:\n'x' \x1b[31m")
        raise NotReady(Diagnostic("target a", "died; its log ends:", log=log))

    assert command.run(verb) == NotReady.exit_code
    assert capsys.readouterr().err.splitlines() == [
        "error: target a: died; its log ends:",
        "    loading",
        r"    KeyError:\n'x' \u001b[31m",
    ]
