"""Merges what several option tables find in one file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter

from ..diagnostics import Diagnostic
from ..facts.engines import Engine
from ..facts.release import Release, of_engine
from ..facts.release.version import NO_VERSION, Order, order
from ..general_rules import MISSING_KEY, UNKNOWN_KEY, UNKNOWN_VALUE, VALUE_RANGE, VULNERABLE_VERSION
from ..rules import constraints
from ..rules.options import WRONG_VALUES
from ..rules.validation import Refusals, agreed
from .model import Verdict
from .releases import PinnedTables, Pins
from .rules import DRIFT, FLAG_VALUE, UNKNOWN_FLAG

MOST_TABLES = 8  # of one file: the whole of it is checked by each
Judge = Callable[[Release], Verdict]
"""What one table has against the file."""
IsFormer = Callable[[Diagnostic], bool]
"""Whether what is wrong is an option that releases before the first table had."""


def by_neighbours(table: Release, judge: Judge) -> Verdict:
    """A file by one release, or by those beside it."""
    verdicts = {each.name: judge(each) for each in table.judges}
    found = agreed({name: verdict.diagnostics for name, verdict in verdicts.items()})
    *_, newest = verdicts.values()
    return replace(newest, diagnostics=found)


def by_others(
    assumed: Release,
    found: list[Diagnostic],
    judge: Judge,
    is_former: IsFormer,
    stated: Pins | None = None,
) -> tuple[list[Diagnostic], str]:
    """What was found by a release that a file does not name, and which others have nothing against
    the file: what any of them takes or took is warned of, as is what a release without a table may
    take. In lines for a fork, which `stated` knows, that is all that a table can have against it.
    """
    if stated:
        found = [_of_fork(row, stated, assumed.engine) for row in found]
    found = [row for row in found if row.rule != "model-needs-release"]  # nobody named this one
    if not any(row.severity == "error" for row in found):
        return found, ""
    tables = [row for row in of_engine(assumed.engine) if row.name != assumed.name]
    others = {table: judge(table).diagnostics for table in tables}
    rows = [others[table] for table in _may_be_meant(assumed, tables)]
    near = [Refusals(each) for each in rows]
    said = {(row.rule, row.path) for each in rows for row in each}
    guess = f"(release {assumed.name} is assumed)"
    newer = {row for row in found if row.rule in _OF_TABLES and any(x.takes(row) for x in near)}
    refusals = [Refusals(each) for each in others.values()]

    def is_doubtful(row: Diagnostic) -> bool:
        if row in newer or (newer and (_may_be_new(row) or _is_of(row, said))):
            return True
        if row.severity != "error" or row.rule not in _table_rules(assumed.engine):
            return False
        if row.rule in (VALUE_RANGE, FLAG_VALUE):  # bounds that an older table does not know
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
    """Those of the tables that tell what a release may take which a file does not name: later
    ones, and the one before where it is far off, as nobody knows when since then an option went."""
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


# What a release's table has against a name.
_OF_TABLES = (UNKNOWN_KEY, UNKNOWN_VALUE, UNKNOWN_FLAG, MISSING_KEY)


def _may_be_new(row: Diagnostic) -> bool:
    """Whether a key that no table knows may be one of a release to come, as it resembles none."""
    return row.rule == UNKNOWN_KEY and "did you mean" not in row.fix


def _is_of(row: Diagnostic, said: Collection[tuple[str, str]]) -> bool:
    """Whether a warning is one that only the release has which was assumed: none of the others has
    the rule against the path."""
    return row.severity == "warning" and (row.rule, row.path) not in said


def by_statement(stated: Pins, assumed: Release, judge: Judge, is_former: IsFormer) -> Verdict:
    """A file of which each line is judged by the release that counts for it.

    Where the nearest words do not tell a release, that is the one that is assumed.
    """
    plain = _plain(dict.fromkeys(table for each in stated.named for table in each.judges))
    used = dict.fromkeys(plain[table] for each in stated.named for table in each.judges)
    unknown = any(not row.releases for row in stated.statements)
    found = {table: judge(table) for table in (*used, *([assumed] if unknown else ()))}
    lines = {row.location.line for verdict in found.values() for row in verdict.diagnostics}
    governed: dict[tuple[tuple[Release, ...], bool] | None, set[int]] = {}
    for line in sorted(lines):
        named = stated.tables(line)
        key = None
        if named:
            key = tuple(dict.fromkeys(plain[x] for x in named.judges)), named.too_old
        governed.setdefault(key, set()).add(line)
    rows: list[Diagnostic] = []
    for known, here in governed.items():
        judges, doubtful = known or ((assumed,), False)
        agreed_on = agreed(
            {
                table.name: [row for row in found[table].diagnostics if row.location.line in here]
                for table in judges
            }
        )
        if known is None:
            agreed_on, _ = by_others(assumed, agreed_on, judge, is_former)
        rows += (_doubted(row) if doubtful else row for row in agreed_on)
    *_, last = found.values()
    rows = [_of_fork(row, stated, assumed.engine) for row in rows]
    return replace(last, diagnostics=rows)


def _plain(tables: Collection[Release]) -> Mapping[Release, Release]:
    """The table that a file is checked by for each of those that it names: of very many releases,
    those that one table stands for are one."""
    if len(tables) <= MOST_TABLES:
        return {table: table for table in tables}
    by_name = {table.name: replace(table, stands_for="") for table in tables}
    return {table: by_name[table.name] for table in tables}


def _doubted(row: Diagnostic) -> Diagnostic:
    """What the table of another release has against a file; what images hold is known."""
    return row if row.rule == VULNERABLE_VERSION else replace(row, severity="warning")


def _of_fork(row: Diagnostic, stated: Pins, engine: Engine) -> Diagnostic:
    """What is wrong in a line, which is a warning where only a table says so of a fork."""
    if row.severity != "error" or not stated.is_fork(row.location.line):
        return row
    return replace(row, severity="warning") if row.rule in _table_rules(engine) else row


@cache
def _table_rules(engine: Engine) -> frozenset[str]:
    """The rules by which a release's table, or what is known of its options, refuses something."""
    own = (row.id for row in constraints.load(engine).every)
    return frozenset((*_OF_TABLES, *WRONG_VALUES, FLAG_VALUE, *own))


def of_old(named: PinnedTables) -> str:
    """That a file names a release of which nothing is known; empty for any other."""
    if not named.too_old:
        return ""
    return (
        f"{named.releases[0].judged_name} is older than {named.judges[0].name}, the oldest table: "
        "what that table refuses is only a warning"
    )


FindingsByRelease = Mapping[Release, Sequence[Diagnostic]]
"""What each release has against one file."""


def drift(by_release: FindingsByRelease) -> Iterator[Diagnostic]:
    """One error per path that the releases find differently, the first of them for comparison."""
    first, *others = by_release
    for other in others:
        yield from _new(by_release, first, other)
        yield from _new(by_release, other, first)


def _new(
    by_release: FindingsByRelease, accepting: Release, refusing: Release
) -> Iterator[Diagnostic]:
    """What only the second release has something against."""
    seen = {(row.within, row.path) for row in by_release[accepting]}
    for diagnostic in by_release[refusing]:
        where = diagnostic.within, diagnostic.path
        if where not in seen and diagnostic.rule != VULNERABLE_VERSION:
            seen.add(where)
            what = f"right for {accepting.name}, not for {refusing.name}: {diagnostic.message}"
            remedy = _new_name(diagnostic.path, accepting, refusing) or diagnostic.fix
            yield replace(diagnostic, message=what, fix=remedy, rule=DRIFT, severity="warning")


def _new_name(path: str, accepting: Release, refusing: Release) -> str:
    """The name by which the second release knows a choice of the first."""
    here: Mapping[str, str] = refusing.aliases
    for word, name in accepting.aliases.items():
        if (path == name or path.endswith(f".{name}")) and here.get(word, name) != name:
            return f"{refusing.name} knows it as {here[word]}"
    return ""


def findings_by_release(by_release: FindingsByRelease, name: str) -> Iterator[Diagnostic]:
    """Errors of one file; those that not all of several releases have are named
    with their release, and explained.
    """
    holders: dict[Diagnostic, list[str]] = {}
    for each, found in by_release.items():
        for diagnostic in dict.fromkeys(found):
            holders.setdefault(diagnostic, []).append(each.name)
    for diagnostic, names in holders.items():
        for release_name in [""] if len(names) == len(by_release) else names:
            yield diagnostic.in_file(name, release_name)
    if len(by_release) > 1:
        yield from (row.in_file(name) for row in drift(by_release))
