"""A tuning run: starts what the search asks for, and measures the winner again at the end."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from builder import __version__, pipeline
from builder.choice.request import ChoiceRequest
from builder.diagnostics import Diagnostic
from builder.errors import NotReady
from builder.facts import engines
from builder.tuning.candidates import Candidate, document
from builder.tuning.outcomes import MeasuredLoad, Outcome
from builder.tuning.search import Search, Start, Stop

from .. import known_defects
from . import trial
from .ledger import CUT, SEARCH, Entry, Ledger, outcome_of
from .trial import Conditions, NextLoad, Trial

REPEATS = 3  # measurements of the winner's load, and of the untuned plan's
WINNER, UNTUNED = "winner", "untuned"
REASONS = {
    WINNER: f"the best so far again, {REPEATS} times",
    UNTUNED: f"the untuned plan next to it, {REPEATS} times",
}
# For a server whose tuner was killed: its guardian ends it within this time.
LEFTOVER_S = 60.0
POLL_S = 0.1
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate at its best load, with the objective's figure of every repetition."""

    candidate: Candidate
    loads: tuple[MeasuredLoad, ...]
    figures: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a tuning run ended.

    `winner` is `None` if no server meets the limits or the untuned plan is the best; `kept` says
    that the winner is better than `untuned` by more than the spread of both.
    """

    stop: Stop
    reason: str
    winner: Measured | None = None
    untuned: Measured | None = None
    kept: bool = False
    is_untuned_best: bool = False


class Session:
    """Runs a search on this machine. `say` gets lines for the user."""

    def __init__(
        self,
        request: ChoiceRequest,
        search: Search,
        untuned: Candidate,
        ledger: Ledger,
        conditions: Conditions,
        say: Callable[[str], None],
    ) -> None:
        self.request, self.search, self.ledger = request, search, ledger
        self._untuned = untuned
        self._conditions, self._say = conditions, say
        self._expected = search.forecast()["starts"]

    def run(self) -> Verdict:
        """Go on until the search stops; then measure the winner again.

        Raises `BadInput` for what no start can change, and `NotReady` if a server does not end.
        """
        self._recover()
        while isinstance(step := self.search.next(self.ledger.outcomes()), Start):
            self._start(step.candidate, SEARCH, step.reason, step)
        best = self.search.best(self.ledger.outcomes())
        if best is None:
            return Verdict(step, self._without_best())
        return self._decided(step, best[0])

    def _recover(self) -> None:
        """End the lines of starts that were cut off: with what they measured, or as cut."""
        for entry in self.ledger.unfinished():
            folder = self.ledger.folder / entry["folder"]
            self._await_end(folder)
            loads = trial.measured_before(folder, self._conditions.percentile)
            changed = [file.stat().st_mtime for file in folder.rglob("*") if file.is_file()]
            began = datetime.fromisoformat(entry["time"]).timestamp()
            hours = max(0.0, max(changed, default=began) - began) / HOUR_S
            kind, cause = ("measured" if loads else CUT), "cut off"
            facts = {"kind": kind, "loads": list(map(asdict, loads)), "cause": cause, "option": ""}
            self._end(entry, {**facts, "gpu_hours": round(hours * entry["num_gpus"], 4)})
            done = f"{len(loads)} loads are used" if loads else "it is repeated"
            self._say(f"start {entry['start']} ({entry['title']}) was cut off: {done}")

    def _await_end(self, folder: Path) -> None:
        """Wait for the processes that were started in a folder. Raises `NotReady` naming them."""
        deadline = time.monotonic() + LEFTOVER_S
        while left := list(_processes_in(folder)):
            if time.monotonic() > deadline:
                what = f"of {folder} still runs after its tuner was killed"
                named = ", ".join(map(str, left))
                raise NotReady(Diagnostic(f"process {named}", what, f"end it: kill {left[0]}"))
            self._conditions.interrupts.again.wait(POLL_S)
            self._conditions.interrupts.check()

    # Starts

    def _start(
        self, candidate: Candidate, role: str, reason: str, step: Start | None = None
    ) -> None:
        number = len(self.ledger.of("started")) + 1
        name = f"{number:02d}-{re.sub(r'[^A-Za-z0-9.]+', '-', candidate.title).strip('-')}"
        folder = self.ledger.folder / name
        gain = step.expected_gain if step else None
        self._announce(number, candidate, role, reason, gain)
        planned = pipeline.plan_document(document(self.request, candidate))
        bundle = pipeline.write(planned, folder / "bundle", force=True)
        began_s = time.monotonic()
        patience = step.patience if step else 1
        facts: dict[str, Any] = {
            "start": number,
            "role": role,
            "candidate": candidate.id,
            "title": candidate.title,
            "settings": dict(candidate.settings),
            "num_gpus": candidate.question.num_gpus,
            "bundle": bundle.digest,
            "folder": name,
            "reason": reason,
            "expected_gain": gain,
            "patience": patience,
        }
        self.ledger.append("started", **facts)
        attempt = Trial(self._conditions, bundle, folder)
        next_load = self._next_load(candidate, role)

        def is_hopeless(ttft_ms: float, tpot_ms: float) -> bool:
            return self.search.is_hopeless(candidate, ttft_ms, tpot_ms)

        attempt.run(next_load, is_hopeless, list(candidate.settings), patience)
        hours = (time.monotonic() - began_s) / HOUR_S * candidate.question.num_gpus
        self._end(facts, {**attempt.facts, "gpu_hours": round(hours, 4)})
        self._report(self.ledger.entries[-1])

    def _end(self, started: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        same = {name: started[name] for name in ("start", "role", "candidate", "title", "folder")}
        self.ledger.append("ended", **same, **facts)

    def _next_load(self, candidate: Candidate, role: str) -> NextLoad:
        outcomes = self.ledger.outcomes()
        if role == SEARCH:
            return lambda loads: self.search.next_load(candidate, outcomes, loads)
        before = self._loads(candidate, role)
        own = [row for row in outcomes if row.candidate == candidate.id]
        known = self.search.best(own)

        def repeated(loads: Sequence[MeasuredLoad]) -> int | None:
            """The best load, as often as it is to be measured; it is searched if it is unknown."""
            every = [*before, *loads]
            best = known
            if best is None:
                if (load := self.search.next_load(candidate, outcomes, every)) is not None:
                    return load
                best = self.search.best([Outcome(candidate.id, "measured", tuple(every))])
            if best is None:
                return None
            at = best[1].concurrency
            return at if sum(one.concurrency == at for one in every) < REPEATS else None

        return repeated

    def _loads(self, candidate: Candidate, role: str) -> list[MeasuredLoad]:
        """What the starts of a candidate in a role measured, also if they were cut off."""
        found: list[MeasuredLoad] = []
        for entry in self.ledger.ends(role):
            if entry["candidate"] == candidate.id:
                found += outcome_of(entry).loads
        return found

    # The end

    def _decided(self, stop: Stop, winner: Candidate) -> Verdict:
        untuned = self._untuned
        if untuned.id == winner.id:
            reason = f"nothing is better than the untuned plan, {untuned.title}"
            return Verdict(stop, reason, is_untuned_best=True)
        pair = ((winner, WINNER), (untuned, UNTUNED))
        left = [(one, role) for one, role in pair if not self._is_repeated(one, role)]
        if left:
            self._say(self._cost_of_repeats([one for one, _ in left]))
        for one, role in left:
            self._start(one, role, REASONS[role])
        best, plain = (self._repetitions(one, role) for one, role in pair)
        if not best.figures:
            reason = f"{winner.title} did not meet the limits again"
            return Verdict(stop, reason, best, plain)
        highest = max(plain.figures, default=0.0)
        kept = min(best.figures) > highest
        against = f"{untuned.title}, the untuned plan, by more than the spread of both"
        reason = f"{winner.title} is {'' if kept else 'not '}better than {against}"
        return Verdict(stop, reason, best, plain, kept)

    def _is_repeated(self, candidate: Candidate, role: str) -> bool:
        """Whether a start ended that is to be repeated only if it was cut off too early."""
        ends = [row for row in self.ledger.ends(role) if row["candidate"] == candidate.id]
        if any(row["kind"] != "measured" for row in ends):
            return True
        return bool(ends) and self._next_load(candidate, role)([]) is None

    def _repetitions(self, candidate: Candidate, role: str) -> Measured:
        loads = self._loads(candidate, role)
        best = (
            self.search.best([Outcome(candidate.id, "measured", tuple(loads))]) if loads else None
        )
        if best is None:
            return Measured(candidate, tuple(loads), ())
        same = tuple(one for one in loads if one.concurrency == best[1].concurrency)
        return Measured(candidate, same, tuple(self.figure(candidate, one) for one in same))

    def figure(self, candidate: Candidate, load: MeasuredLoad) -> float:
        """What is to be large: output tokens/s per GPU, or requests/s of one stream; 0 if a limit
        is missed."""
        if self.search.best([Outcome(candidate.id, "measured", (load,))]) is None:
            return 0.0
        if self.request.objective == "latency":
            return 1000 / (load.ttft_ms + (candidate.question.osl - 1) * load.tpot_ms)
        return load.output_tok_s / candidate.question.num_gpus

    def _without_best(self) -> str:
        kinds = [f"{entry['title']}: {entry['kind']}" for entry in self.ledger.ends()]
        if not any(entry["loads"] for entry in self.ledger.ends()):
            return f"no server could be measured ({', '.join(kinds)})"
        return "no server meets the latency targets at any load"

    # Words

    def _announce(
        self, number: int, candidate: Candidate, role: str, reason: str, gain: float | None
    ) -> None:
        ended = self.ledger.ends()
        spent_s = [entry["seconds"] for entry in ended if "seconds" in entry]
        left = ""
        if role == SEARCH and spent_s:
            starts = max(self._expected - len(ended), 1)
            left = f"; about {starts * sum(spent_s) / len(spent_s) / 60:.0f} min left"
        hope = f", expected gain {gain:.0%}" if gain is not None else ""
        self._say(f"start {number}: {candidate.title}{hope} ({reason}){left}")

    def _report(self, entry: Entry) -> None:
        loads = [MeasuredLoad(**load) for load in entry["loads"]]
        if entry["kind"] == "measured":
            shown = [f"{load.output_tok_s:.0f} tokens/s at {load.concurrency}" for load in loads]
            said = ", ".join(shown)
        else:
            said = f"{entry['kind'].replace('_', ' ')}: {entry['cause']}"
        self._say(f"start {entry['start']}: {said}; {self.ledger.gpu_hours:.2f} GPU hours so far")

    def _cost_of_repeats(self, candidates: Sequence[Candidate]) -> str:
        spent_s = [row["seconds"] for row in self.ledger.ends() if "seconds" in row]
        each = sum(spent_s) / max(len(spent_s), 1) / HOUR_S
        hours = sum(one.question.num_gpus for one in candidates) * each
        names = " and ".join(one.title for one in candidates)
        return f"{names}: started again and measured {REPEATS} times, about {hours:.2f} GPU hours"


def identity(request: ChoiceRequest, engine: str, target: str | None) -> dict[str, Any]:
    """What makes measurements comparable: machine, image, model, workload and deployment."""
    base = request.bases[0]
    given = dict(request.document.data)
    workload, slo = given.pop("workload"), given.pop("slo", None)
    machine = known_defects.machine(base.deployment.engine.name)
    package = f"pip.{engines.load(base.deployment.engine.name).package}"
    model = {"name": base.facts.checkpoint.name, **base.facts.checkpoint.digests}
    return {
        "version": __version__,
        "image": base.deployment.images.get(target or "", ""),
        "engine": f"{engine} {machine.get(package, base.facts.release.name)}",
        "driver": machine.get("driver", "none"),
        "gpus": sorted(_gpu_models()),
        "model": _digest(model),
        "workload": workload,
        "slo": slo,
        "objective": request.objective,
        "deployment": _digest(given),
    }


def _gpu_models() -> Iterator[str]:
    """The GPUs of this machine, as its driver names them."""
    for file in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        for line in file.read_text().splitlines():
            if line.startswith("Model:"):
                yield line.partition(":")[2].strip()


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _processes_in(folder: Path) -> Iterator[int]:
    """Live processes that work in a folder or below it, as a server and its workers do."""
    within = folder.resolve()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                if Path(entry.path, "cwd").readlink().is_relative_to(within):
                    yield int(entry.name)
