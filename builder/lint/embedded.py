"""Engine options inside files of other formats: launchers, charts, Compose files and the like."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any

from ..diagnostics import Diagnostic
from ..documents import DATA, Yaml, load_yaml, value_at
from ..facts import data_file
from ..facts.release import Release
from ..facts.schema import Text
from ..rules import flags as server_flags
from . import kinds
from .kinds import Content
from .section import Section, below
from .variables import SHELL

FORMAT = DATA / "formats" / "embedded.yaml"
EMBEDDED = "file with engine options"
COMPOSE = "Compose file"
TRUSS = "Truss configuration"
KINDS = (EMBEDDED, COMPOSE, TRUSS)


@dataclass(frozen=True, slots=True)
class EmbeddedFormats:
    """Names by which other formats are recognised: keys that are `holders` of options, `signature`
    options that no other engine has, those of `others`, and `flags` that take options as JSON."""

    source: Text
    holders: tuple[Text, ...]
    signature: tuple[Text, ...]
    others: tuple[Text, ...]
    flags: tuple[Text, ...]


def read(documents: Sequence[Yaml], release: Release) -> Content | None:
    """The options in documents of a format that is not the engine's; `None` if there are none."""
    content = Content(_kind(documents), document=documents[0])
    for document in documents:
        if _is_truss(document.data):
            _truss(document, content, release)
        else:
            _walk(document.data, "", document, content, release)
    return content if content.sections or content.diagnostics else None


def empty(documents: Sequence[Yaml]) -> Content:
    """A file that may start servers, without options of its own."""
    return Content(_kind(documents), document=documents[0])


def _kind(documents: Sequence[Yaml]) -> str:
    data = documents[0].data
    if _is_truss(data):
        return TRUSS
    services = data.get("services") if isinstance(data, Mapping) else None
    return COMPOSE if isinstance(services, Mapping) else EMBEDDED


@cache
def _names(kind: str) -> frozenset[str]:
    document: EmbeddedFormats = data_file.load(FORMAT, EmbeddedFormats)
    return frozenset(getattr(document, kind))


def _walk(data: Any, path: str, document: Yaml, content: Content, release: Release) -> None:
    if isinstance(data, Mapping):
        holder = path.rpartition(".")[2] in _names("holders")
        if path and _is_options(data, holder, release):
            content.sections.append(Section(data, document, path))
            return
        for key, value in data.items():
            inner = below(path, str(key))
            _walk(value, inner, document, content, release)
            if str(key) in _names("holders") and isinstance(value, Mapping):
                _beside(data, path, inner, content, release)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            _walk(value, below(path, str(index)), document, content, release)
        _json_flags(data, path, document, content, release)
    elif isinstance(data, str) and "\n" in data and _mentions(data, release):
        inner_content = kinds.embed(data, document, path, release)
        if inner_content.sections:
            content.sections += inner_content.sections
            content.diagnostics += inner_content.diagnostics


def _is_options(data: Mapping[str, Any], holder: bool, release: Release) -> bool:
    """Whether a mapping holds options of this engine; names that other engines share do not say
    it, unless the key above is one that holds options and nothing of theirs is among them."""
    keys = [str(key) for key in data]
    signed = any(key in _names("signature") for key in keys)
    if not (signed or holder) or not kinds.is_engine(data, release):
        return False
    if holder:
        return signed or not any(key in _names("others") for key in keys)
    return sum(kinds.is_option(key, release) for key in keys) * 4 >= len(keys) * 3


def _mentions(text: str, release: Release) -> bool:
    keys = re.findall(r"^[ \t]*([a-z]\w*_\w+)[ \t]*:", text, re.M)
    return any(key in _names("signature") or key in release.top_level for key in keys)


def _beside(
    data: Mapping[str, Any], path: str, inner: str, content: Content, release: Release
) -> None:
    """Flags of the server that a launcher has beside its options, such as `tp_size`."""
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
            found = Diagnostic(where, what, "keep one", "conflicting-values")
            content.diagnostics.append(Section({}, section.document).locate(found))
        elif option not in options:
            options[option] = value
            places[below(inner, option)] = section.document.locate(where)
    document = replace(section.document, places=places)
    content.sections[at] = replace(section, options=options, document=document)


def _json_flags(
    words: list[Any], path: str, document: Yaml, content: Content, release: Release
) -> None:
    """Options that a command takes as JSON."""
    for index, (word, value) in enumerate(pairwise(words)):
        if not isinstance(value, str) or word not in _names("flags"):
            continue
        where = below(path, str(index + 1))
        if SHELL.search(value) or not value.lstrip().startswith("{"):
            continue
        options = load_yaml(value)
        if isinstance(options, Mapping):
            inner = Yaml(options, {"": document.locate(where)})
            content.sections.append(Section(options, inner, within=str(word), is_open=True))


def _is_truss(data: Any) -> bool:
    return isinstance(data, Mapping) and isinstance(data.get("trt_llm"), Mapping)


def _truss(document: Yaml, content: Content, release: Release) -> None:
    """What the second inference stack hands to the engine; the first one builds engines."""
    runtime = value_at(document.data, "trt_llm.runtime")
    if document.data["trt_llm"].get("inference_stack") != "v2" or not isinstance(runtime, Mapping):
        return
    options = {key: value for key, value in runtime.items() if key in release.top_level}
    if options:
        content.sections.append(Section(options, document, "trt_llm.runtime"))
    engine = value_at(runtime, "patch_kwargs.engine_config")
    if isinstance(engine, Mapping):
        path = "trt_llm.runtime.patch_kwargs.engine_config"
        content.sections.append(Section(engine, document, path))
