"""Finds what is known about an exact engine release: options, flags, endpoints, metrics, MoE
backends.

A release is a table in `builder/data/releases/`, or one that the user imported and names by its
path. A release without a table is described by its neighbours and says so; it is never silently
replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from ...diagnostics import Diagnostic
from ...documents import DATA
from ...errors import BadFacts, BadInput
from ...files import parse_json, read_text, without_links
from ...schema import Plain, build
from .. import data_file, engines
from ..engines import Engine
from . import derived, published
from .record import Field, Flag, Release, ServerRole, discriminator, record_types
from .table import RELEASE_TABLE, Fault, engine_of, lacking
from .version import canonical, is_stable, is_version, oldest_first, order, without_post

__all__ = [
    "CHANGED_TABLE",
    "FORMAT",
    "Field",
    "Flag",
    "Release",
    "ServerRole",
    "checked",
    "discriminator",
    "known",
    "load",
    "load_published",
    "newest_stable",
    "of_all_engines",
    "of_engine",
    "record_types",
    "resolve",
]

FORMAT = 2
MAX_BYTES = 20_000_000  # of an imported table
MAX_FAULTS = 20  # of one table are enough to see what is wrong with it

# A table is written in full, or as the changes to another one.
_SUFFIXES = (".json", ".yaml")


def known(engine: Engine | None = None) -> list[str]:
    """Releases of an engine that have a table, oldest first, development tables last."""
    return list(_in_order(data_file.names(_folder(engine), *_SUFFIXES)))


@lru_cache(maxsize=16)
def _in_order(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(names, key=oldest_first))


def of_engine(engine: Engine) -> list[Release]:
    """The releases of `known`."""
    return [_shipped(name, engine) for name in known(engine)]


def of_all_engines() -> list[Release]:
    return list(chain.from_iterable(map(of_engine, map(engines.load, engines.names()))))


def newest_stable(engine: Engine | None = None) -> str:
    return [name for name in known(engine) if is_stable(name)][-1]


def load(name: str, folder: Path = Path(), engine: Engine | None = None) -> Release:
    """The table of a release: one that ships, or the file `folder`/`name` if it ends in `.json`.

    A release without a table that is newer than the oldest one is described by its `neighbours`.
    Raises `BadInput` with the known ones for any other name.
    """
    if name.endswith(".json"):
        return _read(folder / name, engine)
    engine = engine or engines.default()
    name = canonical(name)
    return _shipped(name, engine) if name in known(engine) else _between(name, engine)


def load_published(value: object, folder: Path, engine: Engine, assume: bool) -> Release:
    """The table of a release as a user wrote it. Raises `BadInput` as `load` does, and unless
    `assume` for a release that is not known to be published."""
    name, tables = str(published.spelled(value)), known(engine)
    if name in tables:
        return load(name, folder, engine)
    if refused := published.only_begun(value, engine, tables):
        raise BadInput(refused)
    found = load(name, folder, engine)
    if not assume and (refused := published.unknown(name, engine)):
        raise BadInput(refused)
    return found


@cache
def _between(name: str, engine: Engine) -> Release:
    """A release without a table, described by its neighbours."""
    beside = _neighbours(name, engine)
    if not beside:
        what = f"release {name} of {engine.name} has no option table"
        remedy = f"known: {', '.join(known(engine))}; or give the path of an imported table"
        raise BadInput(Diagnostic("engine.release", what, remedy))
    table = derived.between(name, beside[0].table, beside[-1].table)
    if beside[0] is beside[-1]:
        table = {**beside[0].table, "release": name, "containers": table["containers"]}
    judges = tuple(replace(row, stands_for=name) for row in beside)
    return Release(table, beside[0].path, engine, judges)


def _neighbours(name: str, engine: Engine) -> tuple[Release, ...]:
    """The tables next to a release, older first: only one if it is for the same code or nothing
    newer is known, and none for a release that is older than all tables."""
    if (own := without_post(name)) != name and own in known(engine):
        return (load(own, engine=engine),)
    here = order(name) if is_version(name) else None
    placed = [(order(row.position), row) for row in of_engine(engine) if order(row.position)]
    rows = sorted(placed, key=lambda pair: pair[0] or ())
    older = [row for at, row in rows if here and at and at <= here]
    newer = [row for at, row in rows if here and at and at >= here]
    if not older:
        return ()
    if not newer or older[-1] is newer[0]:
        return (older[-1],)
    return older[-1], newer[0]


def resolve(name: str, folder: Path) -> str:
    """A release that a file in `folder` names: the path of an imported table becomes absolute."""
    return str(without_links(folder / name)) if name.endswith(".json") else name


def _folder(engine: Engine | None) -> Path:
    return DATA / (engine or engines.default()).releases


@cache
def _shipped(name: str, engine: Engine) -> Release:
    paths = (_folder(engine) / f"{name}{suffix}" for suffix in _SUFFIXES)
    (path,) = (path for path in paths if path.is_file())
    if path.suffix == ".json":
        return Release(data_file.load(path, RELEASE_TABLE), path, engine)
    document = data_file.load(path, CHANGED_TABLE)
    base = load(document["based_on"], engine=engine)
    return Release(derived.expand(document, base.table), path, engine, based_on=base)


def _changed_faults(document: Mapping[str, Any]) -> Iterator[Fault]:
    """Errors in the changes to a shipped table, and in the table that they make."""
    base_name = document["based_on"]
    if base_name not in known() or base_name == document["release"]:
        yield "based_on", f"{base_name} has no option table"
        return
    base = load(base_name)
    wrong = list(derived.faults(document, base.table))
    yield from wrong
    if not wrong:
        expanded = derived.expand(document, base.table)
        for found in build(RELEASE_TABLE, expanded)[1]:
            yield "changes", f"make a table of which {found.path} {found.message}"
        release = Release(expanded, Path(), base.engine)
        for path, what in lacking(release.engine, release.paths, release.default):
            yield "changes", f"make a table of which {path} {what}"


CHANGED_TABLE: Any = Plain(derived.CHANGES, _changed_faults)


def _read(path: Path, engine: Engine | None) -> Release:
    """An imported table that has everything the toolkit reads, in the right types.

    It is for `engine`, or for any engine if that is `None`.
    """
    try:
        table = parse_json(read_text(path, max_bytes=MAX_BYTES))
    except ValueError as fault:
        what = f"cannot be read: {fault}"
        raise BadInput(Diagnostic(str(path), what, "give a table of `release import`")) from None
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        what = f"is not an option table (format {FORMAT})"
        raise BadFacts(Diagnostic(str(path), what, "write it with `release import`"))
    own = engine_of(table)
    if engine and own != engine:
        what = f"is an option table of {own.title}, not of {engine.title}"
        raise BadInput(Diagnostic(str(path), what, f"give engine.name {own.name}"))
    try:
        return _usable(Release(data_file.read(path, RELEASE_TABLE), path, own))
    except BadFacts as error:
        raise BadFacts(error.diagnostics[:MAX_FAULTS]) from None


def checked(table: Mapping[str, Any], path: Path) -> Release:
    """A table that has no file yet. Raises `BadFacts` with what it lacks."""
    _, found = build(RELEASE_TABLE, table)
    if found:
        raise BadFacts(replace(each, where=f"{path}: {each.path}") for each in found[:MAX_FAULTS])
    return _usable(Release(table, path, engine_of(table)))


def _usable(release: Release) -> Release:
    """The release, if it has everything that planning needs. Raises `BadFacts`."""
    remedy = "without it nothing can be planned or checked"
    found = list(lacking(release.engine, release.paths, release.default))
    if found:
        raise BadFacts(
            Diagnostic(f"{release.path}: {where}", what, remedy) for where, what in found
        )
    return release
