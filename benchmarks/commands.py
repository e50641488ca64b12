"""How long the commands of the toolkit take: whole processes, beside an empty interpreter.

Each command is run right after `python -c pass`, in turn with the others, so that other work on the
machine meets all of them; its ratio to that interpreter is taken within the round. A bound is
missed where both the time and the ratio are above it: on a busy machine times grow and ratios
stay, and an interpreter that starts fast makes ratios large and times small.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import command, deployment
from builder.diagnostics import Diagnostic
from builder.errors import ChecksFailed

from . import arguments
from .results import Spread

TOOLKIT = Path(__file__).parent.parent
TIMEOUT_S = 60.0  # against a command that hangs
EMPTY = ("-c", "pass")
OPTIONS_FILE = "config.yaml"
SITE_FILE = "site.yaml"
SITE = """\
name: cluster
partition: batch
gpu_request: gpus_per_node
exclusive: true
mpi: pmix
container: {runtime: none}
"""
OPTIONS = "tensor_parallel_size: 8\nmax_batch_size: 64\nkv_cache_config: {dtype: fp8}\n"


@dataclass(frozen=True, slots=True)
class TimedCommand:
    """What is run: `words` for the interpreter, in which `{run}` is another name in each run.

    Its median must be below `limit_ms` on a quiet machine, or below `limit_ratio` empty
    interpreters.
    """

    name: str
    words: tuple[str, ...]
    limit_ms: float
    limit_ratio: float


# One run: the command's time and that of the empty interpreter before it, in ms.
Sample = tuple[float, float]


def commands(preset: str) -> tuple[TimedCommand, ...]:
    """Those that people wait for at a prompt."""
    builder, launch = ("-m", "builder"), ("-m", "launch")
    render = (*builder, "render", preset, "-o", "{run}")
    others = ("--target=monitoring", "--target=handoff", f"--site={SITE_FILE}")
    triton = [f"--set=targets.{name}.server=triton" for name in ("kubernetes", "compose", "slurm")]
    return (
        TimedCommand("builder --help", (*builder, "--help"), 100, 8),
        TimedCommand("launch --help", (*launch, "--help"), 100, 8),
        TimedCommand("builder check", (*builder, "check", OPTIONS_FILE), 200, 20),
        TimedCommand("builder plan", (*builder, "plan", preset), 500, 45),
        TimedCommand("builder render", render, 500, 45),
        TimedCommand("... of all targets", (*render, *triton, *others), 1000, 90),
    )


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and return the exit code: 6 if `--check` finds that a bound is missed."""
    options = arguments.parser("commands", __doc__, rounds=15).parse_args(words)
    return command.run(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    arguments.check_json_folder(options.json)
    measured = commands(deployment.preset_names()[0])
    table = rows(measured, samples(measured, options.rounds))
    print(text(table))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    missed = [one for row in table if (one := violation(row))]
    if options.check and missed:
        raise ChecksFailed(missed)


def samples(measured: Sequence[TimedCommand], rounds: int) -> dict[str, list[Sample]]:
    """By the commands' names. Raises `ChecksFailed` where a command fails."""
    found: dict[str, list[Sample]] = {one.name: [] for one in measured}
    with tempfile.TemporaryDirectory(prefix="commands-") as folder:
        (Path(folder) / OPTIONS_FILE).write_text(OPTIONS, encoding="utf-8")
        (Path(folder) / SITE_FILE).write_text(SITE, encoding="utf-8")
        for number in range(rounds):
            for place in range(len(measured)):
                one = measured[(number + place) % len(measured)]
                words = [word.format(run=f"{place}-{number}") for word in one.words]
                empty_ms = _process_ms("empty interpreter", EMPTY, folder)
                found[one.name].append((_process_ms(one.name, words, folder), empty_ms))
    return found


def _process_ms(name: str, words: Sequence[str], folder: str) -> float:
    """From the start of a process to its end."""
    path = os.pathsep.join(filter(None, (str(TOOLKIT), os.environ.get("PYTHONPATH"))))
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    taken_s = time.perf_counter() - begun
    if done.returncode:
        what = f"ended with {done.returncode}: {done.stderr.strip().rpartition(chr(10))[2]}"
        raise ChecksFailed(Diagnostic(name, what))
    return taken_s * 1000


def rows(
    measured: Sequence[TimedCommand], found: Mapping[str, Sequence[Sample]]
) -> list[dict[str, Any]]:
    """A row for each command, and one for all runs of the empty interpreter before them."""
    table = []
    for one in measured:
        times = found[one.name]
        row = _row(one.name, Spread.of(ms for ms, _ in times), len(times))
        ratio = Spread.of(ms / empty_ms for ms, empty_ms in times)
        row |= {"ratio": ratio.median, "range_ratio": [ratio.min, ratio.max]}
        table.append({**row, "limit_ms": one.limit_ms, "limit_ratio": one.limit_ratio})
    empty = [empty_ms for times in found.values() for _, empty_ms in times]
    return [_row("empty interpreter", Spread.of(empty), len(empty)), *table]


def _row(name: str, ms: Spread, runs: int) -> dict[str, Any]:
    return {"command": name, "ms": ms.median, "range_ms": [ms.min, ms.max], "runs": runs}


def violation(row: Mapping[str, Any]) -> Diagnostic | None:
    """What is missed by a command, if both its time and its ratio are."""
    if "limit_ms" not in row or row["ms"] < row["limit_ms"] or row["ratio"] < row["limit_ratio"]:
        return None
    what = f"takes {row['ms']:.0f} ms, {row['ratio']:.1f} times an empty interpreter; it must be "
    what += f"below {row['limit_ms']:g} ms or {row['limit_ratio']:g} times"
    return Diagnostic(row["command"], what)


def text(table: Sequence[Mapping[str, Any]]) -> str:
    """Medians with least and most, and the bounds."""
    head = (
        f"{'COMMAND':<18}{'MS':>7}{'LEAST..MOST':>17}{'RATIO':>8}{'LEAST..MOST':>15}{'BELOW':>15}"
    )
    lines = [head]
    for row in table:
        least, most = row["range_ms"]
        line = f"{row['command']:<18}{row['ms']:>7.1f}{f'{least:.1f}..{most:.1f}':>17}"
        if "ratio" in row:
            least, most = row["range_ratio"]
            line += f"{row['ratio']:>8.2f}{f'{least:.2f}..{most:.2f}':>15}"
            line += f"{row['limit_ms']:>8g} ms {row['limit_ratio']:>3g}x"
        lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
