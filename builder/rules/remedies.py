"""Remedies for keys and values that a release does not know, the most certain one first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any, cast

from ..diagnostics import Diagnostic, closest, either, nearest, of_same_words
from ..documents import DATA
from ..facts import data_file, engines, plain_data
from ..facts import release as releases
from ..facts.release import Field, Release
from ..facts.release.record import by_name
from ..facts.release.version import oldest_first
from ..general_rules import UNKNOWN_KEY, UNKNOWN_VALUE
from .options import ANY_KEY, OptionPath, kind_fields, shown, spelled

FORMER = DATA / "formats" / "former_options.yaml"
VALUE_WORDS = DATA / "formats" / "value_words.yaml"


@cache
def former_options() -> Mapping[str, str]:
    """Options of the default engine that were removed or moved before the first release table:
    name to remedy."""
    found: dict[str, str] = {}
    for group in data_file.load(FORMER, plain_data.FORMER_OPTIONS).values():
        found |= group["options"]
    return found


def before_tables(engine: str) -> Mapping[str, str]:
    """Options that an engine had before its first table, with what became of each."""
    groups: Mapping[str, Any] = data_file.load(FORMER, plain_data.FORMER_OPTIONS)
    own: Mapping[str, str] = groups[engine]["options"] if engine in groups else {}
    return own


@cache
def _value_words() -> Mapping[str, Sequence[str]]:
    table: Mapping[str, Any] = data_file.load(VALUE_WORDS, plain_data.VALUE_WORDS)
    return cast(Mapping[str, Sequence[str]], table["words"])


def unknown_value(release: Release, field: Field, value: Any, place: OptionPath) -> Diagnostic:
    values = [str(item) for item in field["values"]]
    remedy = _of_value_words(release, str(value), values, place)
    remedy = remedy or nearest(str(value), values, shows_some=True)
    if home := _home_of_value(release, field, value, place):
        remedy = f"its place is {home}"
    others = [other for other in _others(release) if _allows(other, place.schema, value)]
    if others:
        remedy = f"{age(release, others)}; {remedy}"
    what = f"{shown(value)} is not allowed in release {release.name}"
    return Diagnostic(place.path, what, remedy, rule=UNKNOWN_VALUE)


def _of_value_words(release: Release, value: str, values: Sequence[str], place: OptionPath) -> str:
    """The value that a common synonym means, here or in other releases."""
    words = _value_words().get(value.lower(), ())
    if meant := [word for word in words if word in values]:
        return f"did you mean {either(meant)}?"
    for word in words:
        others = [other for other in _others(release) if _allows(other, place.schema, word)]
        if others:
            return f"did you mean {word}? {age(release, others)}"
    return ""


def _home_of_value(release: Release, field: Field, value: Any, place: OptionPath) -> str:
    """The only option of the same name that accepts this value; empty for a misspelt value of this
    option."""
    key = place.schema
    if "." in key or not isinstance(value, str) or closest(value, map(str, field["values"])):
        return ""
    homes = [home for home in _homes(release).get(key, ()) if _allows(release, home, value)]
    return homes[0] if len(homes) == 1 else ""


def unknown_key(
    release: Release,
    record: Mapping[str, Any],
    key: str,
    place: OptionPath,
    kind: str,
    siblings: Mapping[Any, Any],
) -> Diagnostic:
    """An unknown key of a record, with the most certain remedy; `siblings` is the whole record."""
    inner = place.key(key)
    fields = by_name(record["fields"])
    near = closest(key, fields)
    others = [other for other in _others(release) if inner.schema in other.paths]
    remedy = (
        _flattened(release, key, inner)
        or _other_kind(release, inner, kind)
        or _renamed(release, inner, others)
        or former(release, key, others, inner.schema)
        or (history := age(release, others)) + ("; drop it" * history.startswith("it is gone"))
        or _of_flag(release, key, inner)
        or of_other_engine(release, inner.schema)
        or elsewhere(release, key, near)
        or (_of_value(siblings, key, fields) if place.path else "")
        or (near and f"did you mean {near}?")
        or of_other_engine(release, key)
        or _of_group(place.path, key, fields)
        or ((home := closest(key, _homes(release))) and f"did you mean {_homes(release)[home][0]}?")
        or ((alike := of_same_words(key, fields)) and f"did you mean {alike}?")
        or _of_path(release, key)
        or _of_later(release, inner)
        or (without_counterpart(release, key) if not place.path else "")
    )
    open_keys = record.get("open_keys", ())
    unsure = key in open_keys or (ANY_KEY in open_keys and (others or not remedy))
    remedy = remedy or nearest(key, fields)
    if unsure:
        what = f"no option of {place.path or release.name} that its table knows for certain"
        return Diagnostic(inner.path, what, remedy, UNKNOWN_KEY, "warning")
    what = f"unknown option in {kind or place.path or release.name}"
    return Diagnostic(inner.path, what, remedy, UNKNOWN_KEY)


def _flattened(release: Release, key: str, place: OptionPath) -> str:
    """The path of an option that was written as one key."""
    group, _, name = key.rpartition(".")
    if not group or place.schema not in release.paths:
        return ""
    return f"write {name} below {group}: a dot in a key makes no group"


def _other_kind(release: Release, place: OptionPath, kind: str) -> str:
    """An option that only other kinds of the same union have."""
    if not kind or place.schema not in release.paths:
        return ""
    name = kind.split()[0]
    holder, key = place.schema.rsplit(".", 1)
    (union,) = (row for row in release.paths[holder] if row["type"] == "union")
    kinds = release.table["unions"][union["of"]]["types"]
    types = release.table["types"]
    having = [one for one, record in kinds.items() if key in by_name(types[record]["fields"])]
    own = by_name(kind_fields(release, release.table["unions"][union["of"]], kind.split()[1]))
    near = closest(key, own) or of_same_words(key, own)
    here = former(release, key, path=place.schema) or (near and f"did you mean {near}?")
    return f"it is an option of {name} {', '.join(having)}{'; ' * bool(here)}{here}"


def _renamed(release: Release, place: OptionPath, others: Sequence[Release]) -> str:
    """An option of another release that this one knows by another name."""
    for other in others:
        for word, path in other.aliases.items():
            here = release.aliases.get(word)
            if path == place.schema and here not in (None, path):
                return f"it is an option of release {other.name}; here it is {here}"
    return ""


def former(release: Release, key: str, others: Sequence[Release] = (), path: str = "") -> str:
    """The remedy for an engine option that was removed or moved; one of a group by its path."""
    own = release.engine.default and _others(release)
    rows = former_options() if own else {}
    remedy = rows.get(path, rows.get(key, "")) if path else rows.get(key, "")
    return remedy and "; ".join(filter(None, (age(release, others), remedy)))


def _of_flag(release: Release, key: str, place: OptionPath) -> str:
    """The remedy for a flag of the server command that was written as an option."""
    for flag in release.serve_flags:
        names = {name.lstrip("-") for name in flag.spellings}
        path = flag.yaml_path or flag.name
        if key in names and path in release.paths and path not in (key, place.schema):
            return f"this is a flag of the server; the option is {path}"
        if key in names and place.schema == key and not flag.positional:
            return f"this is a flag of the server; give {flag.spellings[0]} on its command line"
    return ""


def of_other_engine(release: Release, path: str) -> str:
    """What this engine calls an option of another one; empty if no engine has that option."""
    rows = engines.counterparts(path, release.engine.name) if _others(release) else ()
    if not rows:
        return ""
    other = rows[0].engine
    own = " or ".join(dict.fromkeys(row.own for row in rows[:3]))
    what = f"that is {engines.load(other).title}'s; {release.engine.title} has {own}"
    return f"{what} ({rows[0].note})" if len(rows) == 1 and rows[0].note else what


def without_counterpart(release: Release, option: str) -> str:
    """The remedy for an option that only another engine has."""
    if not _others(release):
        return ""
    for name in engines.names():
        engine = engines.load(name)
        other = releases.load(releases.newest_stable(engine), engine=engine)
        names = {*other.top_level, *(flag.name for flag in other.serve_flags)}
        if engine != release.engine and option in names:
            return f"that is {engine.title}'s; {release.engine.title} has none like it, drop it"
    return ""


def elsewhere(release: Release, key: str, near: str | None = None) -> str:
    """Where else the option belongs, and the option that may have been meant here."""
    homes = _homes(release).get(key, ())
    if not homes:
        return ""
    listed = " or ".join(home if "." in home else f"{home} at the top level" for home in homes[:3])
    also = f"; or did you mean {near}?" if near and abs(len(near) - len(key)) <= 2 else ""
    return f"its place is {listed}{also}"


def _of_value(siblings: Mapping[Any, Any], key: str, fields: Mapping[str, Field]) -> str:
    """The only unset option of a group that accepts a key's value."""
    value = siblings.get(key)
    rows = [
        name
        for name, field in fields.items()
        if field["type"] == "enum" and name not in siblings and value in field["values"]
    ]
    return f"did you mean {rows[0]}?" if isinstance(value, str) and len(rows) == 1 else ""


def _of_group(group: str, key: str, fields: Iterable[str]) -> str:
    """An option that has the words of its group once more: `kv_dtype` in `kv_cache_config`."""
    again = set(group.rpartition(".")[2].split("_"))
    rest = "_".join(word for word in key.split("_") if word not in again)
    return f"did you mean {rest}?" if rest in fields else ""


def _of_path(release: Release, key: str) -> str:
    """An option of a group whose name has words of both: `backend_moe` is `moe_config.backend`."""
    parts = set(key.lower().split("_"))
    rows = []
    for path in chain.from_iterable(_homes(release).values()):
        group, _, name = path.partition(".")
        if not name or "." in name:
            continue
        outer, inner = set(group.split("_")), set(name.split("_"))
        if parts <= outer | inner and parts & outer and parts & inner:
            rows.append((len((outer | inner) - parts - {"config"}), path))
    nearest_rows = [path for missing, path in rows if missing == min(rows)[0] <= len(parts)]
    return f"its place is {nearest_rows[0]}" if len(nearest_rows) == 1 else ""


def _of_later(release: Release, place: OptionPath) -> str:
    """An option of another release that was misspelt."""
    group, _, key = place.schema.rpartition(".")
    for other in _others(release):
        paths = [path for path in other.paths if path.rpartition(".")[0] == group]
        names = {path.rpartition(".")[2] for path in paths}
        if near := closest(key, names) or of_same_words(key, names):
            return f"did you mean {near}, of release {other.name}?"
    return ""


@lru_cache(maxsize=16)
def _homes(release: Release) -> Mapping[str, Sequence[str]]:
    """The paths of every option name, shortest first."""
    homes: dict[str, list[str]] = {}
    for path in sorted(release.paths, key=lambda path: (path.count("."), path)):
        if ANY_KEY not in path.split("."):
            homes.setdefault(path.rpartition(".")[2], []).append(path)
    return homes


def _others(release: Release) -> list[Release]:
    """The other releases that ship, read only once a fault was found."""
    name, root = release.name, release.table["root"]
    known = (other for other in releases.of_engine(release.engine) if other.name != name)
    # Another kind of file has nothing to do with them.
    return [other for other in known if other.table["root"] == root]


def age(release: Release, others: Sequence[Release]) -> str:
    """Since or until which release an option is known, as text."""
    every = sorted(releases.of_engine(release.engine), key=lambda row: oldest_first(row.position))
    order = [row.name for row in every]
    names = sorted((other.name for other in others), key=order.index)
    if names and release.name in order:
        here = order.index(release.name)
        if all(order.index(name) > here for name in names):
            return f"it came with release {names[0]}"
        if all(order.index(name) < here for name in names):
            return f"it is gone since release {order[order.index(names[-1]) + 1]}"
    return f"release {', '.join(names)} knows it" if names else ""


def _allows(release: Release, path: str, value: Any) -> bool:
    rows = release.paths.get(path, ())
    return any(row["type"] == "enum" and spelled(row, value) is not None for row in rows)
