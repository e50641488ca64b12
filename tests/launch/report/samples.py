"""Documents of runs that never were: plausible, and the same every time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LOADS = (1, 2, 4, 8, 16, 32, 64)
Json = dict[str, Any]


def spread(median: float, tail: float = 2.0, n: int = 200) -> Json:
    """Percentiles of a skewed measure whose p99 is `tail` times its median."""
    grown = {"p50": 0.0, "p90": 0.45, "p95": 0.65, "p99": 1.0}
    values = {name: median * (1 + (tail - 1) * share) for name, share in grown.items()}
    ends = {"min": median * 0.8, "max": median * tail * 1.1, "mean": median * 1.05}
    return {"n": n, "stddev": median * 0.1, **values, **ends}


def point(concurrency: int, *, tpot_ms: float = 3.4, gpus: int = 4, failed: int = 0) -> Json:
    """One load on a server that slows down as requests share it."""
    itl_ms = tpot_ms * (1 + concurrency / 20)
    ttft_ms = 70 + 9 * concurrency
    e2e_ms = ttft_ms + 1599 * itl_ms
    rate = concurrency * 1600 / e2e_ms * 1000
    errors = {"cut": {"count": failed, "example": "the connection ended"}} if failed else {}
    sent = max(20, 10 * concurrency)
    return {
        "load": {"kind": "concurrency", "concurrency": concurrency},
        "label": f"c{concurrency}",
        "duration_s": 60.0,
        "window": {"kind": "steady", "from_s": 6.0, "to_s": 54.0},
        "requests": {"sent": sent, "ok": sent - failed, "failed": failed, "in_window": sent},
        "errors": errors,
        "ttft_ms": spread(ttft_ms, 2.6),
        "itl_ms": spread(itl_ms, 2.1),
        "itl_of": "tokens",
        "tpot_ms": spread(itl_ms, 1.2),
        "e2e_ms": spread(e2e_ms, 1.15),
        "prompt_tokens": spread(800, 1.0),
        "output_tokens": spread(1600, 1.0),
        "output_tokens_per_s": rate,
        "total_tokens_per_s": rate * 1.5,
        "requests_per_s": rate / 1600,
        "output_tokens_per_s_per_user": 1000 / (itl_ms * 1.05),
        "output_tokens_per_s_per_gpu": rate / gpus,
        "goodput": {"requests_per_s": rate / 1600, "share": 1.0 if concurrency < 32 else 0.4},
        "speculative": {"acceptance_rate": 0.71, "tokens_per_step": 2.9, "source": "/perf_metrics"},
        "kv_cache": {"reused_share": 0.03, "source": "/perf_metrics"},
        "cost": {"usd_per_million_output_tokens": 14 * 1e6 / rate / 3600, "usd_per_task": None},
        "tasks": None,
        "server": {"trtllm_request_success_total": {"before": 0, "after": sent}},
        "samples": {},
    }


def bench(
    name: str = "deepseek-v3.2-nvfp4-gb200",
    *,
    bundle: Json | None = None,
    rehearsal: bool = False,
    points: Sequence[Json] | None = None,
    **changes: Any,
) -> Json:
    return {
        "format": 1,
        "kind": "bench",
        "toolkit_version": "0.1.0",
        "started": "2026-11-21T12:00:00.000Z",
        "ended": "2026-11-21T12:13:35.343Z",
        "outcome": "complete",
        "subject": {
            "name": name,
            "model": "nvidia/DeepSeek-V3.2-NVFP4",
            "precision": "nvfp4",
            "gpu": "gb200",
            "num_gpus": 4,
            "engine": {
                "name": "tensorrt_llm",
                "release": "1.2.1",
                "used": "reference" if rehearsal else "tensorrt_llm",
                "rehearsal": rehearsal,
            },
            "bundle": bundle,
            "target": "trtllm_serve",
            "url": "http://127.0.0.1:30000",
            "server_version": "1.2.1",
        },
        "client": {
            "tool": "trtllm-deployment-toolkit",
            "api": "openai_completions",
            "processes": 1,
            "host": {"cpus": 144},
            "share_of_limit": 0.31,
            "marked": False,
        },
        "workload": {
            "kind": "fixed",
            "isl": 800,
            "osl": 1600,
            "words": "random prompts of 800 tokens, 1600 output tokens",
        },
        "slo": {"ttft_ms": 1000.0, "itl_ms": 12.0, "e2e_ms": None},
        "price_per_gpu_hour_usd": 3.5,
        "seed": 0,
        "points": list(points) if points is not None else [point(load) for load in LOADS],
        "largest_concurrency_within_slo": 16,
        "quality": None,
        **changes,
    }


SMOKE: Mapping[str, Any] = {
    "checks": 3,
    "passed": 2,
    "failed": 0,
    "warnings": 1,
    "skipped": 0,
    "seconds": 4.2,
    "transports": {},
    "results": [
        {"id": "P6", "title": "generation", "reason": "tokens come", "transport": "grpc",
         "outcome": "passed", "evidence": "16 tokens", "seconds": 1.0},
        {"id": "P7", "title": "determinism", "reason": "greedy text repeats", "transport": "grpc",
         "outcome": "warned", "evidence": "differs at token 12", "seconds": 2.0},
        {"id": "N1", "title": "unknown model", "reason": "a clear refusal", "transport": "http",
         "outcome": "passed", "evidence": "404", "seconds": 0.1},
    ],
}  # fmt: skip


# What `run.json` keeps of a start that failed.
FAILED_START: Mapping[str, Any] = {
    "bundle": {"name": "deepseek-v3.2-nvfp4-gb200"},
    "outcome": "died",
    "phases": {"setup": 4.0, "load": 61.5, "kv": 2.0},
    "phases_expected": {"setup": 4.2, "load": 48.0},
    "options": [
        {"name": "max_batch_size", "planned": "64", "in_force": "32",
         "difference": "-32", "unit": "requests", "differs": True},
        {"name": "max_num_tokens", "planned": "8,192", "in_force": "8,192",
         "difference": "", "unit": "tokens", "differs": False},
    ],
    "diagnosis": {
        "verdict": "failed",
        "phase": "kv",
        "causes": [{
            "id": "trtllm-kv-cache-does-not-fit",
            "cause": "The KV cache does not fit: 11.5 GiB were free.",
            "fix": "Lower kv_cache_config.free_gpu_memory_fraction.",
            "edit": {"kv_cache_config": {"free_gpu_memory_fraction": 0.8}},
            "confidence": "confirmed",
            "source": "NVIDIA/TensorRT-LLM#5872",
            "otherwise": [{"cause": "Another process fills the GPU",
                           "check": "nvidia-smi lists it"}],
            "evidence": [{"file": "server.log", "line": 41, "text": "insufficient GPU memory"}],
        }],
        "symptom": {
            "cause": "",
            "fix": "Read the log of rank 0.",
            "otherwise": [{"cause": "A rank died", "check": "its log ends first"}],
            "evidence": [{"file": "server.log", "line": 40, "text": "Executor worker died"}],
        },
        "first_error": {"file": "server.log", "line": 41, "text": "insufficient GPU memory"},
    },
}  # fmt: skip


def run_folder(folder: Path, document: Json) -> Path:
    """A run folder as `launch` leaves it."""
    folder.mkdir(parents=True)
    (folder / "bench.json").write_text(json.dumps(document))
    (folder / "smoke.json").write_text(json.dumps(SMOKE))
    run = {"bundle": document["subject"]["bundle"], "ready_after_s": 12.5, "outcome": "stopped"}
    (folder / "run.json").write_text(json.dumps(run | {"started": document["started"]}))
    return folder
