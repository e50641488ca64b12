"""A release table from an installed engine, or from the manifest that newer releases ship.

What neither can know is carried over from a release that is `like` it and marked so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic
from ...errors import BadInput
from ..release import Release, checked
from . import carried, installed, manifest


def from_installed(python: str, name: str, like: Release) -> dict[str, Any]:
    """The table of the `tensorrt_llm` that an interpreter can import.

    Raises `BadFacts` if it cannot, with the last line of what it said.
    """
    carried.check_name(name)
    found = installed.ask(python)
    types, unions = installed.Schema(found["schema"], found["aliases"], like).tables()
    source = f"tensorrt_llm {found['version']} as installed: option classes and server command"
    table = carried.table(name, like, source, "read from the package, but for what is carried")
    table |= {"root": installed.ROOT, "types": types, "unions": unions}
    commands = {command: installed.flags(rows, like) for command, rows in found["commands"].items()}
    table["serve"] |= {"source": source, "flags": commands.pop("serve"), "absent": []}
    table["subcommands"] = commands
    return carried.without_dead_names(table)


def from_manifest(path: Path, name: str, like: Release) -> dict[str, Any]:
    """The table of the release whose `llm_args_golden_manifest.json` lies at `path`.

    The manifest names no free-form options (text, mappings), no defaults and few bounds: those are
    carried over, and a key that the table lacks may exist.
    """
    carried.check_name(name)
    rows = manifest.read(path)
    source = f"{path.name} of {name}"
    table = carried.table(name, like, source, "read from the manifest, but for what is carried")
    carried.options(table, like)
    manifest.Update(table, f"not in the manifest of {name}").apply(rows)
    return carried.without_dead_names(table)


def write(table: Mapping[str, Any], path: Path) -> None:
    """Raises `BadFacts` for a table that could not be used, `BadInput` if the file exists or cannot
    be written."""
    checked(table, path)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
    except OSError as fault:
        what = f"cannot be written: {fault.strerror}"
        raise BadInput(Diagnostic(str(path), what, "choose another file")) from None
