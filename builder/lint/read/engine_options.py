"""Reads the options of an engine from commands, configuration files and launcher files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

from ...diagnostics import Location
from ...documents import START, Variable, Yaml, value_at
from ...facts import engines
from ...facts import release as releases
from ...facts.engines import Engine
from ...facts.release import Release
from ..arguments.argparse import (
    find_flag,
    known_flags,
    of_mapping,
    read_arguments,
    spelled,
)
from ..engine import ENGINE_FILE, Formats, formats
from ..model import Gpus, Named, OptionsBlock, Server, Word, below, int_at, role_of
from ..rules import STRAY_WORD
from ..rules.options import is_meant, is_of_another, model_of
from . import commands
from .containers import COMMANDS, in_containers
from .file import DOCKERFILE, PYTHON, SCRIPT, Text
from .launchers import recipe_roles
from .python import Api, sections
from .shell_files import WrittenFile
from .yaml_text import SHELL, MaskedText

_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # of a key in any case style


def _record(release: Release) -> Formats:
    return formats(release.engine.name)


def of_server(server: Server, text: str, release: Release) -> Iterator[OptionsBlock]:
    """The options of a command in a script; those of its conditional words are apart."""
    certain: list[Word] = []
    more: list[Word] = []
    for word in server.words:
        (more if word.optional else certain).append(word)
    extended = is_extended(text, release)
    yield _of_command(replace(server, words=tuple(certain)), release, extended)
    if more:
        part = Server(tuple(more), engine=server.engine, is_open=server.is_open, is_part=True)
        yield _of_command(part, release, extended)


def of_written(file: WrittenFile, text: str, release: Release) -> Iterator[OptionsBlock]:
    """The options in a file that a script of this text writes."""
    for document in file.documents:
        if file.name.endswith(".json") and _is_engine_file(file.name, document.data):
            yield replace(_named(document, document.data, "", release, ()), within=file.name)
        elif is_configuration(document.data, release):
            yield _configuration(document, document.data, "", release, file.name, file.is_open)
        else:
            yield from of_document(document, text, release)


def of_program(text: str, release: Release) -> Iterator[OptionsBlock]:
    """The options with which a Python program constructs engines, and those in its commands."""
    known = _record(release)
    for command in commands.in_program(text, release.engine.name):
        yield _of_command(command, release, is_extended(text, release))
    for section in sections(text, release) or ():
        yield _of_section(section, release)
    holders = known.wrapped_in if known.wrapped_not not in text.lower() else {}
    api = Api(known.wrapper, tuple(holders))
    for section in sections(text, release, api=api) or ():
        for name in dict.fromkeys(holders.values()):
            if isinstance(section.options.get(name), Mapping):
                yield _wrapped(section.document, section.options[name], name, release)


def _of_section(block: OptionsBlock, release: Release) -> OptionsBlock:
    """The options of an engine that a program constructs."""
    known, options, document = _record(release), {}, block.document
    for key, value in block.options.items():
        inner = known.python_numbers.get(key)
        if key in release.top_level or key not in known.python_options:
            options[key] = {inner: value} if inner and isinstance(value, int) else value
    return replace(_named(document, options, "", release, ()), is_open=block.is_open)


def _wrapped(document: Yaml, data: Mapping[str, Any], path: str, release: Release) -> OptionsBlock:
    """The options that another program's file or class passes to the engine and its server. They
    keep the engine's names."""
    return _named(document, data, path, release, release.server_options)


def _named(
    document: Yaml,
    data: Mapping[str, Any],
    path: str,
    release: Release,
    also: Collection[str],
) -> OptionsBlock:
    """The options at a path by the engine's own names, with those of `also`."""
    found = OptionsBlock(shown=path, is_whole=True)
    start = f"{path}." if path else ""
    for inner, place in document.places.items():
        if inner.startswith(start) and "." in inner.removeprefix(start):
            found.places[inner.removeprefix(start)] = place
    for key, value in data.items():
        place = document.locate(below(path, str(key)))
        if key in release.top_level or key in also:
            found.set(str(key), value, str(key), place)
        else:
            found.unknown[str(key)] = ("", place)
    return found


def is_extended(text: str, release: Release) -> bool:
    """Whether a file uses an extension that adds its own flags to the command."""
    return any(word in text for word in _record(release).extensions)


def of_document(
    document: Yaml, text: str, release: Release, name: str = "", is_told: bool = False
) -> list[OptionsBlock]:
    """The options in a document. `name` is the file name. `is_told` means that the user named vLLM
    as the engine."""
    data = document.data
    if not isinstance(data, Mapping):
        return []
    if _is_engine_file(name, data):
        return [_named(document, data, "", release, ())]
    if is_configuration(data, release, is_told):
        return [_configuration(document, data, "", release, "", False)]
    extended = is_extended(text, release)
    found = [
        _of_command(row, release, extended) for row in in_containers(document, release.engine.name)
    ]
    known = {row.within for row in found}
    found += _walk(document, data, "", release, extended, known)
    found += _of_roles(document, release)
    return found


def _of_roles(document: Yaml, release: Release) -> Iterator[OptionsBlock]:
    """The options of a recipe's roles that the engine serves, apart from the launcher's options."""
    for role, engine in recipe_roles(document.data):
        path = f"roles.{role}.args"
        args = value_at(document.data, path)
        if engine == _record(release).recipe_name and isinstance(args, Mapping):
            given = _configuration(document, args, path, release, "", False)
            yield replace(given, is_extended=True, role=role_of(role))


def _is_engine_file(name: str, data: Any) -> bool:
    return name.rpartition("/")[2] == ENGINE_FILE and isinstance(data, Mapping) and "model" in data


def hits(data: Any, release: Release) -> int:
    """The number of keys in a mapping that are flags of the server, in any spelling."""
    keys = [str(key) for key in data] if isinstance(data, Mapping) else []
    return sum(find_flag(spelled(f"--{key}"), release) is not None for key in keys)


def is_configuration(data: Any, release: Release, is_told: bool = False) -> bool:
    """Whether a mapping is a configuration file of the server. At least half of its keys are flags,
    and only this engine has one of them. Without such a key, the file must use dashes or the user
    must name the engine (`is_told`); then half of the keys must be complete flags with a plausible
    value."""
    if not isinstance(data, Mapping) or not data:
        return False
    names = [str(key).replace("-", "_").removeprefix("no_") for key in data]
    own = any(name in _record(release).signature for name in names)
    dashed = any("-" in str(key) for key in data)
    if not (own or is_told) and any(is_of_another(str(key), release) for key in data):
        return False
    if own:
        return hits(data, release) * 2 >= len(data)
    return (dashed or is_told) and _whole_hits(data, release) * 2 >= len(data)


def _whole_hits(data: Mapping[str, Any], release: Release) -> int:
    known = known_flags(release)
    rows = ((known.get(spelled(f"--{key}")), value) for key, value in data.items())
    return sum(
        row is not None and (row.kind == "json" or not isinstance(value, Mapping))
        for row, value in rows
    )


def _configuration(
    document: Yaml,
    data: Mapping[str, Any],
    path: str,
    release: Release,
    within: str,
    is_open: bool,
    names: Mapping[str, str] | None = None,
    is_parsed: bool = True,
) -> OptionsBlock:
    """The options of a configuration file. `names` maps each key to its option name, for files that
    spell options differently."""
    names = names or {str(key): str(key) for key in data}
    places = {names[str(key)]: document.locate(below(path, str(key))) for key in data}
    options = {names[str(key)]: value for key, value in data.items()}
    found = of_mapping(options, places, release, is_parsed)
    for inner, place in document.places.items():
        start, dot, rest = inner.removeprefix(f"{path}." if path else "").partition(".")
        top = start.replace("-", "_")
        if dot and top in found.options:
            found.places[f"{top}.{rest}"] = place
    found.is_open = found.is_open or is_open
    found.shown, found.within = path, within
    return found


def _of_command(command: Server, release: Release, extended: bool) -> OptionsBlock:
    read = read_arguments(command.words, release, command.is_part)
    if again := command.again:
        what = "follows the image, which already starts the server"
        fix = "give the model and flags alone, or another entry point"
        read.wrong(again.text, again.location, what, fix, STRAY_WORD)
    read.within, read.gpus, read.command = command.within, command.gpus, command
    read.is_extended = extended or command.is_open
    return read


def _walk(
    document: Yaml, data: Any, path: str, release: Release, extended: bool, known: set[str]
) -> Iterator[OptionsBlock]:
    """Finds lists of flags, groups of options, and embedded files and texts in a document."""
    items: Any = enumerate(data) if isinstance(data, list) else ()
    if isinstance(data, Mapping):
        items = data.items()
    runs = isinstance(data, Mapping) and any(key in data for key in (*COMMANDS[:2], "image"))
    if isinstance(data, Mapping) and data.get("modelCommand") in _record(release).model_commands:
        runs = False
    for key, value in items:
        inner, name = below(path, str(key)), str(key)
        # An environment variable with `name` and `value`.
        if key == "value" and data.get("name") in _record(release).flag_lists:
            name = data["name"]
        if isinstance(value, Mapping) and _is_wrapped(data, name, _record(release)):
            yield _wrapped(document, value, inner, release)
        elif name in _record(release).option_holders and isinstance(value, Mapping):
            asked = _asked_gpus(document, data, path, value, _record(release))
            yield from _held(document, value, inner, release, asked)
            yield from _walk(document, value, inner, release, extended, known)
        elif (
            name in _record(release).flag_lists
            and not (runs and name in COMMANDS)
            and (words := _words(document, value, inner))
            and _are_ours(words, inner, data, release)
        ):
            yield _of_list(words, inner, data, release, extended)
        elif isinstance(value, Mapping | list):
            yield from _walk(document, value, inner, release, extended, known)
        elif isinstance(value, str) and inner not in known and _is_text(value, inner):
            yield from _in_text(document, value, inner, release, extended)


def _is_text(value: str, path: str) -> bool:
    """Whether a value is a text of several lines or an embedded file."""
    return "\n" in value or re.search(r"\.ya?ml$", path) is not None


def _are_ours(words: Sequence[Word], path: str, beside: Any, release: Release) -> bool:
    """Whether a list of flags is for vLLM. Its surroundings mention vLLM, or most flags are vLLM's
    and the surroundings mention no other program."""
    parts = {part.lower() for key in path.split(".") for part in _PARTS.findall(key)}
    is_other = not parts.isdisjoint(_record(release).other_programs)
    named = {key: text for key, text in beside.items() if isinstance(text, str)}
    texts = [named.get(key, "") for key in ("image", "name")] if is_other else named.values()
    if any(release.engine.name in text.lower() for text in (path, *texts) if "\n" not in text):
        return True
    if is_other or any(is_of_another(word.text, release) for word in words):
        return False
    names = [word.text.partition("=")[0] for word in words if re.match(r"--?[A-Za-z]", word.text)]
    own = sum(is_meant(name, release) for name in names)
    return own * 2 > len(names)


def _of_list(
    words: Sequence[Word], path: str, beside: Any, release: Release, extended: bool
) -> OptionsBlock:
    """Parses a list of flags; another server may use some of them."""
    read = read_arguments(words, release, is_part=True)
    if _record(release).handed_on_beside in beside:
        extended = True
        for flag in list(read.unknown):
            if flag.lstrip("-").replace("-", "_") in _record(release).handed_on_by:
                del read.unknown[flag]
    read.within, read.is_extended = path, extended
    return read


def _is_wrapped(data: Any, name: str, known: Formats) -> bool:
    """Whether a key holds engine options and no other engine is mentioned."""
    is_held = name in known.wrapped_in.values() and known.wrapped_beside in data
    return is_held and known.wrapped_not not in str(data).lower()


def _in_text(
    document: Yaml, text: str, path: str, release: Release, extended: bool
) -> Iterator[OptionsBlock]:
    """Reads a text of several lines: documentation, or a file of a config map."""
    if "```" in text:
        for command in commands.in_prose(text, path, document, release.engine.name):
            yield _of_command(command, release, extended)
    elif (is_wrapped := _record(release).wrapped_beside in text) or re.search(r"\.ya?ml$", path):
        start = document.blocks.get(path) or START
        for inner in MaskedText(text, SHELL).documents(start):
            if is_configuration(inner.data, release):
                yield _configuration(inner, inner.data, "", release, path, False)
            elif is_wrapped:
                rows = _walk(inner, inner.data, "", release, extended, set())
                yield from (replace(row, within=path) for row in rows)


def _asked_gpus(
    document: Yaml,
    data: Mapping[str, Any],
    path: str,
    options: Mapping[str, Any],
    known: Formats,
) -> Gpus | None:
    """The GPUs that a chart requests next to the options. Unknown (`None`) if a server may use more
    nodes, or if flags also set its parallel sizes."""
    lists = " ".join(str(options[key]) for key in known.flag_lists if key in options)
    sizes = list(chain.from_iterable(known.size_flags.values()))
    if "parallel" in lists or any(flag in lists for flag in sizes):
        return None
    for key, of_nodes in known.asked_gpus.items():
        count = int_at(data, key)
        if count and of_nodes not in data:
            where = below(path, key)
            return Gpus(count, document.locate(where), where)
    return None


def _held(
    document: Yaml, data: Mapping[str, Any], path: str, release: Release, gpus: Gpus | None
) -> Iterator[OptionsBlock]:
    """Options that a launcher passes to its workers, by role or for all workers. A chart may spell
    them as `maxModelLen`. `gpus` are the GPUs of one server."""
    roles = [
        key for key in data if key in _record(release).roles and isinstance(data[key], Mapping)
    ]
    for role in roles:
        inner = below(path, str(role))
        given = _configuration(
            document, data[role], inner, release, "", is_open=False, is_parsed=False
        )
        yield replace(given, is_extended=True, role=role_of(str(role)))
    data = {key: value for key, value in data.items() if key not in _record(release).flag_lists}
    names = {str(key): _of_chart(str(key), release) for key in data}
    if not roles and hits(dict.fromkeys(names.values()), release) * 2 > len(data):
        given = _configuration(document, data, path, release, "", False, names, is_parsed=False)
        yield replace(given, is_extended=True, gpus=gpus)


def _of_chart(key: str, release: Release) -> str:
    """The option name for a key in camel case; an unknown key in snake case."""
    if "_" in key or "-" in key or key.islower():
        return key
    flat = {row.name.replace("_", ""): row.name for row in known_flags(release).values()}
    return flat.get(key.lower()) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()


def _words(document: Yaml, value: Any, path: str) -> list[Word]:
    """The words of a list of flags, or of a single text with flags."""
    if isinstance(value, str):
        rows = [(path, value)]
    else:
        listed = value if isinstance(value, list) else []
        rows = [(below(path, str(index)), each) for index, each in enumerate(listed)]
    if not any(isinstance(each, str) and re.match(r"\s*--?[A-Za-z]", each) for _, each in rows):
        return []
    return [word for where, each in rows for word in _split(each, document.locate(where))]


def _split(value: Any, place: Location) -> Sequence[Word]:
    text = str(value)
    certain = not isinstance(value, Variable) and "$" not in text
    if not re.match(r"--?[\w.-]+[ \t]", text):
        return [Word(text, place, certain)]
    try:
        return [Word(each, place, "$" not in each) for each in shlex.split(text)]
    except ValueError:
        return [Word(text, place, False)]


def read_options(
    source: Text, table: Release, is_told: bool
) -> list[tuple[OptionsBlock, Yaml | None]]:
    """The options of a file, each with the document that contains it; of a script, those of its
    commands."""
    if source.form in (SCRIPT, DOCKERFILE):
        servers = commands.in_script(source.script, table.engine.name)
        options = (of_server(server, source.text, table) for server in servers)
        return [(row, None) for row in chain.from_iterable(options)]
    if source.form == PYTHON:
        return [(row, None) for row in of_program(source.text, table)]
    return [
        (row, document)
        for document in source.documents
        for row in of_document(document, source.text, table, source.path.name, is_told)
    ]


def option_files(source: Text, engine: Engine) -> Iterator[tuple[Word, Named | None]]:
    """The configuration files that the commands of a file read, each with the command's model."""
    if f"--{engine.option_file_flag}" not in source.text:
        return
    for row, _ in read_options(source, _newest(engine.name), is_told=False):
        if row.as_flags and row.option_file:
            yield row.option_file, model_of(row)


def is_options(source: Text, engine: Engine, is_told: bool = False) -> bool:
    """Whether a file contains only options, of any engine."""
    return len(source.documents) == 1 and (
        _is_model(source)
        or is_configuration(source.documents[0].data, _newest(engine.name), is_told)
    )


def is_alone(source: Text, engine: Engine, table: Release, is_told: bool) -> bool:
    """Whether an option file belongs to an engine and not to that of `table`. The engine that knows
    more of the options wins. `is_told` means that no other engine is requested."""
    if not is_options(source, engine, is_told):
        return False
    if is_told:
        return True
    data = source.documents[0].data
    known = sum(str(key) in table.top_level for key in data)
    own = hits(data, _newest(engine.name))
    is_dashed = any("-" in str(key) for key in data)  # only flags have dashes
    return _is_model(source) or own > known or (is_dashed and own == known)


def _is_model(source: Text) -> bool:
    """Whether a file is a model file of Triton's backend for an engine."""
    data = source.documents[0].data if source.documents else None
    is_named = source.path.name == ENGINE_FILE
    return is_named and isinstance(data, Mapping) and "model" in data


@cache
def _newest(name: str) -> Release:
    engine = engines.load(name)
    return releases.load(releases.newest_stable(engine), engine=engine)
