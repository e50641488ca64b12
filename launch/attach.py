"""Attach evidence to a bundle: the results of its runs, and a report of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from builder import bundle as bundles
from builder.bundle import EVIDENCE, Bundle
from builder.diagnostics import Diagnostic
from builder.errors import BadInput
from builder.files import MAX_JSON_BYTES, load_json_mapping, read_bytes

from .report import REPORT, evidence, page

# What a run says of itself, and its results. Logs stay where they are: they may hold anything.
ABOUT = "run.json"
RESULTS = ("smoke.json", "bench.json")


def attach(bundle: Bundle, runs: Sequence[Path]) -> bool:
    """Make these runs the evidence of a bundle, with one page about all of them.

    Tells whether a signature had to go, which was of other files. Raises `BadInput` with every run
    that is not of this bundle or has no results.
    """
    diagnostics: list[Diagnostic] = []
    for run in runs:
        diagnostics += _diagnostics(bundle, run)
    if diagnostics:
        raise BadInput(diagnostics)
    named = dict(zip(_names(runs), runs, strict=True))
    files = {}
    for name, run in named.items():
        for file in _files(run):
            files[f"{name}/{file.name}"] = read_bytes(file, max_bytes=MAX_JSON_BYTES)
    files[REPORT] = _page(bundle, named).encode()
    return bundles.attach(bundle, files)


def _files(run: Path) -> list[Path]:
    return [run / name for name in (ABOUT, *RESULTS) if (run / name).is_file()]


def _diagnostics(bundle: Bundle, run: Path) -> Iterator[Diagnostic]:
    where, files = str(run), _files(run)
    if not any(file.name in RESULTS for file in files):
        what = f"holds neither {' nor '.join(RESULTS)}"
        yield Diagnostic(where, what, "give the folder of a run, or the results of a benchmark")
        return
    digests = {file: digest for file in files if (digest := _digest(file))}
    if not digests:
        what = "does not name its bundle"
        yield Diagnostic(where, what, "name the bundle and not a URL when you start or measure")
    for file, digest in digests.items():
        if digest != bundle.digest:
            what = f"is of a bundle of digest {digest}, this one has {bundle.digest}"
            yield Diagnostic(str(file), what, "start and measure this bundle")


def _digest(file: Path) -> str | None:
    return bundles.subject_digest(load_json_mapping(file, BadInput))


def _names(runs: Sequence[Path]) -> Iterator[str]:
    """Names for the folders: their own if they are plain words, all different."""
    taken: dict[str, int] = {}
    for run in runs:
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", run.resolve().name).strip(".-") or "run"
        taken[name] = taken.get(name, 0) + 1
        yield name if taken[name] == 1 else f"{name}-{taken[name]}"


def _page(bundle: Bundle, runs: Mapping[str, Path]) -> str:
    """The report, which names the places in the bundle and no folders of this machine."""
    found = evidence.gather(list(runs.values()))
    shown = [
        replace(one, place=f"{EVIDENCE}/{name}", manifest=bundle.manifest, notes=_notes(one))
        for one, name in zip(found, runs, strict=True)
    ]
    return page.text(shown)


def _notes(one: evidence.RunEvidence) -> tuple[str, ...]:
    """The facts in its bundle, which is on this machine."""
    return tuple(note for note in one.notes if not note.startswith("The bundle is not shown"))
