"""The evidence of a run: its measurements, its smoke results and its bundle's decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from builder import bundle
from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ToolkitError

from ..bench.results import BENCH, FORMAT, KIND
from ..run import SUMMARY as RUN
from ..smoke.results import CheckResult
from . import importers, json_object, results
from .results import BenchResults

SMOKE = "smoke.json"
AIPERF = "profile_export_aiperf.json"
T = TypeVar("T")
U = TypeVar("U")
REMEDY = "give a run folder, a bench.json or a result file of another tool"


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """One run, or one measurement without a run. `notes` say what could not be shown and why."""

    title: str
    place: str
    bench: BenchResults
    smoke: Sequence[CheckResult] = ()
    manifest: Mapping[str, Any] | None = None
    ready_after_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def rehearsal(self) -> bool:
        return self.bench.subject.rehearsal


def gather(paths: Sequence[Path]) -> list[RunEvidence]:
    """The evidence in the paths, under unique titles. Raises `BadInput` with every diagnostic."""
    diagnostics: list[Diagnostic] = []
    documents = list(_each(lambda path: (path, _read(path)), paths, diagnostics))
    runs = list(_each(lambda pair: _evidence(*pair), _merge(documents), diagnostics))
    if diagnostics:
        raise BadInput(diagnostics)
    return _with_unique_titles(runs)


def _each(step: Callable[[T], U], items: Iterable[T], diagnostics: list[Diagnostic]) -> Iterator[U]:
    """The step's results; the diagnostics of items that fail are collected."""
    for item in items:
        try:
            yield step(item)
        except BadInput as error:
            diagnostics += error.diagnostics


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
    raise BadInput(Diagnostic(str(path), f"has neither {BENCH} nor {RUN}", REMEDY))


def _unmeasured(path: Path) -> dict[str, Any]:
    run = json_object.JsonObject(json_object.read_json(path), str(path))
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
    """Some tools write a file for every load: files of one folder that differ in the load alone
    are one series, in the order of the loads."""
    series: dict[tuple[Any, ...], tuple[Path, Any]] = {}
    for index, (path, document) in enumerate(documents):
        key = _series_key(path, document) or (index,)
        points = series[key][1]["points"] if key in series else []
        labels = {point["label"] for point in points}
        if points and labels.isdisjoint(point["label"] for point in document["points"]):
            points += document["points"]
            points.sort(key=_load_order)
        else:
            series[key if key not in series else (index,)] = (path, document)
    return list(series.values())


def _series_key(path: Path, document: Any) -> tuple[Any, ...] | None:
    if document.get("imported") is not True:
        return None
    parts = (document[name] for name in ("client", "workload"))
    return (path.parent, document["subject"]["model"], *map(repr, parts))


def _load_order(point: Mapping[str, Any]) -> tuple[bool, float]:
    load = point["load"]
    rate = load.get("rate_per_s")
    return (rate is not None, float(rate or load.get("concurrency") or 0))


def _evidence(path: Path, document: Any) -> RunEvidence:
    folder = path if path.is_dir() else path.parent
    where = str(path / BENCH if path.is_dir() and (path / BENCH).is_file() else path)
    bench = results.read_bench(document, where)
    manifest, notes = _manifest(bench)
    own = not bench.imported
    if not bench.points:
        notes = (*notes, f"This run measured nothing: it has no {BENCH}.")
    return RunEvidence(
        title=bench.subject.name,
        place=str(path),
        bench=bench,
        smoke=_smoke(folder / SMOKE) if own else (),
        manifest=manifest,
        ready_after_s=_ready_after_s(folder / RUN) if own else None,
        notes=notes,
    )


def _smoke(path: Path) -> list[CheckResult]:
    if not path.is_file():
        return []
    return results.read_smoke(json_object.read_json(path), str(path))


def _ready_after_s(path: Path) -> float | None:
    if not path.is_file():
        return None
    run = json_object.JsonObject(json_object.read_json(path), str(path))
    seconds = run.number("ready_after_s")
    run.check()
    return seconds


def _manifest(bench: BenchResults) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """The manifest of the bundle that was measured, if it still is what it was then."""
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
    """Runs with the same title get what differs between them in it, or else a number."""
    titles = [run.title for run in runs]
    for detail in DETAILS:
        alike = [
            {detail(other) for other, same in zip(runs, titles, strict=True) if same == title}
            for title in titles
        ]
        titles = [
            ", ".join(filter(None, (title, detail(run) if len(found) > 1 else None)))
            for run, title, found in zip(runs, titles, alike, strict=True)
        ]
    named = (replace(run, title=title) for run, title in zip(runs, titles, strict=True))
    return list(_numbered(named))


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


def _numbered(runs: Iterable[RunEvidence]) -> Iterator[RunEvidence]:
    counts: dict[str, int] = {}
    for run in runs:
        count = counts[run.title] = counts.get(run.title, 0) + 1
        yield replace(run, title=f"{run.title} ({count})") if count > 1 else run
