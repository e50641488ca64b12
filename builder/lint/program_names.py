"""Misspelt names of the server's programs, where a command has the name of a program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..diagnostics import Diagnostic, is_misspelling, located
from . import rules
from .script import COMMAND, LAUNCHER, PROGRAMS, Statement, Word

_SERVER_FLAGS = frozenset(("--tp_size", "--ep_size", "--max_batch_size", "--extra_llm_api_options"))
# What starts another program behind options of its own, and those that stand before an image or
# a container (of docker, its `run` and `exec`).
_STARTERS = ("srun", "mpirun", "mpiexec", "orterun", "prterun")
_CONTAINERS = {
    **dict.fromkeys(("docker", "podman", "nerdctl"), ("run", "exec")),
    **dict.fromkeys(("singularity", "apptainer"), ("exec",)),
}
# Options of those without a value behind them; one that is not known is taken to have one.
_WITHOUT_VALUE = re.compile(
    r"-[A-Za-z]\d+|-[dilt]{1,4}|-P|--(?:rm|detach|init|interactive|tty|privileged|nv|contain"
    r"|allow-run-as-root|oversubscribe|bind-to-none|tag-output|report-bindings|overlap|exclusive"
    r"|label|unbuffered|export-all|no-container-\S+|container-writable)|-\S*=.*",
    re.DOTALL,
)
_OF_TWO_VALUES = ("-mca", "--mca", "-gmca", "--gmca")


def misspelt(rows: Iterable[Statement]) -> Iterator[Diagnostic]:
    """Commands whose program is the server's, or what starts its ranks, misspelt."""
    for row in rows:
        names = [word.text.rpartition("/")[2] for word in row.words]
        behind = _behind(row.words, names)
        starts = {0, *(index + 1 for index, name in enumerate(names) if name == LAUNCHER)}
        given = {word.text.partition("=")[0] for word in row.words}
        if given & _SERVER_FLAGS and not set(names) & {*PROGRAMS}:
            starts |= behind
        for index in sorted(starts & {*range(len(names))}):
            name, word = names[index], row.words[index]
            is_own = "/" in word.text  # somebody's wrapper
            if (
                not is_own
                and name not in PROGRAMS
                and "-" in name
                and is_misspelling(name, COMMAND)
            ):
                yield _no_program(word, COMMAND)
        for index, name in enumerate(names):
            is_program = index == 0 or index in behind or names[index + 1 : index + 2] == [COMMAND]
            is_other = name != LAUNCHER and row.words[index].text == name
            if is_program and is_other and is_misspelling(name, LAUNCHER):
                yield _no_program(row.words[index], LAUNCHER)


def _behind(words: Sequence[Word], names: Sequence[str]) -> set[int]:
    """Where the programs stand that others of a command start."""
    found = set()
    for index, name in enumerate(names):
        if name in _STARTERS:
            found.add(_after_options(words, index + 1))
        elif name in _CONTAINERS and {*names[index + 1 : index + 2]} & {*_CONTAINERS[name]}:
            found.add(_after_options(words, index + 2) + 1)
    return found


def _after_options(words: Sequence[Word], index: int) -> int:
    """The first word that is no option and no value of one."""
    while index < len(words) and words[index].text.startswith("-"):
        text = words[index].text
        values = 2 if text in _OF_TWO_VALUES else not _WITHOUT_VALUE.fullmatch(text)
        index += 1 if text == "--" else 1 + values
        if text == "--":
            break
    return index


def _no_program(word: Word, near: str) -> Diagnostic:
    what, fix = f"no program is called {word.text}", f"did you mean {near}?"
    return located(word.location, word.text, what, fix, rules.MISSPELT_NAME)
