"""What keeps a server from starting as it is written: flags that the shell does not hand to it,
files that are not there when it reads them, ports at which nobody reaches it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..diagnostics import Diagnostic, Location, closest, located
from ..documents import value_at
from ..facts.release import Release
from ..rules import flags as server_flags
from . import mounts, mpi_ranks, rules
from .script import Script, Statement, Word, before, is_server, starting
from .server_commands import Command
from .shell_values import Values, with_branches

_NAME = re.compile(r"(?<!\\)\$\{?(\w+)\}?")
_FUNCTION = re.compile(r"^\s*(?:function\s+\w+|[\w-]+\s*\(\s*\)\s*\{?)", re.M)
_PUBLISHED = re.compile(r"(?:[\d.]+:)?(?:\d+:)?(\d+)(?:/tcp)?")
_SPAN = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")  # of ports that an image opens
# Instructions of a Dockerfile that write no file by what runs.
_NO_RUN = mounts.COPIES | {"FROM", "WORKDIR", "ENV", "ARG", "EXPOSE", "LABEL", "USER"}
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
_ELSEWHERE = frozenset(("docker", "podman", "srun", "ssh", *mpi_ranks.STARTERS))
_VISIBLE_NAME = "CUDA_VISIBLE_DEVICES"
_VISIBLE = re.compile(rf"{_VISIBLE_NAME}=(\d+(?:,\d+)*)")
_SHARING = ("fraction", "utilization", "--config", "--extra")  # or a file may say it
_LAST_PORT = 65535
_ALL_HOSTS = "0.0.0.0"
_SAME_HOST = {
    **dict.fromkeys(("", "None", "::", "[::]", "*"), _ALL_HOSTS),
    **dict.fromkeys(("127.0.0.1", "::1", "[::1]"), "localhost"),
}


@dataclass(frozen=True, slots=True)
class Listener:
    """A server of a script: its statement, where it listens and stands, and the share of the free
    memory that its option file gives to its KV cache."""

    statement: Statement
    port: str
    host: str
    place: Location | None
    share: float | None = None

    @property
    def gpus(self) -> frozenset[str]:
        """The GPUs that it has for itself, as far as its line says it."""
        texts = [word.text for word in self.statement.words]
        if self.share is None and any(part in text for text in texts for part in _SHARING):
            return frozenset()
        found = next((row for text in texts if (row := _VISIBLE.fullmatch(text))), None)
        return frozenset(found[1].split(",")) if found else frozenset()

    def clashes(self, other: Listener) -> bool:
        """Whether both want one port of one address, of which some are all that there are."""
        ours, theirs = (_SAME_HOST.get(row.host, row.host) for row in (self, other))
        return (
            self.port.isdigit()
            and self.port == other.port
            and (ours == theirs or _ALL_HOSTS in (ours, theirs))
        )


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
    yield from of_lines(found, found.commands, values, _starts)
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
        port, host = (command.value(name) or _default(name, release) for name in ("port", "host"))
        yield from published(words, port, host)
        yield from mpi_ranks.diagnostics(words, command, options, release)
        first = each[0].words[0].location.line
        here = {values.expanded(row.name) for row in found.here if row.start.line <= first}
        paths = [word for word in (command.option_file, *command.arguments[:1]) if word]
        yield from mounts.of_command(each, words, paths, here)
    direct = {each[0]: command for each, command in runs if len(each) == 1}
    may_start = set(starting(rows))
    starts = [
        (row, optional)
        for row, optional in with_branches(rows)
        if row in may_start and _starts(row)
    ]
    if len(starts) != len(commands) or has_functions(text):
        return
    yield from _files(rows, serving, values)
    yield from _of_image(rows, serving)
    if not any(optional for _, optional in starts):
        servers = [
            Listener(
                row,
                direct[row].value("port") or _default("port", release),
                direct[row].value("host") or _default("host", release),
                direct[row].start,
                _share(direct[row], options),
            )
            for row, _ in starts
            if row in direct
        ]
        yield from same_port(rows, servers)


def _of_image(rows: Sequence[Statement], commands: Sequence[Command]) -> Iterator[Diagnostic]:
    """An option file and a port of a Dockerfile's server against what it copies and opens."""
    copied = mounts.of_copies(rows)
    made = [_text(row) for row in rows if row.words[0].text not in _NO_RUN]
    lines = [row.words for row in rows if row.words[0].text == "EXPOSE"]
    opened = {word.text.partition("/")[0]: word.location for row in lines for word in row[1:]}
    spans = [_SPAN.fullmatch(port) for port in opened]
    for command in commands:
        if file := command.option_file:
            yield from mounts.lost(file.text, file.location, "", copied, made)
        port = command.value("port")
        if len(commands) != 1 or not opened or not port.isdigit() or not all(spans):
            continue
        ends = [(int(row[1]), int(row[2] or row[1])) for row in spans if row]
        if not any(first <= int(port) <= last for first, last in ends):
            known, place = next(iter(opened.items()))
            what = f"the server listens at {port}, and {', '.join(opened)} is opened"
            fix = f"open {port}, or give --port {known.partition('-')[0]}"
            yield located(place, "EXPOSE", what, fix, rules.PORT_UNREACHED, "warning")


def _text(row: Statement) -> str:
    """The words of a command and the files that it writes, as one of several lines."""
    files = (word.text for _, word in row.redirects)
    return " ".join([*(word.text for word in row.words), *files, "\n"])


def has_functions(text: str) -> bool:
    """Whether the order of a script's lines is not that of its commands."""
    return _FUNCTION.search(text) is not None


def of_lines(
    found: Script,
    commands: Sequence[Sequence[Word]],
    values: Values,
    starts: Callable[[Statement], bool],
) -> Iterator[Diagnostic]:
    """What lines of a script lose: the flags of commands whose servers a statement `starts`, the
    ends of here documents, and variables in the words of its servers."""
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
            what = "begins a command of its own: the server does not get it"
            fix = "end the line before with a backslash, and nothing behind that"
            yield located(first.location, first.text.partition("=")[0], what, fix, rules.LOST_FLAG)


def _ends(found: Script) -> Iterator[Diagnostic]:
    """Ends of here documents that only a reader takes for one."""
    for document in found.here:
        end = document.end.lstrip("\t") if document.strips_tabs else document.end
        place = Location(document.start.line + len(document.text.splitlines()), 1)
        if end.strip() and end.strip() != document.delimiter:
            what = f"{end.strip()} is no end of the here document: it goes on to the script's end"
            fix = f"write {document.delimiter} alone on the line"
            yield located(place, "", what, fix, rules.HERE_DOCUMENT_END)
        elif end != end.strip():
            what = f"{end.strip()} is no end of the here document: spaces stand beside it"
            fix = "write it alone at the beginning of its line, or <<- and tabs before it"
            yield located(place, "", what, fix, rules.HERE_DOCUMENT_END)


def _unset(
    found: Script, commands: Sequence[Sequence[Word]], values: Values
) -> Iterator[Diagnostic]:
    """Variables that nothing sets, asks for or may get elsewhere, beside one of almost the same
    name."""
    words = [word.text for row in found.statements for word in row.words]
    told = {word for word in words if word.isidentifier()}  # as functions are that ask for them
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
                yield located(
                    place, name, what, f"did you mean {near}?", rules.MISSPELT_NAME, "warning"
                )


def _model(command: Command) -> Iterator[Diagnostic]:
    if command.start and command.given and not (command.arguments or command.diagnostics):
        what, fix = "names no model", "write its name or folder behind the command"
        yield located(command.start, "", what, fix, rules.MISSING_MODEL)


def _port(command: Command) -> Iterator[Diagnostic]:
    row = next((row for row in command.given if row.flag.name == "port" and row.value), None)
    if row and row.value:
        yield from wrong_port(row.value.text, row.value.location, row.spelling)


def _files(
    rows: Sequence[Statement], commands: Sequence[Command], values: Values
) -> Iterator[Diagnostic]:
    """Option files that are written twice, or after the server that reads them."""
    first: dict[str, Location] = {}
    last: dict[str, tuple[int, Location]] = {}
    for index, (row, optional) in enumerate(with_branches(rows)):
        place = row.words[0].location
        for sign, word in _outputs(row):
            if optional or not sign.startswith(">"):
                continue
            name = values.expanded(word.text)
            first.setdefault(name, place)
            if sign == ">" and name in last and not _is_read(rows[last[name][0] + 1 : index], name):
                what = f"writes {name} anew: what line {last[name][1].line} wrote is gone"
                yield located(
                    place, "", what, "add to it with >>", rules.FILE_OVERWRITTEN, "warning"
                )
            last[name] = index, place
    for command in commands:
        file = command.option_file
        late = first.get(file.text) if file else None
        if file and late and command.start and late.line > command.start.line:
            what = f"{file.text} is written in line {late.line}, after the server has started"
            yield located(file.location, "", what, "write it before", rules.FILE_LATE, "warning")


def _outputs(row: Statement) -> Sequence[tuple[str, Word]]:
    """The files that a command only writes, each with the sign of how."""
    first, *rest = row.words
    if first.text == "tee":
        sign = ">>" if any(word.text in ("-a", "--append") for word in rest) else ">"
        return [(sign, word) for word in rest if not word.text.startswith("-")]
    return row.redirects if first.text in _WRITERS else ()


def _is_read(rows: Sequence[Statement], name: str) -> bool:
    """Whether something between two commands may have read a file."""
    return any(
        "=" not in row.words[0].text
        and (row.words[0].text not in _ASIDE or any(name in word.text for word in row.words))
        for row in rows
    )


def published(words: Sequence[Word], port: str, host: str) -> Iterator[Diagnostic]:
    """Ports of a container against that of the server in it. `words` stand before the server."""
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
    if port.isdigit() and port not in ports:
        what = f"{', '.join(ports)} of the container is published, and the server listens at {port}"
        fix = f"publish {port}, or give --port {ports[0]}"
        yield located(given[0].location, "--publish", what, fix, rules.PORT_UNREACHED, "warning")
    if host in ("localhost", "127.0.0.1"):
        what = f"the server listens at {host} of the container: what is published reaches nobody"
        fix = "give --host 0.0.0.0"
        yield located(given[0].location, "--publish", what, fix, rules.PORT_UNREACHED, "warning")


def wrong_port(port: str, place: Location, path: str) -> Iterator[Diagnostic]:
    """A number that no port has."""
    if port.isdigit() and int(port[:9]) > _LAST_PORT:
        what, fix = f"{port} is no port", f"give one up to {_LAST_PORT}"
        yield located(place, path, what, fix, rules.FLAG_VALUE)


def same_port(rows: Sequence[Statement], servers: Sequence[Listener]) -> Iterator[Diagnostic]:
    """Servers beside each other on one machine that want the same port."""
    known = {row.statement.words[0].location: row for row in servers}
    running: list[Listener] = []
    for row in rows:
        words = {word.text for word in row.words}
        parts = {part for word in words for part in word.split()}  # of `ssh HOST "pkill ..."` too
        if not parts.isdisjoint(_ENDS):
            running.clear()
        server = known.get(row.words[0].location)
        if not server or not _ELSEWHERE.isdisjoint(word.rpartition("/")[2] for word in words):
            continue
        holder = next((other for other in running if server.clashes(other)), None)
        if holder and server.place:
            line = holder.place.line if holder.place else 0
            what = f"wants port {server.port}, which the server of line {line} has"
            yield located(server.place, "--port", what, "give it another port", rules.PORT_TAKEN)
        elif row.end == "&":
            yield from _same_gpu(server, running)
            running.append(server)


def _share(command: Command, options: Mapping[str, Mapping[str, Any]]) -> float | None:
    file = command.option_file
    given = options.get(file.text.rpartition("/")[2]) if file else None
    share = value_at(given, "kv_cache_config.free_gpu_memory_fraction")
    return share if isinstance(share, float) else None


def _same_gpu(server: Listener, running: Sequence[Listener]) -> Iterator[Diagnostic]:
    """A server on a GPU of another one, where nothing says that they share it."""
    for other in running:
        if (server.share or 1) + (other.share or 1) <= 1:
            continue
        if (both := server.gpus & other.gpus) and server.place and other.place:
            what = f"GPU {min(both)} is that of the server of line {other.place.line} too"
            what, fix = f"{what}, and each takes most of one", "give each GPUs of its own"
            yield located(server.place, _VISIBLE_NAME, what, fix, rules.GPU_SHARED, "warning")
            return


def _default(name: str, release: Release) -> str:
    defaults: Mapping[str, object] = {row.name: row.default for row in release.serve_flags}
    return str(defaults.get(name, ""))
