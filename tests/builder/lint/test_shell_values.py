"""What a script puts in for its variables, as far as it says so itself; the rest is variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline
from builder.lint.model import Word
from builder.lint.read import shell, shell_files
from builder.lint.read.commands import in_script
from tests.tables import tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

# A script before a server's command, the words of that command, and those that the shell makes.
RESOLVED = TABLES["RESOLVED"]


def words_of(before: str, words: str) -> list[Word]:
    rows = shell.read_script(f"{before}trtllm-serve {words}\n")
    (line,) = [row for row in in_script(rows, "tensorrt_llm") if not row.is_part]
    return list(line.words)


@pytest.mark.parametrize("case", RESOLVED)
def test_words_are_those_of_the_shell(case: str) -> None:
    before, words, expected = RESOLVED[case]
    assert [word.text for word in words_of(before, words)] == expected


def test_bash_agrees_wherever_something_is_resolved() -> None:
    import subprocess

    for case, (before, words, expected) in RESOLVED.items():
        if any("$" in word for word in expected):
            continue
        text = before.replace("ENV ", "export ") + f"printf '%s\\n' {words}\n"
        done = subprocess.run(
            ["bash", "-c", text], capture_output=True, text=True, check=True, env={}, timeout=20
        )
        assert done.stdout.splitlines() == expected, case


def test_a_value_stands_where_it_is_set() -> None:
    [_, tp] = words_of("\nTP=8\n", '--tp "$TP"')
    assert tp.location == (2, 4) and tp.certain


def test_words_that_only_some_runs_add_are_marked() -> None:
    before = "A=(--tp 8)\nif [ $DP = 1 ]; then\n  A+=(--dp)\nfi\n[ $PP ] && A+=(--pp 2)\n"
    optional = [word.text for word in words_of(before, '"${A[@]}"') if word.optional]
    assert optional == ["--dp", "--pp", "2"]


def test_a_text_that_doubles_itself_ends() -> None:
    before = "A0=xxxxxxxxxx\n" + "".join(f"A{n + 1}=$A{n}$A{n}\n" for n in range(60))
    assert len(words_of(before, "$A60")[0].text) < 20_000


# A line of a script, and what is said not to be read of it.
UNREAD = TABLES["UNREAD"]


@pytest.mark.parametrize("text", UNREAD)
def test_what_alters_an_option_file_unread_is_said(text: str) -> None:
    found = shell.read_script(text + "\n")
    said = list(shell_files.unread_writes(found.statements, found.here))
    assert said == ([UNREAD[text]] if UNREAD[text] else [])


def test_words_that_may_be_flags_are_said() -> None:
    words = words_of("", '--tp $TP $MORE "$@"')
    assert list(shell_files.unread_words(words)) == [
        "line 1: $MORE may put in flags",
        "line 1: $@ may put in flags",
    ]


# A number of more digits than Python reads, wherever one is read.
HUGE = "9" * 5000
HUGE_NUMBERS = {
    "run.sh": f"N={HUGE}\ntrtllm-serve m/m --tp_size $N --ep_size {HUGE} --pp_size $((N+1))\n"
    "cat > x.yaml <<E\nmax_batch_size: $N\nE\nyq -i '.a = 9' x.yaml\n",
    "config.yaml": f"resources: {{accelerator: 'H100:{HUGE}'}}\ntrt_llm: {{build: {{}}}}\n",
    "a.py": f"from tensorrt_llm import LLM\nLLM(max_batch_size={HUGE})\n",
}


@pytest.mark.parametrize("name", HUGE_NUMBERS)
def test_a_number_that_nobody_reads_breaks_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(HUGE_NUMBERS[name])
    options = lint.CheckOptions(("1.2.1",))
    assert lint.check([tmp_path / name], options, pipeline.deployment_diagnostics).files


def test_the_end_of_a_line_behind_a_backslash_is_no_part_of_a_word() -> None:
    """As the shell drops it: beside blanks, between the letters of a word, and in double quotes."""
    text = "serve --dtype auto\\\n  --po\\\nrt 80 \"a\\\nb\" 'c\\\nd' e\\\r\n f"
    [statement] = shell.statements(text)
    words = ["serve", "--dtype", "auto", "--port", "80", "ab", "c\\\nd", "e", "f"]
    assert [word.text for word in statement.words] == words
