"""Files written by anyone, checked against exact engine releases: kinds, faults and drift."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..diagnostics import NOWHERE, Diagnostic, located
from ..documents import Yaml
from ..errors import BadInput
from ..facts import hardware, release
from ..facts.release import Release, ServerRole
from ..rules.constraints import Situation
from . import kinds, pairs
from .drift import Judged, drift
from .files import Surroundings, Target, expand
from .judge import MODEL_CONFIG, SCRIPT, YAML_SUFFIXES, Text, judge, mentions_options, read
from .kinds import DEPLOYMENT
from .report import Checked, Report

__all__ = ["Checked", "Planner", "Report", "Request", "check"]

Planner = Callable[[Path, Sequence[str]], Iterable[Diagnostic]]
"""The problems of a deployment file with overrides, each with the `path` of the value to blame."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to check against, as far as the files do not say it themselves."""

    releases: tuple[str, ...] = ()
    role: ServerRole | None = None
    gpu: str | None = None


def check(paths: Sequence[Path], request: Request, planner: Planner) -> Report:
    """Check files, folders and bundles. Raises `BadInput` for an unknown release or GPU."""
    for name in request.releases:
        release.load(name)
    if request.gpu:
        hardware.load(request.gpu)
    report = Report()
    seen = set()
    workers = []
    for target in expand(paths):
        if (target.path, target.fault) not in seen:
            _check(target, request, planner, report)
            workers += [target] if pairs.is_worker(target) else []
        seen.add((target.path, target.fault))
    report.findings += pairs.findings(workers)
    if not report.files:
        report.notes.append("nothing here is of a kind that check knows")
    report.findings.sort(key=lambda row: (row.where, row.location, row.path, row.rule))
    return report


def _check(target: Target, request: Request, planner: Planner, report: Report) -> None:
    name = str(target.path)
    if target.fault:
        report.findings.append(target.fault.in_file(name))
        return
    if _is_bundles_own(target):
        return
    try:
        source = read(target.path)
        releases, assumed = _releases(request, target.surroundings, source)
    except BadInput as error:
        report.findings += (_unreadable(problem, name) for problem in error.diagnostics)
        report.files.append(Checked(name, "unreadable", ()))
        return
    judged = []
    for each in releases:
        accepted = target.surroundings.accepted if target.surroundings else ()
        kind, found = judge(source, _situation(each, request, target.surroundings), accepted)
        if kind == DEPLOYMENT and _is_readable(source):
            if target.surroundings:
                found += _rendered(source.documents[0], each.name)
            else:
                name_given = each.name if request.releases else ""
                found += _planned(source.documents[0], name_given, target, planner)
        judged.append(Judged(each, found))
    if kind is None:
        _of_no_kind(source, target, judged[0], report)
        return
    names = tuple(each.name for each in releases) if kind != MODEL_CONFIG else ()
    report.files.append(Checked(name, kind, names, assumed))
    report.findings += _findings(judged, name)
    wrong = any(fault.severity == "error" for fault in judged[0].faults)
    if wrong and assumed and kind != DEPLOYMENT:  # planning was for the one it names
        report.notes += _other_releases(source, name, releases[0], request)


def _of_no_kind(source: Text, target: Target, judged: Judged, report: Report) -> None:
    """A file of a kind that check does not know: passed over, or named as such."""
    broken = _has_faults(source) and mentions_options(source.text, judged.release)
    if not (target.given or broken):
        return
    broken = broken or (_has_faults(source) and source.path.suffix in YAML_SUFFIXES)
    name, faults = str(target.path), judged.faults if broken else [_unknown(source)]
    report.files.append(Checked(name, "unknown kind", ()))
    report.findings += (fault.in_file(name) for fault in faults)


def _is_bundles_own(target: Target) -> bool:
    """Whether a file is one of those that a bundle keeps for the toolkit, held by its manifest."""
    if target.surroundings is None or target.path.suffix != ".json":
        return False
    folder = target.surroundings.folder.absolute()
    return target.path.absolute().parent in (folder, folder / "handoff")


def _findings(judged: Sequence[Judged], name: str) -> Iterator[Diagnostic]:
    """Faults of one file; where several releases judge, those that not all of them find are named
    with their release, and explained.
    """
    holders: dict[Diagnostic, list[str]] = {}
    for each in judged:
        for fault in dict.fromkeys(each.faults):
            holders.setdefault(fault, []).append(each.release.name)
    for fault, names in holders.items():
        for release_name in [""] if len(names) == len(judged) else names:
            yield fault.in_file(name, release_name)
    if len(judged) > 1:
        yield from (fault.in_file(name) for fault in drift(judged))


def _releases(
    request: Request, surroundings: Surroundings | None, source: Text
) -> tuple[list[Release], bool]:
    """The releases to judge by, and whether that is a guess."""
    if source.form == MODEL_CONFIG:  # Triton reads it, whatever the engine's release
        return [release.load(release.newest_stable())], False
    if request.releases:
        return [release.load(name) for name in request.releases], False
    if surroundings:
        return [release.load(surroundings.release, surroundings.folder)], False
    if stated := kinds.stated_release(source.documents):
        try:
            return [release.load(stated, source.path.parent)], False
        except BadInput:
            pass  # planning will say so
    return [release.load(release.newest_stable())], True


def _situation(known: Release, request: Request, surroundings: Surroundings | None) -> Situation:
    """Where the options of a file are to be used, as far as that is known."""
    situation = Situation(known)
    if surroundings:
        if surroundings.checkpoint:
            situation = Situation.of(known, surroundings.checkpoint)
        load = surroundings.workload
        situation = replace(
            situation,
            role=surroundings.role or situation.role,
            gpu=hardware.load(load.gpu) if load.gpu in hardware.known() else None,
            isl=load.isl,
            osl=load.osl,
            concurrency=load.concurrency,
            block_size=surroundings.block_size,
        )
    if request.gpu:
        situation = replace(situation, gpu=hardware.load(request.gpu))
    return replace(situation, role=request.role) if request.role else situation


def _is_readable(source: Text) -> bool:
    return len(source.documents) == 1 and not source.documents[0].faults


def _planned(
    document: Yaml, release_name: str, target: Target, planner: Planner
) -> Iterator[Diagnostic]:
    """Whether a deployment file can be planned."""
    overrides = [f"engine.release={release_name}"] if release_name else []
    for problem in planner(target.path, overrides):
        yield _located(problem, document)


def _rendered(document: Yaml, release_name: str) -> Iterator[Diagnostic]:
    """The deployment file of a bundle has been planned; its versions may have become vulnerable."""
    from pydantic import ValidationError  # other files are checked without

    from ..deployment import Deployment, schema_problems
    from ..rules import vulnerability_policy as gate

    try:
        request = Deployment.model_validate(document.data)
    except ValidationError as fault:
        found = schema_problems(fault, Deployment, "")
    else:
        found = list(gate.problems(request, release_name))
    for problem in found:
        yield _located(replace(problem, path=problem.where), document)


def _located(problem: Diagnostic, document: Yaml) -> Diagnostic:
    """A problem with the path of a value of the document, at its place there."""
    place, rule = document.locate(problem.path), problem.rule or "deployment"
    return located(place, problem.path, problem.message, problem.fix, rule, problem.severity)


def _has_faults(source: Text) -> bool:
    return any(document.faults for document in source.documents)


def _unreadable(problem: Diagnostic, name: str) -> Diagnostic:
    where = "" if problem.where == name else problem.where
    return replace(problem, path=where, rule="unreadable").in_file(name)


def _unknown(source: Text) -> Diagnostic:
    """A file that was named, and of which nothing can be said."""
    data = source.documents[0].data if source.documents else source.text
    remedy = "give an option file, model.yaml, config.pbtxt, deployment or server script"
    if data is None and not _has_faults(source):
        return located(NOWHERE, "", "is empty", remedy, "empty-file")
    if source.form == SCRIPT:
        return located(NOWHERE, "", "starts no server", remedy, "unknown-kind", "warning")
    if isinstance(data, dict | list):
        return located(NOWHERE, "", "kind not recognised", remedy, "unknown-kind", "warning")
    return located(NOWHERE, "", "holds no options", remedy, "unknown-kind")


def _other_releases(source: Text, name: str, assumed: Release, request: Request) -> Iterator[str]:
    """Releases for which a file has no errors, where the one that was assumed finds some."""
    fitting = []
    for other in release.known():
        situation = _situation(release.load(other), request, None)
        found = judge(source, situation)[1]
        if other != assumed.name and not any(fault.severity == "error" for fault in found):
            fitting.append(other)
    if fitting:
        yield f"{name}: no errors for release {', '.join(fitting)}; choose with --release"
