"""Merges the results of several release tables for one file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter

from ..diagnostics import Diagnostic
from ..facts.engines import Engine
from ..facts.release import Release, of_engine
from ..facts.release.version import NO_VERSION, Order, order
from ..general_rules import (
    MISSING_KEY,
    UNKNOWN_KEY,
    UNKNOWN_VALUE,
    VALUE_RANGE,
    VULNERABLE_VERSION,
    Rule,
)
from ..rules import constraints
from ..rules.options import WRONG_VALUES
from ..rules.validation import Refusals, agreed
from .model import Verdict
from .releases import PinnedTables, Pins
from .rules import FLAG_VALUE, UNKNOWN_FLAG

DRIFT = Rule("drift", "What is right for one engine release is wrong for another.", "warning")

MOST_TABLES = 8  # limit per file: each table checks the whole file
Judge = Callable[[Release], Verdict]
"""Checks the file against one table."""
IsFormer = Callable[[Diagnostic], bool]
"""Returns whether a finding is about an option that releases before the first table had."""


def by_neighbours(table: Release, judge: Judge) -> Verdict:
    """Checks a file against one release, or against the neighboring tables if it has no table."""
    verdicts = {each.name: judge(each) for each in table.judges}
    found = agreed({name: verdict.diagnostics for name, verdict in verdicts.items()})
    *_, newest = verdicts.values()
    return replace(newest, diagnostics=found)


def by_others(
    assumed: Release,
    found: list[Diagnostic],
    judge: Judge,
    is_former: IsFormer,
    pins: Pins | None = None,
) -> tuple[list[Diagnostic], str]:
    """Softens findings of an assumed release, and returns which other releases have no errors.

    A finding becomes a warning if another release accepts or accepted the value, or if a release
    without a table may accept it. On lines that `pins` assigns to a fork, every finding from a
    table becomes a warning.
    """
    if pins:
        found = [_of_fork(row, pins, assumed.engine) for row in found]
    found = [row for row in found if row.rule != "model-needs-release"]  # release is assumed
    if not any(row.severity == "error" for row in found):
        return found, ""
    tables = [row for row in of_engine(assumed.engine) if row.name != assumed.name]
    others = {table: judge(table).diagnostics for table in tables}
    rows = [others[table] for table in _may_be_meant(assumed, tables)]
    near = [Refusals(each) for each in rows]
    reported = {(row.rule, row.path) for each in rows for row in each}
    guess = f"(release {assumed.name} is assumed)"
    newer = {row for row in found if row.rule in _OF_TABLES and any(x.takes(row) for x in near)}
    refusals = [Refusals(each) for each in others.values()]

    def is_doubtful(row: Diagnostic) -> bool:
        if row in newer or (newer and (_may_be_new(row) or _is_of(row, reported))):
            return True
        if row.severity != "error" or row.rule not in _table_rules(assumed.engine):
            return False
        if row.rule in (VALUE_RANGE, FLAG_VALUE):  # older tables may lack these bounds
            return is_former(row)
        return is_former(row) or any(each.takes(row) for each in refusals)

    doubtful = [
        replace(row, severity="warning", message=f"{row.message} {guess}")
        if is_doubtful(row)
        else row
        for row in found
    ]
    fitting = [
        table.name
        for table, rows in others.items()
        if not (table.may_lack_options or any(row.severity == "error" for row in rows))
    ]
    fits = f"no errors for release {', '.join(fitting)}; choose with --release" if fitting else ""
    return doubtful, fits


def _may_be_meant(assumed: Release, tables: Sequence[Release]) -> Iterator[Release]:
    """Yields the tables of other releases that the file may be for.

    These are all later releases, and the previous one if it is more than one minor version older:
    an option may have been removed anywhere in between.
    """
    here = order(assumed.position) or NO_VERSION
    before: list[tuple[Order, Release]] = []
    for table in tables:
        at = order(table.position) or NO_VERSION
        if at > here:
            yield table
        else:
            before.append((at, table))
    if before:
        at, table = max(before, key=itemgetter(0))
        (major, minor), (other, far) = (*at[0], 0, 0)[:2], (*here[0], 0, 0)[:2]
        if major == other and far - minor > 1:
            yield table


# Rules by which a release table refuses a name.
_OF_TABLES = (UNKNOWN_KEY, UNKNOWN_VALUE, UNKNOWN_FLAG, MISSING_KEY)


def _may_be_new(row: Diagnostic) -> bool:
    """Returns whether an unknown key may belong to a future release: it resembles no known
    option."""
    return row.rule == UNKNOWN_KEY and "did you mean" not in row.fix


def _is_of(row: Diagnostic, reported: Collection[tuple[str, str]]) -> bool:
    """Returns whether only the assumed release has this warning; no other release reports the rule
    for the path."""
    return row.severity == "warning" and (row.rule, row.path) not in reported


def by_pins(pins: Pins, assumed: Release, judge: Judge, is_former: IsFormer) -> Verdict:
    """Checks each line of a file against the release that applies to it. If the nearest pin does
    not name a release, the assumed release is used."""
    plain = _plain(dict.fromkeys(table for each in pins.pinned for table in each.judges))
    used = dict.fromkeys(plain[table] for each in pins.pinned for table in each.judges)
    unknown = any(not row.releases for row in pins.statements)
    found = {table: judge(table) for table in (*used, *([assumed] if unknown else ()))}
    lines = {row.location.line for verdict in found.values() for row in verdict.diagnostics}
    governed: dict[tuple[tuple[Release, ...], bool] | None, set[int]] = {}
    for line in sorted(lines):
        here_pinned = pins.tables(line)
        key = None
        if here_pinned:
            key = tuple(dict.fromkeys(plain[x] for x in here_pinned.judges)), here_pinned.too_old
        governed.setdefault(key, set()).add(line)
    rows: list[Diagnostic] = []
    for pinned, here in governed.items():
        judges, doubtful = pinned or ((assumed,), False)
        agreed_on = agreed(
            {
                table.name: [row for row in found[table].diagnostics if row.location.line in here]
                for table in judges
            }
        )
        if pinned is None:
            agreed_on, _ = by_others(assumed, agreed_on, judge, is_former)
        rows += (_doubted(row) if doubtful else row for row in agreed_on)
    *_, last = found.values()
    rows = [_of_fork(row, pins, assumed.engine) for row in rows]
    return replace(last, diagnostics=rows)


def _plain(tables: Collection[Release]) -> Mapping[Release, Release]:
    """Maps each table to the table used for the check. If there are more than `MOST_TABLES`,
    releases that share a table are checked once."""
    if len(tables) <= MOST_TABLES:
        return {table: table for table in tables}
    by_name = {table.name: replace(table, stands_for="") for table in tables}
    return {table: by_name[table.name] for table in tables}


def _doubted(row: Diagnostic) -> Diagnostic:
    """Turns a finding of another release's table into a warning, except for vulnerable images."""
    return row if row.rule == VULNERABLE_VERSION else replace(row, severity="warning")


def _of_fork(row: Diagnostic, pins: Pins, engine: Engine) -> Diagnostic:
    """Turns an error from a table into a warning if the line is for a fork."""
    if row.severity != "error" or not pins.is_fork(row.location.line):
        return row
    return replace(row, severity="warning") if row.rule in _table_rules(engine) else row


@cache
def _table_rules(engine: Engine) -> frozenset[str]:
    """Returns the rules that depend on a release table or on facts about its options."""
    own = (row.id for row in constraints.every(engine))
    return frozenset((*_OF_TABLES, *WRONG_VALUES, FLAG_VALUE, *own))


def of_old(pinned: PinnedTables) -> str:
    """Returns a note if the release is older than all tables, else an empty string."""
    if not pinned.too_old:
        return ""
    return (
        f"{pinned.releases[0].judged_name} is older than {pinned.judges[0].name}, the oldest "
        "table: what that table refuses is only a warning"
    )


FindingsByRelease = Mapping[Release, Sequence[Diagnostic]]
"""The findings for one file by release."""


def drift(by_release: FindingsByRelease) -> Iterator[Diagnostic]:
    """Yields one finding per path where releases differ; each is compared with the first
    release."""
    first, *others = by_release
    for other in others:
        yield from _new(by_release, first, other)
        yield from _new(by_release, other, first)


def _new(
    by_release: FindingsByRelease, accepting: Release, refusing: Release
) -> Iterator[Diagnostic]:
    """Yields what only the second release reports."""
    seen = {(row.within, row.path) for row in by_release[accepting]}
    for diagnostic in by_release[refusing]:
        where = diagnostic.within, diagnostic.path
        if where not in seen and diagnostic.rule != VULNERABLE_VERSION:
            seen.add(where)
            what = f"right for {accepting.name}, not for {refusing.name}: {diagnostic.message}"
            remedy = _new_name(diagnostic.path, accepting, refusing) or diagnostic.fix
            yield replace(diagnostic, message=what, fix=remedy, rule=DRIFT, severity="warning")


def _new_name(path: str, accepting: Release, refusing: Release) -> str:
    """Returns a hint with the second release's name for a value of the first release."""
    here: Mapping[str, str] = refusing.aliases
    for word, name in accepting.aliases.items():
        if (path == name or path.endswith(f".{name}")) and here.get(word, name) != name:
            return f"{refusing.name} knows it as {here[word]}"
    return ""


def findings_by_release(by_release: FindingsByRelease, name: str) -> Iterator[Diagnostic]:
    """Yields the findings of one file; a finding that not all releases report names its release."""
    holders: dict[Diagnostic, list[str]] = {}
    for each, found in by_release.items():
        for diagnostic in dict.fromkeys(found):
            holders.setdefault(diagnostic, []).append(each.name)
    for diagnostic, names in holders.items():
        for release_name in [""] if len(names) == len(by_release) else names:
            yield diagnostic.in_file(name, release_name)
    if len(by_release) > 1:
        yield from (row.in_file(name) for row in drift(by_release))
