"""How many logs of failed servers get their cause, and how fast a long log is read.

python -m benchmarks.diagnosis FOLDER [--check] [--size-mb N]

FOLDER has an `index.yaml` with a row for each log: the log, its state, what is expected (a cause,
none, or unknown), the lines of evidence that count, the phase and the first error. Rows whose
wording is guessed are left out.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.diagnosis.judgement import Diagnosis
from builder.documents import load_yaml
from launch import diagnose

LEAST_SHARE = 0.95
MOST_S_PER_GB = 60.0
MOST_MB = 100
MISSED = 6


@dataclass(slots=True)
class Result:
    """How many logs of each kind there are, which were missed, and which got a wrong cause."""

    counts: dict[str, int] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def measure(folder: Path) -> Result:
    """Diagnoses each log of a folder beside its state."""
    result = Result()
    for row in load_yaml((folder / "index.yaml").read_text(encoding="utf-8")):
        if str(row.get("wording", "")).startswith("guessed"):
            continue
        kind = row["expect"]
        result.counts[kind] = result.counts.get(kind, 0) + 1
        found, _ = diagnose.diagnose(diagnose.collect([str(folder / row["log"])]))
        if not _is_right(row, found):
            result.missed.append(row["id"])
            if found.causes:
                result.wrong.append(row["id"])
    return result


def _is_right(row: Mapping[str, Any], found: Diagnosis) -> bool:
    if row["expect"] == "none":
        return found.verdict == "healthy" and not found.causes
    if found.phase != row["phase"]:
        return False
    if row["expect"] == "cause":
        lines = {line.line for cause in found.causes[:1] for line in cause.evidence}
        return bool(found.causes) and (not row["evidence"] or bool(lines & set(row["evidence"])))
    first = found.first_error.text if found.first_error else "none"
    return not found.causes and row["first_error"] in first


def write_log(path: Path, size_mb: int) -> None:
    """A log of a busy server: requests, iterations, statistics, random names, some warnings."""
    kinds = (
        'INFO:     10.0.{a}.{b}:{c} - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        "[09/14/2026-12:40:{b:02}] [TRT-LLM] [RANK {d}] [I] iter = {c}, host_step_time = {b}ms, "
        "num_scheduled_requests: {a}, states = {{num_ctx_requests: 0, num_generation_tokens: {a}}}",
        "(APIServer pid=5696) INFO 09-14 11:29:20 [loggers.py:257] Engine 000: Avg prompt "
        "throughput: {c}.3 tokens/s, Running: {a} reqs, Waiting: 0 reqs, GPU KV cache usage: {b}%",
        "[09/14/2026-12:40:{b:02}] [TRT-LLM] [I] request cmpl-{e:032x} added",
        "[TensorRT-LLM][WARNING] Timed out waiting for context KV cache transfer after {c} ms.",
    )
    drawn = random.Random(1)
    lines = []
    for kind in drawn.choices(kinds, (50, 30, 17, 2.5, 0.5), k=100_000):
        a, b, c, d = (drawn.randrange(1, most) for most in (250, 60, 60_000, 8))
        lines.append(kind.format(a=a, b=b, c=c, d=d, e=drawn.getrandbits(128)))
    block = ("\n".join(lines) + "\n").encode()
    with path.open("wb") as file:
        for _ in range(size_mb * 1_000_000 // len(block) + 1):
            file.write(block)


def main(words: Sequence[str]) -> int:
    """Print both measurements, and return 6 if `--check` finds a bound missed."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.diagnosis")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--size-mb", type=int, default=1000)
    options = parser.parse_args(words)
    result = measure(options.folder)
    total = sum(result.counts.values())
    share = 1 - len(result.missed) / total
    print(f"{total} logs {result.counts}: {share:.1%} right, {len(result.wrong)} wrong causes")
    for name in result.missed:
        print(f"  missed: {name}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "big.log"
        write_log(path, options.size_mb)
        size_gb = path.stat().st_size / 1e9
        began_s = time.process_time()
        diagnose.diagnose(diagnose.collect([str(path)]))
        s_per_gb = (time.process_time() - began_s) / size_gb
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{size_gb:.2f} GB of log: {s_per_gb:.1f} s of processor time per GB, {peak_mb:.0f} MB")
    within = share >= LEAST_SHARE and s_per_gb <= MOST_S_PER_GB and peak_mb <= MOST_MB
    return 0 if within or not options.check else MISSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
