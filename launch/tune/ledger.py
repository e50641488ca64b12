"""The ledger of a tuning run: a line of `tune.jsonl` before and after every start, never changed.

The first line holds what must stay the same for the measurements to be comparable.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from builder.diagnostics import Diagnostic
from builder.errors import BadInput
from builder.files import parse_json, reported
from builder.tuning.outcomes import MeasuredLoad, Outcome

from ..run import make_private, now

LEDGER = "tune.jsonl"
FORMAT = 1
SEARCH = "search"  # the role of a start; others are measured again at the end
CUT = "cut"  # the kind of a start that ended with its tuner and measured nothing
# What a line of each event has at least.
_FIELDS = {
    "begun": {"format", "identity"},
    "started": {"start", "role", "candidate", "folder", "num_gpus"},
    "ended": {"start", "role", "candidate", "kind", "loads", "gpu_hours", "option"},
}

Entry = dict[str, Any]


class Ledger:
    """The ledger of a folder, which only one `tune` at a time may hold open."""

    def __init__(self, folder: Path, file: BinaryIO, entries: list[Entry]) -> None:
        self.folder = folder
        self.entries = entries
        self._file = file

    def append(self, event: str, **facts: Any) -> None:
        """Write a line; it is on the disk when this returns."""
        entry = {"event": event, "time": now(), **facts}
        self._file.write((json.dumps(entry, ensure_ascii=False) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.entries.append(entry)

    def of(self, event: str) -> list[Entry]:
        return [entry for entry in self.entries if entry["event"] == event]

    def unfinished(self) -> list[Entry]:
        """The lines of starts that have no end."""
        ended = {entry["start"] for entry in self.of("ended")}
        return [entry for entry in self.of("started") if entry["start"] not in ended]

    def ends(self, role: str = SEARCH) -> list[Entry]:
        """The ends of all starts of a role that measured something or failed by themselves."""
        return [row for row in self.of("ended") if row["role"] == role and row["kind"] != CUT]

    def outcomes(self) -> list[Outcome]:
        return [outcome_of(entry) for entry in self.ends()]

    @property
    def gpu_hours(self) -> float:
        return sum(float(entry["gpu_hours"]) for entry in self.of("ended"))

    @property
    def cut_gpu_hours(self) -> float:
        """Of starts that were cut off before they measured anything."""
        return sum(float(row["gpu_hours"]) for row in self.of("ended") if row["kind"] == CUT)


def outcome_of(entry: Mapping[str, Any]) -> Outcome:
    """The outcome that the line of an ended start holds."""
    loads = tuple(MeasuredLoad(**load) for load in entry["loads"])
    hours, option = float(entry["gpu_hours"]), str(entry["option"])
    return Outcome(entry["candidate"], entry["kind"], loads, hours, option)


@contextmanager
def opened(
    folder: Path, identity: Mapping[str, Any], say: Callable[[str], None]
) -> Iterator[Ledger]:
    """The ledger of a folder, begun if it has none.

    A last line that was not written to its end is removed. Raises `BadInput` if another `tune` uses
    the folder, if it holds anything else, if a line is damaged, or if `identity` differs from that
    of the first line.
    """
    path = folder / LEDGER
    with reported(folder, "cannot hold a tuning run", "choose another --output"):
        make_private(folder)
        if not path.exists() and any(folder.iterdir()):
            what = f"is not empty and has no {LEDGER}"
            raise BadInput(Diagnostic(str(folder), what, "choose another --output"))
        file = path.open("a+b")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "wait until it ends, or choose another --output"
            raise BadInput(Diagnostic(str(path), "is in use by another tune", remedy)) from None
        ledger = Ledger(folder, file, _read(path, file, say))
        if not ledger.entries:
            ledger.append("begun", format=FORMAT, identity=dict(identity))
        _check_same(path, ledger.entries[0], identity)
        yield ledger


def _read(path: Path, file: BinaryIO, say: Callable[[str], None]) -> list[Entry]:
    file.seek(0)
    whole, newline, torn = file.read().rpartition(b"\n")
    if torn:
        say(f"{path}: the last line was not written to its end; it is ignored")
        file.truncate(len(whole) + len(newline))
    entries: list[Entry] = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            entry = parse_json(line)
        except ValueError:
            entry = None
        fields = _FIELDS.get(str(entry.get("event"))) if isinstance(entry, dict) else None
        if fields is None or not fields <= entry.keys():
            what = "is not a line of a tuning run"
            remedy = "restore the file, or choose another --output"
            raise BadInput(Diagnostic(f"{path}:{number}", what, remedy))
        entries.append(entry)
    return entries


def _check_same(path: Path, first: Entry, identity: Mapping[str, Any]) -> None:
    if first["event"] != "begun" or first.get("format") != FORMAT:
        remedy = "choose another --output"
        raise BadInput(Diagnostic(f"{path}:1", f"has no format {FORMAT} of this toolkit", remedy))
    before = first["identity"]
    remedy = "restore it, or start anew with another --output: such measurements do not compare"
    changed = [
        Diagnostic(f"{path}:1: {name}", f"was {before.get(name)}, now {value}", remedy)
        for name, value in identity.items()
        if before.get(name) != value
    ]
    if changed:
        raise BadInput(changed)
