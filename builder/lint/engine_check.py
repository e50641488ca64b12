"""Checks a file for an engine by its record: its options, and everything around its servers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..diagnostics import Diagnostic, Location, located
from ..documents import Variable, Yaml
from ..facts.engines import Engine
from ..facts.release import Release
from ..general_rules import DUPLICATE_KEY
from ..rules.context import RuleContext
from ..rules.rule_inputs import as_number
from .engine import ENGINE_FILE, formats, mentions_server
from .links import file_in, on_disk
from .model import Judged, Verdict
from .read.charts import COMPOSE, EMBEDDED
from .read.containers import in_documents, object_at
from .read.engine_options import option_file, read_options
from .read.file import Text
from .read.forms import DOCKERFILE, PYTHON, SCRIPT
from .read.option_file import KUBERNETES
from .read.python_api import KIND
from .read.yaml_text import variable_paths
from .rules import names, references
from .rules.files import of_scripts
from .rules.gpus import rank_diagnostics, world_size
from .rules.names import launch_diagnostics, of_lines, request_diagnostics
from .rules.options import Given, given_diagnostics, of_empty_documents
from .rules.ports import Launch, unreached_server, wrong_port
from .rules.references import (
    compose_diagnostics,
    reference_diagnostics,
    server_diagnostics,
    service_files,
)
from .rules.variables import unread_variables, variable_diagnostics

MODEL = f"Triton {ENGINE_FILE}"


def validate(source: Text, rule_context: RuleContext, is_told: bool) -> Verdict:
    """Checks one file against one release; the kind is `None` if it has nothing of vLLM."""
    table = rule_context.release
    rows = read_options(source, table, is_told)
    if not rows:
        return Verdict(None, [])
    given, record = [row for row, _ in rows], formats(table.engine.name)
    lifted = {rule for rule, variable in record.lifted.items() if variable in source.text}
    if source.is_template:  # which uses only one of its branches
        lifted.add(DUPLICATE_KEY)
    every = (row for each in given for row in given_diagnostics(each, rule_context))
    found = [row for row in every if row.rule not in lifted]
    found += unread_variables(source.text, table)
    for row, holder in rows:
        found += listening_diagnostics(row, holder, table)
    if source.form == PYTHON:
        found += request_diagnostics(source.text, table)
    if source.form in (SCRIPT, DOCKERFILE):
        found += _of_script(source, given, rule_context)
    else:
        found += _of_containers(source, given, rule_context)
    found += variable_diagnostics(source.text)
    held = []
    for row in given:
        if row.role:
            held.append((row.role, world_size(row.arguments.options, table.engine.name)))
    if held:
        found += rank_diagnostics(source.documents[0], held)
    options, kind = f"{table.engine.title} options", _kind(source, given, table.engine)
    if kind in (options, MODEL):
        found += [*source.documents[0].diagnostics, *of_empty_documents(source)]
    if kind == MODEL:
        found += _no_json(source.text)
    return Verdict(kind, found, _judged(given))


def _no_json(text: str) -> Iterator[Diagnostic]:
    """Reports YAML syntax in a file that Triton's backend reads as JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError as fault:
        what = f"is not JSON: {fault.msg[:1].lower()}{fault.msg[1:]}"
        fix = "keep to JSON: double quotes, no comma after the last value, no comments"
        yield located(Location(fault.lineno, fault.colno), "", what, fix)


def _of_script(
    source: Text, given: Sequence[Given], rule_context: RuleContext
) -> Iterator[Diagnostic]:
    """Checks the servers of a script; lines are checked once for all engines."""
    found, values = source.script, source.script.values
    rows = [row for row in given if row.command and not row.command.is_part]
    starts = [row.command.statement for row in rows if row.command]
    if not mentions_server(source.text):
        words = [row.command.words for row in given if row.command]
        yield from of_lines(found, words, values, starts.__contains__)
    servers = list(_launches(rows, rule_context.release))
    yield from launch_diagnostics(found, servers, values, len(servers) == len(rows))


def _of_containers(
    source: Text, given: Sequence[Given], rule_context: RuleContext
) -> Iterator[Diagnostic]:
    """Checks the servers that containers start."""
    engine = rule_context.release.engine.name
    servers = in_documents(source.documents, engine)
    if not servers:
        return
    folder, first = source.path.parent, source.documents[0]
    options: dict[str, Mapping[str, Any]] = dict(on_disk(servers, folder))
    for row in given:
        if row.within and not row.as_flags:
            options[file_in(row.within)] = row.arguments.options
    yield from names.misspelt_resources(source.documents)
    yield from reference_diagnostics(source.documents, engine)
    if services := references.services(first, engine):
        options = service_files(services, folder) | options
        yield from compose_diagnostics(first, services, options)
    handed = of_scripts((), source.text)
    yield from server_diagnostics(servers, options, rule_context, handed=handed)


def _judged(given: list[Given]) -> Judged:
    commands_ = sum(row.as_flags for row in given)
    variables = tuple(path for row in given for path in variable_paths(row.arguments.options))
    return Judged(len(given) - commands_, commands_, variables=variables)


def _kind(source: Text, given: list[Given], engine: Engine) -> str:
    if source.form in (SCRIPT, DOCKERFILE):
        return source.form
    if source.form == PYTHON:
        return KIND
    if source.path.name == ENGINE_FILE:
        return MODEL
    if len(given) == 1 and not given[0].path and not given[0].as_flags:
        return f"{engine.title} options"
    data = source.documents[0].data
    if any(isinstance(row.data, Mapping) and "apiVersion" in row.data for row in source.documents):
        return KUBERNETES
    if isinstance(data, Mapping) and isinstance(data.get("services"), Mapping):
        return COMPOSE
    if any(word in source.text for word in formats(engine.name).minimum):
        return f"{engine.title} recipe"
    return EMBEDDED


def listening_diagnostics(
    given: Given, document: Yaml | None, release: Release
) -> Iterator[Diagnostic]:
    """Checks the port of a command in a document or a script."""
    options, command = given.arguments.options, given.command
    no_port = formats(release.engine.name).no_port
    if command is None or any(options.get(name) for name in no_port):
        return
    if "port" in options:
        place, written = given.arguments.places["port"], given.arguments.written["port"]
        yield from wrong_port(str(options["port"]), place, written)
    if document is None or not command.container:
        return
    if here := object_at(document, command.container):
        port = _value_of(given, "port", release)
        yield from unreached_server(document, here.data, here.path, port, here.around)


def _launches(every: Sequence[Given], release: Release) -> Iterator[Launch]:
    """The servers that the statements of a script start."""
    for row in every:
        if row.command is None or row.command.statement is None:
            continue
        statement, options = row.command.statement, row.arguments.options
        host = str(options.get("host") or _value_of(row, "host", release))
        share = options.get(formats(release.engine.name).memory_option)
        yield Launch(
            (statement,),
            row.command.before,
            statement.words[0].location,
            _value_of(row, "port", release),
            host,
            str(options.get("port", "")),
            option_file(row, release.engine),
            row.arguments.model,
            as_number(share),
        )


def _value_of(given: Given, name: str, release: Release) -> str:
    """The value of an option or its default; empty if neither is known."""
    read = given.arguments
    may_differ = read.is_open or given.is_extended
    may_differ |= release.engine.option_file_flag in read.options
    default = "" if may_differ else release.server_options[name]["default"]
    value = read.options.get(name, default)
    return "" if isinstance(value, Variable) else str(value)
