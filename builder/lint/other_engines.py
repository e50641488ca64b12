"""Checks files of engines other than the default engine.

Each such engine has a package here, named after the engine. Its `may_hold` quickly tests whether a
file may belong to the engine. Its module `reader` offers `is_options` and `is_alone` to recognize
files, `naming` and `stating` to find releases, `validate` to check against one release, and
`told_lines` for lines that only document the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from ..diagnostics import Diagnostic
from ..errors import BadInput
from ..facts import engines, release
from ..facts.engines import Engine
from ..facts.release import Release, published
from ..rules.context import RuleContext
from .model import NOTHING, Judged, Named, Verdict
from .read.file import Text
from .read.files import SourceFile
from .read.forms import PROSE
from .releases import PinnedTables, Pins
from .report import Checked, Report
from .rules.model import for_model
from .tables import by_neighbours, by_others, by_statement, findings_by_release, of_old


@dataclass(frozen=True, slots=True)
class EngineVerdict:
    """The result of one of these engines for a file.

    It has the kind of the file, the releases it was checked against, the words that pin them, and
    the findings. Findings on `told_lines` are only warnings. `is_alone` means that the file holds
    nothing for other engines.
    """

    kind: str
    releases: tuple[Release, ...]
    judged: Judged
    findings: tuple[Diagnostic, ...]
    words: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    told_lines: frozenset[int] = frozenset()
    is_assumed: bool = False
    is_alone: bool = False


@dataclass(frozen=True, slots=True)
class OtherStarter:
    """The command that reads an option file, with the tables and words of its pinned release."""

    engine: str
    named: PinnedTables | None
    words: tuple[str, ...]
    model: Named | None


@cache
def _others() -> tuple[tuple[Engine, ModuleType], ...]:
    """Returns the engines that have a package here, each with its package."""
    rows = (engines.load(name) for name in engines.names())
    found = [row for row in rows if not row.default and find_spec(f"{__package__}.{row.name}")]
    return tuple((row, import_module(f"{__package__}.{row.name}")) for row in found)


def readers(source: Text, told: Collection[str]) -> Iterator[tuple[Engine, ModuleType]]:
    """Yields the engines that a file may contain something for, each with its reader module."""
    data = source.documents[0].data if source.documents else None
    for engine, package in _others():
        if source.form != PROSE and (
            engine.name in told or package.may_hold(source.path.name, source.text, data)
        ):
            yield engine, import_module(f"{package.__name__}.reader")


def split(
    names: Sequence[str], assume: bool = False
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Splits requested releases into those of the default engine and those of other engines.

    Raises `BadInput` for a release that no engine has. Without `assume`, it also raises for a
    release that is not known to exist.
    """
    own: list[str] = []
    others: dict[str, list[str]] = {}
    for name in names:
        engine = _engine_of(name) or engines.default()
        try:
            found = release.load_published(name, Path(), engine, assume)
        except BadInput as error:
            raise BadInput(replace(row, where="--release") for row in error.diagnostics) from None
        kept = own if engine.default else others.setdefault(engine.name, [])
        kept.append(found.name if found.ships else name)
    return tuple(own), {name: tuple(rows) for name, rows in others.items()}


def _engine_of(name: str) -> Engine | None:
    """Returns the first engine that is known to have a release, else the first that may have it."""
    records = sorted(map(engines.load, engines.names()), key=lambda row: not row.default)
    able = [engine for engine in records if _has(name, engine)]
    sure = [engine for engine in able if not published.unknown(name, engine)]
    return next(iter(sure or able), None)


def _has(name: str, engine: Engine) -> bool:
    try:
        release.load(name, engine=engine)
    except BadInput:
        return False
    return True


Surroundings = Callable[[Release], RuleContext]
"""Returns the rule context of a file for a release."""


def verdicts(
    source: Text,
    target: SourceFile,
    asked: Mapping[str, tuple[str, ...]],
    default: Release,
    told: Collection[str],
    surroundings: Surroundings,
    starter: OtherStarter | None,
) -> Iterator[EngineVerdict]:
    """Yields the result of each engine that a file contains something for.

    `asked` are releases by engine. `default` is the release that the file would otherwise be
    checked against. Option files are checked for an engine in `told` or for the engine of
    `starter`.
    """
    told = (*told, starter.engine) if starter else told
    for engine, reader in readers(source, told):
        names, is_told = asked.get(engine.name, ()), engine.name in told
        is_alone = reader.is_alone(source, default, is_told)
        if is_alone or not reader.is_options(source):
            own = starter if starter and starter.engine == engine.name else None
            verdict = _verdict(engine, reader, source, target, names, is_told, surroundings, own)
            if verdict.kind:
                yield replace(verdict, is_alone=is_alone)


def _verdict(
    engine: Engine,
    reader: ModuleType,
    source: Text,
    target: SourceFile,
    asked: tuple[str, ...],
    is_told: bool,
    surroundings: Surroundings,
    starter: OtherStarter | None,
) -> EngineVerdict:
    context, name = target.context, str(target.path)
    newest = release.load(release.newest_stable(engine), engine=engine)
    own = (context.release,) if context and context.engine == engine.name else ()
    tables = [
        release.load(each, context.folder, engine)
        if context and own
        else release.load(each, engine=engine)
        for each in asked or own
    ]
    stated = (
        None if tables else Pins(reader.stating(source.text), source.documents, reader.naming())
    )
    named = stated.named if stated else ()
    words = stated.words if stated and named else ()
    if stated and starter and starter.named and not named:
        tables, words = list(starter.named.releases), starter.words

    def judge(table: Release) -> Verdict:
        context = for_model(surroundings(table), starter.model if starter else None)
        verdict: Verdict = reader.validate(source, context, is_told)
        return verdict

    notes: list[str] = []
    if stated and named:
        verdict = by_statement(stated, newest, judge, reader.is_former)
        releases = [row for each in named for row in each.releases]
        notes = [text for each in named if (text := of_old(each))]
        by_release = {releases[0]: verdict.diagnostics}
    else:
        releases = tables or [newest]
        found = {each: by_neighbours(each, judge) for each in releases}
        verdict = next(iter(found.values()))
        by_release = {each: row.diagnostics for each, row in found.items()}
    if verdict.kind is None:
        return EngineVerdict("", (), NOTHING, ())
    if is_assumed := not tables and not named:
        rows = verdict.diagnostics
        by_release[newest], fits = by_others(newest, rows, judge, reader.is_former, stated)
        notes += [f"{name}: {fits}"] if fits else []
    told_lines = frozenset(reader.told_lines(source))
    return EngineVerdict(
        verdict.kind,
        tuple(dict.fromkeys(releases)),
        verdict.judged,
        tuple(_weighed(findings_by_release(by_release, name), told_lines)),
        words,
        tuple(dict.fromkeys((*(row.statement for row in releases), *notes))),
        told_lines,
        is_assumed,
    )


def _weighed(found: Iterable[Diagnostic], told_lines: Collection[int]) -> Iterator[Diagnostic]:
    """Yields findings; those on lines of documentation become warnings."""
    for row in found:
        told = row.location.line in told_lines
        yield replace(row, severity="warning") if told else row


def report_alone(
    name: str, others: Sequence[EngineVerdict], beside: Verdict | None, report: Report
) -> None:
    """Reports a file of these engines, with findings about what surrounds their options."""
    kind = beside.kind if beside and beside.kind and beside.judged.itself else others[0].kind
    own = beside.judged if beside else NOTHING
    assumed = any(row.is_assumed for row in others)
    report.files.append(Checked(name, kind, (), assumed, own))
    report_beside(others, report)
    if beside and beside.kind:
        lines = frozenset[int]().union(*(row.told_lines for row in others))
        report.findings += _weighed((row.in_file(name) for row in beside.diagnostics), lines)


def report_beside(others: Sequence[EngineVerdict], report: Report) -> None:
    """Adds the findings of these engines to the file that was reported last."""
    if not others:
        return
    for each in others:
        report.say_once(each.notes)
        report.findings += each.findings
    row = report.files[-1]
    tables = (table.judged_name for each in others for table in each.releases)
    report.files[-1] = replace(
        row,
        releases=tuple(dict.fromkeys((*row.releases, *tables))),
        judged=sum((each.judged for each in others), row.judged),
        named_by=(*row.named_by, *(text for each in others for text in each.words)),
    )
