"""Finds the addresses on which vLLM servers listen, and the commands that start them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...diagnostics import Diagnostic
from ...documents import Variable, Yaml
from ...facts import engines
from ...facts.release import Release
from ..engine import VLLM
from ..model import Word
from ..read.containers import object_at
from ..rules.flags import Given
from ..rules.ports import Launch, unreached_server, wrong_port

_NO_PORT = ("headless", "uds")  # with one of these, a server does not listen on a port


def listening_diagnostics(
    given: Given, document: Yaml | None, release: Release
) -> Iterator[Diagnostic]:
    """Checks the port of a command in a document or a script."""
    options, command = given.arguments.options, given.command
    if command is None or any(options.get(name) for name in _NO_PORT):
        return
    if "port" in options:
        place, written = given.arguments.places["port"], given.arguments.written["port"]
        yield from wrong_port(str(options["port"]), place, written)
    if document is None or not command.container:
        return
    if here := object_at(document, command.container):
        port = _value(given, "port", release)
        yield from unreached_server(document, here.data, here.path, port, here.around)


def launches(every: Sequence[Given], release: Release) -> Iterator[Launch]:
    """The servers that the statements of a script start."""
    for row in every:
        if row.command is None or row.command.statement is None:
            continue
        statement, options = row.command.statement, row.arguments.options
        host = str(options.get("host") or _value(row, "host", release))
        share = options.get("gpu_memory_utilization")
        yield Launch(
            (statement,),
            row.command.before,
            statement.words[0].location,
            _value(row, "port", release),
            host,
            str(options.get("port", "")),
            option_file(row),
            row.arguments.model,
            _number(share),
        )


def option_file(given: Given) -> Word | None:
    """The configuration file that a command reads."""
    name = engines.load(VLLM).option_file_flag
    file = given.arguments.options.get(name)
    if not isinstance(file, str) or isinstance(file, Variable):
        return None
    return Word(file, given.arguments.places[name], True)


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _value(given: Given, name: str, release: Release) -> str:
    """The value of an option or its default; empty if neither is known."""
    read = given.arguments
    may_differ = read.is_open or given.is_extended or "config" in read.options
    default = "" if may_differ else release.server_options[name]["default"]
    value = read.options.get(name, default)
    return "" if isinstance(value, Variable) else str(value)
