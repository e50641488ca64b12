"""The schema of a release table: options by type, server flags, MoE backends and what else differs.

`faults` finds what no single key shows: names without a definition, and missing parts that planning
needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Literal

from ...schema import Check, Plain, Text, one_of
from .. import engines
from ..engines import Engine, EngineName

Fault = tuple[str, str]
"""A dotted path in the table, and what is wrong there."""

MAX_DEPTH = 20  # of options within options

Scalar = bool | int | float | str | None
ReleaseName = Annotated[str, Check(lambda text: not set(text) & set(" \t\n"), "must be one word")]
Evidence = Literal["documented", "assumed"]


OPTION_TYPES = (
    *("int", "float", "bool", "str", "any", "object"),
    *("enum", "list", "mapping", "either", "record", "union"),
)
FLAG_TYPES = (*OPTION_TYPES, "flag", "json", "path", "path_or_str")

# One option. `values`, `items` and `of` are needed by type, see `faults`. A `human_readable` number
# is also given as 8k or 1M.
OPTION_ROW: Any = {
    "type?": Annotated[str, one_of(OPTION_TYPES)],
    "values?": [bool | int | float | str],
    "items?": {"*": Any},
    "of?": Any,
    "keys?": Literal["int", "str"],
    "nullable?": bool,
    "required?": bool,
    "open?": bool,
    "internal?": bool,
    "case_insensitive?": bool,
    "human_readable?": bool,
    "ge?": float,
    "gt?": float,
    "le?": float,
    "lt?": float,
    "min_length?": int,
    "default?": Any,
    "default_factory?": str,
    "effective_default?": Scalar,
    "alias?": [str],
    "status?": Literal["prototype", "beta", "deprecated", "removed"],
    "confidence?": str,
    "uncertain?": Literal["existence", "kind", "value"],
    "effect?": str,
    "replaced_by?": str,
    "description?": str,
}

# A group of options.
RECORD_TYPE: Any = {
    "fields": {"*": OPTION_ROW},
    "open_keys?": [str],
    "only_in_python?": bool,
    "backend?": str,
}

# Groups of options; the value of one option selects the group.
UNION_TYPE: Any = {
    "discriminator": str,
    "types": {"*": str},
    "default?": str,
    "case_insensitive?": bool,
}

# A flag of a command.
FLAG_ROW: Any = {
    "name": Text,
    "flags": [Text],
    "type": Annotated[str, one_of(FLAG_TYPES)],
    "values?": [str],
    "default?": Scalar,
    "default_known?": bool,
    "positional?": bool,
    "multiple?": bool,
    "yaml_path?": str,
    "status?": str,
    "note?": str,
}

# Who wins where flag and file name the same option.
PRECEDENCE_ROW: Any = {
    "winner": Literal["yaml", "cli_when_typed"],
    "confidence": str,
    "merge?": str,
    "deep_merged_keys?": [str],
    "cli_to_nested?": {"*": str},
}

# What the server command sets by itself.
INJECTED_OPTIONS: Any = {
    "values?": {"*": Any},
    "versions?": str,
    "note?": str,
    "gpus_per_node?": str,
    "env?": [str],
}

# A server flag that the models of one architecture need.
ARCHITECTURE_FLAG: Any = {
    "architecture": str,
    "flag": str,
    "value": str,
    "reason": str,
    "evidence": Evidence,
    "source": str,
}

# The server command.
SERVE_COMMAND: Any = {
    "flags": [FLAG_ROW],
    "precedence": PRECEDENCE_ROW,
    "injected": (INJECTED_OPTIONS, None),
    "flags_by_architecture": [ARCHITECTURE_FLAG],
    "source?": str,
    "absent?": [str],
    "default_confidence?": str,
    "grpc?": {"*": Any},
}

# Methods and paths of the server.
ENDPOINTS: Any = {
    "server": [[str]],
    "conditions?": {"*": str},
    "disaggregated_server?": [str],
    "confidence?": str,
}

# The Prometheus metrics that are known.
METRIC_NAMES: Any = {
    "prefix?": str,
    "prefix_confidence?": str,
    "names?": [str],
    "labels?": {"*": [str]},
    "confidence?": str,
    "available?": str,
}

# A MoE backend that has kernels for a quantization on compute capabilities.
MOE_ROW: Any = {
    "backend": str,
    "quant_algo": str | None,
    "sm": [int],
    "evidence": Evidence,
    "source": str,
}

MOE_TABLE: Any = {
    "rows": [MOE_ROW],
    "only_on?": {"*": {"sm": [int], "source": str}},
    "engine_default": str,
    "load_balancer_backends": [str],
    "bias_backends?": [str],
    "no_router_weight_on_input?": [str],
    "selection_source?": str,
    "selection_confidence?": str,
    "on_mismatch?": str,
    "auto?": [{"*": Any}],
    "auto_otherwise?": str,
}

# Where a table comes from, and how sure it is.
PROVENANCE: Any = {
    "sources": [str],
    "confidence": str,
    "tag_commit?": str,
    "tag_commit_short?": str,
    "commit?": str,
    "version_guess?": str,
}

# What is known of a file format: options by type.
OPTION_TABLE: Any = {
    "root": str,
    "types": {"*": RECORD_TYPE},
    "unions": {"*": UNION_TYPE},
    "aliases": {"*": str},
}

# A file format that belongs to no release.
FORMAT_ROW: Any = {**OPTION_TABLE, "release": Text, "source": Text, "serve": {"flags": [FLAG_ROW]}}

REQUESTS_LACK: Any = [
    Literal[
        "tool_choice.auto",
        "tool_choice.required",
        "tool_choice.function.name",
        "tools.function.strict",
        "parallel_tool_calls",
    ]
]

# A release of an engine, of the usual one where it names none. `server_root` is the type of the
# options that an option file may hold for the server beside those of the engine. In a
# `flat_option_file` groups of options are JSON text. `aliases` are
# choices whose name changed, or is another one in this engine -> their option path; `nearest` is
# the numbered release that a development table comes closest to. `requests_lack` are fields and
# values of chat requests that its server refuses and others take; `auto` is the value without
# `tools`, the name of a function one that is not in them. A server that refuses such a name has the
# model call the function that a request names.
RELEASE_ROW: Any = {
    **OPTION_TABLE,
    "format": int,
    "engine?": EngineName,
    "release": ReleaseName,
    "server_root?": str,
    "flat_option_file?": bool,
    "nearest?": ReleaseName,
    "provenance": PROVENANCE,
    "carried_from?": {"*": str},
    "serve": SERVE_COMMAND,
    "subcommands": {"*": [FLAG_ROW]},
    "llmapi_launch?": {"*": Any},
    "endpoints": ENDPOINTS,
    "requests_lack?": REQUESTS_LACK,
    "metrics": METRIC_NAMES,
    "moe": MOE_TABLE,
    "cuda_graphs_engine_default": int,
    "mtp_kv_layers": {"value": Literal["per_draft_token", "one"], "source": str},
    "environment": {"*": str},
    "supported_architectures?": {"*": str},
    "unsupported_architectures": {"*": str | None},
    "support_matrix?": {"*": Any},
    "rules": [str],
    "containers": {"*": [str]},
}

# The key that options of each type need, and its Python type.
_REQUIRED: Mapping[str, tuple[str, Any]] = {
    "enum": ("values", list),
    "list": ("items", dict),
    "mapping": ("items", dict),
    "either": ("of", list),
    "record": ("of", str),
    "union": ("of", str),
}
_NUMBER = (int, float)


def faults(table: Mapping[str, Any]) -> Iterator[Fault]:
    """Names without a definition, and options without the keys that their type needs."""
    wrong = list(_types(table))
    yield from wrong or (_names(table) if "precedence" in table["serve"] else ())


def lacking(
    engine: Engine, paths: Collection[str], default: Callable[[str], Any]
) -> Iterator[Fault]:
    """Options and defaults that planning needs and that are missing."""
    for path in engine.needed_options:
        if path not in paths:
            yield path, "is not an option, and planning asks for it"
    for path in engine.needed_numbers:
        value = default(path)
        if not isinstance(value, _NUMBER) or isinstance(value, bool):
            yield path, "has no default that is a number, and planning computes with it"


def engine_of(table: Mapping[str, Any]) -> Engine:
    name = table.get("engine")
    return engines.load(name) if name in engines.names() else engines.default()


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


def _option(row: Any, table: Mapping[str, Any], path: str, depth: int) -> Iterator[Fault]:
    kind = row.get("type") if isinstance(row, dict) else None
    if depth > MAX_DEPTH:
        yield path, "is nested too deeply"
        return
    if kind not in OPTION_TYPES:
        yield f"{path}.type", "is not a type of an option"
        return
    for name in ("default", "effective_default"):
        if kind in ("int", "float", "bool") and isinstance(row.get(name), str | list | dict):
            yield f"{path}.{name}", "is not a value of the option's type"
    if kind not in _REQUIRED:
        return
    key, needed = _REQUIRED[kind]
    if not isinstance(row.get(key), needed):
        yield f"{path}.{key}", "is missing, or of another type than the option needs"
        return
    homes = {"record": "types", "union": "unions"}
    if kind in homes and row["of"] not in table[homes[kind]]:
        yield f"{path}.of", f"{row['of']} is not among the {homes[kind]}"
    if kind in ("enum", "either") and not row[key]:
        yield f"{path}.{key}", "is empty"
    inside = {"either": row.get("of"), "list": [row.get("items")], "mapping": [row.get("items")]}
    for inner in inside.get(kind, ()):
        yield from _option(inner, table, f"{path}.{key}", depth + 1)


def _names(table: Mapping[str, Any]) -> Iterator[Fault]:
    """Names that other parts of the table, or the toolkit, ask for."""
    names = [flag["name"] for flag in table["serve"]["flags"]]
    for index, flag in enumerate(table["serve"]["flags"]):
        if not flag["flags"] or names.count(flag["name"]) > 1:
            yield f"serve.flags.{index}", "has no spelling, or the name of another flag"
    option_file = engine_of(table).option_file_flag
    if option_file not in names:
        yield "serve.flags", f"has no {option_file}, the flag of the option file"
    server = table.get("server_root")
    if server is not None and server not in table["types"]:
        yield "server_root", f"{server} is not among the types"
    for index, row in enumerate(table["serve"]["flags_by_architecture"]):
        if row["flag"] not in names:
            yield f"serve.flags_by_architecture.{index}.flag", f"{row['flag']} is not a flag"
    for index, pair in enumerate(table["endpoints"]["server"]):
        if len(pair) != 2:
            yield f"endpoints.server.{index}", "is not a method and a path"


RELEASE_TABLE: Any = Plain(RELEASE_ROW, faults)
FORMAT_TABLE: Any = Plain(FORMAT_ROW, faults)
