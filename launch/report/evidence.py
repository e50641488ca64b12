"""The evidence of a run: what it measured, how its server passed its checks, what was decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from builder import bundle
from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ToolkitError

from ..bench.document import BENCH, FORMAT, KIND
from ..run import SUMMARY as RUN
from . import checked, fields, importers, measured
from .checked import Checked
from .importers import Read
from .measured import Measured

SMOKE = "smoke.json"
FOREIGN = "profile_export_aiperf.json"
T = TypeVar("T")
U = TypeVar("U")
REMEDY = "give a run folder, a bench.json or a result file of another tool"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run, or one measurement without a run. `notes` say what could not be shown and why."""

    title: str
    place: str
    measured: Measured
    foreign: bool
    smoke: Checked | None = None
    manifest: Mapping[str, Any] | None = None
    ready_after_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def rehearsal(self) -> bool:
        return self.measured.subject.rehearsal


def gather(paths: Sequence[Path]) -> list[Evidence]:
    """The evidence in the paths, under names of their own. Raises `BadInput` with every fault."""
    problems: list[Diagnostic] = []
    found = list(_each(lambda path: (path, _read(path)), paths, problems))
    runs = list(_each(lambda pair: _evidence(*pair), _merge(found), problems))
    if problems:
        raise BadInput(problems)
    return _named(runs)


def _each(step: Callable[[T], U], items: Iterable[T], problems: list[Diagnostic]) -> Iterator[U]:
    """The step's results; its faults are noted and the next item taken."""
    for item in items:
        try:
            yield step(item)
        except BadInput as fault:
            problems += fault.diagnostics


def _read(path: Path) -> Read:
    """What was measured in a path; in a run that measured nothing, a document without points."""
    if not path.exists():
        raise BadInput(Diagnostic(str(path), "does not exist", REMEDY))
    if not path.is_dir():
        return importers.read(path)
    for name in (BENCH, FOREIGN):
        if (path / name).is_file():
            return importers.read(path / name)
    if (path / RUN).is_file():
        return Read(_unmeasured(path / RUN), False)
    raise BadInput(Diagnostic(str(path), f"holds neither {BENCH} nor {RUN}", REMEDY))


def _unmeasured(path: Path) -> dict[str, Any]:
    run = fields.Fields(fields.read_json(path), str(path))
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


def _merge(found: Iterable[tuple[Path, Read]]) -> list[tuple[Path, Read]]:
    """Some tools write a file for every load: files of one folder that differ in the load alone
    are one series, in the order of the loads."""
    series: dict[tuple[Any, ...], tuple[Path, Read]] = {}
    for index, (path, read) in enumerate(found):
        key = _series_key(path, read) or (index,)
        points = series[key][1].document["points"] if key in series else []
        labels = {point["label"] for point in points}
        if points and labels.isdisjoint(point["label"] for point in read.document["points"]):
            points += read.document["points"]
            points.sort(key=_load_order)
        else:
            series[key if key not in series else (index,)] = (path, read)
    return list(series.values())


def _series_key(path: Path, read: Read) -> tuple[Any, ...] | None:
    if not read.foreign:
        return None
    parts = (read.document[name] for name in ("client", "workload"))
    return (path.parent, read.document["subject"]["model"], *map(repr, parts))


def _load_order(point: Mapping[str, Any]) -> tuple[bool, float]:
    load = point["load"]
    rate = load.get("rate_per_s")
    return (rate is not None, float(rate or load.get("concurrency") or 0))


def _evidence(path: Path, read: Read) -> Evidence:
    folder = path if path.is_dir() else path.parent
    where = str(path / BENCH if path.is_dir() and (path / BENCH).is_file() else path)
    result = measured.read(read.document, where)
    manifest, notes = _manifest(result)
    own = not read.foreign
    if not result.points:
        notes = (*notes, f"This run measured nothing: it has no {BENCH}.")
    return Evidence(
        title=result.subject.name,
        place=str(path),
        measured=result,
        foreign=read.foreign,
        smoke=_smoke(folder / SMOKE) if own else None,
        manifest=manifest,
        ready_after_s=_ready_after_s(folder / RUN) if own else None,
        notes=notes,
    )


def _smoke(path: Path) -> Checked | None:
    return checked.read(fields.read_json(path), str(path)) if path.is_file() else None


def _ready_after_s(path: Path) -> float | None:
    if not path.is_file():
        return None
    run = fields.Fields(fields.read_json(path), str(path))
    seconds = run.number("ready_after_s")
    run.check()
    return seconds


def _manifest(result: Measured) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """The manifest of the bundle that was measured, if it still is what it was then."""
    subject = result.subject
    if not subject.bundle_folder:
        return None, ()
    try:
        found = bundle.read(Path(subject.bundle_folder))
    except ToolkitError as fault:
        return None, (f"The bundle is not shown: {fault.diagnostics[0]}.",)
    if subject.bundle_digest and found.digest != subject.bundle_digest:
        what = "has changed since it was measured"
        return None, (f"The bundle is not shown: {subject.bundle_folder} {what}.",)
    return found.manifest, ()


def _named(runs: Sequence[Evidence]) -> list[Evidence]:
    """Titles that tell the runs apart: alike ones get what differs, or a number."""
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


def _file(run: Evidence) -> str:
    path = Path(run.place)
    return path.parent.name if path.name == BENCH else path.stem


DETAILS: tuple[Callable[[Evidence], str | None], ...] = (
    lambda run: run.measured.subject.precision,
    lambda run: run.measured.subject.target,
    lambda run: run.measured.api,
    lambda run: run.measured.subject.release,
    _file,
)


def _numbered(runs: Iterable[Evidence]) -> Iterator[Evidence]:
    seen: dict[str, int] = {}
    for run in runs:
        seen[run.title] = seen.get(run.title, 0) + 1
        count = seen[run.title]
        yield replace(run, title=f"{run.title} ({count})") if count > 1 else run
