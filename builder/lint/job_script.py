"""Job scripts of Slurm: what sbatch reads, refuses or overlooks, and the steps of a job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

from ..diagnostics import Diagnostic, Location, closest, located, nearest
from ..documents import DATA
from ..facts import data_file, plain_data
from ..general_rules import Rule
from .script import LAUNCHER, Statement, Word, is_server, statements
from .shell_values import Values

FORMAT = DATA / "formats" / "job_scripts.yaml"

_DIRECTIVE = re.compile(r"#SBATCH(.*)")
_HETJOB = ("hetjob", "packjob")
_SHELLS = ("bash", "sh")
# Words before a command that belong to the shell or only change how it runs.
_BEFORE = frozenset(
    ("if", "then", "else", "elif", "while", "until", "do", "!", "{", "time", "exec", "nohup")
)
# Commands that name a program without starting it.
_NAMERS = frozenset(("pkill", "pgrep", "killall", "grep", "which", "echo", "printf"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")


@dataclass(frozen=True, slots=True)
class Option:
    """An option by its long name, or as it was written where Slurm has none of that name.

    `letter` if it was written as one.
    """

    name: str
    value: str | None
    location: Location
    known: bool = True
    letter: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """An `srun`: its options, what it runs, and where it stands among the script's commands."""

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
        """What stands behind the launcher of ranks, in a shell of its own too; else nothing."""
        for words in (self.command, *self.inner):
            for index, word in enumerate(words):
                if word.text.rpartition("/")[2] == LAUNCHER:
                    return words[index + 1 :]
        return ()

    @property
    def inner(self) -> list[tuple[Word, ...]]:
        """The commands of a script that stands on the command line: `bash -c '...'`."""
        words = [word.text.rpartition("/")[2] for word in self.command]
        if not words or words[0] not in _SHELLS:
            return []
        texts = [word for word in self.command[1:] if re.search(r"\s", word.text)]
        return [row.words for word in texts for row in statements(word.text, word.location)]

    @property
    def serves(self) -> bool:
        """Whether a server runs in this step."""
        return any(
            is_server(word.text) or word.text.rpartition("/")[2] in (LAUNCHER, "tritonserver")
            for words in (self.command, *self.inner)
            if words and words[0].text.rpartition("/")[2] not in _NAMERS
            for word in words
        )


@dataclass(frozen=True)
class Job:
    """A job script: the options of each of its parts, those that come too late, its commands.

    `stray` are words of its directives that are not options.
    """

    text: str
    parts: Sequence[Sequence[Option]]
    late: Sequence[Option]
    stray: Sequence[Word] = ()
    commands: Sequence[Statement] = field(default_factory=list)

    @cached_property
    def steps(self) -> list[Step]:
        found = (_step(row, index) for index, row in enumerate(self.commands))
        return [step for step in found if step]

    @cached_property
    def values(self) -> Values:
        return Values(self.commands)

    def option(self, name: str) -> Option | None:
        """What sbatch is given for an option, in a job of one part."""
        rows = [row for row in self.parts[0] if row.name == name]
        return rows[-1] if rows and len(self.parts) == 1 else None

    def number(self, name: str) -> int | None:
        """The number that sbatch is given for an option, in a job of one part."""
        row = self.option(name)
        return whole(row.value) if row else None


def whole(value: str | None) -> int | None:
    return int(value) if value and re.fullmatch(r"[0-9]{1,9}", value) else None


@cache
def table() -> Mapping[str, Any]:
    found: Mapping[str, Any] = data_file.load(FORMAT, plain_data.JOB_SCRIPTS_FILE)
    return found


def is_job(text: str) -> bool:
    return re.search(r"^#SBATCH\s", text, re.M) is not None


def read(text: str) -> Job:
    """A job script as sbatch and the shell read it."""
    parts: list[list[Option]] = [[]]
    late: list[Option] = []
    stray: list[Word] = []
    over = False
    for number, line in enumerate(text.splitlines(), 1):
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
    return Job(text, parts, late, stray, statements(text))


def job_diagnostic(
    rule: str, place: Location, what: str, path: str = "", remedy: str = ""
) -> Diagnostic:
    """What a rule of job scripts has against a place in one."""
    known, row = job_rules()[rule], table()["rules"][rule]
    return located(place, path, what, remedy or row["fix"], known, known.severity)


@cache
def job_rules() -> Mapping[str, Rule]:
    """The rules of job scripts by id."""
    return {
        id: Rule(
            id,
            f"A job script of Slurm: {row['fix']}.",
            row["severity"],
            "\n\nSource: ".join(filter(None, (row["fix"], row.get("source")))),
        )
        for id, row in table()["rules"].items()
    }


def directives(text: str) -> list[list[str]]:
    """The options that sbatch takes from a script as long ones, those of each part of a job."""
    return [
        [f"--{row.name}" if row.value is None else f"--{row.name}={row.value}" for row in part]
        for part in read(text).parts
    ]


def _split(line: str) -> list[str] | None:
    """The words of a line, or nothing if a quote in it has no end."""
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return None


def _options(words: Sequence[Word], program: str) -> tuple[list[Option], int]:
    """The options that a list of words begins with, and how many words they are."""
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
    """The long options of sbatch or srun."""
    known = table()[program]
    return [row for key in ("values", "flags", "optional", "newer") for row in known[key]]


@lru_cache(maxsize=1024)
def _long(name: str, program: str) -> str | None:
    """The option that a name, or the beginning of one, means."""
    begun = [row for row in option_names(program) if name and row.startswith(name)]
    return name if name in begun else begun[0] if len(begun) == 1 else None


def _step(statement: Statement, index: int) -> Step | None:
    """The step that a command starts, if it is an srun."""
    words = list(statement.words)
    while words and (words[0].text in _BEFORE or _ASSIGNMENT.match(words[0].text)):
        words.pop(0)
    if not words or words[0].text.rpartition("/")[2] != "srun":
        return None
    given, end = _options(words[1:], "srun")
    return Step(tuple(given), tuple(words[1 + end :]), statement, index, words[0].location)


_PLUGIN = "container-"  # options of pyxis


def diagnostics(job: Job, block: int | None) -> Iterator[Diagnostic]:
    """Everything against the submission. `block` is the nodes of a block, if that is known."""
    if not job.text.startswith("#!"):
        yield job_diagnostic(
            "job-shebang", Location(1, 1), "the first line is no #! line: sbatch refuses it"
        )
    for option in job.late:
        what = "stands below a command, where sbatch does not look"
        yield job_diagnostic("job-late-directive", option.location, what, f"--{option.name}")
    for word in job.stray:
        what = f"{word.text[:40]!r} is not an option: sbatch refuses the script"
        yield job_diagnostic("job-stray-word", word.location, what)
    for part in job.parts:
        for option in part:
            yield from _option(option)
        yield from _together({row.name: row for row in part}, block)
    for step in job.steps:
        yield from (row for given in step.given for row in _unknown(given, "srun"))


def _option(option: Option) -> Iterator[Diagnostic]:
    """One option for sbatch, and whether its value can be one."""
    path, form = f"--{option.name}", _forms().get(option.name)
    if not option.known:
        yield from _unknown(option, "sbatch")
    elif option.value is None and option.name in table()["sbatch"]["values"]:
        yield job_diagnostic("job-value", option.location, "has no value", path, "give it one")
    elif option.value is not None and option.name in table()["sbatch"]["flags"]:
        yield job_diagnostic("job-value", option.location, "takes no value", path, "drop the value")
    elif form and not re.fullmatch(form["pattern"], option.value or "", re.IGNORECASE):
        yield job_diagnostic(
            form["rule"], option.location, f"cannot be {option.value}", path, form["fix"]
        )
    elif option.name == "nodes" and (ends := _range(option)) and ends[0] > ends[1]:
        what = f"at least {ends[0]} nodes are more than at most {ends[1]}"
        yield job_diagnostic("job-value", option.location, what, path)


@cache
def _forms() -> Mapping[str, Mapping[str, Any]]:
    return {name: form for form in table()["forms"] for name in form["options"]}


def _unknown(option: Option, program: str) -> Iterator[Diagnostic]:
    """An option of no Slurm. One that resembles none of its options may be a plug-in's."""
    if option.known:
        return
    known, path = option_names(program), f"--{option.name}"
    if option.letter:
        yield job_diagnostic("job-unknown-option", option.location, "is unknown", f"-{option.name}")
    elif not option.name.startswith(_PLUGIN) and closest(option.name, known):
        remedy = nearest(option.name, known)
        yield job_diagnostic("job-unknown-option", option.location, "is unknown", path, remedy)
    elif program == "sbatch":
        what = "is not an option of sbatch, which refuses it where no plug-in has it"
        yield job_diagnostic("job-plugin-option", option.location, what, path)


def _together(given: Mapping[str, Option], block: int | None) -> Iterator[Diagnostic]:
    """Options of one part of a job that do not go together."""
    for names in table()["alternatives"]:
        both = [given[name] for name in names if name in given]
        if len(both) > 1:
            what = f"stands beside --{both[0].name}: only one can be given"
            yield job_diagnostic("job-contradiction", both[1].location, what, f"--{both[1].name}")
    _, most = _range(given.get("nodes")) or (0, 0)
    tasks, each = (_number(given, name) for name in ("ntasks", "ntasks-per-node"))
    if most and tasks and each and tasks > most * each:
        what = f"{tasks} tasks do not stand on {most} nodes with {each} each"
        yield job_diagnostic("job-contradiction", given["ntasks"].location, what, "--ntasks")
    yield from _segment(given, most, block)


def _segment(given: Mapping[str, Option], count: int, block: int | None) -> Iterator[Diagnostic]:
    """Segments share the nodes evenly, and each fits into a block."""
    if not (size := _number(given, "segment")):
        return
    place = given["segment"].location
    if count % size:
        what = f"segments of {size} do not share {count} nodes evenly"
        yield job_diagnostic("job-segment", place, what, "--segment")
    elif size > (limit := block or table()["largest_block"]):
        what = f"{size} nodes do not stand in one block of {limit}"
        yield job_diagnostic(
            "job-segment" if block else "job-wide-segment", place, what, "--segment"
        )


def _range(nodes: Option | None) -> tuple[int, int] | None:
    """The least and the most nodes that are asked for, if they are plain numbers."""
    ends = [whole(end) for end in ((nodes and nodes.value) or "").split("-")]
    least, most = ends[0], ends[-1]
    return None if least is None or most is None else (least, most)


def _number(given: Mapping[str, Option], name: str) -> int | None:
    return whole(given[name].value) if name in given else None
