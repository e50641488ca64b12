"""A run: the folder in which a started bundle leaves its evidence, summed up in `run.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from builder import __version__
from builder.bundle import Bundle
from builder.diagnostics import Diagnostic
from builder.errors import BadFacts, BadInput
from builder.files import load_json_mapping, reported, write_text

from . import engine as engines

SUMMARY = "run.json"
LOG = "server.log"
RUNS = Path("runs")
FORMAT = 1
ENDS = {"starting": "interrupted", "ready": "stopped"}


class Run:
    """The folder of one start of one target. `run.json` is complete at any time."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self._facts = facts
        self.record(started=now(), outcome="starting")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Whatever ended the run before it had a server is written down too."""
        if kind and "stopped" not in self._facts:
            self.end(outcome="interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")

    @property
    def log(self) -> Path:
        return self.folder / LOG

    def record(self, **facts: Any) -> None:
        self._facts |= facts
        self.write_json(SUMMARY, self._facts)

    @property
    def facts(self) -> Mapping[str, Any]:
        return self._facts

    @property
    def ready_after_s(self) -> float | None:
        return self._facts.get("ready_after_s")

    def end(self, **facts: Any) -> None:
        """The server is gone. A run that was starting until then was interrupted."""
        outcome = self._facts["outcome"]
        self.record(stopped=now(), **{"outcome": ENDS.get(outcome, outcome), **facts})

    def write_json(self, name: str, document: object) -> Path:
        """The file appears as a whole, so that a reader never sees half of it."""
        path = self.folder / name
        text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
        write_text(path, text)
        return path


def create(bundle: Bundle, target: str, engine: str, folder: Path | None = None) -> Run:
    """A run in `folder`, or in a new one under `runs/`. Raises `BadInput` if it is in use.

    It is a rehearsal where its engine runs without a GPU.
    """
    launch = bundle.launch
    folder = folder or new_folder(f"{launch['name']}-{target}")
    remedy = "choose another --run-dir"
    with reported(folder, "cannot be a run folder", remedy):
        make_private(folder)
        used = any(folder.iterdir())
    if used:
        raise BadInput(Diagnostic(str(folder), "is not empty", remedy))
    is_rehearsal = engine == engines.REFERENCE or engines.uses_cpu_build(engine)
    facts = {
        "format": FORMAT,
        "toolkit_version": __version__,
        "bundle": {
            "name": launch["name"],
            "folder": str(bundle.folder),
            "digest": bundle.digest,
        },
        "target": target,
        "engine": {**launch["engine"], "used": engine, "rehearsal": is_rehearsal},
    }
    return Run(folder.resolve(), facts)


def new_folder(name: str) -> Path:
    """A path under `runs/` that nothing has yet."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return RUNS.absolute() / f"{name}-{stamp}"


def of_bundle(bundle: Bundle, runs: Path = RUNS) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The folders and summaries of the runs of this bundle, the last one first."""
    for file in sorted(runs.glob(f"*/{SUMMARY}"), reverse=True):
        with suppress(BadFacts):  # a damaged record says nothing of this bundle
            facts = load_json_mapping(file)
            about = facts.get("bundle")
            if isinstance(about, dict) and about.get("digest") == bundle.digest:
                yield file.parent, facts


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can read, since logs hold users' requests."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def now() -> str:
    """UTC to the millisecond, as `run.json` holds times."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
