"""The parts of a table that no import can read: taken from a release that is like it."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic
from ...errors import BadInput
from ..release import FORMAT, Release

PARTS = (
    *("aliases", "llmapi_launch", "endpoints", "metrics", "moe", "cuda_graphs_engine_default"),
    *("mtp_kv_layers", "environment"),
    *("supported_architectures", "unsupported_architectures", "rules", "containers"),
    "support_matrix",
)
# Facts about the server command that are not among its options.
SERVE_PARTS = ("precedence", "injected", "flags_by_architecture")


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]*")


def check_name(name: str) -> None:
    """Raises `BadInput` for a name that no release can have."""
    if not _NAME.fullmatch(name):
        remedy = "give a version, or letters, digits and ._+-"
        raise BadInput(Diagnostic("--name", f"{name!r} is not a name of a release", remedy))


def table(name: str, like: Release, source: str, confidence: str) -> dict[str, Any]:
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


def options(table: dict[str, Any], like: Release) -> None:
    """Options and flags of the other release, to be brought up to date."""
    parts = ("root", "types", "unions", "serve", "subcommands")
    table |= {part: deepcopy(like.table[part]) for part in parts}
    marks = ("free-form options", "bounds", "defaults", "serve", "subcommands")
    table["carried_from"] |= dict.fromkeys(marks, like.name)


def without_dead_names(table: dict[str, Any]) -> dict[str, Any]:
    """The table without carried names of options and flags that it does not have."""
    paths, serve = Release(table, Path()).paths, table["serve"]
    table["aliases"] = {alias: path for alias, path in table["aliases"].items() if path in paths}
    for flag in serve["flags"]:
        if flag.get("yaml_path", "model") not in paths:
            del flag["yaml_path"]
    names = {flag["name"] for flag in serve["flags"]}
    rows = serve["flags_by_architecture"]
    serve["flags_by_architecture"] = [row for row in rows if row["flag"] in names]
    return table
