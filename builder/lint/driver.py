"""Runs a check: expands paths, finds the release for each file, checks it and fills the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from .. import general_rules
from ..diagnostics import NOWHERE, Diagnostic, located
from ..documents import Yaml
from ..errors import BadInput
from ..facts import engines, hardware, release
from ..facts.engines import Engine
from ..facts.release import Release, ServerRole, published
from ..rules.context import RuleContext
from .data_files import data_file_faults, schema_of
from .engine import is_former, recorded, starts_triton
from .file_check import check_file
from .links import Starter, starters
from .model import NOTHING, Checked, Judged, Verdict
from .read.file import (
    DOCKERFILE,
    MODEL_CONFIG,
    PROSE,
    PYTHON,
    SCRIPT,
    TRITON_COMMANDS,
    YAML_SUFFIXES,
    BundleContext,
    SourceFile,
    Text,
    expand,
    may_hold,
    mentions_options,
    read_file,
)
from .read.option_file import DEPLOYMENT, holds_deployment, stated_engine, stated_release
from .releases import PinnedTables, Pins
from .report import Report, Skipped
from .rules import EMPTY_FILE, NOTHING_TO_JUDGE, UNKNOWN_KIND, UNREADABLE, model, sides
from .rules.model import UNKNOWN_MODEL
from .rules.options import context_with
from .rules.sides import Side, client_diagnostics, may_be_side, pair_diagnostics
from .rules.versions import Policy
from .suppressions import MARK, Suppression, divided, suppressions
from .tables import by_neighbours, by_others, by_pins, findings_by_release, of_old

if TYPE_CHECKING:
    from ..facts.checkpoint import Checkpoint

Planner = Callable[[Path, Sequence[str]], Iterable[Diagnostic]]
"""Plans a deployment file with overrides and yields diagnostics, each with the `path` of a
value."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What to check against, for files that do not define it themselves.

    `releases` may be of several engines. `assume_release` allows an unknown release. Images that
    are too vulnerable to deploy cause a warning, or an error with `refuse_vulnerable`.
    """

    releases: tuple[str, ...] = ()
    role: ServerRole | None = None
    gpu: str | None = None
    model: str | None = None
    assume_release: bool = False
    refuse_vulnerable: bool = False


def check(paths: Sequence[Path], request: CheckOptions, planner: Planner) -> Report:
    """Checks files, folders and bundles. Raises `BadInput` for an unknown release or GPU,
    `BadFacts` for a model without facts."""
    asked = _by_engine(request.releases, request.assume_release)
    if request.gpu:
        hardware.load(request.gpu)
    if request.model:
        _model(request.model)
    report = Report()
    run = _Run(request, asked, planner, report)
    seen = set()
    targets = list(expand(paths, report.unread))
    alone = {row.path for row in targets if not (row.context or row.diagnostic)}
    if len(alone) == 1:  # no other file can start a server with it
        alone.clear()
    run.started = starters(alone, report.isolated)
    checked: list[SourceFile] = []
    for target in targets:
        if (target.path, target.diagnostic) not in seen and not _is_bundles_own(target):
            with report.isolated(str(target.path)):
                run.check(target)
            checked.append(target)
        seen.add((target.path, target.diagnostic))
    with report.isolated("the comparison of files"):
        report.findings += pair_diagnostics(run.sides(checked))
        report.findings += client_diagnostics(checked, report.files)
    _say_unknown_models(report)
    report.say_assumed_releases()
    if not report.checked and not report.findings:
        report.notes.append("no supported files found")
    found = dict.fromkeys(report.findings)  # some are found by two engines
    report.findings, report.suppressed = divided(found, run.suppressions)
    report.findings.sort(key=lambda row: (row.where, row.location, row.path, row.rule))
    report.say_images_once()
    return report


def _by_engine(names: Sequence[str], assume: bool) -> dict[str, tuple[str, ...]]:
    """Groups requested releases by engine. Raises `BadInput` for a release that no engine has, or,
    without `assume`, that is not known to exist."""
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        engine = _engine_of(name)
        try:
            table = release.load_published(name, Path(), engine, assume)
        except BadInput as error:
            raise BadInput(replace(row, where="--release") for row in error.diagnostics) from None
        kept = table.name if table.ships else name
        found[engine.name] = (*found.get(engine.name, ()), kept)
    return found


def _engine_of(name: str) -> Engine:
    """Returns the first engine that is known to have a release, else the first that may have it."""
    able = []
    for engine in sorted(map(engines.load, engines.names()), key=lambda row: not row.default):
        try:
            release.load(name, engine=engine)
        except BadInput:
            continue
        able.append(engine)
    sure = (engine for engine in able if not published.unknown(name, engine))
    return next(sure, able[0] if able else engines.default())


@dataclass(frozen=True, slots=True)
class _Known:
    """The releases to check a file against. If it pins some itself, `pins` has them by line;
    otherwise the newest release is a guess (`is_assumed`). `words` are what names the releases."""

    releases: list[Release]
    pins: Pins | None = None
    words: tuple[str, ...] = ()

    @property
    def named(self) -> tuple[PinnedTables, ...]:
        return self.pins.pinned if self.pins else ()

    @property
    def is_assumed(self) -> bool:
        return self.pins is not None and not self.named


@dataclass(frozen=True, slots=True)
class _EngineVerdict:
    """The result of one engine for a file: the verdict of its first release, the releases, what all
    of them find, and notes. Findings on `told_lines` are only warnings."""

    verdict: Verdict
    known: _Known
    releases: tuple[Release, ...]
    findings: tuple[Diagnostic, ...]
    notes: tuple[str, ...] = ()
    told_lines: frozenset[int] = frozenset()


@dataclass
class _Run:
    """One check: what was asked, the commands that read each option file, comments that suppress
    findings, and the report."""

    request: CheckOptions
    asked: Mapping[str, tuple[str, ...]]
    planner: Planner
    report: Report
    started: Mapping[tuple[str, Path], Starter] = field(default_factory=dict)
    suppressions: list[Suppression] = field(default_factory=list)

    def check(self, target: SourceFile) -> None:
        name, report = str(target.path), self.report
        if target.diagnostic:
            report.findings.append(target.diagnostic.in_file(name))
            return
        if schema_of(target.path):
            report.files.append(Checked(name, "data file", ()))
            report.findings += (row.in_file(name) for row in data_file_faults(target.path))
            return
        default = engines.default()
        try:
            source = read_file(target.path)
            known = self._known(default, target, source)
        except BadInput as error:
            of_unreadable(error, name, report)
            return
        if MARK in source.text:
            self.suppressions += suppressions(source.text, name)
        others, is_alone = [], False
        if source.form != MODEL_CONFIG and not holds_deployment(source.documents):
            for engine in self._others(target, source):
                from .read import engine_options  # most files have nothing of other engines

                is_told = self._is_told(engine, target)
                alone = engine_options.is_alone(source, engine, known.releases[0], is_told)
                if alone or not engine_options.is_options(source, engine):
                    found = self._of_engine(engine, target, source, is_told)
                    others += [found] if found.verdict.kind else []
                    is_alone = is_alone or (alone and found.verdict.kind is not None)
        own = None if is_alone else self._of_engine(default, target, source, False, known)
        own = _with_triton(own, source, name) if own and starts_triton(source.text) else own
        if others and not (own and (own.verdict.judged.sections or own.verdict.judged.commands)):
            _report_alone(name, others, own, report)
        elif own and own.verdict.kind is None:
            of_no_kind(source, target, known.releases[0], own.verdict.diagnostics, report)
        elif own:
            _report_own(target, own, others, report)

    def _others(self, target: SourceFile, source: Text) -> Iterator[Engine]:
        """Yields the engines other than the default one that a file may hold something for."""
        for engine in map(engines.load, recorded()):
            if engine.default or source.form == PROSE:
                continue
            if self._is_told(engine, target) or may_hold(engine.name, source):
                yield engine

    def _is_told(self, engine: Engine, target: SourceFile) -> bool:
        """Returns whether an option file is for this engine: by the command that reads it, or as
        no release of the default engine was requested."""
        if (engine.name, target.path) in self.started:
            return True
        own = engines.default().name in self.asked or target.context is not None
        return engine.name in self.asked and not own

    def _known(self, engine: Engine, target: SourceFile, source: Text) -> _Known:
        """Returns the releases of an engine to check a file against."""
        context, asked = target.context, self.asked.get(engine.name, ())
        newest = release.load(release.newest_stable(engine), engine=engine)
        if source.form == MODEL_CONFIG:  # Triton reads it; the engine release does not matter
            return _Known([newest])
        if holds_deployment(source.documents):
            return _Known(self._of_request(context, source))
        if asked:
            return _Known([release.load(name, engine=engine) for name in asked])
        if context and context.engine == engine.name:
            return _Known([release.load(context.release, context.folder, engine)])
        if context and engine.default:
            return _Known([newest])  # such a file is checked the same way for any release
        pins = Pins(source.text, source.documents, engine)
        starter = self.started.get((engine.name, target.path))
        if pins.pinned:
            return _Known([newest], pins, pins.words)
        if starter and starter.named:
            return _Known(list(starter.named.releases), words=starter.words)
        return _Known([newest], pins)

    def _of_request(self, context: BundleContext | None, source: Text) -> list[Release]:
        """Returns the releases of a deployment file: requested ones, else the bundle's, else its
        own."""
        engine = stated_engine(source.documents)
        newest = release.load(release.newest_stable(engine), engine=engine)
        asked = self.asked.get(engine.name, ())
        folder = source.path.parent
        names = list(asked) or [stated_release(source.documents)]
        if context and not asked:
            folder, names = context.folder, [context.release]
        try:
            return [release.load(name, folder, engine) if name else newest for name in names]
        except BadInput:
            return [newest]  # planning reports the error

    def _of_engine(
        self,
        engine: Engine,
        target: SourceFile,
        source: Text,
        is_told: bool,
        known: _Known | None = None,
    ) -> _EngineVerdict:
        """Checks a file for one engine, against all its releases there."""
        known, name = known or self._known(engine, target, source), str(target.path)
        accepted = target.context.accepted if target.context else ()
        versions = Policy(accepted, self.request.refuse_vulnerable)
        was_option = partial(is_former, engine.name)

        def judge(table: Release, for_mentioned_gpu: bool = True) -> Verdict:
            context = self._rule_context(table, target)
            return check_file(source, context, versions, for_mentioned_gpu, is_told)

        newest, *_ = releases = known.releases
        notes: list[str] = []
        if known.pins and known.named:
            verdict = by_pins(known.pins, newest, judge, was_option)
            releases = [row for each in known.named for row in each.releases]
            notes += map(of_old, known.named)
            by_release = {releases[0]: verdict.diagnostics}
        else:
            found = {each: by_neighbours(each, judge) for each in releases}
            verdict = found[newest]
            by_release = {each: row.diagnostics for each, row in found.items()}
        if verdict.kind == DEPLOYMENT and len(source.documents) == 1:
            document = source.documents[0]
            for each, rows in by_release.items():
                if not document.diagnostics:
                    rows += self._of_deployment(document, each, target)
        if known.is_assumed and verdict.kind not in (None, DEPLOYMENT):
            # A deployment is planned for the release it names.
            plainly = partial(judge, for_mentioned_gpu=False)
            rows, fits = by_others(newest, by_release[newest], plainly, was_option, known.pins)
            by_release[newest] = rows
            notes += [f"{name}: {fits}"] if fits else []
        return _EngineVerdict(
            verdict,
            known,
            tuple(dict.fromkeys(releases)),
            tuple(_weighed(findings_by_release(by_release, name), source.told_lines)),
            tuple(filter(None, (*(row.statement for row in releases), *notes))),
            source.told_lines,
        )

    def _rule_context(self, known: Release, target: SourceFile) -> RuleContext:
        """Returns the rule context of a file: model, GPU, role and workload if they are known."""
        request, context = self.request, target.context
        starter = self.started.get((known.engine.name, target.path))
        rule_context = model.context(_of_release(known), starter.server if starter else None)
        if request.model:
            rule_context = RuleContext.of(known, _model(request.model))
        if context:
            if context.checkpoint:
                rule_context = RuleContext.of(known, context.checkpoint)
            rule_context = replace(
                context_with(rule_context, context.role, context.workload),
                block_size=context.block_size,
            )
        if request.gpu:
            rule_context = replace(rule_context, gpu=hardware.load(request.gpu))
        return replace(rule_context, role=request.role) if request.role else rule_context

    def _of_deployment(
        self, document: Yaml, known: Release, target: SourceFile
    ) -> Iterator[Diagnostic]:
        """Plans a deployment file, for the requested release if there is one. That of a bundle was
        planned before, and is checked for new vulnerabilities."""
        if target.context:
            yield from _rendered(document, known.name)
            return
        overrides = [f"engine.release={known.name}"] if self.asked else []
        for diagnostic in self.planner(target.path, overrides):
            yield _located(diagnostic, document)

    def sides(self, targets: Sequence[SourceFile]) -> list[Side]:
        """Returns the option files of each side of disaggregated serving, with their rule
        contexts."""
        found: list[Side] = []
        for target in targets:
            if not may_be_side(target):
                continue
            with self.report.isolated(str(target.path)):
                side = self._side(target)
                found += [side] if side else []
        return found

    def _side(self, target: SourceFile) -> Side | None:
        try:
            source = read_file(target.path)
            known = self._known(engines.default(), target, source)
        except BadInput:
            return None  # reported with the file itself
        named = known.pins.tables(0) if known.pins else None
        (table, *others) = named.judges if named else known.releases[0].judges
        side = sides.side(target, source, self._rule_context(table, target))
        return side and replace(side, others=tuple(others))


def _with_triton(own: _EngineVerdict, source: Text, name: str) -> _EngineVerdict:
    """Adds the commands of Triton's programs, which the engine's release does not change."""
    if not (source.documents or source.form in (SCRIPT, DOCKERFILE)):
        return own
    from .rules import triton_commands  # most files have no such command

    count, rows = triton_commands.command_diagnostics(source)
    if not count:
        return own
    verdict, judged = own.verdict, own.verdict.judged
    is_alone = not (judged.sections or judged.commands or judged.itself)
    kind = TRITON_COMMANDS if is_alone else verdict.kind
    verdict = replace(verdict, kind=kind, judged=judged + Judged(commands=count))
    added = _weighed((row.in_file(name) for row in rows), source.told_lines)
    return replace(own, verdict=verdict, findings=(*own.findings, *added))


def _weighed(found: Iterable[Diagnostic], told_lines: Collection[int]) -> Iterator[Diagnostic]:
    """Yields findings; those on lines of documentation become warnings."""
    for row in found:
        told = row.location.line in told_lines
        yield replace(row, severity="warning") if told else row


def _report_own(
    target: SourceFile, own: _EngineVerdict, others: Sequence[_EngineVerdict], report: Report
) -> None:
    """Reports a file of the default engine, or of none, with what other engines find in it."""
    name, kind, judged, known = str(target.path), own.verdict.kind, own.verdict.judged, own.known
    names = tuple(dict.fromkeys(each.judged_name for each in own.releases))
    if kind in (MODEL_CONFIG, TRITON_COMMANDS) or not judged:
        names = ()
    unclear = known.pins.unclear if known.pins and known.is_assumed else ()
    assumed, words = known.is_assumed and bool(names), known.words if names else ()
    report.files.append(Checked(name, kind or "", names, assumed, judged, words, unclear))
    _report_beside(others, report)
    if names:
        report.say_once(own.notes)
    if not judged:
        of_nothing(target, f"{kind}: holds no engine options and no server command", report)
    around = target.context
    report.findings += [row for row in own.findings if not (around and around.accepts(row))]


def _report_alone(
    name: str, others: Sequence[_EngineVerdict], own: _EngineVerdict | None, report: Report
) -> None:
    """Reports a file of other engines, with findings about what surrounds their options."""
    verdict = own.verdict if own else Verdict(None, [])
    is_own = verdict.kind and verdict.judged.itself
    kind = verdict.kind if is_own else others[0].verdict.kind
    assumed = any(row.known.is_assumed for row in others)
    report.files.append(Checked(name, kind or "", (), assumed, verdict.judged))
    _report_beside(others, report)
    if verdict.kind:
        lines = frozenset[int]().union(*(row.told_lines for row in others))
        report.findings += _weighed((row.in_file(name) for row in verdict.diagnostics), lines)


def _report_beside(others: Sequence[_EngineVerdict], report: Report) -> None:
    """Adds the findings of other engines to the file that was reported last."""
    row = report.files[-1]
    for each in others:
        report.say_once(each.notes)
        report.findings += each.findings
        names = (*row.releases, *(table.judged_name for table in each.releases))
        row = replace(
            row,
            releases=tuple(dict.fromkeys(names)),
            judged=row.judged + each.verdict.judged,
            named_by=(*row.named_by, *each.known.words),
        )
    report.files[-1] = row


def _say_unknown_models(report: Report) -> None:
    """Reports each unknown model once, in a note; misspelled models stay findings."""
    kept: list[Diagnostic] = []
    unknown: list[Diagnostic] = []
    for row in report.findings:
        (unknown if row.rule == UNKNOWN_MODEL and not row.fix else kept).append(row)
    report.findings = kept
    for what, count in Counter(row.message for row in unknown).items():
        files = f" (in {count} files)" if count > 1 else ""
        report.notes.append(f"{what}{files}; give its facts with --model NAME or FOLDER")


def _is_bundles_own(target: SourceFile) -> bool:
    """Returns whether a file is a JSON file that a bundle keeps for the toolkit; its manifest
    covers it."""
    if target.context is None or target.path.suffix != ".json":
        return False
    folder = target.context.folder.absolute()
    return target.path.absolute().parent in (folder, folder / "handoff")


@lru_cache(maxsize=64)  # files share what the context of a release has looked up
def _of_release(known: Release) -> RuleContext:
    return RuleContext(known)


@cache
def _model(name: str) -> Checkpoint:
    from ..facts import checkpoint  # not needed for most files

    return checkpoint.gather(name)


def _rendered(document: Yaml, release_name: str) -> Iterator[Diagnostic]:
    """Checks a bundle's deployment file for new vulnerabilities; it was planned before."""
    from ..deployment import Deployment  # not needed for other files
    from ..rules import vulnerability_policy

    request, found = Deployment.read(document.data)
    if request:
        found = list(vulnerability_policy.diagnostics(request, release_name))
    for diagnostic in found:
        yield _located(replace(diagnostic, path=diagnostic.where), document)


def _located(diagnostic: Diagnostic, document: Yaml) -> Diagnostic:
    """Adds the location of its value in the document to an error."""
    place, rule = document.locate(diagnostic.path), diagnostic.rule or general_rules.DEPLOYMENT
    return located(
        place, diagnostic.path, diagnostic.message, diagnostic.fix, rule, diagnostic.severity
    )


def of_no_kind(
    source: Text,
    target: SourceFile,
    first: Release,
    found: Sequence[Diagnostic],
    report: Report,
) -> None:
    """Skips a file of an unknown kind; reports it if the user named it or if it is malformed."""
    broken = _is_malformed(source) and not _is_template(source)
    is_yaml = source.path.suffix in (YAML_SUFFIXES if target.given else (".yaml", ".yml"))
    broken = broken and (is_yaml or mentions_options(source.text, first))
    name, unknown = str(target.path), _unknown(source)
    report.skipped.append(Skipped(name, "cannot be read" if broken else unknown.message))
    if not (target.given or broken):
        return
    report.files.append(Checked(name, "unknown kind", (), judged=NOTHING))
    report.findings += (row.in_file(name) for row in (found if broken else [unknown]))


def of_unreadable(error: BadInput, name: str, report: Report) -> None:
    """Reports a file that cannot be read."""
    report.findings += (_unreadable(row, name) for row in error.diagnostics)
    report.files.append(Checked(name, "unreadable", (), judged=NOTHING))
    report.skipped.append(Skipped(name, "cannot be read"))


def of_nothing(target: SourceFile, reason: str, report: Report) -> None:
    """Skips a file of a known kind with nothing to check, and warns if the user named it."""
    report.skipped.append(Skipped(str(target.path), reason))
    if target.given:
        remedy = "check the file that holds the options"
        found = located(NOWHERE, "", "has nothing to check", remedy, NOTHING_TO_JUDGE)
        report.findings.append(found.in_file(str(target.path)))


def _is_template(source: Text) -> bool:
    """Returns whether a file is a template, by its text or its folder."""
    return "{{" in source.text or "{%" in source.text or "templates" in source.path.parts[:-1]


def _is_malformed(source: Text) -> bool:
    return any(document.diagnostics for document in source.documents)


def _unreadable(diagnostic: Diagnostic, name: str) -> Diagnostic:
    where = "" if diagnostic.where == name else diagnostic.where
    return replace(diagnostic, path=where, rule=UNREADABLE).in_file(name)


def _unknown(source: Text) -> Diagnostic:
    """Describes why a file that the user named cannot be checked."""
    data = source.documents[0].data if source.documents else source.text
    remedy = "give an option file, model.yaml, config.pbtxt, deployment or server script"
    is_read = isinstance(data, dict | list) and not source.unread
    if not source.form and _is_template(source) and not is_read:
        what = "is a template, which is not YAML until it is filled in"
        remedy = "fill it in, and check the result"
        return located(NOWHERE, "", what, remedy, UNKNOWN_KIND)
    if data is None and not _is_malformed(source):
        return located(NOWHERE, "", "is empty", remedy, EMPTY_FILE)
    if source.form == PROSE:
        what = "is documentation: nothing in it runs, so nothing was checked"
        return located(NOWHERE, "", what, remedy, UNKNOWN_KIND)
    if source.form == PYTHON:
        what = "constructs no engine of the LLM API"
        return located(NOWHERE, "", what, remedy, UNKNOWN_KIND)
    if source.form in (SCRIPT, DOCKERFILE):
        return located(NOWHERE, "", "starts no server", remedy, UNKNOWN_KIND)
    if isinstance(data, dict | list):
        return located(NOWHERE, "", "kind not recognised", remedy, UNKNOWN_KIND)
    return located(NOWHERE, "", "holds no options", remedy, UNKNOWN_KIND, "error")
