"""Checks YAML documents that hold more than options: containers, charts, launchers, recipes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, Location, is_misspelling, located
from ..documents import Yaml, merged
from ..facts import hardware
from ..facts.engines import Engine
from ..facts.release import Release
from ..general_rules import DUPLICATE_KEY
from ..rules.context import RuleContext
from .engine import ENGINE_FILE, default_formats, formats, mentions_holder, names_server
from .links import by_file, file_name, on_disk
from .model import ITSELF, Content, Judged, OptionsBlock, Server, Verdict, below, of_named_side
from .read.containers import ContainerCommand, in_documents, object_at
from .read.file import IMAGES, Text, has_base
from .read.launchers import LAUNCHERS
from .read.option_file import (
    COMPOSE,
    DEPLOYMENT,
    EMBEDDED,
    ENGINE,
    KINDS,
    KUBERNETES,
    SURROUNDINGS,
    empty,
    read_embedded,
    read_options,
)
from .read.variables import read_variables
from .rules import MISSPELT_NAME, names, references
from .rules.files import files_of_scripts
from .rules.gpus import gpu_diagnostic, launcher_gpus, rank_diagnostics, world_size
from .rules.model import model_diagnostics, unknown_model_diagnostics
from .rules.names import (
    container_diagnostics,
    container_program_diagnostics,
    graph_diagnostics,
    layout,
    layout_key_diagnostics,
    layout_value_diagnostics,
)
from .rules.options import block_diagnostics, empty_document_diagnostics
from .rules.ports import opened_port_diagnostics, port_number_diagnostics, value_of
from .rules.references import (
    compose_diagnostics,
    reference_diagnostics,
    server_diagnostics,
    service_files,
)
from .rules.variables import unread_variable_diagnostics, variable_diagnostics
from .script_check import (
    check_script,
    content_diagnostics,
    judged_blocks,
    unlifted,
    variables,
    written_contents,
    written_options,
)


def check_yaml(
    source: Text, rule_context: RuleContext, named: int, diagnostics: Sequence[Diagnostic]
) -> Verdict:
    """Checks a YAML file against one release; each variant of a recipe is checked as a recipe."""
    if not has_variants(source.documents, rule_context.release):
        return check_documents(source, rule_context, named, diagnostics)

    def judge(variant: Yaml) -> Verdict:
        return check_documents(
            replace(source, documents=[variant]), rule_context, named, diagnostics
        )

    return check_variants(source.documents[0], judge)


def check_documents(
    source: Text, rule_context: RuleContext, named: int, diagnostics: Sequence[Diagnostic]
) -> Verdict:
    syntax = [row for document in source.documents for row in document.diagnostics]
    content = read_options(source.documents, rule_context.release)
    if content and content.kind == ENGINE and rule_context.role == "agg":
        content.sections = [of_named_side(row, source.path.name) for row in content.sections]
    if content is None or content.kind.startswith(KUBERNETES):
        content = _with_embedded(source, content, rule_context.release)
    servers = [server for row in source.servers for server in row]
    around = list(around_documents(source, content, servers, rule_context))
    if content is None and any(row.rule == MISSPELT_NAME for row in around):
        return Verdict(layout(source.documents[0]), [*syntax, *around], ITSELF)
    if content is None:
        if not _uses_images(source):
            return Verdict(None, syntax)
        found = [*syntax, *diagnostics, *around]
        return Verdict(IMAGES if named else None, found, Judged(images=named))
    kind = content.kind
    judged = Judged(
        len(content.sections),
        images=named,
        variables=tuple(variables(content.sections)),
        unread=(*content.unread, *source.unread),
    )
    judged += Judged(itself=kind not in (ENGINE, *SURROUNDINGS, *KINDS))
    found = [
        *syntax,
        *diagnostics,
        *content_diagnostics(content, rule_context, servers),
        *around,
    ]
    if kind not in SURROUNDINGS and kind not in KINDS:
        found += empty_document_diagnostics(source)
    if content.kind.startswith((KUBERNETES, *KINDS)):
        for commands in source.commands:
            for run in commands:
                verdict = _run(run, source.path, content, rule_context)
                found += verdict.diagnostics
                judged += verdict.judged
        judged = replace(judged, commands=max(judged.commands, len(servers)))
        if content.kind in SURROUNDINGS and (judged.commands or judged.sections):
            kind = KUBERNETES
    if content.kind in KINDS and not judged:
        return Verdict(None, syntax)
    return Verdict(f"{kind}, a template" if source.is_template else kind, found, judged)


def _with_embedded(source: Text, content: Content | None, release: Release) -> Content | None:
    """Adds the options embedded in a file to the options in the file format itself."""
    if not any(isinstance(document.data, dict) for document in source.documents):
        return content  # a top-level list is a data set and starts nothing
    inside = read_embedded(source.documents, release)
    if content is None:
        runs = names_server(source.text) or mentions_holder(source.text)
        return inside or (empty(source.documents) if runs else None)
    if inside:
        known = {(section.path, section.within) for section in content.sections}
        content.sections += (row for row in inside.sections if (row.path, row.within) not in known)
        content.diagnostics += inside.diagnostics
    return content


def around_documents(
    source: Text, content: Content | None, servers: Sequence[Server], rule_context: RuleContext
) -> Iterator[Diagnostic]:
    """Checks what surrounds the engine options of a YAML file: names, models and GPU counts."""
    engine = rule_context.release.engine.name
    first = source.documents[0] if source.documents else Yaml()
    content = content or Content("", document=first)
    if content.kind == DEPLOYMENT:
        return
    if content.kind or servers or layout(content.document):
        yield from variable_diagnostics(read_variables(source.text))
        yield from layout_key_diagnostics(content.document)
        yield from layout_value_diagnostics(content.document)
    if not rule_context.checkpoint:
        section = content.sections[0] if content.sections else OptionsBlock({}, content.document)
        if content.kind and section.document.data is content.document.data:
            yield from model_diagnostics(section.document, section.options, section.path)
        yield from unknown_model_diagnostics(servers)
    ranks: list[tuple[str, int | None]] = []
    for block in content.sections:
        if not block.as_flags:
            ranks.append((block.role or "agg", world_size(block.options, engine)))
    yield from rank_diagnostics(content.document, ranks)
    if any(name in source.text for name in default_formats().families):
        for document in source.documents:
            yield from container_program_diagnostics(document)
    if servers:
        yield from container_diagnostics(source.documents)
        yield from graph_diagnostics(source.documents)
        yield from reference_diagnostics(source.documents, engine)
    else:
        yield from _gpus_beside(content, engine)
    sections = [row for row in content.sections if not row.as_flags]
    options = on_disk(servers, source.path.parent) | by_file(sections)
    scripts = [run.script for row in source.commands for run in row] if servers else []
    for each in scripts:
        options |= written_options(written_contents(each, rule_context))
    services = references.services(content.document, engine)
    options = service_files(services, source.path.parent) | options
    yield from compose_diagnostics(content.document, services, options)
    places = [section.file for section in content.sections if "/" in section.file]
    handed = files_of_scripts(scripts, source.text, places)
    yield from server_diagnostics(servers, options, rule_context, handed=handed)


def _gpus_beside(content: Content, engine: str) -> Iterator[Diagnostic]:
    """Checks the GPUs that chart values and similar files request against the ranks of the
    options."""
    for section in content.sections if content.kind in KINDS else ():
        here = object_at(section.document, section.path)
        around = here.around if here else None
        sizes = [name for name in section.options if str(name).endswith("_parallel_size")]
        world = world_size(section.options, engine) if sizes else None
        gpus = around.total if around else None
        gpus = gpus or launcher_gpus(section.document, section.path)
        if world and gpus and not section.within:
            found = gpu_diagnostic(world, gpus.count, gpus.location, gpus.path)
            if found:  # the request may be for one of several nodes
                yield replace(found, severity="warning")


def _uses_images(source: Text) -> bool:
    """Returns whether a file of this form starts the images that it names."""
    rows = source.documents
    return has_base(source.text) or any(isinstance(x.data, dict | list) for x in rows)


def _run(
    run: ContainerCommand,
    path: Path,
    content: Content,
    rule_context: RuleContext,
) -> Verdict:
    """Checks the commands of a container together with the files that its config maps provide."""
    mounted = {name for server in run.lines for name in server.config_maps.values()}
    given = {
        file_name(section): Content(ENGINE, [section])
        for section in content.sections
        if section.config_map in mounted or not (mounted and section.config_map)
    }
    verdict, _ = check_script(run.script, run.lines, path, given, rule_context)
    return replace(verdict, diagnostics=[run.move(row) for row in verdict.diagnostics])


_BASE, _OVERRIDE, _ZIPPED = "base", "override_", "zip_override_"


def has_variants(documents: Sequence[Yaml], release: Release) -> bool:
    """Returns whether a file is a recipe with variants."""
    data = documents[0].data if len(documents) == 1 else None
    base = data.get(_base(data)) if isinstance(data, Mapping) else None
    return isinstance(base, Mapping) and any(fits(base, release) for _, fits, _ in LAUNCHERS)


def check_variants(document: Yaml, judge: Callable[[Yaml], Verdict]) -> Verdict:
    """Checks each variant of a recipe; a shared error is reported once, at its path in the file."""
    misspelt = list(_misspelt(document))
    found = [*document.diagnostics, *misspelt]
    kind, judged = None, Judged()
    unknown = {row.path.partition(".")[0] for row in misspelt}
    for variant, holders in _variants(document, unknown):
        each = judge(variant)
        kind = kind or each.kind
        judged += each.judged
        found += (replace(row, path=_written(row.path, holders)) for row in each.diagnostics)
    for key in document.data:
        if str(key).startswith(_ZIPPED):
            said = f"{key}: variants of lists"
            judged = replace(judged, unread=(*judged.unread, said))
    return Verdict(kind, list(dict.fromkeys(found)), judged)


def _base(data: Mapping[str, Any]) -> str:
    """Returns the key of the base, which may be misspelled if the file has overrides."""
    if _BASE in data:
        return _BASE
    named = any(str(key).startswith((_OVERRIDE, _ZIPPED)) for key in data)
    return next((str(key) for key in data if named and is_misspelling(str(key), _BASE)), "")


def _variants(document: Yaml, without: Collection[str]) -> Iterator[tuple[Yaml, Mapping[str, str]]]:
    """Yields each variant as a document, with the top-level key of each of its paths."""
    name = _base(document.data)
    base = document.data[name]
    places, above = _inner(document, name)
    yield replace(document, data=base, places=places, diagnostics=[]), above
    for key, given in document.data.items():
        is_one = str(key).startswith(_OVERRIDE) and isinstance(given, Mapping)
        if not is_one or key in without:
            continue
        own, own_above = _inner(document, key)
        variant = Yaml(merged(base, given), {**places, **own, "": places.get("", own[""])})
        yield variant, {**above, **own_above}


def _inner(document: Yaml, key: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the locations below a key by path relative to it, and the key for each path."""
    places = {"": document.locate(key)}
    for path, place in document.places.items():
        if path.startswith(f"{key}."):
            places[path.removeprefix(f"{key}.")] = place
    return places, dict.fromkeys(places, key)


def _written(path: str, above: Mapping[str, str]) -> str:
    """Converts a path in a variant to the path in the file."""
    inner = path
    while inner and inner not in above:
        inner = inner.rpartition(".")[0]
    return below(above[inner], path) if inner else path


def _misspelt(document: Yaml) -> Iterator[Diagnostic]:
    """Reports misspelled names of variants and of their sections; such names are ignored at run
    time."""
    name = _base(document.data)
    layout = names.layout(replace(document, data=document.data[name]))
    for key, given in document.data.items():
        if str(key).startswith((_OVERRIDE, _ZIPPED)) and isinstance(given, Mapping):
            places, _ = _inner(document, key)
            own = Yaml(given, places)
            rows = layout_key_diagnostics(own, layout)
            yield from (replace(row, path=below(key, row.path)) for row in rows)
        elif isinstance(given, Mapping) and key != _BASE and (near := _near(str(key), name)):
            what = "is neither a variant nor a base: nothing below it is read"
            fix = f"did you mean {near}?"
            yield located(document.locate(key), key, what, fix, MISSPELT_NAME)


def _near(key: str, base: str) -> str:
    """Returns the correct name for a misspelled key; the part after the prefix does not change."""
    if key == base:
        return _BASE
    words = key.split("_")
    for mark in (_OVERRIDE, _ZIPPED):
        length = mark.count("_")
        if is_misspelling("_".join(words[:length]), mark.rstrip("_")):
            return f"{mark}{'_'.join(words[length:])}"
    return ""


_MODEL = f"Triton {ENGINE_FILE}"


def check_blocks(source: Text, rule_context: RuleContext, is_told: bool) -> Verdict:
    """Checks documents whose options are the flags of a server by argparse's rules, as words or as
    keys; the kind is `None` if they have none."""
    from .read import engine_options  # not needed for the default engine

    table = rule_context.release
    rows = engine_options.read_options(source, table, is_told)
    if not rows:
        return Verdict(None, [])
    blocks, found = [row for row, _ in rows], list[Diagnostic]()
    for block, holder in rows:
        given = block_diagnostics(block, _placed(block, rule_context))
        for row in unlifted(given, source.text, rule_context):
            if not (source.is_template and row.rule == DUPLICATE_KEY):  # it uses one branch
                found.append(row)
        found += _listening(block, holder, table) if holder else ()
    found += unread_variable_diagnostics(read_variables(source.text), table)
    kind = _kind(source, blocks, table.engine)
    content = Content(kind, blocks, document=source.documents[0])
    servers = in_documents(source.documents, table.engine.name)
    found += around_documents(source, content, servers, rule_context)
    if kind in (f"{table.engine.title} options", _MODEL):
        found += [*source.documents[0].diagnostics, *empty_document_diagnostics(source)]
    found += _no_json(source.text) if kind == _MODEL else ()
    return Verdict(kind, found, judged_blocks(blocks))


def _placed(block: OptionsBlock, rule_context: RuleContext) -> RuleContext:
    """The context of options, with the GPU type that the labels around their container name."""
    name = block.command.gpu if block.command and not rule_context.gpu else None
    return replace(rule_context, gpu=hardware.load(name)) if name else rule_context


def _no_json(text: str) -> Iterator[Diagnostic]:
    """Reports YAML syntax in a file that Triton's backend reads as JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError as fault:
        what = f"is not JSON: {fault.msg[:1].lower()}{fault.msg[1:]}"
        fix = "keep to JSON: double quotes, no comma after the last value, no comments"
        yield located(Location(fault.lineno, fault.colno), "", what, fix)


def _kind(source: Text, given: list[OptionsBlock], engine: Engine) -> str:
    if source.path.name == ENGINE_FILE:
        return _MODEL
    if len(given) == 1 and not given[0].shown and not given[0].as_flags:
        return f"{engine.title} options"
    data = source.documents[0].data
    if any(isinstance(row.data, Mapping) and "apiVersion" in row.data for row in source.documents):
        return KUBERNETES
    if isinstance(data, Mapping) and isinstance(data.get("services"), Mapping):
        return COMPOSE
    if any(word in source.text for word in formats(engine.name).minimum):
        return f"{engine.title} recipe"
    return EMBEDDED


def _listening(given: OptionsBlock, document: Yaml, release: Release) -> Iterator[Diagnostic]:
    """Checks the port of a command in a document."""
    options, command = given.options, given.command
    no_port = formats(release.engine.name).no_port
    if command is None or any(options.get(name) for name in no_port):
        return
    if "port" in options:
        place, written = given.places["port"], given.written["port"]
        yield from port_number_diagnostics(str(options["port"]), place, written)
    if command.is_alone and (here := object_at(document, command.path)):
        own = {value_of(given, "port", release): "--port"}
        yield from opened_port_diagnostics(document, here.data, here.path, own, here.around)
