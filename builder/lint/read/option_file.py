"""Recognizes files of engine options by their content and reads them, also inside other files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic, is_misspelling, located
from ...documents import Variable, Yaml, scan_yaml, value_at
from ...errors import BadInput
from ...facts import engines
from ...facts.engines import Engine
from ...facts.release import Release, ServerRole, known, load
from ...files import is_there, read_text
from ...general_rules import MISSING_KEY
from ...rules import flags as server_flags
from ...rules.remedies import former_options
from ...rules.validation import validate
from ..engine import default_formats, fields_of, format_table
from ..model import Content, Kind, OptionsBlock, below, role_of, split
from ..rules import (
    AUTODEPLOY_BACKEND,
    AUTODEPLOY_PARALLEL,
    CONFLICTING_VALUES,
    INSTANCES_URLS,
    MISSPELT_NAME,
    URL,
)
from .launchers import AUTODEPLOY_NAME, LAUNCHERS, is_mapping
from .yaml_text import SHELL, MaskedText, inside

ENGINE = "engine options"
TRITON = "Triton model.yaml"
DEPLOYMENT = "deployment"
AUTODEPLOY = "AutoDeploy options"
DISAGGREGATED = "disaggregated servers"
KUBERNETES = "Kubernetes manifest"
# Kinds in which only options and commands are checked.
SURROUNDINGS = (KUBERNETES, f"{KUBERNETES} without engine options")
AUTODEPLOY_RULE = AUTODEPLOY_BACKEND


def read_options(documents: Sequence[Yaml], release: Release) -> Content | None:
    """Returns the content of a file, or `None` if check does not support its kind."""
    if not documents:
        return None
    first = documents[0]
    if any(_is_manifest(document.data) for document in documents):
        return _kubernetes(documents, release)
    if not isinstance(first.data, Mapping):
        return None
    for name, fits, parse in _KINDS:
        if fits(first.data, release):
            content = parse(first)
            content.kind, content.document = name, first
            if len(documents) > 1:
                what, place = "begins a second document", documents[1].places[""]
                content.diagnostics.append(located(place, "", what, "write one document per file"))
            return content
    return None


def holds_deployment(documents: Sequence[Yaml]) -> bool:
    """Returns whether a file is a deployment. A deployment is planned for the release that it
    requests."""
    data = documents[0].data if documents else None
    return isinstance(data, Mapping) and _is_deployment(data)


def stated_release(documents: Sequence[Yaml]) -> str:
    """Returns the engine release that a deployment file requests."""
    if not holds_deployment(documents):
        return ""
    return str(value_at(documents[0].data, "engine.release") or "")


def stated_engine(documents: Sequence[Yaml]) -> Engine:
    """Returns the engine that a deployment file requests; the default engine for an unknown
    name."""
    name = value_at(documents[0].data, "engine.name")
    return engines.load(name) if name in engines.names() else engines.default()


def _has(data: Mapping[str, Any], *names: str) -> bool:
    """Returns whether a mapping has one of the keys, possibly misspelled."""
    keys = [str(key) for key in data]
    return any(is_misspelling(key, name) for name in names for key in keys)


def _is_deployment(data: Mapping[str, Any], release: Release | None = None) -> bool:
    own = ("checkpoint", "hardware", "engine", "workload", "targets")
    return sum(key in data for key in own) >= 3


def is_engine(data: Mapping[str, Any], release: Release) -> bool:
    """Returns whether at least a third of the keys are engine options of any release. Keys without
    an underscore do not count as evidence: every program has such keys."""
    keys = [str(key) for key in data]
    if _is_of_another_program(keys, release):
        return False
    telling = [key for key in keys if "_" in key]
    names: Mapping[str, Any] = release.top_level
    hits = sum(key in names for key in telling)
    if hits * 3 < len(keys):
        names = {**names, **former_options(), **_names_of_all_releases()}
        hits = sum(key in names for key in telling)
    if hits * 3 < len(keys):
        hits += sum(any(is_misspelling(key, name) for name in names) for key in telling[:50])
    return hits > 0 and hits * 3 >= len(keys)


def _is_of_another_program(keys: Sequence[str], release: Release) -> bool:
    """Returns whether keys are command-line flags or belong to Triton's model configuration. JSON
    files may contain either of them."""
    own = sum(key in release.top_level for key in keys)
    if not _TRITONS.isdisjoint(keys):
        from ..rules import triton  # not needed for most files

        return sum(key in triton.schema()["messages"]["ModelConfig"] for key in keys) > own
    spelled = {name for flag in release.serve_flags for name in flag.spellings}
    flags = {name.lstrip("-").replace("-", "_") for name in spelled} - release.top_level.keys()
    given = sum(key in flags for key in keys)
    return given > max(1, own)


_TRITONS = frozenset(("input", "output", "instance_group", "version_policy", "platform"))


def is_option(key: str, release: Release) -> bool:
    """Returns whether a key is an option of any release, possibly misspelled."""
    names = {**release.top_level, **former_options(), **_names_of_all_releases()}
    return key in names or any(is_misspelling(key, name) for name in names)


@cache
def _names_of_all_releases() -> Mapping[str, Any]:
    return {key: None for name in known() for key in load(name).top_level}


_AUTODEPLOY, _ARGUMENTS = "AutoDeploy", "args"
# Only AutoDeploy has these keys.
_AUTODEPLOY_MARKS = ("model_factory", "compile_backend", "skip_loading_weights")


def _is_autodeploy(data: Mapping[str, Any], release: Release) -> bool:
    """Returns whether a file is for AutoDeploy and the release supports that backend."""
    own = fields_of(format_table("autodeploy"), _AUTODEPLOY)
    marked = any(key in data for key in _AUTODEPLOY_MARKS) or is_mapping(data, "transforms")
    hits = sum(key in own or key in release.top_level for key in data)
    return marked and hits * 2 >= len(data) and AUTODEPLOY_NAME in _backends(release)


def _backends(release: Release) -> Sequence[str]:
    """Returns the values that `--backend` of the server accepts."""
    return next((flag.values for flag in release.serve_flags if flag.name == "backend"), ())


def _engine(document: Yaml) -> Content:
    return Content(ENGINE, [OptionsBlock(document.data, document)])


def _autodeploy(document: Yaml) -> Content:
    """Reads AutoDeploy options and warns that PyTorch, the default backend, refuses them."""
    content = _for_autodeploy(document, document.data, "")
    what = f"is an option of the {AUTODEPLOY_NAME} backend only"
    remedy = f"start the server with --backend {AUTODEPLOY_NAME}"
    first = next(
        key for key in document.data if key in fields_of(format_table("autodeploy"), _AUTODEPLOY)
    )
    hint = Diagnostic(first, what, remedy, AUTODEPLOY_RULE, "warning")
    content.diagnostics += _located(document, [hint])
    return content


def _is_experiment(data: Mapping[str, Any], release: Release) -> bool:
    """Returns whether a file configures AutoDeploy's own launcher, with the options under
    `args`."""
    return is_mapping(data, _ARGUMENTS) and _is_autodeploy(data[_ARGUMENTS], release)


def _experiment(document: Yaml) -> Content:
    return _for_autodeploy(document, document.data[_ARGUMENTS], _ARGUMENTS)


def _for_autodeploy(document: Yaml, given: Mapping[str, Any], path: str) -> Content:
    """Reads the AutoDeploy options at a path and the options shared with the default backend."""
    table = format_table("autodeploy")
    own, shared = split(given, fields_of(table, _AUTODEPLOY))
    refused, options = split(shared, fields_of(table, "Refused"))
    what = "is refused: AutoDeploy spreads the model by world_size alone"
    fix = "remove it, and give the number of GPUs as world_size"
    found = [
        Diagnostic(key, what, fix, AUTODEPLOY_PARALLEL)
        for key, value in refused.items()
        if value is not None and not _is_same(value, fields_of(table, "Refused")[key]["default"])
    ]
    beside = list(fields_of(table, _AUTODEPLOY))
    content = Content(AUTODEPLOY, [OptionsBlock(options, document, path, beside=beside)])
    content.diagnostics = [
        content.sections[0].locate(row) for row in (*validate(table, own), *found)
    ]
    return content


def _is_same(one: Any, two: Any) -> bool:
    """Returns whether two values are equal; `true` is not equal to 1."""
    return bool(one == two) and isinstance(one, bool) == isinstance(two, bool)


def _deployment(document: Yaml) -> Content:
    return Content(DEPLOYMENT)


def _triton(document: Yaml) -> Content:
    table = format_table("triton_model")
    own, options = split(document.data, fields_of(table, "TritonModel"))
    content = Content(TRITON, diagnostics=_located(document, validate(table, own)))
    content.sections = [
        OptionsBlock(options, document, beside=list(fields_of(table, "TritonModel")))
    ]
    if "model" not in document.data:
        what, remedy = "model is required here", "add model: NAME_OR_FOLDER"
        content.diagnostics += _located(document, [Diagnostic("", what, remedy, MISSING_KEY)])
    return content


def _disaggregated(document: Yaml) -> Content:
    """Reads the servers of both roles; top-level options apply to all of them."""
    table = format_table("disaggregated")
    server_keys = fields_of(table, "Servers")
    own, shared = split(document.data, fields_of(table, "Disaggregated"))
    both = {key: value for key, value in own.items() if key in server_keys}
    content = Content(DISAGGREGATED)
    content.diagnostics += _located(document, _on_both_sides(own))
    servers: tuple[tuple[str, ServerRole], ...]
    servers = (("context_servers", "prefill"), ("generation_servers", "decode"))
    for name, role in servers:
        if not isinstance(given := own.get(name), Mapping):
            continue
        own[name], options = split(given, server_keys)
        own_diagnostics = [*_conflicts(name, {**shared, **both}, given), *_urls(name, given)]
        content.diagnostics += _located(document, own_diagnostics)
        if given.get("urls") and not {**options, **shared}.keys() - {"backend"}:
            continue  # addresses only: the options are elsewhere
        inherited = frozenset(shared) - frozenset(options)
        section = OptionsBlock(
            {**shared, **options},
            document,
            name,
            role=role,
            inherited=inherited,
            beside=[*server_keys, *fields_of(table, "Disaggregated")],
        )
        content.sections.append(section)
    if not content.sections and shared:
        content.sections = [
            OptionsBlock(shared, document, beside=list(fields_of(table, "Disaggregated")))
        ]
    content.diagnostics += _located(document, validate(table, own))
    return content


def _conflicts(
    name: str, shared: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[Diagnostic]:
    for key in shared.keys() & options.keys():
        if shared[key] != options[key]:
            what = "is set here and at the top of the file, to different values"
            yield Diagnostic(f"{name}.{key}", what, "keep one", CONFLICTING_VALUES)


def _on_both_sides(own: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Reports addresses that are listed for both roles; a server has only one role."""
    first = value_at(own, "context_servers.urls")
    second = value_at(own, "generation_servers.urls")
    for index, url in enumerate(second if isinstance(second, list) else ()):
        if isinstance(first, list) and url in first and "{" not in str(url):
            what = f"{str(url)[:60]} is also one of context_servers.urls"
            fix = "give each server its own address"
            yield Diagnostic(f"generation_servers.urls.{index}", what, fix, INSTANCES_URLS)


def _urls(name: str, given: Mapping[str, Any]) -> Iterator[Diagnostic]:
    urls = given.get("urls")
    if not isinstance(urls, list) or not urls:
        return
    count = given.get("num_instances", 1)
    if isinstance(count, int) and count != len(urls):
        what = f"{len(urls)} urls for {count} instances"
        yield Diagnostic(f"{name}.urls", what, f"set num_instances to {len(urls)}", INSTANCES_URLS)
    for index, url in enumerate(urls):
        host, _, port = str(url).rpartition(":")
        if "{" in str(url):
            continue  # filled in once the nodes are known
        if not host or ":" in host or not port.isdigit() or int(port) > 65535:
            what = f"{str(url)[:60]} is not host:port"
            yield Diagnostic(f"{name}.urls.{index}", what, "write host:port", URL)
        elif url in urls[:index]:
            what = f"{url} is listed twice"
            yield Diagnostic(f"{name}.urls.{index}", what, "list each server once", INSTANCES_URLS)


def _is_manifest(data: Any) -> bool:
    return isinstance(data, Mapping) and "apiVersion" in data and "kind" in data


def _kubernetes(documents: Sequence[Yaml], release: Release) -> Content | None:
    """Reads the engine options in config maps."""
    content = Content(KUBERNETES, document=documents[0])
    for document, path, files in _config_maps(documents):
        for name, text in files.items() if isinstance(files, Mapping) else ():
            where = below(path, f"data.{name}")
            if isinstance(text, str) and str(name).endswith((".yaml", ".yml", ".json")):
                embedded = embed(text, document, where, release)
            elif isinstance(text, str) and "\n" in text and "." not in str(name):
                embedded = embed(text, document, where, release)
                embedded.diagnostics = embedded.diagnostics if embedded.sections else []
            else:
                continue
            map_name = str(value_at(document.data, below(path, "metadata.name")) or "")
            content.sections += (replace(row, config_map=map_name) for row in embedded.sections)
            content.diagnostics += embedded.diagnostics
    if not content.sections:
        content.kind = f"{KUBERNETES} without engine options"
    return content


def _is_of_another(options: Mapping[str, Any], release: Release) -> bool:
    """Returns whether most keys are specific to another engine, whose reader handles the file."""
    keys = [str(key).replace("-", "_") for key in options]
    own = [key for key in keys if key in release.top_level]
    theirs = (key for key in keys if key not in own)
    return sum(bool(engines.counterparts(key, release.engine.name)) for key in theirs) > len(own)


def _config_maps(documents: Sequence[Yaml]) -> Iterator[tuple[Yaml, str, Any]]:
    """Yields the files of each config map with its path, including maps in a list of objects."""
    for document in documents:
        data = document.data if isinstance(document.data, Mapping) else {}
        items = data.get("items")
        rows = {f"items.{n}": row for n, row in enumerate(items)} if isinstance(items, list) else {}
        for path, row in {"": data, **rows}.items():
            if isinstance(row, Mapping) and row.get("kind") == "ConfigMap":
                yield document, path, row.get("data")


def embed(text: str, document: Yaml, path: str, release: Release) -> Content:
    """Reads a file that is embedded as a value in another file."""
    pattern = text.pattern if isinstance(text, Variable) and text.pattern else SHELL
    masked = MaskedText(text, pattern)
    inner = masked.documents()
    for each in inner:
        each.places = {
            where: inside(document, path, text, place) for where, place in each.places.items()
        }
        each.diagnostics = [
            replace(row, location=inside(document, path, text, row.location))
            for row in each.diagnostics
        ]
    name = path.rpartition("data.")[2]
    content = read_options(inner, release) or Content(ENGINE)
    if any(_is_of_another(section.options, release) for section in content.sections):
        return Content(ENGINE)
    content.sections = [
        replace(
            section,
            within=path,
            role=section.role or role_of(name),
            is_open=section.is_open or masked.is_open,
        )
        for section in content.sections
    ]
    content.diagnostics = [
        replace(row, within=path)
        for row in (*content.diagnostics, *(f for each in inner for f in each.diagnostics))
    ]
    return content


def _located(document: Yaml, found: Iterable[Diagnostic]) -> list[Diagnostic]:
    section = OptionsBlock({}, document)
    return [section.locate(row) for row in found]


# The first matching kind is used.
_KINDS: tuple[Kind, ...] = (
    (DEPLOYMENT, _is_deployment, _deployment),
    (TRITON, lambda data, release: _has(data, "triton_config"), _triton),
    (
        DISAGGREGATED,
        lambda data, release: _has(data, "context_servers", "generation_servers"),
        _disaggregated,
    ),
    *LAUNCHERS,
    (AUTODEPLOY, _is_autodeploy, _autodeploy),
    (AUTODEPLOY, _is_experiment, _experiment),
    (ENGINE, is_engine, _engine),
)


def read_option_file(name: str, folder: Path) -> Mapping[str, Any]:
    """Returns the options of a file that a script uses, or nothing if they cannot be read. The path
    may exist only in a container. The file is then looked up next to the script."""
    beside = re.sub(r"^(\$\{?\w+\}?|\$\(.*\))/", "", name)
    if not beside or "$" in beside:
        return {}
    named, mounted = folder / beside, folder / Path(beside).name
    try:
        data = scan_yaml(read_text(named if is_there(named) else mounted))[0].data
    except BadInput:
        return {}
    return data if isinstance(data, Mapping) else {}


EMBEDDED = "file with engine options"
COMPOSE = "Compose file"
KINDS = (EMBEDDED, COMPOSE)


def read_embedded(documents: Sequence[Yaml], release: Release) -> Content | None:
    """Returns the engine options in documents of another format, or `None` without any."""
    content = Content(_kind(documents), document=documents[0])
    for document in documents:
        _walk(document.data, "", document, content, release)
    targets = _targets(documents[0]) if content.kind == COMPOSE else {}
    content.sections = [
        replace(row, file=targets[row.within]) if row.within in targets else row
        for row in content.sections
    ]
    return content if content.sections or content.diagnostics else None


def _targets(document: Yaml) -> dict[str, str]:
    """Maps inline configs of a Compose file to the paths at which its services mount them."""
    targets = {}
    for service in document.data["services"].values():
        rows = service.get("configs") if isinstance(service, Mapping) else None
        for row in rows if isinstance(rows, list) else ():
            source = value_at(row, "source") or row
            targets[f"configs.{source}.content"] = str(value_at(row, "target") or source)
    return targets


def empty(documents: Sequence[Yaml]) -> Content:
    """Returns the content of a file that may start servers but has no engine options."""
    return Content(_kind(documents), document=documents[0])


def _kind(documents: Sequence[Yaml]) -> str:
    data = documents[0].data
    services = data.get("services") if isinstance(data, Mapping) else None
    return COMPOSE if isinstance(services, Mapping) else EMBEDDED


def _walk(data: Any, path: str, document: Yaml, content: Content, release: Release) -> None:
    if isinstance(data, Mapping):
        holder = path.rpartition(".")[2] in default_formats().option_holders
        if path and _is_options(data, holder, release):
            content.sections.append(OptionsBlock(dict(data), document, path))
            content.diagnostics += _misspelt_holder(path, document)
            return
        for key, value in data.items():
            inner = below(path, str(key))
            _walk(value, inner, document, content, release)
            if str(key) in default_formats().option_holders and isinstance(value, Mapping):
                _beside(data, path, inner, content, release)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            _walk(value, below(path, str(index)), document, content, release)
    elif isinstance(data, str) and "\n" in data and _mentions(data, release):
        inner_content = embed(data, document, path, release)
        if inner_content.sections:
            content.sections += inner_content.sections
            content.diagnostics += inner_content.diagnostics


def _misspelt_holder(path: str, document: Yaml) -> Iterator[Diagnostic]:
    """Warns about a key above an options block that misspells a name which launchers use there."""
    key = path.rpartition(".")[2]
    style = [
        name for name in sorted(default_formats().option_holders) if ("_" in name) == ("_" in key)
    ]
    near = [name for name in style if is_misspelling(key, name) and abs(len(name) - len(key)) <= 1]
    if near and key not in style:
        what, fix = "is not a key that holds engine options", f"did you mean {near[0]}?"
        yield located(document.locate(path), path, what, fix, MISSPELT_NAME, "warning")


def _is_options(data: Mapping[str, Any], holder: bool, release: Release) -> bool:
    """Returns whether a mapping holds options of this engine.

    Names that other engines share do not count, unless the key above is one that usually holds
    options and none of the keys is specific to another engine.
    """
    keys = [str(key) for key in data]
    signed = sum(key in default_formats().signature for key in keys)
    if not (signed or holder) or not is_engine(data, release):
        return False
    if holder:
        return signed > 0 or not any(key in default_formats().other_options for key in keys)
    others = sum(not is_option(key, release) for key in keys)
    return others * 4 <= len(keys) or others < signed


def _mentions(text: str, release: Release) -> bool:
    keys = re.findall(r"^[ \t]*([a-z]\w*_\w+)[ \t]*:", text, re.M)
    return any(key in default_formats().signature or key in release.top_level for key in keys)


def _beside(
    data: Mapping[str, Any], path: str, inner: str, content: Content, release: Release
) -> None:
    """Adds server flags that a launcher sets next to the options block, such as `tp_size`."""
    at = next((n for n, row in enumerate(content.sections) if row.path == inner), None)
    if at is None:
        return
    section = content.sections[at]
    options, places = dict(section.options), dict(section.document.places)
    spellings = server_flags.spellings(release)
    for key, value in data.items():
        flag = spellings.get(f"--{key}")
        option = server_flags.option_path(flag, release) if flag else None
        if option is None or "." in option or isinstance(value, Mapping | list):
            continue
        where = below(path, str(key))
        if option in options and options[option] != value:
            what = f"is {value}, and {inner}.{option} is {options[option]}"
            found = Diagnostic(where, what, "keep one", CONFLICTING_VALUES)
            content.diagnostics.append(OptionsBlock({}, section.document).locate(found))
        elif option not in options:
            options[option] = value
            places[below(inner, option)] = section.document.locate(where)
    document = replace(section.document, places=places)
    content.sections[at] = replace(section, options=options, document=document)
