"""The engines that can be deployed: one record for each, from `builder/data/engines/`.

A record says where everything else that is known of an engine lies. What needs code, the
translation of a plan into the engine's own options, is the module of the same name in
`builder/engines`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..documents import DATA, load_yaml

ENGINES = DATA / "engines"


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    `package` is its name on a package index, `module` what Python imports, and `product` its name
    in advisories. `releases` is the folder of its option tables, `heuristics` that of its
    heuristics; `rules` and `environment` are the files of its cross-field rules and of the
    variables of its processes. `rank_launcher` starts the command that follows it on every rank.
    Any of `telemetry_variables`, set to 1, keeps it from sending usage data.
    """

    name: str
    title: str
    package: str
    module: str
    license: str
    product: str
    releases: Path
    rules: Path
    heuristics: Path
    environment: Path
    rank_launcher: str
    telemetry_variables: tuple[str, ...]
    default: bool = False


@cache
def names() -> tuple[str, ...]:
    """Every engine, sorted."""
    return tuple(sorted(path.stem for path in ENGINES.glob("*.yaml")))


@cache
def load(name: str) -> Engine:
    """The record of an engine, which must be one of `names()`."""
    row: dict[str, Any] = load_yaml((ENGINES / f"{name}.yaml").read_text(encoding="utf-8"))
    paths: dict[str, Any] = {
        key: DATA / row.pop(key) for key in ("releases", "rules", "heuristics", "environment")
    }
    return Engine(name, **paths, **{**row, "telemetry_variables": (*row["telemetry_variables"],)})


@cache
def default() -> Engine:
    """The engine of a deployment that names none."""
    (found,) = (engine for engine in map(load, names()) if engine.default)
    return found
