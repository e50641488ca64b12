"""YAML and JSON documents from files, with the place of every fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .errors import BadFacts, BadInput, Problem, ToolkitError

# What a person writes. A checkpoint's own files may be as large as the index of a large model.
MAX_BYTES = 10_000_000
MAX_JSON_BYTES = 500_000_000
MAX_NODES = 100_000


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.1 as the engine reads its option files, except that dates stay text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rows if not tag.endswith(":timestamp")]
    for first, rows in _Loader.yaml_implicit_resolvers.items()
}


@dataclass
class Yaml:
    """A YAML document: plain data, the line of every dotted path, and keys given twice."""

    data: Any
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_text(path: Path, error: type[ToolkitError] = BadInput, max_bytes: int = MAX_BYTES) -> str:
    """The text of a file of at most `max_bytes`; every failure to read it becomes one problem."""
    try:
        if (size := path.stat().st_size) > max_bytes:
            limit = f"files of up to {max_bytes // 1_000_000} MB are read"
            raise error(Problem(str(path), f"{size} bytes is too large", limit))
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise error(Problem(str(path), "is not UTF-8 text", "give a text file")) from None
    except OSError as fault:
        reason = (fault.strerror or str(fault)).lower()
        raise error(Problem(str(path), f"cannot be read: {reason}", "check the path")) from None


def load_yaml(text: str) -> Any:
    """Plain data from YAML that the toolkit wrote or ships."""
    return yaml.load(text, Loader=_Loader)


def parse_yaml(text: str, name: str) -> Yaml:
    """A document that somebody wrote. Raises `BadInput` at the line that cannot be read."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            document = Yaml(None)
            _Walk(document, name).visit(node, "")
            document.data = None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
        json.dumps(document.data)  # sets and binary values have no place in an option file
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        reason = getattr(fault, "problem", None) or "unreadable"
        raise BadInput(Problem(where, f"is not YAML: {reason}", "correct this line")) from None
    except RecursionError:
        raise BadInput(Problem(name, "is nested too deeply", "flatten it")) from None
    except (TypeError, ValueError) as fault:
        what = f"holds a value that no option can have: {fault}"
        raise BadInput(
            Problem(name, what, "write plain text, numbers, lists and mappings")
        ) from None
    return document


class _Walk:
    """Lines and duplicate keys of a node tree, with every alias followed."""

    def __init__(self, document: Yaml, name: str) -> None:
        self._document, self._name, self._nodes = document, name, 0

    def visit(self, node: yaml.Node | None, path: str) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            what = f"has more than {MAX_NODES} values, aliases counted"
            raise BadInput(Problem(self._name, what, "write less"))
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._enter(str(index), item.start_mark.line + 1, item, path)
        elif isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key, value in node.value:
                text, line = str(key.value), key.start_mark.line + 1
                if text in seen:
                    where = f"{self._name}:{line}: {text}"
                    what = f"is given twice, first in line {seen[text]}"
                    self._document.problems.append(Problem(where, what, "keep one"))
                seen.setdefault(text, line)
                self._enter(text, line, value, path)

    def _enter(self, key: str, line: int, node: yaml.Node, path: str) -> None:
        inner = f"{path}.{key}" if path else key
        self._document.lines[inner] = line
        self.visit(node, inner)


def load_json_mapping(path: Path) -> Mapping[str, Any]:
    """A JSON object from a checkpoint or data file. Raises `BadFacts`."""
    text = read_text(path, BadFacts, MAX_JSON_BYTES)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise BadFacts(Problem(str(path), f"is not JSON: {fault}", "copy it again")) from None
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise BadFacts(Problem(str(path), f"holds a {kind}, not an object", "copy it again"))
    return document
