"""Reads Slurm job scripts: the options of sbatch and the steps of the job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

from ...diagnostics import Location
from ...documents import DATA
from ...facts import data_file, plain_data
from ..engine import is_server, rank_launcher
from ..model import Statement, Word, whole
from . import shell
from .shell_files import WrittenFile, written_files

FORMAT = DATA / "formats" / "job_scripts.yaml"
_DIRECTIVE = re.compile(r"#SBATCH(.*)")
_HETJOB = ("hetjob", "packjob")
_SHELLS = ("bash", "sh")
# Words before a command that belong to the shell or only change how the command runs.
_BEFORE = frozenset(
    ("if", "then", "else", "elif", "while", "until", "do", "!", "{", "time", "exec", "nohup")
)
# Commands that name a program without starting it.
_NAMERS = frozenset(("pkill", "pgrep", "killall", "grep", "which", "echo", "printf"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")


@dataclass(frozen=True, slots=True)
class Option:
    """An option by its long name, or as written if Slurm has no such option. `letter` means that it
    was written as a single letter."""

    name: str
    value: str | None
    location: Location
    known: bool = True
    letter: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """An `srun` step: its options, its command, and its index among the commands of the script."""

    given: tuple[Option, ...]
    command: tuple[Word, ...]
    statement: Statement
    index: int
    location: Location

    @property
    def options(self) -> Mapping[str, str | None]:
        return {option.name: option.value for option in self.given}

    @property
    def in_background(self) -> bool:
        return self.statement.end == "&"

    @property
    def ranks_command(self) -> tuple[Word, ...]:
        """The words after the rank launcher, also inside `bash -c`; empty without a launcher."""
        for words in (self.command, *self.inner):
            for index, word in enumerate(words):
                if word.text.rpartition("/")[2] == rank_launcher():
                    return words[index + 1 :]
        return ()

    @property
    def inner(self) -> list[tuple[Word, ...]]:
        """The commands of an inline script: `bash -c '...'`."""
        words = [word.text.rpartition("/")[2] for word in self.command]
        if not words or words[0] not in _SHELLS:
            return []
        texts = [word for word in self.command[1:] if re.search(r"\s", word.text)]
        found: list[tuple[Word, ...]] = []
        for word in texts:
            found += (row.words for row in shell.statements(word.text, word.location))
        return found

    @property
    def serves(self) -> bool:
        """Whether a server runs in this step."""
        for words in (self.command, *self.inner):
            names = [word.text.rpartition("/")[2] for word in words]
            if not names or names[0] in _NAMERS:
                continue
            if any(name in (rank_launcher(), "tritonserver") or is_server(name) for name in names):
                return True
        return False


@dataclass(frozen=True)
class Job:
    """A job script: the sbatch options of each component, options that come too late, and commands.
    `stray` are words of its directives that are not options."""

    script: shell.Script
    parts: Sequence[Sequence[Option]]
    late: Sequence[Option]
    stray: Sequence[Word] = ()

    @cached_property
    def steps(self) -> list[Step]:
        found = (_step(row, index) for index, row in enumerate(self.script.statements))
        return [step for step in found if step]

    @cached_property
    def written(self) -> list[WrittenFile]:
        return written_files(self.script)

    def option(self, name: str) -> Option | None:
        """Returns the value of an sbatch option, if the job has only one component."""
        rows = [row for row in self.parts[0] if row.name == name]
        return rows[-1] if rows and len(self.parts) == 1 else None

    def number(self, name: str) -> int | None:
        """Returns the number that an sbatch option is set to, if the job has only one component."""
        row = self.option(name)
        return whole(row.value) if row else None


@cache
def table() -> Mapping[str, Any]:
    found: Mapping[str, Any] = data_file.load(FORMAT, plain_data.JOB_SCRIPTS_FILE)
    return found


def read_job(script: shell.Script) -> Job:
    """Reads a job script the way sbatch and the shell do."""
    parts: list[list[Option]] = [[]]
    late: list[Option] = []
    stray: list[Word] = []
    over = False
    for number, line in enumerate(script.text.splitlines(), 1):
        over = over or bool(line.strip() and not line.lstrip().startswith("#"))
        if not (match := _DIRECTIVE.fullmatch(line.rstrip())):
            continue
        place = Location(number, 1)
        split = _split(match.group(1))
        if split is None:
            stray.append(Word(match.group(1).strip(), place, True))
            continue
        words = [Word(word, place, True) for word in split]
        if words[:1] and words[0].text in _HETJOB and not over:
            parts.append([])
            continue
        given, end = _options(words, "sbatch")
        (late if over else parts[-1]).extend(given)
        stray += [] if over else words[end:]
    return Job(script, parts, late, stray)


def _split(line: str) -> list[str] | None:
    """Splits a line into words; `None` if a quote is not closed."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return None


def _options(words: Sequence[Word], program: str) -> tuple[list[Option], int]:
    """Returns the options at the start of a list of words, and the number of words they take."""
    known, index = table()[program], 0
    found: list[Option] = []
    while index < len(words) and words[index].text.startswith("-") and words[index].text != "-":
        word = words[index]
        index += 1
        if word.text == "--":
            break
        if word.text.startswith("--"):
            name, equals, value = word.text[2:].partition("=")
            full = _long(name, program)
        else:
            name, value = word.text[1], word.text[2:]
            full = known["short"].get(name)
            equals = "" if full in known["flags"] else value[:1]
        takes_one = full in known["values"] or full in known["newer"]
        if takes_one and not equals and index < len(words):
            value, equals = words[index].text, "="
            index += 1
        letter = not word.text.startswith("--")
        given = value if equals else None
        found.append(Option(full or name, given, word.location, full is not None, letter))
    return found, index


def option_names(program: str) -> list[str]:
    """Returns the long options of sbatch or srun."""
    known = table()[program]
    return [*known["values"], *known["flags"], *known["optional"], *known["newer"]]


@lru_cache(maxsize=1024)
def _long(name: str, program: str) -> str | None:
    """Returns the option for a name or an unambiguous prefix."""
    begun = [row for row in option_names(program) if name and row.startswith(name)]
    return name if name in begun else begun[0] if len(begun) == 1 else None


def _step(statement: Statement, index: int) -> Step | None:
    """Returns the step that a command starts if the command is `srun`."""
    words = list(statement.words)
    while words and (words[0].text in _BEFORE or _ASSIGNMENT.match(words[0].text)):
        words.pop(0)
    if not words or words[0].text.rpartition("/")[2] != "srun":
        return None
    given, end = _options(words[1:], "srun")
    return Step(tuple(given), tuple(words[1 + end :]), statement, index, words[0].location)
