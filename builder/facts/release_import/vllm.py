"""vLLM's option classes and server flags, read from its installed package or from a wheel.

Nothing of the engine is run: the build for a GPU needs one to be imported, and the source of every
build of a release is the same.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any

from ..release import FORMAT, Release
from ..release.version import is_version
from .option_classes import OptionClasses, Row
from .python_source import UNKNOWN, Module, Name, Sources, dotted

PACKAGE = "vllm"
ROOT, SERVER_ROOT = "AsyncEngineArgs", "FrontendArgs"
_ARGUMENTS = "vllm.engine.arg_utils"
_SERVER = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
_REGISTRY = "vllm.model_executor.models.registry"
_VARIABLES = "vllm.envs"
_METRIC = "vllm:"
_PARSER = "vllm.utils.argparse_utils"

# Values that newer parts of the engine add to an option, by the name of their register.
_REGISTERED = {
    "tool_call_parser": "vllm.tool_parsers",
    "reasoning_parser": "vllm.reasoning",
    "kv_connector": "vllm.distributed.kv_transfer.kv_connector.factory",
}

# Given as 8k or 1M as well; the engine's own parser has the list.
_COUNTS = "human_readable_int_args"

# Flag types by the type of an option.
_FLAG_TYPES: Mapping[str, str] = {"bool": "flag", "mapping": "json", "record": "json", "any": "str"}


def table(path: Path, name: str, like: Release | None) -> dict[str, Any]:
    """The table of the release in a wheel, or in the folder of packages that it is installed in.

    What the source does not tell is carried from the release it is `like`; without one there is
    nothing to carry.
    """
    found = _Engine(Sources(path, PACKAGE))
    source = f"{path.name if path.suffix == '.whl' else 'package'} {found.version}, read as source"
    carried = ("aliases", "moe", "cuda_graphs_engine_default", "mtp_kv_layers", "rules")
    parts = {part: deepcopy(like.table[part]) for part in carried} if like else deepcopy(_NOTHING)
    return {
        "format": FORMAT,
        "engine": PACKAGE,
        "release": name,
        "provenance": {
            "sources": [source],
            "confidence": "read from the source, but what is carried",
        },
        **({"carried_from": dict.fromkeys(carried, like.name)} if like else {}),
        "root": ROOT,
        "server_root": SERVER_ROOT,
        **({"flat_option_file": True} if found.reads_flat_files() else {}),
        "types": found.types(),
        "unions": {},
        "serve": {
            "flags": found.flags(),
            "precedence": {"winner": "cli_when_typed", "confidence": "read from the source"},
            "injected": None,
            "flags_by_architecture": [],
        },
        "subcommands": {},
        "endpoints": {"server": [list(pair) for pair in found.endpoints()]},
        "metrics": {
            "prefix": "",
            "names": found.metrics(),
            "confidence": "read from the source",
        },
        "environment": dict.fromkeys(found.variables(), "vllm/envs.py"),
        "supported_architectures": found.architectures(),
        "unsupported_architectures": found.removed_architectures(),
        "containers": {"vllm_serve": [f"v{name}"] if is_version(name) else [], "triton_vllm": []},
        **parts,
    }


# The planner's words for choices that mean the same in this engine -> its own options.
_WORDS: Mapping[str, str] = {
    "max_batch_size": "max_num_seqs",
    "max_num_tokens": "max_num_batched_tokens",
    "max_seq_len": "max_model_len",
    "kv_cache_config.dtype": "kv_cache_dtype",
    "kv_cache_config.free_gpu_memory_fraction": "gpu_memory_utilization",
    "kv_cache_config.enable_block_reuse": "enable_prefix_caching",
    "kv_cache_config.tokens_per_block": "block_size",
    "cuda_graph_config.batch_sizes": "cudagraph_capture_sizes",
    "cuda_graph_config.max_batch_size": "max_cudagraph_capture_size",
    "moe_config.backend": "moe_backend",
    "speculative_config.decoding_type": "speculative_config.method",
    "speculative_config.max_draft_len": "speculative_config.num_speculative_tokens",
    "mtp_draft_tokens": "speculative_config.num_speculative_tokens",
    "draft_model": "speculative_config.model",
    "moe_config.load_balancer": "eplb_config",
}

# What of a table no source of a release tells.
_NOTHING: Mapping[str, Any] = {
    "aliases": _WORDS,
    "moe": {"rows": [], "engine_default": "auto", "load_balancer_backends": []},
    "cuda_graphs_engine_default": 51,
    "mtp_kv_layers": {
        "value": "one",
        "source": "vllm/v1/spec_decode: the layers of the checkpoint are run again for each token",
    },
    "rules": [],
}


class _Engine:
    def __init__(self, sources: Sources) -> None:
        self._sources, self.version = sources, sources.version()
        self._arguments = sources.needed(_ARGUMENTS)
        self._server = next(filter(None, map(sources.module, _SERVER)), None) or sources.needed(
            _SERVER[0]
        )
        self._classes = OptionClasses()
        self._engine_flags = [
            *self._read_flags(self._arguments.needed_class("EngineArgs")),
            *self._read_flags(self._arguments.needed_class(ROOT)),
        ]
        self._root = self._root_fields()
        self._frontend = self._classes.fields(self._server.needed_class(SERVER_ROOT))
        self._name_registered()

    def types(self) -> dict[str, Row]:
        roots = {ROOT: {"fields": self._root}, SERVER_ROOT: {"fields": self._frontend}}
        return {**roots, **self._classes.types}

    def _root_fields(self) -> dict[str, Row]:
        """The engine's options, each with what its flag says of it where that says more."""
        rows = self._classes.fields(self._arguments.needed_class(ROOT))
        counts = self._counts()
        for flag, row in self._engine_flags:
            name = flag["name"]
            if row is not None and name in rows:
                rows[name] = _with_default(row, rows[name])
            if name in rows and flag.get("status"):
                rows[name]["status"] = flag["status"]
        for name in counts & set(rows):
            rows[name]["human_readable"] = True
        return rows

    def _counts(self) -> set[str]:
        """Options that are also given as 8k or 1M."""
        for node in ast.walk(self._arguments.tree):
            if isinstance(node, ast.Assign) and dotted(node.targets[0]) == _COUNTS:
                value = self._arguments.value(node.value)
                return {"max_model_len", *(value if value is not UNKNOWN else ())}
        return {"max_model_len", "max_num_batched_tokens", "kv_cache_memory_bytes"}

    def _name_registered(self) -> None:
        """What the release registers of a kind; plug-ins may add others."""
        transfer = self._classes.types.get("KVTransferConfig", {"fields": {}})["fields"]
        for option, module in _REGISTERED.items():
            names = sorted(self._registered(module))
            for rows in (self._root, self._frontend, transfer):
                if names and option in rows:
                    kept = {k: v for k, v in rows[option].items() if k not in ("type", "values")}
                    rows[option] = {"type": "enum", "values": names, "open": True, **kept}

    def _registered(self, module: str) -> Iterator[str]:
        found = self._sources.module(module)
        if found is None:
            return
        for node in found.tree.body:
            value = getattr(node, "value", None)
            keys: Sequence[ast.expr | None] = value.keys if isinstance(value, ast.Dict) else []
            if isinstance(value, ast.Call) and dotted(value.func).endswith("register_connector"):
                keys = value.args[:1]
            for key in keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value

    def flags(self) -> list[Row]:
        """All flags of `vllm serve`, the server's own first."""
        found: dict[str, Row] = {}
        parser = self._server.lookup("make_arg_parser")
        if parser is not None:
            for flag, _ in self._statements(parser.node, self._server):
                found.setdefault(flag["name"], flag)
        for name, row in self._frontend.items():
            found.setdefault(name, _flag(name, ["--" + name.replace("_", "-")], row))
        for flag, _ in self._engine_flags:
            name = flag["name"]
            if described := self._root.get(name):
                flag = {**flag, **_flag_type(described)}
            found.setdefault(name, flag)
        return list(found.values())

    def architectures(self) -> dict[str, str]:
        """Architectures that the release registers, each with where it is listed."""
        names = self._names_of(("_VLLM_MODELS",))
        return dict.fromkeys(sorted(names), f"{_REGISTRY.replace('.', '/')}.py")

    def removed_architectures(self) -> dict[str, str]:
        """Architectures that were taken out, with the last release that had them."""
        found = self._registry_dict("_PREVIOUSLY_SUPPORTED_MODELS")
        rows = ast.literal_eval(found) if found is not None else {}
        return {name: f"taken out after {last}" for name, last in rows.items()}

    def _names_of(self, names: tuple[str, ...]) -> Iterator[str]:
        for name in names:
            found = self._registry_dict(name)
            if found is None:
                continue
            for key, value in zip(found.keys, found.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value)
                elif key is None and isinstance(value, ast.Name):
                    yield from self._names_of((value.id,))

    def _registry_dict(self, name: str) -> ast.Dict | None:
        registry = self._sources.module(_REGISTRY)
        found = registry.lookup(name) if registry else None
        value = getattr(found.node, "value", None) if found else None
        return value if isinstance(value, ast.Dict) else None

    def variables(self) -> list[str]:
        module = self._sources.needed(_VARIABLES)
        for node in ast.walk(module.tree):
            if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Dict):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                if dotted(target) == "environment_variables":
                    keys = (key.value for key in node.value.keys if isinstance(key, ast.Constant))
                    return sorted(key for key in keys if isinstance(key, str) and key.isupper())
        return []

    def reads_flat_files(self) -> bool:
        """Whether the reader of option files has no case for groups of options."""
        parser = self._sources.module(_PARSER)
        if parser is None:
            return False
        for node in ast.walk(parser.tree):
            if isinstance(node, ast.FunctionDef) and node.name.endswith("load_config_file"):
                return "isinstance(value, dict)" not in ast.unparse(node)
        return False

    def endpoints(self) -> list[tuple[str, str]]:
        """Method and path of every route that the server's modules declare."""
        found = set()
        for module in self._sources.below("vllm.entrypoints"):
            for node in ast.walk(module.tree):
                for mark in getattr(node, "decorator_list", ()):
                    if not isinstance(mark, ast.Call) or not mark.args:
                        continue
                    owner, _, method = dotted(mark.func).rpartition(".")
                    path = module.value(mark.args[0])
                    routes = owner.rpartition(".")[2] in ("router", "app")
                    if routes and method in ("get", "post") and str(path).startswith("/"):
                        found.add((method.upper(), str(path)))
        return sorted([*found, ("GET", "/metrics")], key=lambda pair: (pair[1], pair[0]))

    def metrics(self) -> list[str]:
        """The Prometheus metrics that the engine makes, as they are shown."""
        modules = self._sources.below("vllm.v1.metrics"), self._sources.below("vllm.v1.spec_decode")
        names = set()
        for module in chain(*modules):
            for node in ast.walk(module.tree):
                words = node.keywords if isinstance(node, ast.Call) else ()
                given = {word.arg: module.value(word.value) for word in words}
                name = str(given.get("name"))
                if isinstance(node, ast.Call) and re.fullmatch(_METRIC + r"[a-z0-9_]+", name):
                    counts = "counter" in dotted(node.func).lower()
                    total = "_total" if counts and not name.endswith("_total") else ""
                    names.add(name + total)
        return sorted(names)

    def _read_flags(self, found: Name) -> Iterator[tuple[Row, Row | None]]:
        assert isinstance(found.node, ast.ClassDef)
        for node in found.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == "add_cli_args":
                yield from self._statements(node, found.module)

    def _statements(self, node: ast.AST, module: Module) -> Iterator[tuple[Row, Row | None]]:
        """Every flag that a function adds, with the option of a class that describes it."""
        groups: dict[str, tuple[str, str | None]] = {}
        lowered: set[str] = set()
        for statement in ast.walk(node):
            if isinstance(statement, ast.Assign):
                target = statement.targets[0]
                if made := _kwargs_of(statement.value, groups):
                    groups[dotted(target)] = made
                if isinstance(target, ast.Subscript) and ".lower()" in ast.unparse(statement.value):
                    lowered.add(dotted(target.value))
        for call in ast.walk(node):
            if not isinstance(call, ast.Call) or not dotted(call.func).endswith(".add_argument"):
                continue
            if flag := self._flag(call, module, groups, lowered):
                yield flag

    def _flag(
        self,
        call: ast.Call,
        module: Module,
        groups: Mapping[str, tuple[str, str | None]],
        lowered: Collection[str],
    ) -> tuple[Row, Row | None] | None:
        spellings = [module.value(argument) for argument in call.args]
        if not spellings or not all(isinstance(one, str) for one in spellings):
            return None
        longs = [one for one in spellings if one.startswith("--")] or spellings
        given: dict[str | None, ast.expr] = {word.arg: word.value for word in call.keywords}
        name = str(module.value(given["dest"]) if "dest" in given else longs[0].lstrip("-"))
        name = name.replace("-", "_")
        row: Row | None = None
        for word in call.keywords:
            if word.arg is None and (found := _kwargs_of(word.value, groups)) and found[1]:
                owner = module.class_of(found[0])
                row = self._classes.field(owner, found[1]) if owner else None
                if row and dotted(word.value) in lowered:
                    row["case_insensitive"] = True
        spellings = sorted(spellings, key=lambda text: not text.startswith("--"))
        flag = _flag(name, spellings, row or _plain_row(given, module))
        if module.value(given.get("action")) in ("store_true", "store_false"):
            flag["flags"] = spellings
        if not longs[0].startswith("-"):
            flag |= {"flags": [name.upper()], "positional": True}
        text = module.value(given.get("help"))
        action = dotted(given["action"]) if "action" in given else ""
        if "Deprecated" in action or (isinstance(text, str) and "deprecated" in text[:60].lower()):
            flag["status"] = "deprecated"
        return flag, row


def _kwargs_of(
    node: ast.AST, groups: Mapping[str, tuple[str, str | None]]
) -> tuple[str, str | None] | None:
    """The class, and the option of it, whose arguments an expression holds."""
    if isinstance(node, ast.Call) and dotted(node.func) == "get_kwargs" and node.args:
        return dotted(node.args[0]), None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        above = _kwargs_of(node.value, groups)
        return (above[0], str(node.slice.value)) if above else None
    if isinstance(node, ast.Dict) and None in node.keys:  # arguments with some of them replaced
        return _kwargs_of(node.values[node.keys.index(None)], groups)
    return groups.get(dotted(node)) if dotted(node) else None


def _plain_row(given: Mapping[str | None, ast.expr], module: Module) -> Row:
    """An option that a flag describes by itself."""
    action = module.value(given.get("action"))
    shape = dotted(given["action"]) if "action" in given else ""
    default = module.value(given.get("default"))
    row: Row = {} if default is UNKNOWN else {"default": default}
    if action in ("store_true", "store_false") or shape.endswith("BooleanOptionalAction"):
        return {"type": "bool", "default": False, **row}
    values = module.value(given.get("choices"))
    if isinstance(values, list | tuple):
        return {"type": "enum", "values": list(values), **row}
    kind = dotted(given["type"]) if "type" in given else "str"
    return {"type": kind if kind in ("int", "float") else "str", **row}


def _with_default(row: Row, other: Row) -> Row:
    """An option with the default that another row gives it."""
    default = {key: value for key, value in other.items() if key.startswith("default")}
    nullable = {"nullable": True} if default.get("default", 0) is None else {}
    return {k: v for k, v in row.items() if not k.startswith("default")} | default | nullable


def _flag(name: str, spellings: list[str], row: Row) -> Row:
    flag: Row = {"name": name, "flags": spellings, **_flag_type(row)}
    if row["type"] == "bool":
        flag["flags"] = [*spellings, f"--no-{spellings[0].removeprefix('--')}"]
    default = row.get("default")
    known = "default" in row and isinstance(default, bool | int | float | str | None)
    return flag | ({"default": default} if known else {"default_known": False})


def _flag_type(row: Row) -> Row:
    kind = row["type"]
    if kind == "enum" and not row.get("open") and not row.get("case_insensitive"):
        return {"type": "enum", "values": [str(value) for value in row["values"]]}
    if kind == "list":
        return {**_flag_type(row["items"]), "multiple": True}
    if kind == "int" and row.get("human_readable"):
        return {"type": "str"}
    if kind == "either":
        kinds = {_FLAG_TYPES.get(one["type"], one["type"]) for one in row["of"]}
        several = {"multiple": True} if "list" in kinds else {}
        return {"type": "json" if "json" in kinds else "str", **several}
    known = _FLAG_TYPES.get(kind, kind)
    return {"type": known if known in ("int", "float", "flag", "json") else "str"}
