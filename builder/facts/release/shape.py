"""The shape of a release table: what must be in one, and of which type."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

Fault = tuple[str, str]
"""A dotted path in the table, and what is wrong there."""

MAX_DEPTH = 20  # of options within options

_NUMBER = (int, float)
_FLAG = {
    "name": str,
    "flags": [str],
    "type": str,
    "values?": [str],
    "positional?": bool,
    "multiple?": bool,
    "yaml_path?": str,
}
# A type, several types, a set of words, a list of one shape, a mapping of one (`*`) or of its own
# keys, of which those with a `?` may be missing.
_TABLE: Mapping[str, Any] = {
    "release": str,
    "root": str,
    "provenance": {"sources": [str], "confidence": str},
    "carried_from?": {"*": str},
    "types": {"*": {"fields": {"*": dict}, "open_keys?": [str], "only_in_python?": bool}},
    "unions": {"*": {"discriminator": str, "types": {"*": str}, "case_insensitive?": bool}},
    "words": {"*": str},
    "serve": {
        "flags": [_FLAG],
        "precedence": {
            "winner": frozenset({"yaml", "cli_when_typed"}),
            "confidence": str,
            "deep_merged_keys?": [str],
        },
        "injected": ({"values?": {"*": object}}, None),
        "flags_by_architecture": [
            {
                "architecture": str,
                "flag": str,
                "value": str,
                "reason": str,
                "evidence": str,
                "source": str,
            }
        ],
    },
    "subcommands": {"*": [_FLAG]},
    "endpoints": {"server": [[str]]},
    "metrics": {
        "prefix?": str,
        "names?": [str],
        "confidence?": str,
        "prefix_confidence?": str,
    },
    "moe": {
        "rows": [
            {
                "backend": str,
                "quant_algo": (str, None),
                "sm": [int],
                "evidence": str,
                "source": str,
            }
        ],
        "only_on?": {"*": {"sm": [int], "source": str}},
        "when_missing": str,
        "load_balancer_backends": [str],
    },
    "cuda_graphs_when_missing": int,
    "mtp_kv_layers": {"value": frozenset({"per_draft_token", "one"}), "source": str},
    "environment": {"*": str},
    "supported_architectures?": {"*": str},
    "unsupported_architectures": {"*": (str, None)},
    "rules": [str],
    "containers": {"*": [str]},
}

_WORDS = {bool: "true or false", int: "a whole number", str: "text", dict: "a mapping"}

# What the keys of an option must hold, and which of them each type cannot do without.
_OPTION: Mapping[str, Any] = {
    **dict.fromkeys(("nullable", "required", "open", "case_insensitive"), bool),
    **dict.fromkeys(("ge", "gt", "le", "lt"), _NUMBER),
    **dict.fromkeys(("status", "confidence", "uncertain", "effect", "replaced_by", "keys"), str),
    "min_length": int,
    "alias": [str],
}
_REQUIRED: Mapping[str, tuple[str, Any]] = {
    "enum": ("values", [(str, int, float, bool)]),
    "list": ("items", dict),
    "mapping": ("items", dict),
    "either": ("of", [dict]),
    "record": ("of", str),
    "union": ("of", str),
}
_DEFAULT = (*_NUMBER, bool, type(None))
_PLAIN = ("int", "float", "bool", "str", "any", "object")

# What planning asks for: the kinds of speculation, and defaults that it computes with.
_SPECULATION = "speculative_config.decoding_type"
_NUMERIC_DEFAULTS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "max_batch_size", "max_num_tokens"),
    "kv_cache_config.free_gpu_memory_fraction",
)


def faults(table: Mapping[str, Any]) -> Iterator[Fault]:
    """What a table lacks, what is of another type, and names that stand for nothing."""
    wrong = list(_shape(table, _TABLE, ""))
    wrong += [] if wrong else _types(table)
    wrong += [] if wrong else _names(table)
    yield from wrong


def lacking(paths: Collection[str], default: Callable[[str], Any]) -> Iterator[Fault]:
    """What planning needs of the options by path and of their defaults, and does not find."""
    if _SPECULATION not in paths:
        yield _SPECULATION, "is no option, and planning asks for it"
    for path in _NUMERIC_DEFAULTS:
        if not _is(default(path), _NUMBER):
            yield path, "has no default that is a number, and planning computes with it"


def _shape(value: Any, shape: Any, path: str) -> Iterator[Fault]:
    if isinstance(shape, tuple):
        found = [list(_shape(value, each, path)) for each in shape]
        if all(found):
            yield found[0][0]
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield path, "is no list"
            return
        for index, item in enumerate(value):
            yield from _shape(item, shape[0], f"{path}.{index}")
    elif isinstance(shape, frozenset):
        if not isinstance(value, str) or value not in shape:
            yield path, f"is none of {', '.join(sorted(shape))}"
    elif isinstance(shape, Mapping):
        yield from _mapping(value, shape, path)
    elif not _is(value, shape):
        yield path, f"is not {_WORDS.get(shape, 'what it should be')}"


def _mapping(value: Any, shape: Mapping[str, Any], path: str) -> Iterator[Fault]:
    if not isinstance(value, Mapping):
        yield path, "is no mapping"
        return
    for key, inner in shape.items():
        name = key.removesuffix("?")
        if key == "*":
            for each, item in value.items():
                yield from _shape(item, inner, _below(path, each))
        elif name in value:
            yield from _shape(value[name], inner, _below(path, name))
        elif key == name:
            yield _below(path, name), "is missing"


def _is(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if isinstance(value, bool) and bool not in kinds and object not in kinds:
        return False
    return isinstance(value, kinds)


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _types(table: Mapping[str, Any]) -> Iterator[Fault]:
    if table["root"] not in table["types"]:
        yield "root", f"{table['root']} is not among the types"
    for kind, record in table["types"].items():
        for name, row in record["fields"].items():
            yield from _option(row, table, f"types.{kind}.fields.{name}", 0)
    for name, union in table["unions"].items():
        if not union["types"]:
            yield f"unions.{name}.types", "is empty"
        for value, kind in union["types"].items():
            if kind not in table["types"]:
                yield f"unions.{name}.types.{value}", f"{kind} is not among the types"
        if union.get("default") is not None and union["default"] not in union["types"]:
            yield f"unions.{name}.default", "is not among its types"


def _option(row: Mapping[str, Any], table: Mapping[str, Any], path: str, depth: int) -> list[Fault]:
    kind = row.get("type")
    if depth > MAX_DEPTH:
        return [(path, "is nested too deeply")]
    if not isinstance(kind, str) or kind not in (*_PLAIN, *_REQUIRED):
        return [(f"{path}.type", "is no type of an option")]
    key, shape = _REQUIRED.get(kind, ("type", str))
    found = list(_mapping(row, {f"{name}?": inner for name, inner in _OPTION.items()}, path))
    found += _mapping(row, {key: shape}, path)
    for name in ("default", "effective_default"):
        if kind in ("int", "float", "bool") and not _is(row.get(name), _DEFAULT):
            found.append((f"{path}.{name}", "is no value of the option's type"))
    if found:
        return found
    homes = {"record": "types", "union": "unions"}
    if kind in homes and row["of"] not in table[homes[kind]]:
        found.append((f"{path}.of", f"{row['of']} is not among the {homes[kind]}"))
    if kind in ("enum", "either") and not row[key]:
        found.append((f"{path}.{key}", "is empty"))
    for inner in row["of"] if kind == "either" else [row["items"]] if key == "items" else []:
        found += _option(inner, table, f"{path}.{key}", depth + 1)
    return found


def _names(table: Mapping[str, Any]) -> Iterator[Fault]:
    """Names that other parts of the table, or the toolkit, ask for."""
    if not re.fullmatch(r"\S+", table["release"]):
        yield "release", "is no name"
    names = [flag["name"] for flag in table["serve"]["flags"]]
    for index, flag in enumerate(table["serve"]["flags"]):
        if not flag["flags"] or names.count(flag["name"]) > 1:
            yield f"serve.flags.{index}", "has no spelling, or the name of another flag"
    if "extra_llm_api_options" not in names:
        yield "serve.flags", "has no extra_llm_api_options, the flag of the option file"
    for index, row in enumerate(table["serve"]["flags_by_architecture"]):
        if row["flag"] not in names:
            yield f"serve.flags_by_architecture.{index}.flag", f"{row['flag']} is no flag"
    for index, pair in enumerate(table["endpoints"]["server"]):
        if len(pair) != 2:
            yield f"endpoints.server.{index}", "is not a method and a path"
