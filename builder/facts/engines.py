"""The engines that can be deployed: one record for each, from `builder/data/engines/`.

A record says where everything else that is known of an engine lies. What needs code, the
translation of a plan into the engine's own options, is the module of the same name in
`builder/engines`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..documents import DATA
from .data_file import load as load_file
from .schema import Text

ENGINES = DATA / "engines"


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    `package` is its name on a package index, `module` what Python imports, and `product` its name
    in advisories. `releases` is the folder of its option tables, `heuristics` that of its
    heuristics and `rules` the file of its cross-field rules, all relative to `builder/data`.
    `rank_launcher` starts the command that follows it on every rank. Any of `telemetry_variables`,
    set to 1, keeps it from sending usage data.
    """

    name: Text
    title: Text
    package: Text
    module: Text
    license: Text
    product: Text
    releases: Text
    rules: Text
    heuristics: Text
    rank_launcher: Text
    telemetry_variables: tuple[Text, ...]
    default: bool = False


@cache
def names() -> tuple[str, ...]:
    """Every engine, sorted."""
    return tuple(sorted(path.stem for path in ENGINES.glob("*.yaml")))


def load(name: str) -> Engine:
    """The record of one of `names()`. Raises `BadFacts` with the errors of its file."""
    return load_file(ENGINES / f"{name}.yaml", Engine)


@cache
def default() -> Engine:
    """The engine of a deployment that names none."""
    (found,) = (engine for engine in map(load, names()) if engine.default)
    return found
