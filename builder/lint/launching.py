"""What keeps a server from starting as it is written: flags that the shell does not hand to it,
files that are not there when it reads them, ports at which nobody reaches it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

from ..diagnostics import Diagnostic, Location, closest, located
from ..facts.release import Release
from ..rules import flags as server_flags
from .job_script import whole
from .script import LAUNCHER, Script, Statement, Word, before, is_server
from .server_commands import Command
from .shell_values import Values, with_branches
from .surroundings import world_size

_NAME = re.compile(r"(?<!\\)\$\{?(\w+)\}?")
_FUNCTION = re.compile(r"^\s*(?:function\s+\w+|[\w-]+\s*\(\s*\)\s*\{?)", re.M)
_PUBLISHED = re.compile(r"(?:[\d.]+:)?(?:\d+:)?(\d+)(?:/tcp)?")
_WRITERS = ("echo", "printf", "cat")
# What ends a server before the next one starts.
_ENDS = frozenset(("kill", "pkill", "killall", "wait", "stop", "trap", "fuser"))
# Commands that read no option file.
_ASIDE = frozenset((*_WRITERS, "mkdir", "cd", "set", "export", "chmod", "#"))
# Variables of the shell and of those that start a script.
_GIVEN = re.compile(
    r"SLURM_\w+|[A-Z]*(?:HOME|USER|PATH|HOSTNAME|HOST|PWD|SHELL|UID|PID|RANDOM|TMPDIR|LINENO|SECONDS)"
)
_ASKED = re.compile(r"\$\{(\w+):?[-?=+]")  # which says what to do without it
_SOURCES = frozenset(("source", "."))
_TELLING = 4  # letters of a name that no other is like by chance; one more beside other scripts
_STARTERS = ("mpirun", "mpiexec")
_LAST_PORT = 65535


def diagnostics(
    found: Script,
    commands: Sequence[Command],
    values: Values,
    text: str,
    release: Release,
    options: Mapping[str, Mapping[str, Any]],
) -> Iterator[Diagnostic]:
    """All of that in a script. `commands` are those of its servers, in their order, `options` those
    of each file that it writes, by the last part of its name."""
    rows = found.statements
    yield from _lost_flags(rows)
    yield from _ends(found)
    yield from _unset(found, values)
    serving = [row for row in commands if row.subcommand == server_flags.SERVE]
    for command in serving:
        yield from _model(command)
        yield from _port(command)
    runs = [
        (rows, command)
        for rows, command in zip(found.runs, commands, strict=False)
        if command.subcommand == server_flags.SERVE
    ]
    for each, command in runs:
        words = values.words(before(each))
        yield from _published(words, command, release)
        yield from _ranks(words, command, options, release)
    direct = {each[0]: command for each, command in runs if len(each) == 1}
    starts = [
        (row, optional)
        for row, optional in with_branches(rows)
        if any(is_server(word.text) for word in row.words)
    ]
    if len(starts) != len(commands) or _FUNCTION.search(text):
        return  # the order of lines is not that of commands
    yield from _files(rows, serving, values)
    if not any(optional for _, optional in starts):
        pairs = [(row, direct[row]) for row, _ in starts if row in direct]
        yield from _same_port(rows, pairs, release)


def _lost_flags(rows: Sequence[Statement]) -> Iterator[Diagnostic]:
    listed = {word.location for row in rows for word in row.elements or ()}
    for earlier, row in pairwise(rows):
        first = row.words[0]
        starts = any(is_server(word.text) for word in earlier.words)
        if not (starts and earlier.end == "\n" and first.text.startswith("--")):
            continue
        if first.location not in listed:
            what = "begins a command of its own: the server does not get it"
            fix = "end the line before with a backslash, and nothing behind that"
            yield located(first.location, first.text.partition("=")[0], what, fix, "lost-flag")


def _ends(found: Script) -> Iterator[Diagnostic]:
    """Ends of here documents that only a reader takes for one."""
    for document in found.here:
        end = document.end.lstrip("\t") if document.strips_tabs else document.end
        if end == end.strip():
            continue
        place = Location(document.start.line + len(document.text.splitlines()), 1)
        what = f"{end.strip()} is no end of the here document: spaces stand beside it"
        fix = "write it alone at the beginning of its line, or <<- and tabs before it"
        yield located(place, "", what, fix, "here-document-end")


def _unset(found: Script, values: Values) -> Iterator[Diagnostic]:
    """Variables that nothing sets, asks for or may get elsewhere, beside one of almost the same
    name."""
    words = [word.text for row in found.statements for word in row.words]
    told = {word for word in words if word.isidentifier()}  # as functions are that ask for them
    told |= {name for word in words for name in _ASKED.findall(word)}
    shortest = _TELLING + bool(_SOURCES & {row.words[0].text for row in found.statements})
    places = [(word.text, word.location) for words in found.commands for word in words]
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
                yield located(
                    place, name, what, f"did you mean {near}?", "misspelt-name", "warning"
                )


def _model(command: Command) -> Iterator[Diagnostic]:
    if command.start and command.given and not (command.arguments or command.diagnostics):
        what, fix = "names no model", "write its name or folder behind the command"
        yield located(command.start, "", what, fix, "missing-model")


def _port(command: Command) -> Iterator[Diagnostic]:
    row = next((row for row in command.given if row.flag.name == "port" and row.value), None)
    port = row.value if row else None
    if row and port and port.text.isdigit() and int(port.text[:9]) > _LAST_PORT:
        what, fix = f"{port.text} is no port", f"give one up to {_LAST_PORT}"
        yield located(port.location, row.spelling, what, fix, "flag-value")


def _files(
    rows: Sequence[Statement], commands: Sequence[Command], values: Values
) -> Iterator[Diagnostic]:
    """Option files that are written twice, or after the server that reads them."""
    first: dict[str, Location] = {}
    last: dict[str, tuple[int, Location]] = {}
    for index, (row, optional) in enumerate(with_branches(rows)):
        place = row.words[0].location
        for sign, word in row.redirects:
            if optional or row.words[0].text not in _WRITERS or not sign.startswith(">"):
                continue
            name = values.expanded(word.text)
            first.setdefault(name, place)
            if sign == ">" and name in last and not _is_read(rows[last[name][0] + 1 : index], name):
                what = f"writes {name} anew: what line {last[name][1].line} wrote is gone"
                yield located(place, "", what, "add to it with >>", "file-overwritten", "warning")
            last[name] = index, place
    for command in commands:
        file = command.option_file
        late = first.get(file.text) if file else None
        if file and late and command.start and late.line > command.start.line:
            what = f"{file.text} is written in line {late.line}, after the server has started"
            yield located(file.location, "", what, "write it before", "file-late", "warning")


def _is_read(rows: Sequence[Statement], name: str) -> bool:
    """Whether something between two commands may have read a file."""
    return any(
        "=" not in row.words[0].text
        and (row.words[0].text not in _ASIDE or any(name in word.text for word in row.words))
        for row in rows
    )


def _published(words: Sequence[Word], command: Command, release: Release) -> Iterator[Diagnostic]:
    """Ports of a container against those of the server in it. `words` stand before the server."""
    texts = [word.text for word in words]
    if not {"docker", "podman"} & {text.rpartition("/")[2] for text in texts}:
        return
    given = [
        following
        for word, following in pairwise(words)
        if word.text in ("-p", "--publish") and following.certain
    ]
    ports = [found[1] for word in given if (found := _PUBLISHED.fullmatch(word.text))]
    if not ports or len(ports) != len(given):
        return
    port = command.value("port") or _default("port", release)
    if port.isdigit() and port not in ports:
        what = f"{', '.join(ports)} of the container is published, and the server listens at {port}"
        fix = f"publish {port}, or give --port {ports[0]}"
        yield located(given[0].location, "--publish", what, fix, "port-unreached", "warning")
    host = command.value("host") or _default("host", release)
    if host in ("localhost", "127.0.0.1"):
        what = f"the server listens at {host} of the container: what is published reaches nobody"
        fix = "give --host 0.0.0.0"
        yield located(given[0].location, "--publish", what, fix, "port-unreached", "warning")


def _ranks(
    words: Sequence[Word],
    command: Command,
    options: Mapping[str, Mapping[str, Any]],
    release: Release,
) -> Iterator[Diagnostic]:
    """The processes that MPI starts against the ranks of the server. `words` stand before it."""
    names = [word.text.rpartition("/")[2] for word in words]
    file = command.option_file
    given = options.get(file.text.rpartition("/")[2]) if file else {}
    if LAUNCHER not in names or not set(_STARTERS) & set(names) or given is None:
        return  # a file may give parallel sizes as well
    flags = {row.spelling: row.value.text for row in command.given if row.value}
    world = world_size(server_flags.with_flags(flags, given, release))
    for word, following in pairwise(words):
        count = whole(following.text) if word.text in ("-n", "-np") else None
        if count and world and world > 1 and count != world and following.certain:
            what = f"{count} processes for a server of {world} ranks"
            fix = f"give {world}, or parallel sizes that multiply to {count}"
            yield located(following.location, word.text, what, fix, "job-ranks")


def _same_port(
    rows: Sequence[Statement], pairs: Sequence[tuple[Statement, Command]], release: Release
) -> Iterator[Diagnostic]:
    """Servers beside each other on one machine that want the same port."""
    for (one, first), (other, second) in combinations(pairs, 2):
        words = {word.text.rpartition("/")[2] for row in (one, other) for word in row.words}
        between = rows[rows.index(one) + 1 : rows.index(other)]
        if any(word.text in _ENDS for row in between for word in row.words):
            continue
        if one.end != "&" or words & {"docker", "podman", "srun", "ssh", *_STARTERS}:
            continue
        ports = [row.value("port") or _default("port", release) for row in (first, second)]
        if ports[0] == ports[1] and ports[0].isdigit() and second.start:
            what = f"wants port {ports[0]}, which the server of line {_line(first)} has"
            yield located(second.start, "--port", what, "give it another port", "port-taken")


def _line(command: Command) -> int:
    return command.start.line if command.start else 0


def _default(name: str, release: Release) -> str:
    defaults: Mapping[str, object] = {row.name: row.default for row in release.serve_flags}
    return str(defaults.get(name, ""))
