"""Checks a vLLM file: decides whether it is one, finds its release and validates its options."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from ...diagnostics import Diagnostic, Location, located
from ...documents import Yaml
from ...facts import engines, release
from ...facts.release import Release
from ...general_rules import DUPLICATE_KEY, UNKNOWN_KEY, VALUE_TYPE
from ...rules.context import RuleContext
from ..engine import ENGINE_FILE, VLLM, formats, mentions_server
from ..links import file_in, on_disk
from ..model import Judged, Named, Verdict, Word
from ..read.charts import COMPOSE, EMBEDDED
from ..read.containers import in_documents
from ..read.file import Text
from ..read.forms import DOCKERFILE, PYTHON, SCRIPT
from ..read.option_file import KUBERNETES
from ..read.python_api import KIND
from ..read.shell import read_script
from ..read.shell_values import Values
from ..read.yaml_text import variable_paths
from ..releases import naming, stating
from ..rules import FLAG_VALUE, UNKNOWN_FLAG, compose
from ..rules.compose import compose_diagnostics, service_files
from ..rules.files import of_scripts
from ..rules.flags import Given, given_diagnostics, model_of
from ..rules.gpus import rank_diagnostics, ranks
from ..rules.lines import launch_diagnostics, of_lines
from ..rules.names import misspelt_resources
from ..rules.options import of_empty_documents
from ..rules.references import reference_diagnostics
from ..rules.requests import request_diagnostics
from ..rules.servers import server_diagnostics
from ..rules.variables import unread_variables, variable_diagnostics
from .files import hits, is_configuration, of_document, of_program, of_script, told
from .listening import launches, listening_diagnostics, option_file

__all__ = [
    "is_alone",
    "is_former",
    "is_options",
    "naming",
    "option_files",
    "stating",
    "told_lines",
    "validate",
]

OPTIONS = "vLLM options"
MODEL = f"Triton {ENGINE_FILE}"
RECIPE = "vLLM recipe"


def option_files(source: Text) -> Iterator[tuple[Word, Named | None]]:
    """The configuration files that the commands of a file read, each with the command's model."""
    flag = f"--{engines.load(VLLM).option_file_flag}"
    for row, _ in _given(source, _newest(), is_told=False) if flag in source.text else ():
        if row.as_flags and (file := option_file(row)):
            yield file, model_of(row.arguments)


def is_options(source: Text, is_told: bool = False) -> bool:
    """Whether a file contains only options, of any engine."""
    return len(source.documents) == 1 and (
        _is_model(source) or is_configuration(source.documents[0].data, _newest(), is_told)
    )


def is_alone(source: Text, table: Release, is_told: bool) -> bool:
    """Whether an option file belongs to vLLM and not to the engine of `table`. The engine that
    knows more of the options wins. `is_told` means that no other engine is requested."""
    if not is_options(source, is_told):
        return False
    if is_told:
        return True
    data = source.documents[0].data
    known = sum(str(key) in table.top_level for key in data)
    own = hits(data, _newest())
    is_dashed = any("-" in str(key) for key in data)  # only vLLM uses dashes
    return _is_model(source) or own > known or (is_dashed and own == known)


def _is_model(source: Text) -> bool:
    """Whether a file is the model file of Triton's vLLM backend."""
    data = source.documents[0].data if source.documents else None
    is_named = source.path.name == ENGINE_FILE
    return is_named and isinstance(data, Mapping) and "model" in data


@lru_cache(maxsize=1)
def _newest() -> Release:
    engine = engines.load(VLLM)
    return release.load(release.newest_stable(engine), engine=engine)


def validate(source: Text, rule_context: RuleContext, is_told: bool) -> Verdict:
    """Checks one file against one release; the kind is `None` if it has nothing of vLLM."""
    table = rule_context.release
    rows = _given(source, table, is_told)
    if not rows:
        return Verdict(None, [])
    given = [row for row, _ in rows]
    lifted = {rule for rule, variable in formats().lifted.items() if variable in source.text}
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
    held = [(row.role, ranks(row.arguments.options, table)) for row in given if row.role]
    if held:
        found += rank_diagnostics(source.documents[0], held)
    kind = _kind(source, given)
    if kind in (OPTIONS, MODEL):
        found += [*source.documents[0].diagnostics, *of_empty_documents(source)]
    if kind == MODEL:
        found += _no_json(source.text)
    return Verdict(kind, found, _judged(given))


def is_former(row: Diagnostic) -> bool:
    """Whether an unknown option or value comes from a release before the first table. Options may
    have been removed since then, and values may have had another form."""
    keys = [key.lstrip("-").replace("-", "_") for key in row.path.split(".")]
    ends = {".".join(keys[depth:]) for depth in range(len(keys))}
    if row.rule in (FLAG_VALUE, VALUE_TYPE):
        return not ends.isdisjoint(formats().former_values)
    is_unknown = row.rule in (UNKNOWN_KEY, UNKNOWN_FLAG)
    return is_unknown and not ends.isdisjoint(formats().former)


def _given(source: Text, table: Release, is_told: bool) -> list[tuple[Given, Yaml | None]]:
    """The options of a file, each with the document that contains it."""
    if source.form in (SCRIPT, DOCKERFILE):
        return [(row, None) for row in of_script(source.text, table)]
    if source.form == PYTHON:
        return [(row, None) for row in of_program(source.text, table)]
    return [
        (row, document)
        for document in source.documents
        for row in of_document(document, source.text, table, source.path.name, is_told)
    ]


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
    found = read_script(source.text)
    values = Values(found.statements)
    rows = [row for row in given if row.command and not row.command.is_part]
    starts = [row.command.statement for row in rows if row.command]
    if not mentions_server(source.text):
        words = [row.command.words for row in given if row.command]
        yield from of_lines(found, words, values, starts.__contains__)
    servers = list(launches(rows, rule_context.release))
    yield from launch_diagnostics(found, servers, values, len(servers) == len(rows))


def _of_containers(
    source: Text, given: Sequence[Given], rule_context: RuleContext
) -> Iterator[Diagnostic]:
    """Checks the servers that containers start."""
    servers = in_documents(source.documents, VLLM)
    if not servers:
        return
    folder, first = source.path.parent, source.documents[0]
    options: dict[str, Mapping[str, Any]] = dict(on_disk(servers, folder))
    for row in given:
        if row.within and not row.as_flags:
            options[file_in(row.within)] = row.arguments.options
    yield from misspelt_resources(source.documents)
    yield from reference_diagnostics(source.documents, VLLM)
    if services := compose.services(first, VLLM):
        options = service_files(services, folder) | options
        yield from compose_diagnostics(first, services, options, folder)
    handed = of_scripts((), source.text)
    yield from server_diagnostics(servers, options, rule_context, handed=handed)


def told_lines(source: Text) -> Iterator[int]:
    """The line numbers of documentation texts."""
    for document in source.documents:
        for path, text in told(document.data):
            start = (document.blocks.get(path) or document.locate(path)).line
            yield from range(start, start + text.count("\n") + 1)


def _judged(given: list[Given]) -> Judged:
    commands_ = sum(row.as_flags for row in given)
    variables = tuple(path for row in given for path in variable_paths(row.arguments.options))
    return Judged(len(given) - commands_, commands_, variables=variables)


def _kind(source: Text, given: list[Given]) -> str:
    if source.form in (SCRIPT, DOCKERFILE):
        return source.form
    if source.form == PYTHON:
        return KIND
    if source.path.name == ENGINE_FILE:
        return MODEL
    if len(given) == 1 and not given[0].path and not given[0].as_flags:
        return OPTIONS
    data = source.documents[0].data
    if any(isinstance(row.data, Mapping) and "apiVersion" in row.data for row in source.documents):
        return KUBERNETES
    if isinstance(data, Mapping) and isinstance(data.get("services"), Mapping):
        return COMPOSE
    if any(word in source.text for word in formats().minimum):
        return RECIPE
    return EMBEDDED
