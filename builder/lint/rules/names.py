"""Checks names that a file only means: programs, sections, keys, variables and lost flags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise
from typing import Any

from ... import credentials
from ...diagnostics import (
    Diagnostic,
    Location,
    closest,
    is_misspelling,
    located,
    nearest,
    of_same_words,
)
from ...documents import Variable, Yaml, value_at
from ...facts.release import Release
from ...general_rules import CREDENTIAL, UNKNOWN_KEY, UNKNOWN_VALUE, VALUE_TYPE, Rule
from ...rules import flags as server_flags
from ..engine import (
    WorkerFlags,
    default_formats,
    formats,
    rank_launcher,
    surroundings,
    worker_flags,
)
from ..model import ROLES, OptionsBlock, Server, Statement, Word, below, is_open, role_of
from ..read.commands import starts_server
from ..read.containers import GPU, SIDE, command_keys, environment, objects, words_of
from ..read.shell import Script, statements
from ..read.shell_values import Values, with_branches
from ..read.yaml_text import inside
from . import MISSPELT_NAME, UNKNOWN_FLAG, starts
from .files import command_path_diagnostics, file_order_diagnostics, image_file_diagnostics
from .jobs import mpi_diagnostics
from .ports import (
    Launch,
    container_port_diagnostics,
    launches,
    port_number_diagnostics,
    published_port_diagnostics,
    shared_port_diagnostics,
)

HERE_DOCUMENT_END = Rule(
    "here-document-end",
    "The line that should end a here document does not, so that it swallows commands.",
)
LOST_FLAG = Rule(
    "lost-flag", "A flag stands outside of the command that it is meant for, and is lost."
)
MISSING_MODEL = Rule("missing-model", "A server is started without a model.")

_RESOURCES = ("limits", "requests", "claims")


def container_diagnostics(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Checks the resources and ports of the containers in a manifest."""
    yield from resource_diagnostics(documents)
    yield from container_port_diagnostics(documents)
    for document in documents:
        for data, path, *_ in objects(document):
            for name, text, within in environment(data):
                where = below(path, within)
                yield from _credential_diagnostics(name, text, document.locate(where), where)


def _credential_diagnostics(
    name: str, text: str, place: Location, path: str
) -> Iterator[Diagnostic]:
    """Reports a value of a variable that has the form of a credential."""
    if text and any(credentials.found(text, by_name=False)):
        what, fix = f"{name} holds a credential in clear", "take it from a secret, and revoke it"
        yield located(place, path, what, fix, CREDENTIAL, "warning")


def resource_diagnostics(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Reports misspelt `limits` keys and misspelt GPU resources of containers."""
    for document in documents:
        for path, place in document.places.items():
            above, _, key = path.rpartition(".resources.")
            if above and key not in _RESOURCES and (near := closest(key, _RESOURCES)):
                what = "is not part of a container's resources: nothing below it is requested"
                yield located(place, path, what, f"did you mean {near}?", MISSPELT_NAME)
            above, _, key = path.partition(".limits.")
            if key and key != GPU and not above.endswith(".limits") and closest(key, [GPU]):
                what, fix = "is not a resource of a node", f"did you mean {GPU}?"
                yield located(place, path, what, fix, MISSPELT_NAME)


def container_program_diagnostics(document: Yaml) -> Iterator[Diagnostic]:
    """Reports container commands whose program is a misspelt server command."""
    for data, path, *_ in objects(document):
        single = []
        for key in command_keys(data):
            for where, word in words_of(document, data, path, key, _has_words):
                if not _has_words(word.text):
                    single.append(word)
                    continue
                for found in program_diagnostics(statements(word.text)):
                    place = inside(document, where, word.text, found.location)
                    yield replace(found, location=place)
        yield from program_diagnostics([Statement(tuple(single), "")])


def _has_words(text: str) -> bool:
    return re.search(r"\s", text.strip()) is not None


NAMING = re.compile(r"--?(?:[\w-]*name|network|image|tag|label|[fhJlt])")  # their value is a name


def program_diagnostics(rows: Iterable[Statement]) -> Iterator[Diagnostic]:
    """Reports commands whose program is a misspelt server or rank launcher."""
    record, launcher = default_formats(), rank_launcher()
    for row in rows:
        words = [word.text for word in row.words]
        names = [word.rpartition("/")[2] for word in words]
        is_lost = any(word.partition("=")[0] in record.server_flags for word in words)
        is_lost = is_lost and not set(names) & {*record.programs}
        for word, last, following in zip(row.words, ["", *words], [*words[1:], ""], strict=False):
            is_own = "/" in word.text  # a user's wrapper script
            is_right = word.text in record.programs or NAMING.fullmatch(last)
            if is_own or "-" not in word.text or is_right:
                continue
            starts = last in ("", launcher) or (is_lost and not following.startswith("-"))
            if starts and is_misspelling(word.text, record.program):
                yield _program_diagnostic(word, record.program)
            elif is_misspelling(word.text, launcher):
                yield _program_diagnostic(word, launcher)


def _program_diagnostic(word: Word, near: str) -> Diagnostic:
    what, fix = f"no program is called {word.text}", f"did you mean {near}?"
    return located(word.location, word.text, what, fix, MISSPELT_NAME)


def layout(document: Yaml) -> str:
    """The name of the launcher format that a document has by its keys; one key may be misspelt."""
    data = document.data
    if not isinstance(data, Mapping):
        return ""
    for name, row in surroundings()["layouts"].items():
        if sum(key in data for key in row["marks"]) >= len(row["marks"]) - 1:
            return str(name)
    return ""


def layout_key_diagnostics(document: Yaml, name: str = "") -> Iterator[Diagnostic]:
    """Reports misspelt keys of a launcher's file, which the launcher ignores. For a part of such a
    file, `name` gives the layout."""
    name = name or layout(document)
    if not name:
        return
    for path, known in surroundings()["layouts"][name]["keys"].items():
        inside = value_at(document.data, path) if path else document.data
        if not isinstance(inside, Mapping):
            continue
        left = [other for other in known if other not in inside]
        for key in inside:
            if key in known or not (near := closest(str(key), left) or _of_role(key, left)):
                continue
            where = below(path, str(key))
            what = "is not a section of such a file: nothing below it is read"
            if not isinstance(inside[key], Mapping):
                what = "is not a key of such a file and is not read"
            fix = f"did you mean {near}?"
            yield located(document.locate(where), where, what, fix, MISSPELT_NAME)


def _of_role(key: Any, names: Iterable[str]) -> str | None:
    """Another name for the same role: `gen` for `generation`."""
    role = role_of(str(key))
    return next((name for name in names if role and role == role_of(name)), None)


def layout_value_diagnostics(document: Yaml) -> Iterator[Diagnostic]:
    """Reports values in a launcher's file that its keys do not accept."""
    row = surroundings()["layouts"].get(layout(document), {})
    for path, allowed in row.get("values", {}).items():
        value = value_at(document.data, path)
        if not isinstance(value, str) or isinstance(value, Variable) or value in allowed:
            continue
        if near := closest(value, allowed):
            what, place = f"{value[:60]} is not an allowed value", document.locate(path)
            yield located(place, path, what, f"did you mean {near}?", UNKNOWN_VALUE)
    for path in row.get("counts", ()):
        value = value_at(document.data, path)
        if isinstance(value, Variable | Mapping | list) or _is_count(value):
            continue
        if value is not None and not is_open(str(value)):
            what, place = f"is {str(value)[:60]}", document.locate(path)
            yield located(place, path, what, "give a whole number above zero", VALUE_TYPE)


def _is_count(value: Any) -> bool:
    text = str(value).strip()
    return text.isascii() and text.isdigit() and text.strip("0") != ""


_NAME = re.compile(r"(?<!\\)\$\{?(\w+)\}?")
_FUNCTION = re.compile(r"^\s*(?:function\s+\w+|[\w-]+\s*\(\s*\)\s*\{?)", re.M)
# Variables that the shell or the caller of a script sets.
_OF_SHELL = re.compile(
    r"SLURM_\w+|[A-Z]*(?:HOME|USER|PATH|HOSTNAME|HOST|PWD|SHELL|UID|PID|RANDOM|TMPDIR|LINENO|SECONDS)"
)
_WITH_DEFAULT = re.compile(r"\$\{(\w+):?[-?=+]")  # has a default or an error message
_SOURCES = frozenset(("source", "."))
# The shortest name to compare, to avoid chance matches; one letter more if a script is sourced.
_SHORTEST = 4


def script_diagnostics(
    found: Script,
    commands: Sequence[OptionsBlock],
    release: Release,
    options: Mapping[str, Mapping[str, Any]],
) -> Iterator[Diagnostic]:
    """Runs all checks on a script. `commands` are its server commands in order. `options` holds the
    options of each file that the script writes, by the last part of its name."""
    for word in chain.from_iterable(row.words for row in found.statements):
        name, _, text = word.text.partition("=")
        yield from _credential_diagnostics(name, text, word.location, name)
    words = [row.command.words for row in commands if row.command]
    yield from _lost_flag_diagnostics(found.statements)
    yield from _here_document_diagnostics(found)
    yield from _unset_variable_diagnostics(found, words, found.values)
    serving = [row for row in commands if row.subcommand in ("", server_flags.SERVE)]
    for command in serving:
        yield from _missing_model_diagnostics(command)
        if "port" in command.options:
            text, place = str(command.options["port"]), command.places["port"]
            yield from port_number_diagnostics(text, place, command.written["port"])
        if command.command and command.command.statements:
            yield from mpi_diagnostics(command.command.before, command, options, release)
    is_complete = all(row.command and len(row.command.statements) == 1 for row in commands)
    yield from launch_diagnostics(
        found, list(launches(serving, release, options)), found.values, is_complete
    )


def launch_diagnostics(
    found: Script, launches: Sequence[Launch], values: Values, is_complete: bool
) -> Iterator[Diagnostic]:
    """Checks the context of a script's server commands, for every engine. `is_complete` means that
    the script starts only these servers."""
    rows = found.statements
    for launch in launches:
        own = {launch.port: "--port"}
        yield from published_port_diagnostics(launch.before, own, launch.host)
        yield from starts.docker_diagnostics(
            launch.before, values.words(launch.statements[-1].words)
        )
        first = launch.statements[0].words[0].location.line
        written = {values.expanded(row.name) for row in found.here if row.start.line <= first}
        paths = [word for word in (launch.option_file, launch.model) if word]
        yield from command_path_diagnostics(launch.statements, launch.before, paths, written)
    if not is_complete or has_functions(found.text):
        return
    yield from file_order_diagnostics(rows, launches, values)
    yield from image_file_diagnostics(rows, launches)
    direct = [row for row in launches if len(row.statements) == 1]
    statements = {row.statements[0] for row in launches}
    if not any(optional for row, optional in with_branches(rows) if row in statements):
        yield from shared_port_diagnostics(rows, direct)


def has_functions(text: str) -> bool:
    """Whether a script has functions, so its commands may run in another order than its lines."""
    return _FUNCTION.search(text) is not None


def _lost_flag_diagnostics(rows: Sequence[Statement]) -> Iterator[Diagnostic]:
    """Reports flags on a line of their own behind the line that starts a server."""
    elements: set[Word] = set()
    for earlier, row in pairwise(rows):
        elements.update(earlier.elements or ())
        first = row.words[0]
        is_flag = first.text.startswith("--") and first not in elements
        if is_flag and earlier.end == "\n" and starts_server(earlier):
            what = "starts a new command: the server does not get it"
            fix = "end the previous line with a backslash and nothing after it"
            yield located(first.location, first.text.partition("=")[0], what, fix, LOST_FLAG)


def _here_document_diagnostics(found: Script) -> Iterator[Diagnostic]:
    """Reports lines that look like the end of a here document but do not end it."""
    for document in found.here:
        end, word = document.end, document.delimiter
        if document.strips_tabs:
            end = end.lstrip("\t")
        what = ""
        if end.strip() and end.strip() != word:
            what = f"{end.strip()} does not end the here document: it goes on to the script's end"
            fix = f"write {word} alone on the line"
        elif end != end.strip():
            what = f"{end.strip()} does not end the here document: there are spaces around it"
            fix = "write it alone at the start of the line, or use <<- with tabs before it"
        if what:
            place = Location(document.start.line + len(document.text.splitlines()), 1)
            yield located(place, "", what, fix, HERE_DOCUMENT_END)


def _unset_variable_diagnostics(
    found: Script, commands: Sequence[Sequence[Word]], values: Values
) -> Iterator[Diagnostic]:
    """Reports variables that are never set if a variable with a similar name is."""
    skipped = set()  # such as arguments of functions
    shortest = _SHORTEST
    for word in chain.from_iterable(row.words for row in found.statements):
        skipped.update(_WITH_DEFAULT.findall(word.text))
        if word.text.isidentifier():
            skipped.add(word.text)
    if any(row.words[0].text in _SOURCES for row in found.statements):
        shortest += 1
    places = [(word.text, word.location) for word in chain.from_iterable(commands)]
    for document in found.here:
        if not document.quoted:
            for number, line in enumerate(document.text.splitlines(), document.start.line):
                places.append((line, Location(number, 1)))
    for text, place in places:
        for name in _NAME.findall(text):
            is_set = name in values.names or name.isdigit() or _OF_SHELL.fullmatch(name)
            if name in skipped or is_set or len(name) < shortest:
                continue
            skipped.add(name)
            if near := closest(name, values.names):
                what = f"nothing here sets {name}"
                yield located(place, name, what, f"did you mean {near}?", MISSPELT_NAME, "warning")


def _missing_model_diagnostics(command: OptionsBlock) -> Iterator[Diagnostic]:
    if command.start and command.flags and not (command.arguments or command.diagnostics):
        what, fix = "names no model", "write its name or folder behind the command"
        yield located(command.start, "", what, fix, MISSING_MODEL)


def request_diagnostics(text: str, release: Release) -> Iterator[Diagnostic]:
    """Reports arguments that the request class lacks in all releases; the program fails there."""
    record = formats(release.engine.name)
    if not record.request_class or record.request_class not in text:
        return
    from ..read import python  # not needed for most files

    api = python.Api(release.engine.module, (record.request_class,))
    sections = python.sections(text, release, api=api)
    for section in sections or ():
        for name in section.options:
            # Here the first positional argument is not a model.
            if name in record.request_names or name == "model" or name.startswith("_"):
                continue  # private parameters are not in the list
            what = f"is not an argument of {record.request_class}"
            fix = record.request_words.get(name) or nearest(name, record.request_names)
            yield located(section.document.locate(name), name, what, fix, UNKNOWN_KEY)


def worker_flag_diagnostics(worker: Server, release: Release) -> Iterator[Diagnostic]:
    """Reports misspelt flags of a program and flags that other programs use for its options."""
    table = worker_flags(worker.program)
    if table.holds and next((word for word, _ in worker.tasks), "") not in table.holds:
        return
    flags = (*table.options, *table.json, *table.others)
    for word, place in worker.texts:
        name = word.partition("=")[0].replace("--no-", "--", 1)
        by_path = table.prefix is not None and name.startswith(table.prefix)
        if not name.startswith("--") or name in flags or by_path:
            continue
        what = f"{name} is not a flag of {worker.program}"
        near = next((flag for flag in flags if is_misspelling(name, flag)), None)
        if own := [flag for flag in _of_other_programs(name, table, release) if flag in flags]:
            yield located(place, worker.path, what, f"did you mean {own[0]}?", UNKNOWN_FLAG)
        elif near := near or of_same_words(name, flags):
            yield located(place, worker.path, what, f"did you mean {near}?", UNKNOWN_FLAG)


def _of_other_programs(name: str, table: WorkerFlags, release: Release) -> list[str]:
    """The program's own flags for the option that another program's flag sets."""
    if name in default_formats().file_flags:
        return list(default_formats().file_flags)
    server = server_flags.spellings(release).get(name)
    set_here = {server_flags.option_path(server, release)} if server else set()
    set_here |= {worker_flags(other).options.get(name) for other in default_formats().flag_files}
    return [flag for flag, option in table.options.items() if option in set_here]


def task_diagnostics(worker: Server) -> Iterator[Diagnostic]:
    """Reports a tool's task whose name is misspelt."""
    for word, place in islice(worker.tasks, 1):
        modes = worker_flags(worker.program).modes
        if word not in modes and (near := closest(word, modes)):
            what = f"{word} is not a task of {worker.program}"
            yield located(place, worker.path, what, f"did you mean {near}?", UNKNOWN_VALUE)


def graph_diagnostics(documents: Sequence[Yaml]) -> Iterator[Diagnostic]:
    """Reports misspelt keys and roles of the services in Dynamo graphs, which the operator
    ignores."""
    keys = surroundings()["graph_services"]["names"]
    for document in documents:
        for data, path, *_ in objects(document):
            side = data.get(SIDE)
            if isinstance(side, str) and side not in ROLES and (near := closest(side, ROLES)):
                where = below(path, SIDE)
                what, fix = f"{side} is not a role of a service", f"did you mean {near}?"
                yield located(document.locate(where), where, what, fix, UNKNOWN_VALUE)
            if path.rpartition(".")[0] != "spec.services":
                continue
            left = [row for row in keys if row not in data]
            for key in data:
                if key not in keys and (near := closest(str(key), left)):
                    where = below(path, str(key))
                    what, fix = "is not a key of a service in a graph", f"did you mean {near}?"
                    yield located(document.locate(where), where, what, fix, MISSPELT_NAME)
