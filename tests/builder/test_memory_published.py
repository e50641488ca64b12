"""The memory budget against published logs and capacities; every test prints its errors.

The measurements lie beside the checkout and are skipped where they are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from math import ceil
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
import yaml

from builder.facts import checkpoint, hardware
from builder.facts.checkpoint import Checkpoint
from builder.facts.memory import (
    GIB,
    Budget,
    Load,
    Sharding,
    budget,
    expert_workspace_gib,
    kv_bytes_per_token,
    weights_bytes,
)
from builder.facts.release import ServerRole
from tests.builder.conftest import Say
from tests.conftest import ABSENT, ROOT
from tests.tables import tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

SHARED = ROOT.parent / "shared"

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=ABSENT)

Row = dict[str, Any]

R1, V32 = "nvidia/DeepSeek-R1-0528-NVFP4-v2", "nvidia/DeepSeek-V3.2-NVFP4"
KIMI, QWEN3 = "nvidia/Kimi-K2-Thinking-NVFP4", "nvidia/Qwen3-235B-A22B-NVFP4"
GPT_OSS, QWEN3_32B = "openai/gpt-oss-120b", "Qwen/Qwen3-32B-FP8"
R1_FP8, LLAMA_8B = "deepseek-ai/DeepSeek-R1-0528", "meta-llama/Meta-Llama-3.1-8B"

# The checkpoints that logs name by a short name.
LOGGED = TABLES["LOGGED"]

# Servers whose weights in the logs hold more than weights: see the test of their workspaces.
OUTLIERS = {
    "r1_ctx_dep4_mtp1",
    "r1_ctx_dep4_mtp3",
    "v32_ctx_dep4_mtp1",
    "v32_ctx_dep4_mtp3",
    "v32_ctx_dep4_mtp3_32k",
    "k25_dep4_8k1k",
}

# `max_num_tokens` of servers whose logs do not tell it, from the configurations of the same tests
# (NVIDIA/TensorRT-LLM tests/scripts/perf-sanity).
MAX_NUM_TOKENS = TABLES["MAX_NUM_TOKENS"]
ROLES: dict[str, ServerRole] = {"agg": "agg", "disagg-ctx": "prefill", "disagg-gen": "decode"}


@cache
def measured(key: str) -> list[Row]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = (SHARED / "facts" / "published-memory.yaml").read_text()
    rows: list[Row] = yaml.load(text, Loader=loader)[key]
    return rows


def logged() -> list[Row]:
    return measured("perf_sanity")


def sharding(row: Row) -> Sharding:
    pipeline = int(row["parallel"][2:]) if row["parallel"].startswith("PP") else 1
    return Sharding(row["tp"], pipeline, row["attention_dp"], row["ep"])


def facts(row: Row) -> Checkpoint:
    return checkpoint.gather(LOGGED[row["model"]])


def logged_weights_error(row: Row) -> float:
    """GiB that the log holds over the computed weights."""
    with_mtp = row["mtp"] > 0 and facts(row).mtp_layers > 0
    return float(
        row["torch_after_load_gib"] - weights_bytes(facts(row), sharding(row), with_mtp) / GIB
    )


def logged_budget(row: Row, max_num_tokens: int, moe_backend: str = "TRTLLM") -> Budget:
    return budget(
        facts(row),
        hardware.load("gb200"),
        sharding(row),
        Load(
            kv_cache_dtype="fp8",
            free_gpu_memory_fraction=row["fraction"],
            max_num_tokens=max_num_tokens,
            num_cuda_graphs=0,
            mtp_draft_tokens=row["mtp"],
            tokens_per_request=1024,
            role=ROLES[row["role"]],
            max_batch_size=row.get("max_batch_size", 1),
            moe_backend=moe_backend,
        ),
    )


def logged_used_gib(row: Row) -> float:
    """Everything but the KV cache, by the identity that the engine computes the cache with."""
    return float(row["device_total_gib"] - row["kv_cache_gib"] / row["fraction"])


@pytest.mark.parametrize(
    ("name", "tp", "expected"),
    [(R1_FP8, 8, 35_136), (V32, 4, 43_188), (GPT_OSS, 1, 36_864), (QWEN3, 1, 96_256)],
)
def test_kv_bytes_per_token_are_exact(name: str, tp: int, expected: int) -> None:
    assert kv_bytes_per_token(checkpoint.gather(name), Sharding(tp), 1, 0) == expected


def test_weights_are_within_bounds_of_28_logs(say: Say) -> None:
    rows = [row for row in logged() if "torch_minus_predicted_gib" in row]
    errors = {row["id"]: logged_weights_error(row) for row in rows}
    ordinary = [errors[name] for name in errors.keys() - OUTLIERS]
    assert len(ordinary) == 28
    others = [errors[name] for name in OUTLIERS]
    say(f"weights of 28 logs: {min(ordinary):+.2f} to {max(ordinary):+.2f} GiB over the computed")
    say(f"median {median(ordinary):+.2f}; six outliers {min(others):+.2f} to {max(others):+.2f}")
    assert min(ordinary) >= -0.7
    assert max(ordinary) <= 7
    assert all(errors[name] > 7 for name in OUTLIERS)


def test_expert_workspaces_explain_the_outliers(say: Say) -> None:
    """MTP experts in BF16 copy every token of all attention-DP ranks once per expert."""
    for row in logged():
        if row["id"] in OUTLIERS & MAX_NUM_TOKENS.keys():
            tokens = MAX_NUM_TOKENS[row["id"]]
            workspace = expert_workspace_gib(facts(row), sharding(row), tokens, True, "TRTLLM")
            left = logged_weights_error(row) - workspace
            say(f"{row['id']}: workspace {workspace:.1f} GiB, {left:+.2f} left")
            assert abs(left) < 0.6


def test_the_cache_is_a_fraction_of_what_the_dry_run_leaves(say: Say) -> None:
    errors = []
    for row in logged():
        left = row["device_total_gib"] - row["peak_gib"] + row["temp_kv_gib"]
        errors.append(abs(left * row["fraction"] - row["kv_cache_gib"]))
    say(f"identity of the KV cache over {len(errors)} logs: at most {max(errors):.3f} GiB off")
    assert max(errors) <= 0.03


def test_the_temporary_pool_holds_the_longest_request_and_a_block_for_each_other(say: Say) -> None:
    errors = [
        logged_budget(row, row["max_num_tokens"]).temporary_kv_gib - row["temp_kv_gib"]
        for row in logged()
        if "max_num_tokens" in row and not row["attention_dp"]
    ]
    say(f"temporary pool over {len(errors)} logs: at most {max(map(abs, errors)):.3f} GiB off")
    assert max(map(abs, errors)) < 0.02


def known_tokens() -> Iterator[tuple[Row, int]]:
    """Aggregated and prefill servers of which `max_num_tokens` is known."""
    for row in logged():
        if tokens := row.get("max_num_tokens") or MAX_NUM_TOKENS.get(row["id"]):
            yield row, tokens


def test_whole_budgets_of_aggregated_and_prefill_servers(say: Say) -> None:
    errors = {}
    for row, tokens in known_tokens():
        predicted = logged_budget(row, tokens)
        error = logged_used_gib(row) - predicted.used_gib
        errors[row["id"]] = error
        relative = predicted.kv_cache_gib / row["kv_cache_gib"] - 1
        say(f"{row['id']}: {error:+.2f} GiB, KV cache {relative:+.1%}")
        assert abs(error) <= predicted.uncertainty_gib
    # Attention DP, MTP and CUTLASS experts in one aggregated server: 9 GiB have no explanation.
    assert max(errors, key=lambda name: abs(errors[name])) == "v32_dep4_mtp1_8k1k"
    assert max(abs(errors[name]) for name in errors.keys() - {"v32_dep4_mtp1_8k1k"}) < 2


def decode_tokens(row: Row) -> int | None:
    """Tokens per step, from the batch size that the temporary pool reveals."""
    per_token = kv_bytes_per_token(facts(row), sharding(row), 1, row["mtp"])
    tokens = row["temp_kv_gib"] * GIB / per_token - facts(row).config["max_position_embeddings"]
    return max(1, round(tokens / 32)) * (1 + row["mtp"]) if tokens > 0 else None


def test_whole_budgets_of_decode_servers(say: Say) -> None:
    errors = {}
    for row in logged():
        tokens = decode_tokens(row) if row["role"] == "disagg-gen" else None
        if tokens is None:
            continue
        backend = "CUTEDSL" if row["attention_dp"] else "TRTLLM"
        predicted = logged_budget(row, tokens, backend)
        errors[row["id"]] = logged_used_gib(row) - predicted.used_gib
        assert abs(errors[row["id"]]) <= predicted.uncertainty_gib, row["id"]
    say(
        f"whole budgets of {len(errors)} decode servers: {min(errors.values()):+.2f} to "
        f"{max(errors.values()):+.2f} GiB over the computed, median {median(errors.values()):+.2f}"
    )


def test_capacities_of_72_dense_servers(say: Say) -> None:
    """Requests of isl + osl + 1000 tokens that fit; BF16 cache, the engine's own list of graphs."""
    names = {"Qwen/Qwen3-32B-FP8": QWEN3_32B, "meta-llama/Meta-Llama-3.1-8B": LLAMA_8B}
    errors = []
    for row in measured("kv_capacity"):
        predicted = budget(
            checkpoint.gather(names[row["model"]]),
            hardware.load(row["gpu"].removesuffix("_sxm")),
            Sharding(row["tp"]),
            Load(
                kv_cache_dtype="bfloat16",
                free_gpu_memory_fraction=row["fraction"],
                max_num_tokens=2 * row["isl"],
                num_cuda_graphs=23,
                mtp_draft_tokens=0,
                tokens_per_request=row["isl"] + row["osl"] + 1000,
            ),
        )
        errors.append(predicted.max_concurrency / row["max_seqs"] - 1)
    assert len(errors) == 72
    absolute = [abs(error) for error in errors]
    say(f"capacity of 72 servers: mean error {mean(absolute):.2%}, largest {max(absolute):.2%}")
    assert mean(absolute) <= 0.005
    assert max(absolute) <= 0.03


# Checkpoints of published configurations, by model family and precision.
FAMILIES = {
    ("DeepSeek-R1", "nvfp4"): R1,
    ("DeepSeek-R1", "fp8"): R1_FP8,
    ("DeepSeek-R1", "fp8/nvfp4"): R1_FP8,
    ("DeepSeek-R1", None): R1_FP8,
    ("DeepSeek-V3.2", "nvfp4"): V32,
    ("GPT-OSS", "mxfp4"): GPT_OSS,
    ("GPT-OSS", "nvfp4"): GPT_OSS,  # as NVIDIA's tests call it
    ("Kimi-K2", "nvfp4"): KIMI,
    ("Llama-3.3-70B", "nvfp4"): "nvidia/Llama-3.3-70B-Instruct-NVFP4",
    ("Qwen3.5", None): "nvidia/Qwen3.5-397B-A17B-NVFP4",
}


def corpus() -> Iterator[tuple[Row, str, str]]:
    """Engine sections of published configurations, with checkpoint and GPU."""
    for row in json.loads((SHARED / "corpus" / "engine-configs.json").read_text()):
        name = FAMILIES.get((row["family"], row["precision"]))
        if row["model"] == "Qwen/Qwen3-235B-A22B":
            name = QWEN3
        for gpu in (row["gpu"] or "").replace("/", ",").split(","):
            if name and gpu.lower() in hardware.known():
                yield row, name, gpu.lower()


def corpus_budget(row: Row, name: str, gpu: str) -> Budget:
    config, role = row["config"], row["role"]
    cache, moe = (config.get(key) or {} for key in ("kv_cache_config", "moe_config"))
    speculation = config.get("speculative_config") or {}
    drafts = speculation.get("num_nextn_predict_layers") or speculation.get("max_draft_len") or 1
    graphs = config.get("cuda_graph_config")
    ranks = config.get("tensor_parallel_size") or 1
    return budget(
        checkpoint.gather(name),
        hardware.load(gpu),
        Sharding(
            ranks,
            config.get("pipeline_parallel_size") or 1,
            bool(config.get("enable_attention_dp")),
            config.get("moe_expert_parallel_size") or 1,
        ),
        Load(
            kv_cache_dtype="fp8" if cache.get("dtype") == "fp8" else "auto",
            free_gpu_memory_fraction=cache.get("free_gpu_memory_fraction") or 0.9,
            max_num_tokens=config.get("max_num_tokens") or 8192,
            num_cuda_graphs=len(graphs.get("batch_sizes") or []) or 34 if graphs else 0,
            mtp_draft_tokens=drafts if speculation.get("decoding_type") == "MTP" else 0,
            tokens_per_request=(row["isl"] or 1024) + (role != "prefill") * (row["osl"] or 1024),
            role=role,
            moe_backend=moe.get("backend"),
            moe_max_num_tokens=moe.get("max_num_tokens"),
            tokens_per_block=cache.get("tokens_per_block") or 32,
        ),
    )


def test_no_published_configuration_is_refused(say: Say) -> None:
    checked = [(row["id"], corpus_budget(row, name, gpu)) for row, name, gpu in corpus()]
    refused = [name for name, predicted in checked if not predicted.fits]
    empty = [name for name, predicted in checked if not predicted.max_concurrency]
    say(f"{len(checked)} published configurations: {len(refused)} refused, {len(empty)} for none")
    assert len(checked) >= 538
    assert not refused
    assert not empty


# Checkpoints of published results, by model and precision.
RESULTS = {
    ("DeepSeek-R1", "nvfp4"): R1,
    ("DeepSeek-R1-0528", "nvfp4"): R1,
    ("DeepSeek-R1", "nvfp4 (bf16 kv)"): "nvidia/DeepSeek-R1-0528-NVFP4",
    ("DeepSeek-R1", "fp8"): R1_FP8,
    ("DeepSeek-R1-0528", "fp8"): R1_FP8,
    ("DeepSeek-V3.2", "nvfp4"): V32,
    ("DeepSeek-V3.2", "fp8"): "deepseek-ai/DeepSeek-V3.2",
    ("gpt-oss-120b", "mxfp4"): GPT_OSS,
    ("Llama-3.3-70B-Instruct", "nvfp4"): "nvidia/Llama-3.3-70B-Instruct-NVFP4",
    ("Llama-3.3-70B-Instruct", "fp8"): "nvidia/Llama-3.3-70B-Instruct-FP8",
    ("Qwen3-235B-A22B", "nvfp4"): QWEN3,
    ("Qwen3-235B-A22B", "fp8"): "Qwen/Qwen3-235B-A22B-FP8",
    ("MiniMax-M2.5", "nvfp4"): "nvidia/MiniMax-M2.5-NVFP4",
}


def result_shardings(row: Row) -> list[Sharding]:
    """Every way that the row's words can mean: `TP8 EP2`, `DEP4`, or only a number of GPUs."""
    parallel, gpus = row["parallel"] or "", row["gpus"]
    if gpus is None or gpus > 16:
        return []
    experts = parallel.partition("EP")[2]
    return [Sharding(gpus, 1, parallel.startswith("DEP"), int(experts) if experts else 1)]


def test_no_published_result_is_refused(say: Say) -> None:
    rows = yaml.safe_load((SHARED / "facts" / "published-results.yaml").read_text())["points"]
    checked, refused = 0, []
    for row in rows:
        name = RESULTS.get((row["model"], row["precision"]))
        for split in result_shardings(row) if name else ():
            tokens = [n if isinstance(n, int) else 1024 for n in (row["isl"], row["osl"])]
            predicted = budget(
                checkpoint.gather(str(name)),
                hardware.load(row["gpu"].removesuffix("_sxm")),
                split,
                Load(
                    kv_cache_dtype="bfloat16" if "bf16 kv" in row["precision"] else "fp8",
                    free_gpu_memory_fraction=0.9,
                    max_num_tokens=max(8192, 1024 * ceil(tokens[0] / 1024)),
                    num_cuda_graphs=34,
                    mtp_draft_tokens=3 if "MTP" in str(row.get("config")) else 0,
                    tokens_per_request=sum(tokens),
                ),
            )
            checked += 1
            if not predicted.fits or not predicted.max_concurrency:
                refused.append(row["id"])
    say(f"{checked} published results: {len(refused)} refused")
    assert checked >= 110
    assert not refused
