"""YAML and JSON documents from files, with the place of every fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from .errors import BadFacts, BadInput, Problem, ToolkitError

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

MAX_BYTES = 10_000_000


def read_text(path: Path, error: type[ToolkitError] = BadInput) -> str:
    """The text of a file of at most `MAX_BYTES`; every failure to read it becomes one problem."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            limit = f"files of up to {MAX_BYTES // 1_000_000} MB are read"
            raise error(Problem(str(path), f"{size} bytes is too large", limit))
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise error(Problem(str(path), "is not UTF-8 text", "give a text file")) from None
    except OSError as fault:
        reason = (fault.strerror or str(fault)).lower()
        raise error(Problem(str(path), f"cannot be read: {reason}", "check the path")) from None


def load_yaml(text: str) -> Any:
    """Plain data from YAML 1.1, as the engine itself reads its option files."""
    return yaml.load(text, Loader=_Loader)


def yaml_lines(text: str) -> dict[str, int]:
    """The line of every key of a YAML mapping, by dotted path; the first line is 1."""
    lines: dict[str, int] = {}

    def walk(node: yaml.Node | None, path: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner = f"{path}.{key.value}" if path else str(key.value)
                lines[inner] = key.start_mark.line + 1
                walk(value, inner)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                lines[f"{path}.{index}"] = item.start_mark.line + 1
                walk(item, f"{path}.{index}")

    walk(yaml.compose(text, Loader=_Loader), "")
    return lines


def duplicate_keys(text: str, name: str) -> list[Problem]:
    """Keys given twice in one mapping, of which YAML would silently keep the last."""
    problems: list[Problem] = []

    def walk(node: yaml.Node | None) -> None:
        if isinstance(node, yaml.MappingNode):
            seen: dict[str, int] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if (first := seen.setdefault(str(key.value), line)) != line:
                    problems.append(
                        Problem(
                            f"{name}:{line}: {key.value}",
                            f"is given twice, first in line {first}",
                            "keep one",
                        )
                    )
                walk(value)
        elif isinstance(node, yaml.SequenceNode):
            for item in node.value:
                walk(item)

    walk(yaml.compose(text, Loader=_Loader))
    return problems


def load_json_mapping(path: Path) -> Mapping[str, Any]:
    """A JSON object from a checkpoint or data file. Raises `BadFacts`."""
    text = read_text(path, BadFacts)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise BadFacts(Problem(str(path), f"is not JSON: {fault}", "copy it again")) from None
    if not isinstance(document, dict):
        kind = type(document).__name__
        raise BadFacts(Problem(str(path), f"holds a {kind}, not an object", "copy it again"))
    return document
