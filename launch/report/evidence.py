"""The evidence of a run: its start, measurements, smoke results and its bundle's decisions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from builder import bundle
from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ToolkitError

from ..bench.results import BENCH, FORMAT, KIND
from ..diagnosis_text import edit_lines
from ..run import SUMMARY as RUN
from ..smoke.results import CheckResult
from ..start import EXPECTED, PHASES
from . import importers, results
from .results import BenchResults, JsonObject, LoadPoint, UnknownFormat

SMOKE = "smoke.json"
AIPERF = "profile_export_aiperf.json"
RESULTS = (BENCH, AIPERF, SMOKE)
RUN_FILES = (*RESULTS, RUN)  # one of them makes a folder a run
MAX_DEPTH = 4  # of runs below a named folder
REMEDY = "give a run folder, a bench.json or a result file of another tool"


@dataclass(frozen=True, slots=True)
class ShownCause:
    """The cause of a failure; `evidence` are places and lines of logs.

    `otherwise` are other causes of these lines, each with what tells it apart. A symptom has only
    those: its `cause` is empty.
    """

    cause: str
    fix: str
    edit: Mapping[str, Any]
    confidence: str
    source: str
    evidence: tuple[tuple[str, str], ...]
    otherwise: tuple[tuple[str, str], ...]

    @property
    def title(self) -> str:
        if not self.cause:
            return "A known line that does not tell which cause it has"
        return "One of several causes" if self.otherwise else "Cause"

    @property
    def edit_text(self) -> str:
        return "\n".join(edit_lines(self.edit))


@dataclass(frozen=True, slots=True)
class StartEvidence:
    """What `run.json` keeps of a start; `failed` says what was wrong, empty if nothing was."""

    ready_after_s: float | None
    phases: Mapping[str, float | None]
    expected: Mapping[str, float | None]
    options: tuple[tuple[str, ...], ...]
    failed: str
    causes: tuple[ShownCause, ...]
    symptom: tuple[ShownCause, ...]
    first_error: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """One run, or one measurement without a run. `notes` list what cannot be shown, and why."""

    title: str
    place: str
    bench: BenchResults
    smoke: Sequence[CheckResult] = ()
    manifest: Mapping[str, Any] | None = None
    start: StartEvidence | None = None
    notes: tuple[str, ...] = ()

    @property
    def rehearsal(self) -> bool:
        return self.bench.subject.rehearsal

    @property
    def decisions(self) -> dict[str, Any]:
        """The values that the bundle decided, by path; without it, the options in the results."""
        if self.manifest is None:
            return dict(self.bench.subject.options)
        return {row["path"]: row["value"] for row in self.manifest.get("decisions", ())}


def every_point(runs: Iterable[RunEvidence]) -> Iterator[tuple[RunEvidence, LoadPoint]]:
    for run in runs:
        for point in run.bench.points:
            yield run, point


def gather(paths: Sequence[Path]) -> list[RunEvidence]:
    """The evidence of runs, under unique titles. Raises `BadInput` with every diagnostic."""
    runs, skipped = survey(paths)
    if skipped:
        raise BadInput(skipped)
    return runs


def survey(paths: Sequence[Path]) -> tuple[list[RunEvidence], list[Diagnostic]]:
    """The evidence in any mix of runs, folders of runs and result files, and what was skipped.

    Raises `BadInput` with every diagnostic of a damaged result, or if there is no result.
    """
    skipped: list[Diagnostic] = []
    diagnostics: list[Diagnostic] = []
    documents = []
    for given in paths:
        for place in _places(given):
            if place != given and not _has_file(place, RESULTS):
                skipped.append(Diagnostic(str(place), "is a run that measured nothing"))
                continue
            try:
                documents.append((place, _read(place)))
            except UnknownFormat as error:
                skipped += error.diagnostics
            except BadInput as error:
                diagnostics += error.diagnostics
    runs = []
    for path, document in _merge(documents):
        try:
            runs.append(_evidence(path, document))
        except BadInput as error:
            diagnostics += error.diagnostics
    if diagnostics or not runs:
        raise BadInput(diagnostics or skipped)
    return _with_unique_titles(runs), skipped


def _places(path: Path) -> list[Path]:
    """The runs below a folder that is not a run: a rehearsal, or a bundle with its evidence."""
    if not path.is_dir() or _has_file(path, RUN_FILES):
        return [path]
    found: list[Path] = []
    for name, below, _ in os.walk(path):
        folder = Path(name)
        if is_run := _has_file(folder, RUN_FILES):
            found.append(folder)
        is_last = is_run or len(folder.relative_to(path).parts) >= MAX_DEPTH
        below[:] = sorted(one for one in below if not (is_last or one.startswith(".")))
    return found or [path]


def _has_file(folder: Path, names: Sequence[str]) -> bool:
    return any((folder / name).is_file() for name in names)


def _read(path: Path) -> Any:
    """The bench.json document of a path; without points for a run that measured nothing."""
    if not path.exists():
        raise BadInput(Diagnostic(str(path), "does not exist", REMEDY))
    if not path.is_dir():
        return importers.read(path)
    for name in (BENCH, AIPERF):
        if (path / name).is_file():
            return importers.read(path / name)
    if (path / RUN).is_file():
        return _unmeasured(path / RUN)
    raise UnknownFormat(Diagnostic(str(path), "holds no run", REMEDY))


def _unmeasured(path: Path) -> dict[str, Any]:
    run = JsonObject(results.read_json(path), str(path))
    name = run.child("bundle").text("name")
    run.check()
    kept = {key: run.values.get(key) for key in ("bundle", "target", "engine")}
    return {
        "format": FORMAT,
        "kind": KIND,
        "started": run.values.get("started"),
        "ended": run.values.get("stopped"),
        "subject": {"name": name or path.parent.name, **kept},
        "client": {"tool": "no client"},
        "points": [],
    }


def _merge(documents: Iterable[tuple[Path, Any]]) -> list[tuple[Path, Any]]:
    """Joins files of one folder that differ only in the load; some tools write one for each."""
    series: dict[tuple[Any, ...], tuple[Path, Any]] = {}
    for index, (path, document) in enumerate(documents):
        key = _series_key(path, document) or (index,)
        points = series[key][1]["points"] if key in series else []
        labels = {point["label"] for point in points}
        if points and labels.isdisjoint(point["label"] for point in document["points"]):
            points += document["points"]
        else:
            series[key if key not in series else (index,)] = (path, document)
    return list(series.values())


def _series_key(path: Path, document: Any) -> tuple[Any, ...] | None:
    if document.get("imported") is not True:
        return None
    parts = (document[name] for name in ("client", "workload"))
    return (path.parent, document["subject"]["model"], *map(repr, parts))


def _evidence(path: Path, document: Any) -> RunEvidence:
    folder = path if path.is_dir() else path.parent
    where = str(path / BENCH if path.is_dir() and (path / BENCH).is_file() else path)
    bench = results.read_bench(document, where)
    manifest, notes = _manifest(bench)
    own = not bench.imported
    if not bench.points:
        why = "" if Path(where).is_file() else f": it has no {BENCH}"
        notes = (*notes, f"This run measured nothing{why}.")
    return RunEvidence(
        title=bench.subject.name,
        place=str(path),
        bench=bench,
        smoke=_smoke(folder / SMOKE) if own else (),
        manifest=manifest,
        start=_start(folder / RUN) if own and (folder / RUN).is_file() else None,
        notes=notes,
    )


def _smoke(path: Path) -> list[CheckResult]:
    if not path.is_file():
        return []
    return results.read_smoke(results.read_json(path), str(path))


def _start(path: Path) -> StartEvidence:
    """The start in a `run.json`. Raises `BadInput` for values of a wrong type."""
    run = JsonObject(results.read_json(path), str(path))
    diagnosis = run.child("diagnosis")
    verdict, phase = diagnosis.text("verdict") or "", diagnosis.text("phase")
    found = StartEvidence(
        run.number("ready_after_s"),
        _seconds(run.child(PHASES)),
        _seconds(run.child(EXPECTED)),
        tuple(map(_in_force, run.children("options"))),
        "" if verdict == "healthy" else f"{verdict} in phase {phase}" if phase else verdict,
        tuple(map(_shown_cause, diagnosis.children("causes"))),
        (_shown_cause(diagnosis.child("symptom")),) if "symptom" in diagnosis else (),
        (_log_line(diagnosis.child("first_error")),) if "first_error" in diagnosis else (),
    )
    run.check()
    return found


def _in_force(row: JsonObject) -> tuple[str, ...]:
    """An option's name, its planned value, what the engine logged, their difference, the unit."""
    names = ("name", "planned", "in_force", "difference", "unit")
    verdict = "differs" if row.flag("differs") else ""
    return (*(row.text(name) or "" for name in names), verdict)


def _seconds(phases: JsonObject) -> dict[str, float | None]:
    return {name: phases.number(name) for name in phases.values}


def _shown_cause(row: JsonObject) -> ShownCause:
    row.require("cause")
    lines = tuple(map(_log_line, row.children("evidence")))
    others = tuple(
        (o.text("cause") or "", o.text("check") or "") for o in row.children("otherwise")
    )
    return row.read(ShownCause, edit=row.child("edit").values, evidence=lines, otherwise=others)


def _log_line(row: JsonObject) -> tuple[str, str]:
    return f"{row.text('file')}:{row.count('line')}", row.text("text") or ""


def _manifest(bench: BenchResults) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    subject = bench.subject
    if not subject.bundle_folder:
        return None, ()
    try:
        found = bundle.read(Path(subject.bundle_folder))
    except ToolkitError as error:
        return None, (f"The bundle is not shown: {error.diagnostics[0]}.",)
    if subject.bundle_digest and found.digest != subject.bundle_digest:
        what = "has changed since it was measured"
        return None, (f"The bundle is not shown: {subject.bundle_folder} {what}.",)
    return found.manifest, ()


def _with_unique_titles(runs: Sequence[RunEvidence]) -> list[RunEvidence]:
    """Runs with the same title get their differences added to it, or else a number."""
    titles = [run.title for run in runs]
    for detail in DETAILS:
        found: dict[str, set[str | None]] = {}
        for run, title in zip(runs, titles, strict=True):
            found.setdefault(title, set()).add(detail(run))
        for index, run in enumerate(runs):
            title, more = titles[index], detail(run)
            if more and len(found[title]) > 1:
                titles[index] = f"{title}, {more}"
    named, counts = [], dict[str, int]()
    for run, title in zip(runs, titles, strict=True):
        counts[title] = counts.get(title, 0) + 1
        number = f" ({counts[title]})" if counts[title] > 1 else ""
        named.append(replace(run, title=title + number))
    return named


def _file(run: RunEvidence) -> str:
    path = Path(run.place)
    return path.parent.name if path.name == BENCH else path.stem


DETAILS: tuple[Callable[[RunEvidence], str | None], ...] = (
    lambda run: run.bench.subject.precision,
    lambda run: run.bench.subject.target,
    lambda run: run.bench.api,
    lambda run: run.bench.subject.release,
    _file,
)
