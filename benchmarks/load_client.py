"""The load clients against the reference server: how wrong they are, how fast, and what they cost.

The reference server streams on an exact schedule and logs what it really sent. It and the client
have a core each. The clients take turns within a round, so that a change of the machine's load
meets all of them.

"CPU-s/1k" is the CPU time of a whole run for each 1,000 tokens. "more/1k" is that of the further
tokens alone: the slope between a run in which every stream sends one request, and the whole one.
What a client takes to begin is not in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.reference_server import accuracy
from benchmarks.reference_server.accuracy import Accuracy, AccuracyTest, RequestTiming
from benchmarks.reference_server.process import ReferenceServer
from builder import command
from builder.diagnostics import Diagnostic
from builder.errors import ChecksFailed
from launch.bench.clients import Api

from . import arguments, load_install, load_program, load_traps
from .load_program import OURS, ClientLoad
from .results import Spread

TOOLKIT = Path(__file__).parent.parent
TIMEOUT_S = 120.0
SSE: Api = "openai_chat"
STREAMS = 64


@dataclass(frozen=True, slots=True)
class ClientCase:
    """An accuracy test over an API. `others`: clients of other projects run it too. `slope`: each
    client also runs it with one request for each stream."""

    name: str
    api: Api
    test: AccuracyTest
    others: bool = False
    slope: bool = False

    @property
    def short(self) -> ClientCase:
        return replace(self, test=replace(self.test, requests=self.test.streams))

    @property
    def tokens(self) -> int:
        return self.test.requests * self.test.tokens


def _saturation(rate: int) -> ClientCase:
    """Requests of 0.7 s, whatever the rate."""
    itl_ms = STREAMS / rate * 1000
    test = AccuracyTest(STREAMS, STREAMS * 3, int(700 / itl_ms), itl_ms)
    return ClientCase(f"saturation {rate // 1000}k", SSE, test)


CASES = (
    ClientCase("accuracy", SSE, AccuracyTest(1, 5, 200, 5)),
    ClientCase("accuracy", SSE, AccuracyTest(8, 40, 200, 5), others=True),
    ClientCase("accuracy", SSE, AccuracyTest(64, 384, 200, 5), others=True, slope=True),
    ClientCase("accuracy", "generate_stream", AccuracyTest(64, 192, 200, 5)),
    ClientCase("accuracy", "grpc", AccuracyTest(8, 24, 200, 5)),
    ClientCase("accuracy", "grpc", AccuracyTest(64, 384, 200, 5), slope=True),
    ClientCase("burst", "grpc", AccuracyTest(64, 64, 40, 5)),
    ClientCase("burst", SSE, AccuracyTest(64, 64, 40, 5), others=True),
    *map(_saturation, (24_000, 40_000, 60_000, 72_000, 84_000)),
    ClientCase("start", SSE, AccuracyTest(1, 1, 2, 5)),
    ClientCase("start", "grpc", AccuracyTest(1, 1, 2, 5)),
)
NAMES = tuple(dict.fromkeys(case.name.split()[0] for case in CASES))
FIELDS = (*(field.name for field in dataclasses.fields(Accuracy)), "start_s")
SLOPE = "more_cpu_s_per_1k_tokens"
SHOWN = {
    "tokens_per_s": "tokens/s",
    "ttft_error_ms": "TTFT ms",
    "ttft_error_percent": "TTFT %",
    "tpot_error_percent": "TPOT %",
    "throughput_error_percent": "tokens/s %",
    "late_percent": "late %",
    "cpu_s_per_1k_tokens": "CPU-s/1k",
    SLOPE: "more/1k",
    "peak_mib": "MiB",
    "start_s": "start s",
}
# A rate counts as reached with at most this error.
SATURATED_TTFT_PERCENT = 2.0


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound on a field of our own row of this kind. An error may have either sign."""

    row: str
    api: Api | None
    streams: int | None
    field: str
    relation: Literal["at least", "at most"]
    limit: float

    def violation(self, table: Sequence[Mapping[str, Any]]) -> Diagnostic | None:
        """What is missed, if it was measured and is missed."""
        wanted = (self.row, self.api, self.streams, OURS)
        for row in table:
            if tuple(map(row.get, ("row", "api", "streams", "client"))) == wanted:
                value = abs(row[self.field]) if "error" in self.field else row[self.field]
                at_least = self.relation == "at least"
                if not (value >= self.limit if at_least else value <= self.limit):
                    where = " ".join(str(one) for one in wanted[:3] if one is not None)
                    what = f"{self.field} is {value:.4g}; it must be {self.relation}"
                    return Diagnostic(where, f"{what} {self.limit:g}")
        return None


MUST_HOLD = (
    Bound("accuracy", SSE, 64, "ttft_error_ms", "at most", 1.0),
    Bound("accuracy", SSE, 64, "ttft_error_percent", "at most", 2.0),
    Bound("accuracy", SSE, 64, "tpot_error_percent", "at most", 0.1),
    Bound("accuracy", SSE, 64, "throughput_error_percent", "at most", 0.1),
    Bound("accuracy", SSE, 64, SLOPE, "at most", 0.02),
    Bound("accuracy", "grpc", 64, "ttft_error_percent", "at most", 2.0),
    Bound("accuracy", "grpc", 64, "ttft_error_ms", "at most", 1.0),
    Bound("accuracy", "grpc", 64, "tpot_error_percent", "at most", 0.1),
    Bound("accuracy", "grpc", 64, "throughput_error_percent", "at most", 0.1),
    Bound("accuracy", "grpc", 64, SLOPE, "at most", 0.06),
    Bound("accuracy", SSE, 64, "peak_mib", "at most", 95.3),  # 100 MB
    Bound("accuracy", "grpc", 64, "peak_mib", "at most", 95.3),
    Bound("burst", SSE, 64, "ttft_error_percent", "at most", 5.0),
    Bound("burst", "grpc", 64, "ttft_error_percent", "at most", 5.0),
    Bound("reached", SSE, 64, "tokens_per_s", "at least", 50_000),
    Bound("start", SSE, 1, "start_s", "at most", 0.7),
    Bound("start", "grpc", 1, "start_s", "at most", 0.7),
    Bound("install", None, None, "mb", "at most", 170),
    Bound("traps", None, None, "passed", "at least", 11),
    Bound("traps", None, None, "hung", "at most", 0),
)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit code: 6 if `--check` finds that a bound is missed."""
    options = _parser().parse_args(words)
    return command.run(lambda: _run(options))


def _parser() -> argparse.ArgumentParser:
    parser = arguments.parser("load_client", __doc__, rounds=3)
    parser.add_argument("--case", nargs="+", choices=NAMES, default=NAMES)
    return parser


def _run(options: argparse.Namespace) -> None:
    arguments.check_json_folder(options.json)
    table = rows([case for case in CASES if case.name.split()[0] in options.case], options.rounds)
    print(text(table))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    missed = [one for bound in MUST_HOLD if (one := bound.violation(table))]
    if options.check and missed:
        raise ChecksFailed(missed)


def rows(cases: Sequence[ClientCase], rounds: int) -> list[dict[str, Any]]:
    """A row for each case and client, then those that need no rounds."""
    samples: dict[tuple[ClientCase, str], list[dict[str, float]]] = {}
    others = load_program.installed()
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
        for case in cases:
            clients = [OURS, *(others if case.others else ())]
            for place in range(len(clients)):
                client = clients[(number + place) % len(clients)]
                samples.setdefault((case, client), []).append(_sample(case, client))
    table = [_row(case, client, found) for (case, client), found in samples.items()]
    return [*table, *_reached(table), *_traps(), _install()]


def _sample(case: ClientCase, client: str) -> dict[str, float]:
    whole = measure(case, client)
    if not case.slope:
        return whole
    short = measure(case.short, client)
    cpu_s = "cpu_s_per_1k_tokens"
    more = whole[cpu_s] * case.tokens - short[cpu_s] * case.short.tokens
    return {**whole, SLOPE: more / (case.tokens - case.short.tokens)}


def measure(case: ClientCase, client: str) -> dict[str, float]:
    """One test by a client in a process of its own. Raises `ChecksFailed` where that failed."""
    server_core, client_core = accuracy.cores()
    test = case.test
    with ReferenceServer(case.api, test.schedule, server_core) as server:
        size = (test.streams, test.requests, test.tokens, test.itl_ms)
        load = ClientLoad(case.api, server.address, client_core, *size)
        begun_ns = time.monotonic_ns()
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.load_program", client, json.dumps(asdict(load))],
            cwd=TOOLKIT,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        ended_ns = time.monotonic_ns()
        if done.returncode:
            what = done.stderr.strip().rpartition("\n")[2]
            raise ChecksFailed(Diagnostic(f"{case.name}, {client}", what))
        output = json.loads(done.stdout)
        log = server.log(test.requests)
    seen = {int(number): RequestTiming(*times) for number, times in output["seen"].items()}
    found = accuracy.compare(test, seen, log, output["cpu_s"], output["peak_mib"])
    loaded_ns = max(one.last_ns for one in seen.values()) - min(s.begun_ns for s in seen.values())
    return {**asdict(found), "start_s": (ended_ns - begun_ns - loaded_ns) / 1e9}


def _row(case: ClientCase, client: str, rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Medians, and under `range` least and most."""
    fields = {field: Spread.of(one[field] for one in rounds) for field in rounds[0]}
    return {
        "row": case.name,
        "api": case.api,
        "streams": case.test.streams,
        "client": client,
        **{field: values.median for field, values in fields.items()},
        "range": {field: [values.min, values.max] for field, values in fields.items()},
        "rounds": len(rounds),
    }


def _reached(table: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The highest rate that one client core followed."""
    rates = [row for row in table if row["row"].startswith("saturation")]
    good = [row for row in rates if abs(row["ttft_error_percent"]) <= SATURATED_TTFT_PERCENT]
    if rates:
        best = max((row["tokens_per_s"] for row in good), default=0.0)
        row = {"row": "reached", "api": SSE, "streams": STREAMS, "client": OURS}
        yield {**row, "tokens_per_s": best}


def _traps() -> Iterator[dict[str, Any]]:
    found = load_traps.rows()
    yield from found
    traps = [row for row in found if not row["hangs"]]
    passed = sum(row["passed"] for row in traps)
    hung = sum(not row["passed"] for row in found if row["hangs"])
    yield {"row": "traps", "client": OURS, "passed": passed, "of": len(traps), "hung": hung}


def _install() -> dict[str, Any]:
    return {"row": "install", "client": OURS, "mb": load_install.megabytes()}


def text(table: Sequence[Mapping[str, Any]]) -> str:
    """The rows for a terminal: medians with their range, then what is one value."""
    lines = [_line("case", "api", "streams", "client", *SHOWN.values())]
    for row in table:
        if "range" in row:
            cells = (_cell(row, field) for field in SHOWN)
            lines.append(_line(row["row"], row["api"], row["streams"], row["client"], *cells))
        else:
            lines.append(", ".join(f"{name} {value}" for name, value in row.items() if value != []))
    return "\n".join(lines)


def _cell(row: Mapping[str, Any], field: str) -> str:
    if field not in row:
        return "-"
    least, most = row["range"][field]
    return f"{row[field]:.4g} ({least:.3g}..{most:.3g})"


def _line(*cells: object) -> str:
    names, values = cells[:4], cells[4:]
    return "  ".join([*(f"{one!s:<15}" for one in names), *(f"{one!s:>25}" for one in values)])


if __name__ == "__main__":
    sys.exit(main())
