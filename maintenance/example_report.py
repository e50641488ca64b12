"""Writes an example report: two runs on real GPUs that others published, side by side.

python -m maintenance.example_report -o example
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from builder.estimates import measurements
from builder.estimates.measurements import Row, layout_text
from launch.report import page

# MiniMax-M2.5 in FP8 on B200 under vLLM 0.19.0, published by InferenceX: two layouts of one day.
DAY, LENGTHS = "2026-04-03", (1024, 1024)
CELL = ("MiniMax-M2.5", "b200", "fp8", "vllm", "0.19.0")
LAYOUTS = ((4, 1, 1), (2, 1, 1))
MODEL = "MiniMaxAI/MiniMax-M2.5"


def write(folder: Path) -> None:
    """Writes the report, and a folder for each of its two runs."""
    rows, _ = measurements.read(model=CELL[0])
    runs = []
    for layout in LAYOUTS:
        points = {row.concurrency: row for row in rows if _is_of(row, layout)}
        run = folder / layout_text(*layout)
        run.mkdir(parents=True, exist_ok=True)
        (run / "bench.json").write_text(json.dumps(_document(layout, points.values())))
        runs.append(run)
    page.write(runs, folder / "report.html")


def _is_of(row: Row, layout: measurements.Layout) -> bool:
    cell = (row.model, row.gpu, row.precision, row.engine, row.release)
    return (*cell, row.date, row.layout, row.isl, row.osl) == (*CELL, DAY, layout, *LENGTHS)


def _document(layout: measurements.Layout, rows: Iterable[Row]) -> dict[str, Any]:
    """The rows of a curve as `bench.json`, with medians alone: the source has no more."""
    tp, attention_dp, _ = layout
    return {
        "format": 1,
        "kind": "bench",
        "started": DAY,
        "outcome": "complete",
        "subject": {
            "name": f"MiniMax-M2.5, {tp * attention_dp} B200, {layout_text(*layout)}",
            "model": MODEL,
            "precision": "fp8",
            "gpu": "b200",
            "num_gpus": tp * attention_dp,
            "engine": {"name": "vllm", "used": "vllm", "release": CELL[-1], "rehearsal": False},
            "options": {"tensor_parallel_size": tp, "enable_expert_parallel": False},
            "bundle": None,
            "url": "https://github.com/SemiAnalysisAI/InferenceX",
        },
        "client": {"tool": "InferenceX, medians as published"},
        "workload": {
            "kind": "fixed",
            "isl": LENGTHS[0],
            "osl": LENGTHS[1],
            "words": f"prompts and answers of {LENGTHS[0]:,} tokens; rows of "
            f"builder/data/measurements/aggregated.csv dated {DAY}",
        },
        "points": [_point(row) for row in rows],
    }


def _point(row: Row) -> dict[str, Any]:
    ttft_ms = row.ttft_ms
    assert ttft_ms is not None  # no row of this cell is without
    e2e_ms = ttft_ms + (row.osl - 1) * row.tpot_ms
    rate = row.concurrency * row.osl / e2e_ms * 1000
    return {
        "load": {"kind": "concurrency", "concurrency": row.concurrency},
        "label": f"c{row.concurrency}",
        "requests": {},
        "ttft_ms": {"p50": ttft_ms},
        "tpot_ms": {"p50": row.tpot_ms, "mean": row.tpot_ms},
        "e2e_ms": {"p50": e2e_ms},
        "output_tokens": {"mean": row.osl},
        "output_tokens_per_s": rate,
        "output_tokens_per_s_per_user": 1000 / row.tpot_ms,
        "output_tokens_per_s_per_gpu": rate / row.num_gpus,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("example"))
    write(parser.parse_args().output)
