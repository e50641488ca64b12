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
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
TIMEOUT_S = 60.0  # against a command that hangs
EMPTY = ("-c", "pass")
OPTIONS_FILE = "config.yaml"
WRONG_FILE = "wrong.yaml"
MANY_FOLDER = "many"
MANY = 1000
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
WRONG_OPTIONS = "tensor_parallel_sise: 8\nmax_batch_size: -1\nkv_cache_config: {dtipe: fp8}\n"
QUESTION_FILE = "question.jsonl"
QUESTION = {
    "model": "DeepSeek-R1",
    "gpu": "b200",
    "precision": "fp4",
    "engine": "tensorrt_llm",
    "tp": 8,
    "ep": 1,
    "attention_dp": False,
    "isl": 1024,
    "osl": 1024,
    "concurrency": 16,
    "mtp": 0,
}
OPEN_FILE = "open.yaml"
# Four kinds of GPUs, all layouts on one to eight of them: more than 500 candidates.
OPEN = """\
name: open
checkpoint: nvidia/DeepSeek-R1-0528-NVFP4-v2
hardware: {gpu: [b200, b300, h200, gb200], num_gpus: {at_most: 8}}
engine: {release: 1.2.1}
workload: {isl: 1024, osl: 1024, concurrency: 64}
slo: {ttft_ms: 3000, itl_ms: 50, percentile: p50}
targets: [trtllm_serve]
"""
# As long as those that people keep, of releases beside which another one stands.
MANY_OPTIONS = """\
# image: nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc{release}
tensor_parallel_size: 8
moe_expert_parallel_size: {experts}
enable_attention_dp: true
max_batch_size: {batch}
max_num_tokens: {tokens}
max_seq_len: 10240
print_iter_log: true
disable_overlap_scheduler: false
cuda_graph_config:
  enable_padding: true
  batch_sizes: [1, 2, 4, 8, 16, 32, 64, {batch}]
moe_config:
  backend: CUTLASS
  use_low_precision_moe_combine: true
kv_cache_config:
  dtype: fp8
  enable_block_reuse: false
  free_gpu_memory_fraction: 0.75
cache_transceiver_config:
  backend: UCX
  max_tokens_in_buffer: {tokens}
speculative_config:
  decoding_type: MTP
  num_nextn_predict_layers: 3
"""


@dataclass(frozen=True, slots=True)
class TimedCommand:
    """What is run: `words` for the interpreter, in which `{run}` is another name in each run.

    Its median must be below `limit_ms` on a quiet machine, or below `limit_ratio` empty
    interpreters. What takes long is run in the first `most_rounds` only.
    """

    name: str
    words: tuple[str, ...]
    limit_ms: float
    limit_ratio: float
    exit_code: int = 0
    most_rounds: int = 1000


ESTIMATED = "deepseek-r1-0528-nvfp4-b200"  # a preset with measurements

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
        TimedCommand("... with errors", (*builder, "check", WRONG_FILE), 200, 20, exit_code=2),
        TimedCommand(
            "... of 1000 files", (*builder, "check", MANY_FOLDER), 5000, 400, most_rounds=3
        ),
        TimedCommand("builder plan", (*builder, "plan", preset), 500, 45),
        TimedCommand("builder render", render, 500, 45),
        TimedCommand("... of all targets", (*render, *triton, *others), 1000, 90),
        TimedCommand("builder estimate", (*builder, "estimate", ESTIMATED), 300, 30),
        TimedCommand("... of a batch", (*builder, "estimate", "--batch", QUESTION_FILE), 300, 30),
        TimedCommand("builder choose", (*builder, "choose", OPEN_FILE), 2000, 180, most_rounds=3),
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
        (Path(folder) / WRONG_FILE).write_text(WRONG_OPTIONS, encoding="utf-8")
        (Path(folder) / SITE_FILE).write_text(SITE, encoding="utf-8")
        (Path(folder) / OPEN_FILE).write_text(OPEN, encoding="utf-8")
        (Path(folder) / QUESTION_FILE).write_text(json.dumps(QUESTION) + "\n", encoding="utf-8")
        write_many(Path(folder) / MANY_FOLDER, MANY)
        for one in measured:  # once unmeasured: its modules are compiled
            _process_ms(
                one.name, [word.format(run="warm") for word in one.words], folder, one.exit_code
            )
        for number in range(rounds):
            for place in range(len(measured)):
                one = measured[(number + place) % len(measured)]
                if number >= one.most_rounds:
                    continue
                words = [word.format(run=f"{place}-{number}") for word in one.words]
                empty_ms = _process_ms("empty interpreter", EMPTY, folder)
                taken_ms = _process_ms(one.name, words, folder, one.exit_code)
                found[one.name].append((taken_ms, empty_ms))
    return found


def write_many(folder: Path, count: int) -> None:
    """Option files, no two of them alike."""
    folder.mkdir()
    for number in range(count):
        values = {"release": 10 + number % 20, "experts": 2 ** (number % 4)}
        values |= {"batch": 65 + number, "tokens": 2048 + number}
        file = folder / f"{number:04}.yaml"
        file.write_text(MANY_OPTIONS.format(**values), encoding="utf-8")


def _process_ms(name: str, words: Sequence[str], folder: str, exit_code: int = 0) -> float:
    """From the start of a process to its end, with modules compiled as an installed toolkit has
    them, also where the machine's own rule is to keep no bytecode."""
    path = os.pathsep.join(filter(None, (str(TOOLKIT), os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**kept, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    taken_s = time.perf_counter() - begun
    if done.returncode != exit_code:
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
