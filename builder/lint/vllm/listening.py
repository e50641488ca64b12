"""Checks where servers of vLLM listen, against each other and what asks their ports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...diagnostics import Diagnostic
from ...documents import Variable, Yaml
from ...facts.release import Release
from ..read.containers import object_at
from ..read.shell import statements
from ..read.shell_values import with_branches
from ..rules.lines import has_functions
from ..rules.options import Given
from ..rules.ports import Listener, published, same_port, unreached_server, wrong_port

_NO_PORT = ("headless", "uds")  # a server with one of these listens elsewhere


def listening_diagnostics(
    given: Given, document: Yaml | None, release: Release
) -> Iterator[Diagnostic]:
    """What is wrong with the port of a command in a document or a script."""
    options, command = given.arguments.options, given.command
    if command is None or any(options.get(name) for name in _NO_PORT):
        return
    if "port" in options:
        place, written = given.arguments.places["port"], given.arguments.written["port"]
        yield from wrong_port(str(options["port"]), place, written)
    port, host = (_value(given, name, release) for name in ("port", "host"))
    yield from published(command.before, port, host)
    if document is None or not command.container:
        return
    if here := object_at(document, command.container):
        yield from unreached_server(document, here.data, here.path, port, here.around)


def same_port_of_given(every: Sequence[Given], text: str, release: Release) -> Iterator[Diagnostic]:
    """Servers of a script that want the same port of one machine."""
    servers = [
        Listener(
            row.command.statement,
            _value(row, "port", release),
            _listens_at(row, release),
            row.command.statement.words[0].location,
        )
        for row in every
        if row.command and row.command.statement
    ]
    if len(servers) < 2 or has_functions(text):
        return
    rows = statements(text)
    starts = [row.statement for row in servers]
    if not any(optional for row, optional in with_branches(rows) if row in starts):
        yield from same_port(rows, servers)


def _listens_at(given: Given, release: Release) -> str:
    """The host of a server, a variable by its name."""
    return str(given.arguments.options.get("host") or _value(given, "host", release))


def _value(given: Given, name: str, release: Release) -> str:
    """The value of an option, or that which it has by itself; nothing where neither is known."""
    read = given.arguments
    may_differ = read.is_open or given.is_extended or "config" in read.options
    default = "" if may_differ else release.server_options[name]["default"]
    value = read.options.get(name, default)
    return "" if isinstance(value, Variable) else str(value)
