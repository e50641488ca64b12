"""Collects the logs and the state of a server that failed, and has them diagnosed."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from builder.diagnosis import in_force, judgement, watch
from builder.diagnosis.in_force import InForce
from builder.diagnosis.judgement import Diagnosis
from builder.diagnosis.state import flat
from builder.diagnostics import Diagnostic
from builder.documents import load_yaml_mapping
from builder.errors import BadInput
from builder.files import MANIFEST, load_json_mapping, reason, reported

from .run import LOG
from .run import SUMMARY as RUN

STDIN = "-"
STATE_SUFFIXES = (".state.yaml", ".state.yml", ".state.json")
_LOG = re.compile(r"\.(?:log|out|err|txt|events|jsonl)(?:\.\d+)?(?:\.gz)?$", re.IGNORECASE)
_ROTATED = re.compile(r"\.(\d+)(?:\.gz)?$")
# Folders of a run that hold what its server was made of.
_NOT_LOGS = frozenset(("miniature", "python", "work", "bundle", "copy", "__pycache__"))
MOST_LOGS = 200
# Keys of a run's summary, and the state that they are.
_OF_RUN = {"exit_status": "exit_code", "ready_after_s": "ready_after_s", "outcome": "outcome"}


@dataclass(slots=True)
class Found:
    """The logs to read in their order, files of state, and the bundle that was started.

    `outputs` are what commands printed about the server, by the name of the command.
    """

    logs: list[str] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)
    states: list[Path] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    bundle: Path | None = None
    is_rehearsal: bool = False


def collect(paths: Sequence[str], found: Found | None = None) -> Found:
    """What is in files and folders, added to `found`.

    Raises `BadInput` for a path that is not there.
    """
    found = found or Found()
    for name in paths:
        path = Path(name)
        if name == STDIN:
            found.logs.append(name)
        elif path.is_dir():
            _of_folder(path, found)
        elif not path.exists():
            what = "there is no such file, folder or job"
            raise BadInput(Diagnostic(name, what, "give a log, a folder of logs, or -"))
        elif name.endswith(STATE_SUFFIXES):
            found.states.append(path)
        else:
            found.logs.append(name)
            beside = [path.with_name(f"{path.stem}{suffix}") for suffix in STATE_SUFFIXES]
            found.states += [one for one in beside if one.is_file()]
    found.states = list(dict.fromkeys(found.states))
    if not found.logs and not found.states:
        what = f"no log in {', '.join(paths)}"
        raise BadInput(Diagnostic(what, "", "name the file that the server writes to"))
    return found


def of_run(folder: Path) -> Found:
    """The server's log of a run and its summary, without its results. Raises `BadInput`."""
    found = collect([str(folder / LOG)])
    _of_run(folder / RUN, found)
    return found


def _of_folder(folder: Path, found: Found) -> None:
    logs: list[Path] = []
    for path in sorted(_files(folder)):
        if path.name.endswith(STATE_SUFFIXES) or path.name in ("state.yaml", "state.yml"):
            found.states.append(path)
        elif path.name == RUN:
            _of_run(path, found)
        elif _LOG.search(path.name):
            logs.append(path)
    logs.sort(key=_age)
    found.logs += [str(path) for path in logs[:MOST_LOGS]]


def _files(folder: Path) -> Iterator[Path]:
    with reported(folder, "cannot be read"):
        entries = sorted(folder.iterdir())
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            if entry.name not in _NOT_LOGS:
                yield from _files(entry)
        elif entry.is_file():
            yield entry


def _age(path: Path) -> tuple[str, int]:
    """Rotated files of a log stand before it, the oldest first."""
    rotated = _ROTATED.search(path.name)
    return _ROTATED.sub("", str(path)), -int(rotated[1]) if rotated else 0


def _of_run(path: Path, found: Found) -> None:
    """What the summary of a run says; one that is no JSON says nothing."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if not isinstance(summary, Mapping):
        return
    found.facts |= {ours: summary[key] for key, ours in _OF_RUN.items() if key in summary}
    bundle, engine = summary.get("bundle"), summary.get("engine")
    found.is_rehearsal = isinstance(engine, Mapping) and bool(engine.get("rehearsal"))
    if isinstance(bundle, Mapping) and Path(str(bundle.get("folder", ""))).is_dir():
        found.bundle = Path(str(bundle["folder"]))


def diagnose(found: Found, last_bytes: int | None = None) -> tuple[Diagnosis, list[InForce]]:
    """Reads everything once; also what the engine says of its options, where a bundle is known.

    With `last_bytes`, only the end of a longer log is read, and its lines are counted from there.

    Raises `BadInput` for a file that cannot be read.
    """
    seen: list[watch.Seen] = []
    state: dict[str, str] = flat(found.facts)
    for name in found.logs:
        try:
            with _opened(name) as stream:
                if last_bytes and stream.seekable():
                    size = stream.seek(0, os.SEEK_END)
                    stream.seek(max(0, size - last_bytes))
                seen.append(watch.watch(stream, name))
        except (OSError, EOFError) as error:
            raise BadInput(Diagnostic(name, f"cannot be read: {reason(error)}")) from None
    for name, text in found.outputs.items():
        seen.append(watch.watch(io.BytesIO(text.encode()), name))
    for path in found.states:
        state |= flat(load_yaml_mapping(path))
        text = path.read_text(encoding="utf-8", errors="replace")
        facts = watch.watch(io.BytesIO(text.encode()), str(path))
        facts.errors.clear()  # what it tells is of the machine: a first error is the server's
        seen.append(facts)
    values = planned(found.bundle, found.is_rehearsal) if found.bundle else {}
    return judgement.judge(seen, state, values), list(in_force.held_against(seen, values))


def planned(bundle: Path, is_rehearsal: bool = False) -> dict[str, Any]:
    """The options of a bundle's plan by path, and its memory but for a rehearsal, whose miniature
    takes another. Raises `BadInput`.
    """
    manifest = load_json_mapping(bundle / MANIFEST, BadInput)
    rows = [*manifest.get("engine_defaults", ()), *manifest.get("decisions", ())]
    memory = manifest.get("memory") or {}
    budget = {**memory, **memory.get("per_gpu", {})}
    options = {row["path"]: row["value"] for row in rows}
    if is_rehearsal:
        return options
    return options | {f"budget.{name}": value for name, value in budget.items()}


def of_live(log: Path) -> dict[str, str]:
    """The state of a process that lives: now, and when it wrote its log last."""
    written = datetime.fromtimestamp(log.stat().st_mtime)
    moments = {"now": datetime.now().isoformat(), "last_write": written.isoformat()}
    return {"process_alive": "true", **moments}


def _opened(name: str) -> BinaryIO:
    if name == STDIN:
        return sys.stdin.buffer
    return cast(BinaryIO, gzip.open(name)) if name.endswith(".gz") else Path(name).open("rb")
