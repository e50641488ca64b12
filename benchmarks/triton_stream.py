"""Streaming speed of the Triton model against a per-token model and a plain SSE server.

With `--peer` also against another model for the LLM API, such as the one that NVIDIA publishes. All
stream from the same stand-in engine, which costs next to nothing: what is measured is the way of a
token from the engine to a client. The variants take turns within a round, in an order that rotates,
so that a change of the machine's load meets all of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import command
from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ChecksFailed, NotReady
from launch.process import Interrupts

from . import arguments, cpu_profile, results
from .client import StreamLoad
from .servers import VARIANTS, Running, programs, start

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
WARM_UP = 16  # tokens per stream


@dataclass(frozen=True, slots=True)
class StreamCase:
    """`streams` at once get `tokens` each, one every `step_ms`."""

    name: str
    streams: int
    tokens: int
    step_ms: float


CASES = (
    StreamCase("overload", 64, 320, 1),
    StreamCase("overload", 256, 160, 5),
    # Twice that, since the model carries nearly all of what `overload` offers.
    StreamCase("saturated", 64, 640, 0.5),
    StreamCase("saturated", 256, 320, 2.5),
    StreamCase("paced", 64, 100, 30),
    StreamCase("paced", 256, 48, 80),
    StreamCase("long", 8, 2000, 2),
)
DEFAULT_CASES = ("overload", "paced")


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit code: 6 if `--check` finds that a bound is missed."""
    options = _parser().parse_args(words)
    return command.run(lambda: _run(options))


def _parser() -> argparse.ArgumentParser:
    parser = arguments.parser("triton_stream", __doc__, rounds=5)
    names = list(dict.fromkeys(case.name for case in CASES))
    parser.add_argument("--case", nargs="+", choices=names, default=DEFAULT_CASES)
    parser.add_argument("--streams", nargs="+", type=arguments.count, metavar="N")
    own = [name for name in VARIANTS if name != "peer"]
    parser.add_argument("--variant", nargs="+", choices=own, default=own)
    parser.add_argument(
        "--peer", type=Path, metavar="DIR", help="a Triton model to measure as the variant `peer`"
    )
    parser.add_argument(
        "--tokens", type=arguments.count, metavar="N", help="per stream, for a short run"
    )
    parser.add_argument(
        "--profile", action="store_true", help="one more run of each case, sampled by perf"
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the servers' files there")
    return parser


def _run(options: argparse.Namespace) -> None:
    cases = [
        dataclasses.replace(case, tokens=options.tokens or case.tokens)
        for case in CASES
        if case.name in options.case and case.streams in (options.streams or [case.streams])
    ]
    if not cases:
        known = ", ".join(f"{case.name} {case.streams}" for case in CASES)
        raise BadInput(Diagnostic("--streams", f"no case has {options.streams}", f"Known: {known}"))
    _check_paths(options.json, options.logs, options.peer)
    if options.profile:
        cpu_profile.check_program()
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        folder = Path(options.logs or stack.enter_context(tempfile.TemporaryDirectory()))
        path = programs(folder)
        servers = {
            name: stack.enter_context(start(name, folder / name, path, interrupts, options.peer))
            for name in dict.fromkeys([*options.variant, *(["peer"] if options.peer else [])])
        }
        samples = _samples(servers, cases, options.rounds)
        profiles = _profiles(servers, cases, samples) if options.profile else {}
    table = results.rows(samples)
    print(results.text(table))
    if profiles:
        print(f"\n{cpu_profile.text(profiles)}")
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    missed = [one for bound in results.MUST_HOLD if (one := bound.violation(samples))]
    if options.check and missed:
        raise ChecksFailed(missed)


def _check_paths(json_file: Path | None, logs: Path | None, peer: Path | None) -> None:
    """Before the measurement, which takes minutes."""
    arguments.check_json_folder(json_file)
    if logs and logs.exists() and (not logs.is_dir() or any(logs.iterdir())):
        raise BadInput(Diagnostic("--logs", f"{logs} is not an empty folder", "name a new one"))
    if peer and not (peer / "1" / "model.py").is_file():
        what = f"{peer} is not a Triton model: it has no 1/model.py"
        raise BadInput(Diagnostic("--peer", what, "name the folder that holds config.pbtxt"))


def _samples(
    servers: dict[str, Running], cases: Sequence[StreamCase], rounds: int
) -> dict[tuple[str, int, str], list[dict[str, float]]]:
    samples: dict[tuple[str, int, str], list[dict[str, float]]] = {
        (case.name, case.streams, name): [] for case in cases for name in servers
    }
    for name, running in servers.items():
        _measure(name, running, StreamCase("warm-up", 64, WARM_UP, 5))
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        for case in cases:
            for name in _rotated(list(servers), number):
                samples[case.name, case.streams, name].append(_measure(name, servers[name], case))
    return samples


def _profiles(
    servers: dict[str, Running], cases: Sequence[StreamCase], samples: results.Samples
) -> dict[tuple[str, int, str], dict[str, float]]:
    """CPU time in µs per token of each part: shares of one more run, times of the others."""
    profiles = {}
    for case in cases:
        for name, running in servers.items():
            with cpu_profile.sampled(running.pids()) as shares:
                _measure(name, running, case)
            key = (case.name, case.streams, name)
            cpu_us = (
                1000
                * results.Spread.of(
                    one["server_cpu_s_per_1k_tokens"] for one in samples[key]
                ).median
            )
            profiles[key] = {part: cpu_us * shares[part] for part in cpu_profile.PARTS}
    return profiles


def _rotated(names: list[str], number: int) -> Iterator[str]:
    return (names[(number + place) % len(names)] for place in range(len(names)))


def _measure(name: str, running: Running, case: StreamCase) -> dict[str, float]:
    """Raises `NotReady` if the server ended, `ChecksFailed` if a stream was wrong."""
    load = StreamLoad(
        running.variant.protocol,
        running.address,
        running.variant.cumulative,
        case.streams,
        case.tokens,
        case.step_ms,
    )
    before_s = running.cpu_s()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.client", json.dumps(dataclasses.asdict(load))],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    # A clock tick is the least that this time can tell from nothing.
    cpu_s = max(running.cpu_s() - before_s, TICK_S)
    if (status := running.server.exit_status(0)) is not None:
        what = f"the server ended with {status}"
        raise NotReady(Diagnostic(name, "\n".join([what, *running.server.last_lines()])))
    if done.returncode:
        what = f"{case.name}, {case.streams} streams: {done.stderr.strip()}"
        raise ChecksFailed(Diagnostic(name, what))
    sample: dict[str, Any] = json.loads(done.stdout)
    return sample | {"server_cpu_s_per_1k_tokens": cpu_s / (case.streams * case.tokens) * 1000}


if __name__ == "__main__":
    sys.exit(main())
