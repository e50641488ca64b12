"""Checks scripts for lost flags, unterminated here documents and unset variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ...diagnostics import Diagnostic, Location, closest, located
from ...documents import value_at
from ...facts.release import Release
from ...rules import flags as server_flags
from ..arguments.click import ParsedCommand
from ..engine import is_server
from ..model import Statement, Word
from ..read.shell import Script, before, starting
from ..read.shell_values import Values, with_branches
from . import HERE_DOCUMENT_END, LOST_FLAG, MISSING_MODEL, MISSPELT_NAME
from .files import command_paths, file_order, image_files
from .gpus import mpi_diagnostics
from .ports import Launch, published, same_port, wrong_port

_NAME = re.compile(r"(?<!\\)\$\{?(\w+)\}?")
_FUNCTION = re.compile(r"^\s*(?:function\s+\w+|[\w-]+\s*\(\s*\)\s*\{?)", re.M)
# Variables that the shell or the caller of a script sets.
_GIVEN = re.compile(
    r"SLURM_\w+|[A-Z]*(?:HOME|USER|PATH|HOSTNAME|HOST|PWD|SHELL|UID|PID|RANDOM|TMPDIR|LINENO|SECONDS)"
)
_ASKED = re.compile(r"\$\{(\w+):?[-?=+]")  # has a default or an error message
_SOURCES = frozenset(("source", "."))
# The shortest name to compare, to avoid chance matches; one letter more if a script is sourced.
_TELLING = 4


def script_diagnostics(
    found: Script,
    commands: Sequence[ParsedCommand],
    values: Values,
    release: Release,
    options: Mapping[str, Mapping[str, Any]],
) -> Iterator[Diagnostic]:
    """Runs all checks on a script. `commands` are its server commands in order. `options` holds the
    options of each file that the script writes, by the last part of its name."""
    rows = found.statements
    yield from of_lines(found, found.commands, values, _starts)
    serving = [row for row in commands if row.subcommand == server_flags.SERVE]
    for command in serving:
        yield from _missing_model(command)
        yield from _port_range(command)
    launches: list[Launch] = []
    for statements, command in zip(found.runs, commands, strict=False):
        if command.subcommand != server_flags.SERVE:
            continue
        port, host = (command.value(name) or _default(name, release) for name in ("port", "host"))
        words = values.words(before(statements))
        launch = Launch(
            statements,
            words,
            command.start,
            port,
            host,
            command.value("port"),
            command.option_file,
            next(iter(command.arguments), None),
            _share(command, options),
        )
        launches.append(launch)
        yield from mpi_diagnostics(words, command, options, release)
    starts = [row for row in starting(rows) if _starts(row)]
    yield from launch_diagnostics(found, launches, values, len(starts) == len(commands))


def launch_diagnostics(
    found: Script, launches: Sequence[Launch], values: Values, is_complete: bool
) -> Iterator[Diagnostic]:
    """Checks the context of a script's server commands, for every engine. `is_complete` means that
    the script starts only these servers."""
    rows = found.statements
    for launch in launches:
        yield from published(launch.before, launch.port, launch.host)
        first = launch.statements[0].words[0].location.line
        written = {values.expanded(row.name) for row in found.here if row.start.line <= first}
        paths = [word for word in (launch.option_file, launch.model) if word]
        yield from command_paths(launch.statements, launch.before, paths, written)
    if not is_complete or has_functions(found.text):
        return
    yield from file_order(rows, launches, values)
    yield from image_files(rows, launches)
    direct = [row for row in launches if len(row.statements) == 1]
    statements = {row.statements[0] for row in launches}
    if not any(optional for row, optional in with_branches(rows) if row in statements):
        yield from same_port(rows, direct)


def _share(command: ParsedCommand, options: Mapping[str, Mapping[str, Any]]) -> float | None:
    file = command.option_file
    given = options.get(file.text.rpartition("/")[2]) if file else None
    share = value_at(given, "kv_cache_config.free_gpu_memory_fraction")
    return share if isinstance(share, float) else None


def _default(name: str, release: Release) -> str:
    defaults: Mapping[str, object] = {row.name: row.default for row in release.serve_flags}
    return str(defaults.get(name, ""))


def has_functions(text: str) -> bool:
    """Whether a script has functions, so its commands may run in another order than its lines."""
    return _FUNCTION.search(text) is not None


def of_lines(
    found: Script,
    commands: Sequence[Sequence[Word]],
    values: Values,
    starts: Callable[[Statement], bool],
) -> Iterator[Diagnostic]:
    """Reports lost flags, unterminated here documents and unset variables in a script. `starts`
    returns whether a statement starts a server; `commands` are the words of the servers."""
    yield from _lost_flags(found.statements, starts)
    yield from _ends(found)
    yield from _unset(found, commands, values)


def _starts(row: Statement) -> bool:
    return any(is_server(word.text) for word in row.words)


def _lost_flags(
    rows: Sequence[Statement], starts: Callable[[Statement], bool]
) -> Iterator[Diagnostic]:
    listed = {word.location for row in rows for word in row.elements or ()}
    for earlier, row in pairwise(rows):
        first = row.words[0]
        if not (starts(earlier) and earlier.end == "\n" and first.text.startswith("--")):
            continue
        if first.location not in listed:
            what = "starts a new command: the server does not get it"
            fix = "end the previous line with a backslash and nothing after it"
            yield located(first.location, first.text.partition("=")[0], what, fix, LOST_FLAG)


def _ends(found: Script) -> Iterator[Diagnostic]:
    """Reports lines that look like the end of a here document but do not end it."""
    for document in found.here:
        end = document.end.lstrip("\t") if document.strips_tabs else document.end
        place = Location(document.start.line + len(document.text.splitlines()), 1)
        if end.strip() and end.strip() != document.delimiter:
            what = f"{end.strip()} does not end the here document: it goes on to the script's end"
            fix = f"write {document.delimiter} alone on the line"
            yield located(place, "", what, fix, HERE_DOCUMENT_END)
        elif end != end.strip():
            what = f"{end.strip()} does not end the here document: there are spaces around it"
            fix = "write it alone at the start of the line, or use <<- with tabs before it"
            yield located(place, "", what, fix, HERE_DOCUMENT_END)


def _unset(
    found: Script, commands: Sequence[Sequence[Word]], values: Values
) -> Iterator[Diagnostic]:
    """Reports variables that are never set if a variable with a similar name is."""
    words = [word.text for row in found.statements for word in row.words]
    told = {word for word in words if word.isidentifier()}  # such as arguments of functions
    told |= {name for word in words for name in _ASKED.findall(word)}
    shortest = _TELLING + bool(_SOURCES & {row.words[0].text for row in found.statements})
    places = [(word.text, word.location) for words in commands for word in words]
    for document in found.here:
        if not document.quoted:
            lines = document.text.splitlines()
            places += [(line, Location(document.start.line + n, 1)) for n, line in enumerate(lines)]
    seen = set()
    for text, place in places:
        for name in _NAME.findall(text):
            given = name in values.names or name.isdigit() or _GIVEN.fullmatch(name)
            if name in seen or name in told or given or len(name) < shortest:
                continue
            seen.add(name)
            if near := closest(name, values.names):
                what = f"nothing here sets {name}"
                yield located(place, name, what, f"did you mean {near}?", MISSPELT_NAME, "warning")


def _missing_model(command: ParsedCommand) -> Iterator[Diagnostic]:
    if command.start and command.given and not (command.arguments or command.diagnostics):
        what, fix = "names no model", "write its name or folder behind the command"
        yield located(command.start, "", what, fix, MISSING_MODEL)


def _port_range(command: ParsedCommand) -> Iterator[Diagnostic]:
    row = next((row for row in command.given if row.flag.name == "port" and row.value), None)
    if row and row.value:
        yield from wrong_port(row.value.text, row.value.location, row.spelling)
