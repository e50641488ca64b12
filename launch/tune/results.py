"""The results of a tuning run: the tuned deployment, rows for estimates, a page and a summary."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from builder import render
from builder.chart import SHAPES, Chart, Mark, Series, svg
from builder.choice.request import closed
from builder.documents import dump_yaml
from builder.files import write_text
from builder.number_format import milliseconds, number, plain
from builder.tuning.candidates import document
from builder.tuning.outcomes import MeasuredLoad

from ..bench import results as bench
from .ledger import SEARCH, Entry, outcome_of
from .session import Measured, Session, Verdict

TUNED, PAGE, ROWS = "tuned.yaml", "tune.html", "rows"
WIDTH = 80
STOPS = {
    "gain": "no start left is expected to gain enough",
    "budget": "the budget is spent",
    "exhausted": "every candidate was tried or ruled out",
    "two unknown failures": "two starts in a row failed for unknown reasons",
}


def write(session: Session, found: Verdict) -> list[Path]:
    """Write the files of a run that has ended, the most important first."""
    folder = session.ledger.folder
    files = []
    if found.kept and found.winner:
        write_text(folder / TUNED, dump_yaml(tuned(session, found, found.winner)))
        files.append(folder / TUNED)
    write_text(folder / PAGE, page(session, found))
    files.append(folder / PAGE)
    if _write_rows(session):
        files.append(folder / ROWS)
    return files


def _write_rows(session: Session) -> bool:
    """Copy the complete loads of real engines to where `--rows` reads them."""
    folder, found = session.ledger.folder, False
    for entry in session.ledger.of("ended"):
        for file in sorted((folder / entry["folder"]).glob(f"load-*/{bench.BENCH}")):
            run = bench.read(file)
            if run["outcome"] == "complete" and not run["subject"]["engine"]["rehearsal"]:
                place = folder / ROWS / f"{entry['folder']}-{file.parent.name}"
                place.mkdir(parents=True, exist_ok=True)
                write_text(place / bench.BENCH, file.read_text(encoding="utf-8"))
                found = True
    return found


def tuned(session: Session, found: Verdict, winner: Measured) -> dict[str, Any]:
    """The deployment with the winner's options, and how they were measured."""
    candidate, base = winner.candidate, session.request.bases[0]
    asked, instances = candidate.question, candidate.instances
    given = base.overrides
    record = {
        "objective": session.request.objective,
        "reason": f"{found.reason}: {_comparison(session, found)}"[:4000],
        "source": f"{len(winner.loads)} measurements of {winner.loads[0].concurrency} concurrent "
        f"requests of one server, after {len(session.ledger.ends())} starts",
        "settings": {
            path: value for path, value in candidate.settings.items() if path not in given
        },
        "estimate": {name: _spread(values) for name, values in _figures(winner).items()},
        "evidence": "measured",
    }
    values: dict[str, Any] = {
        "hardware.num_gpus": asked.num_gpus * instances,
        "instances": instances if instances > 1 else None,
        "workload.concurrency": asked.concurrency * instances,
        "choice": record,
    }
    if base.facts.checkpoint.path is not None:
        values["checkpoint"] = str(base.facts.checkpoint.path)
    return dict(closed(document(session.request, candidate), values).data)


def _figures(one: Measured) -> dict[str, list[float]]:
    gpus = one.candidate.question.num_gpus
    return {
        "ttft_ms": [load.ttft_ms for load in one.loads],
        "itl_ms": [load.tpot_ms for load in one.loads],
        "output_tokens_per_s_per_gpu": [load.output_tok_s / gpus for load in one.loads],
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    ends = {"low": min(values), "value": median(values), "high": max(values)}
    return {name: round(value, 4) for name, value in ends.items()}


def _comparison(session: Session, found: Verdict) -> str:
    """The figures of the winner next to those of the untuned plan."""
    unit = "requests/s of one stream"
    if session.request.objective != "latency":
        unit = "output tokens/s per GPU"
    parts = []
    for one in filter(None, (found.winner, found.untuned)):
        shown = "meets no limit"
        if one.figures:
            low, high = number(min(one.figures)), number(max(one.figures))
            shown = f"{number(median(one.figures))} ({low} to {high})"
        parts.append(f"{one.candidate.title} {shown}")
    return plain(f"{', '.join(parts)} {unit}")


def stop_text(found: Verdict) -> str:
    left = found.stop.gain_left
    rest = "" if left is None else f"; expected gain left {left:.1%}"
    return f"{STOPS[found.stop.reason]}{rest}"


def summary(session: Session, found: Verdict) -> Iterator[str]:
    """The result within 80 columns."""
    best = {entry["start"]: _best(session, entry) for entry in session.ledger.of("ended")}
    yield f"{'START':<6}{'SERVER':<36}{'LOAD':>5}{'TPOT':>10}{'TOK/S/GPU':>11}{'GPU H':>8}"
    for entry in session.ledger.of("ended"):
        title = entry["title"] if entry["role"] == SEARCH else f"{entry['title']}, again"
        name = f"{entry['start']:<6}{title[:35]:<36}"
        if load := best[entry["start"]]:
            per_gpu = number(load.output_tok_s / _gpus(session, entry))
            shown = f"{load.concurrency:>5}{plain(milliseconds(load.tpot_ms)):>10}{per_gpu:>11}"
        else:
            shown = f"{entry['kind'].replace('_', ' '):>26}"
        yield f"{name}{shown}{entry['gpu_hours']:>8.2f}"
    text = f"{found.reason}. Stopped: {stop_text(found)}."
    if found.winner:
        text = f"{found.reason}: {_comparison(session, found)}. Stopped: {stop_text(found)}."
    yield ""
    yield from textwrap.wrap(text, WIDTH)


def _gpus(session: Session, entry: Entry) -> int:
    started = {row["start"]: row["num_gpus"] for row in session.ledger.of("started")}
    return int(started[entry["start"]])


def _best(session: Session, entry: Entry) -> MeasuredLoad | None:
    """The best load of a start that meets the limits, else the smallest one."""
    outcome = outcome_of(entry)
    known = session.search.known([outcome])
    if outcome.kind != "measured" or outcome.candidate not in known:
        return None
    if best := session.search.best([outcome]):
        return best[1]
    return min(outcome.loads, key=lambda load: load.concurrency, default=None)


def page(session: Session, found: Verdict) -> str:
    css = render.html("choice/page.css")
    entries = [row for row in session.ledger.of("ended") if row["loads"] or row["kind"]]
    series = [one for row in entries if row["loads"] for one in [_series(session, row)]]
    hours = session.ledger.gpu_hours
    return render.html(
        "tune/page.html.j2",
        style_hash=render.source_expression(css),
        name=session.request.bases[0].deployment.name,
        found=found,
        comparison=_comparison(session, found) if found.winner else "",
        stop=stop_text(found),
        gpu_hours=number(hours),
        chart=svg(_chart(series)) if series else None,
        rows=[_row(session, entry) for entry in entries],
        identity=session.ledger.entries[0]["identity"],
    )


def _chart(series: Sequence[Series]) -> Chart:
    return Chart(
        name="starts",
        title="Speed per user and throughput per GPU",
        x_title="output tokens/s per user",
        y_title="output tokens/s per GPU",
        series=series,
    )


def _series(session: Session, entry: Entry) -> Series:
    loads = sorted(outcome_of(entry).loads, key=lambda load: load.concurrency)
    gpus = _gpus(session, entry)
    marks = []
    for load in loads:
        x, y = 1000 / load.tpot_ms if load.tpot_ms else 0.0, load.output_tok_s / gpus
        tip = f"start {entry['start']}, {entry['title']}: {load.concurrency} concurrent requests"
        figures = f"{number(x)} tokens/s per user, {number(y)} per GPU"
        label = str(entry["start"]) if load is loads[-1] else ""
        marks.append(Mark(x, y, label, [tip, figures]))
    shape = SHAPES[(entry["start"] - 1) % len(SHAPES)]
    return Series(entry["start"], "kept", shape, marks)


def _row(session: Session, entry: Entry) -> Mapping[str, Any]:
    started = next(row for row in session.ledger.of("started") if row["start"] == entry["start"])
    load = _best(session, entry)
    gain = started.get("expected_gain")
    return {
        "number": entry["start"],
        "title": entry["title"],
        "why": started["reason"],
        "gain": "" if gain is None or started["role"] != SEARCH else f"{gain:.0%}",
        "result": entry["kind"].replace("_", " "),
        "cause": entry["cause"],
        "load": load and load.concurrency,
        "ttft": load and milliseconds(load.ttft_ms),
        "tpot": load and milliseconds(load.tpot_ms),
        "per_gpu": load and number(load.output_tok_s / _gpus(session, entry)),
        "gpu_hours": f"{entry['gpu_hours']:.2f}",
    }
