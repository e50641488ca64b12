"""A release table from an installed engine, or from the manifest that newer releases ship.

What neither can know is carried over from a release that is `like` it and marked so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic
from ...errors import BadInput
from ...files import reported
from ..release import FORMAT, Release, checked
from ..release.table import engine_of
from . import tensorrt_llm, vllm

PARTS = (
    *("aliases", "llmapi_launch", "endpoints", "metrics", "moe", "cuda_graphs_engine_default"),
    *("mtp_kv_layers", "environment"),
    *("supported_architectures", "unsupported_architectures", "rules", "containers"),
    "support_matrix",
)
# The engine that is read as source.
SOURCE_ENGINE = vllm.PACKAGE
# Facts about the server command that its options do not include.
SERVE_PARTS = ("precedence", "injected", "flags_by_architecture")


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")


def from_installed(python: str, name: str, like: Release) -> dict[str, Any]:
    """The table of the `tensorrt_llm` that an interpreter can import. Raises `BadFacts` with the
    last line of its error if it cannot."""
    _check_name(name)
    found = tensorrt_llm.ask(python)
    types, unions = tensorrt_llm.Schema(found["schema"], found["aliases"], like).tables()
    source = f"tensorrt_llm {found['version']} as installed: option classes and server command"
    table = _inherited(name, like, source, "read from the package, but for what is carried")
    table |= {"root": tensorrt_llm.ROOT, "types": types, "unions": unions}
    commands = {
        command: tensorrt_llm.flags(rows, like) for command, rows in found["commands"].items()
    }
    table["serve"] |= {"source": source, "flags": commands.pop("serve"), "absent": []}
    table["subcommands"] = commands
    return without_dead_names(table)


def from_manifest(path: Path, name: str, like: Release) -> dict[str, Any]:
    """The table of the release whose `llm_args_golden_manifest.json` lies at `path`.

    The manifest names no free-form options (text, mappings), no defaults and few bounds: those are
    carried over, and a key that the table lacks may exist.
    """
    _check_name(name)
    rows = tensorrt_llm.read_manifest(path)
    source = f"{path.name} of {name}"
    table = _inherited(name, like, source, "read from the manifest, but for what is carried")
    _inherit_options(table, like)
    tensorrt_llm.ManifestUpdate(table, f"not in the manifest of {name}").apply(rows)
    return without_dead_names(table)


def from_source(path: Path, name: str, like: Release | None) -> dict[str, Any]:
    """The table of the vLLM in a wheel, or in the folder of packages that it is installed in.

    Raises `BadInput` or `BadFacts` if vLLM is missing or has an unknown layout.
    """
    _check_name(name)
    return without_dead_names(vllm.table(path, name, like))


def write(table: Mapping[str, Any], path: Path) -> None:
    """Writes a table. Raises `BadFacts` for an unusable table, `BadInput` if the file exists or
    cannot be written."""
    checked(table, path)
    text = json.dumps(table, indent=1, ensure_ascii=False) + "\n"
    with (
        reported(path, "cannot be written", "choose another file"),
        path.open("x", encoding="utf-8") as file,
    ):
        file.write(text)


def _check_name(name: str) -> None:
    """Raises `BadInput` for a name that no release can have."""
    if not _NAME.fullmatch(name):
        remedy = "give a version, or letters, digits and ._+-"
        raise BadInput(Diagnostic("--name", f"{name!r} is not a name of a release", remedy))


def _inherited(name: str, like: Release, source: str, confidence: str) -> dict[str, Any]:
    """A table of everything but options and flags; `carried_from` names what is carried."""
    parts = {part: deepcopy(like.table[part]) for part in PARTS if part in like.table}
    serve = {part: deepcopy(like.table["serve"][part]) for part in SERVE_PARTS}
    marks = [*parts, *(f"serve.{part}" for part in SERVE_PARTS)]
    return {
        "format": FORMAT,
        "release": name,
        "provenance": {"sources": [source], "confidence": confidence},
        "carried_from": dict.fromkeys(marks, like.name),
        "serve": serve,
        **parts,
    }


def _inherit_options(table: dict[str, Any], like: Release) -> None:
    """Options and flags of the other release, to be brought up to date."""
    parts = ("root", "types", "unions", "serve", "subcommands")
    table |= {part: deepcopy(like.table[part]) for part in parts}
    marks = ("free-form options", "bounds", "defaults", "serve", "subcommands")
    table["carried_from"] |= dict.fromkeys(marks, like.name)


def without_dead_names(table: dict[str, Any]) -> dict[str, Any]:
    """The table without carried names of options and flags that it does not have."""
    paths, serve = Release(table, Path(), engine_of(table)).paths, table["serve"]
    table["aliases"] = {alias: path for alias, path in table["aliases"].items() if path in paths}
    for flag in serve["flags"]:
        if "yaml_path" in flag and flag["yaml_path"] not in paths:
            del flag["yaml_path"]
    names = {flag["name"] for flag in serve["flags"]}
    rows = serve["flags_by_architecture"]
    serve["flags_by_architecture"] = [row for row in rows if row["flag"] in names]
    return table
