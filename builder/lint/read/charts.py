"""Reads engine options inside files of other formats, such as charts and Compose files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...diagnostics import Diagnostic, is_misspelling, located
from ...documents import Yaml, value_at
from ...facts.release import Release
from ...rules import flags as server_flags
from ..engine import default_formats
from ..model import Content, Section, below
from ..rules import CONFLICTING_VALUES, MISSPELT_NAME
from .option_file import embed, is_engine, is_option

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
    return content if content.sections or content.diagnostics or content.is_read else None


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
            content.sections.append(Section(data, document, path))
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
            content.diagnostics.append(Section({}, section.document).locate(found))
        elif option not in options:
            options[option] = value
            places[below(inner, option)] = section.document.locate(where)
    document = replace(section.document, places=places)
    content.sections[at] = replace(section, options=options, document=document)
