"""Recognizes files of engine options by their content and reads them."""

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
from ...facts import counterparts, engines
from ...facts.engines import Engine
from ...facts.release import Release, ServerRole, known, load
from ...files import is_there, read_text
from ...general_rules import MISSING_KEY
from ...rules.remedies import former_options
from ...rules.validation import validate
from ..engine import fields_of, format_table
from ..model import Content, Kind, Section, below, role_of, split
from ..rules import AUTODEPLOY_BACKEND, AUTODEPLOY_PARALLEL, CONFLICTING_VALUES, INSTANCES_URLS, URL
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
    return Content(ENGINE, [Section(document.data, document)])


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
    content = Content(AUTODEPLOY, [Section(options, document, path, beside=beside)])
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
    content.sections = [Section(options, document, beside=list(fields_of(table, "TritonModel")))]
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
        section = Section(
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
            Section(shared, document, beside=list(fields_of(table, "Disaggregated")))
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
    return sum(bool(counterparts.of(key, release.engine.name)) for key in theirs) > len(own)


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
    section = Section({}, document)
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
