"""Runs a check: expands paths, finds the release for each file, checks it and fills the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from .. import general_rules
from ..diagnostics import NOWHERE, Diagnostic, located
from ..documents import Yaml
from ..errors import BadInput
from ..facts import hardware, release
from ..facts.release import Release, ServerRole
from ..general_rules import UNKNOWN_KEY
from ..rules.context import RuleContext
from ..rules.remedies import was_option
from .data_files import data_file_faults, schema_of
from .file_check import check_file
from .links import Starter, other_starters, starters
from .model import NOTHING, Verdict
from .other_engines import EngineVerdict, OtherStarter, report_alone, report_beside, split, verdicts
from .read.file import Text, mentions_options, read_file
from .read.files import BundleContext, SourceFile, expand
from .read.forms import DOCKERFILE, MODEL_CONFIG, PROSE, PYTHON, SCRIPT, YAML_SUFFIXES
from .read.option_file import DEPLOYMENT, holds_deployment, stated_engine, stated_release
from .releases import Pins
from .report import Checked, Report, Skipped
from .rules import EMPTY_FILE, NOTHING_TO_JUDGE, UNKNOWN_KIND, UNREADABLE, model, sides
from .rules.images import Policy
from .rules.model import UNKNOWN
from .rules.options import stated_context
from .rules.sides import Side, may_be_side, pair_diagnostics
from .tables import (
    FindingsByRelease,
    by_neighbours,
    by_others,
    by_statement,
    findings_by_release,
    of_old,
)

if TYPE_CHECKING:
    from ..facts.checkpoint import Checkpoint

Planner = Callable[[Path, Sequence[str]], Iterable[Diagnostic]]
"""Plans a deployment file with overrides and yields diagnostics, each with the `path` of a
value."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What to check against, for files that do not define it themselves.

    `other_releases` are releases of engines other than the default one, by engine. `assume_release`
    allows an unknown release. Images that are too vulnerable to deploy cause a warning, or an error
    with `refuse_vulnerable`.
    """

    releases: tuple[str, ...] = ()
    role: ServerRole | None = None
    gpu: str | None = None
    model: str | None = None
    other_releases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    assume_release: bool = False
    refuse_vulnerable: bool = False


def check(paths: Sequence[Path], request: CheckOptions, planner: Planner) -> Report:
    """Checks files, folders and bundles. Raises `BadInput` for an unknown release or GPU,
    `BadFacts` for a model without facts."""
    own, others = split(request.releases, request.assume_release)
    request = replace(request, releases=own, other_releases=others)
    if request.gpu:
        hardware.load(request.gpu)
    if request.model:
        _model(request.model)
    report = Report()
    seen = set()
    sides: list[SourceFile] = []
    targets = list(expand(paths, report.unread))
    alone = {row.path for row in targets if not (row.context or row.diagnostic)}
    started = starters(alone, report.isolated)
    started_others = other_starters(alone, report.isolated)
    for target in targets:
        if (target.path, target.diagnostic) not in seen and not _is_bundles_own(target):
            starter, other = started.get(target.path), started_others.get(target.path)
            with report.isolated(str(target.path)):
                _check(target, request, planner, report, starter, other)
            sides.append(target)
        seen.add((target.path, target.diagnostic))
    from .rules import requests

    with report.isolated("the comparison of files"):
        report.findings += pair_diagnostics(_sides(sides, request, started, report))
        report.findings += requests.of_clients(sides, report.files)
    _say_unknown_models(report)
    report.say_assumed_releases()
    if not report.checked and not report.findings:
        report.notes.append("no supported files found")
    report.findings = list(dict.fromkeys(report.findings))  # found by two engines
    report.findings.sort(key=lambda row: (row.where, row.location, row.path, row.rule))
    report.say_images_once()
    return report


def _check(
    target: SourceFile,
    request: CheckOptions,
    planner: Planner,
    report: Report,
    starter: Starter | None,
    other: OtherStarter | None,
) -> None:
    name = str(target.path)
    if target.diagnostic:
        report.findings.append(target.diagnostic.in_file(name))
        return
    if schema_of(target.path):
        report.files.append(Checked(name, "data file", ()))
        report.findings += (row.in_file(name) for row in data_file_faults(target.path))
        return
    try:
        source = read_file(target.path)
        releases, stated = _releases(request, target.context, source, starter)
    except BadInput as error:
        of_unreadable(error, name, report)
        return

    def surroundings(table: Release) -> RuleContext:
        return _rule_context(table, request, target.context, starter)

    others: list[EngineVerdict] = []
    if source.form != MODEL_CONFIG and not holds_deployment(source.documents):
        asked = request.other_releases
        told = () if request.releases or target.context else tuple(asked)
        others = list(verdicts(source, target, asked, releases[0], told, surroundings, other))
    if any(row.is_alone for row in others):
        report_alone(name, others, None, report)
    else:
        _judge(source, target, (releases, stated, starter), others, request, planner, report)


def _judge(
    source: Text,
    target: SourceFile,
    known: tuple[list[Release], Pins | None, Starter | None],
    others: Sequence[EngineVerdict],
    request: CheckOptions,
    planner: Planner,
    report: Report,
) -> None:
    """Checks a file against its `known` releases and adds the verdicts of other engines."""
    name, (releases, stated, starter) = str(target.path), known
    accepted = target.context.accepted if target.context else ()
    versions = Policy(accepted, request.refuse_vulnerable)

    def judge(table: Release, for_mentioned_gpu: bool = True) -> Verdict:
        context = _rule_context(table, request, target.context, starter)
        return check_file(source, context, versions, for_mentioned_gpu)

    by_release: dict[Release, list[Diagnostic]] = {}
    verdicts = []
    named = stated.named if stated else ()
    for each in () if named else releases:
        verdict = by_neighbours(each, judge)
        verdicts.append(verdict)
        kind, found = verdict.kind, verdict.diagnostics
        if kind == DEPLOYMENT and _is_readable(source):
            found += _of_deployment(source.documents[0], each, target, request, planner)
        by_release[each] = found
    if stated and named:
        verdicts = [by_statement(stated, releases[0], judge, _is_former)]
        kind, releases = verdicts[0].kind, [row for each in named for row in each.releases]
        by_release = {releases[0]: verdicts[0].diagnostics}
    assumed = stated is not None and not named
    if others and not (verdicts[0].judged.sections or verdicts[0].judged.commands):
        report_alone(name, others, verdicts[0], report)
        return
    if kind is None:
        of_no_kind(source, target, by_release, report)
        return
    judged, names = verdicts[0].judged, tuple(dict.fromkeys(each.judged_name for each in releases))
    if kind == MODEL_CONFIG or not judged:
        names = ()
    words = stated.words if stated and named else starter.words if starter and names else ()
    untold = stated.untold if stated and assumed else ()
    report.files.append(Checked(name, kind, names, assumed and bool(names), judged, words, untold))
    report_beside(others, report)
    if names:
        report.say_once(row.statement for row in releases)
        report.say_once(of_old(each) for each in named)
    if not judged:
        of_nothing(target, f"{kind}: holds no engine options and no server command", report)
    if assumed and kind != DEPLOYMENT:  # a deployment is planned for the release it names
        newest, plainly = releases[0], partial(judge, for_mentioned_gpu=False)
        found = by_release[newest]
        by_release[newest], note = by_others(newest, found, plainly, _is_former, stated)
        report.notes += [f"{name}: {note}"] if note else []
    told, around = findings_by_release(by_release, name), target.context
    report.findings += [row for row in told if not (around and around.accepts(row))]


def _is_former(row: Diagnostic) -> bool:
    return row.rule == UNKNOWN_KEY and was_option(row.path)


def _say_unknown_models(report: Report) -> None:
    """Reports each unknown model once, in a note; misspelled models stay findings."""
    kept: list[Diagnostic] = []
    unknown: list[Diagnostic] = []
    for row in report.findings:
        (unknown if row.rule == UNKNOWN and not row.fix else kept).append(row)
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


def _releases(
    request: CheckOptions, context: BundleContext | None, source: Text, starter: Starter | None
) -> tuple[list[Release], Pins | None]:
    """Returns the releases to check against; if they are a guess, also the pins of the file."""
    if source.form == MODEL_CONFIG:  # Triton reads it; the engine release does not matter
        return [release.load(release.newest_stable())], None
    newest = release.load(release.newest_stable())
    if holds_deployment(source.documents):
        return _of_request(request, context, source), None
    if request.releases:
        return [release.load(name) for name in request.releases], None
    if context and context.engine != newest.engine.name:
        return [newest], None  # such a file is checked the same way for any release
    if context:
        return [release.load(context.release, context.folder)], None
    stated = Pins(source.text, source.documents)
    if starter and starter.named and not stated.named:
        return list(starter.named.releases), None
    return [newest], stated


def _of_request(
    request: CheckOptions, context: BundleContext | None, source: Text
) -> list[Release]:
    """Returns the releases of a deployment file: requested ones, else the bundle's, else its
    own."""
    engine = stated_engine(source.documents)
    newest = release.load(release.newest_stable(engine), engine=engine)
    asked = request.releases if engine.default else request.other_releases.get(engine.name, ())
    folder = source.path.parent
    names = list(asked) or [stated_release(source.documents)]
    if context and not asked:
        folder, names = context.folder, [context.release]
    try:
        return [release.load(name, folder, engine) if name else newest for name in names]
    except BadInput:
        return [newest]  # planning reports the error


def _rule_context(
    known: Release,
    request: CheckOptions,
    context: BundleContext | None,
    starter: Starter | None = None,
) -> RuleContext:
    """Returns the rule context of a file: model, GPU, role and workload if they are known."""
    rule_context = model.context(RuleContext(known), starter.worker if starter else None)
    if request.model:
        rule_context = RuleContext.of(known, _model(request.model))
    if context:
        if context.checkpoint:
            rule_context = RuleContext.of(known, context.checkpoint)
        rule_context = replace(
            stated_context(rule_context, context.role, context.workload),
            block_size=context.block_size,
        )
    if request.gpu:
        rule_context = replace(rule_context, gpu=hardware.load(request.gpu))
    return replace(rule_context, role=request.role) if request.role else rule_context


@cache
def _model(name: str) -> Checkpoint:
    from ..facts import checkpoint  # not needed for most files

    return checkpoint.gather(name)


def _is_readable(source: Text) -> bool:
    return len(source.documents) == 1 and not source.documents[0].diagnostics


def _of_deployment(
    document: Yaml, known: Release, target: SourceFile, request: CheckOptions, planner: Planner
) -> Iterator[Diagnostic]:
    if target.context:
        return _rendered(document, known.name)
    return _planned(document, request, known, target, planner)


def _planned(
    document: Yaml, request: CheckOptions, known: Release, target: SourceFile, planner: Planner
) -> Iterator[Diagnostic]:
    """Plans a deployment file, for the requested release if there is one."""
    asked = request.releases or request.other_releases
    overrides = [f"engine.release={known.name}"] if asked else []
    for diagnostic in planner(target.path, overrides):
        yield _located(diagnostic, document)


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


def _sides(
    targets: Sequence[SourceFile],
    request: CheckOptions,
    started: Mapping[Path, Starter],
    report: Report,
) -> list[Side]:
    """Returns the option files of each side of disaggregated serving, with their rule contexts."""
    found: list[Side] = []
    for target in targets:
        if not may_be_side(target):
            continue
        with report.isolated(str(target.path)):
            side = _side(target, request, started.get(target.path))
            found += [side] if side else []
    return found


def _side(target: SourceFile, request: CheckOptions, starter: Starter | None) -> Side | None:
    try:
        source = read_file(target.path)
        releases, stated = _releases(request, target.context, source, starter)
    except BadInput:
        return None  # reported with the file itself
    named = stated.tables(0) if stated else None
    (known, *others) = named.judges if named else releases[0].judges
    rule_context = _rule_context(known, request, target.context, starter)
    side = sides.side(target, source, rule_context)
    return side and replace(side, others=tuple(others))


def of_no_kind(
    source: Text, target: SourceFile, by_release: FindingsByRelease, report: Report
) -> None:
    """Skips a file of an unknown kind; reports it if the user named it or if it is malformed."""
    first, found = next(iter(by_release.items()))
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
        found = located(NOWHERE, "", "has nothing to check", remedy, NOTHING_TO_JUDGE, "warning")
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
        return located(NOWHERE, "", what, remedy, UNKNOWN_KIND, "warning")
    if data is None and not _is_malformed(source):
        return located(NOWHERE, "", "is empty", remedy, EMPTY_FILE)
    if source.form == PROSE:
        what = "is documentation: nothing in it runs, so nothing was checked"
        return located(NOWHERE, "", what, remedy, UNKNOWN_KIND, "warning")
    if source.form == PYTHON:
        what = "constructs no engine of the LLM API"
        return located(NOWHERE, "", what, remedy, UNKNOWN_KIND, "warning")
    if source.form in (SCRIPT, DOCKERFILE):
        return located(NOWHERE, "", "starts no server", remedy, UNKNOWN_KIND, "warning")
    if isinstance(data, dict | list):
        return located(NOWHERE, "", "kind not recognised", remedy, UNKNOWN_KIND, "warning")
    return located(NOWHERE, "", "holds no options", remedy, UNKNOWN_KIND)
