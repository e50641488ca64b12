"""Heuristics: rows that fit, values, and how much of real configurations they explain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.documents import DATA
from builder.facts import data_file, engines, release
from builder.rules import heuristics
from builder.rules.context import RuleContext
from builder.rules.evaluation import all_hold, batch_sizes
from builder.rules.heuristics import Heuristic, HeuristicsFile
from builder.rules.rule_inputs import MISSING, RuleInputs
from tests.conftest import ABSENT, ROOT
from tests.tables import by_table

ENGINE = engines.default()
CORPUS = ROOT.parent / "shared" / "corpus" / "engine-configs.json"
RECIPES = ROOT.parent / "shared" / "corpus-inferencex"

Section = dict[str, Any]

MODEL_TYPES = {
    "DeepSeek-R1": "deepseek_v3",
    "DeepSeek-V3.2": "deepseek_v32",
    "GPT-OSS": "gpt_oss",
    "Qwen3": "qwen3_moe",
    "Qwen3.5": "qwen3_5_moe",
    "Kimi-K2": "kimi_k2",
    "Llama-3.3-70B": "llama",
    "GLM-5": "glm_moe_dsa",
    "GLM-5.2": "glm_moe_dsa",
    "Kimi-K2.5": "kimi_k25",
    "DeepSeek-V4": "deepseek_v4",
}
PRECISIONS = {"fp8": "FP8_BLOCK_SCALES", "nvfp4": "NVFP4", "mxfp4": "MXFP4"}
SM = {"h100": 90, "h200": 90, "b200": 100, "gb200": 100, "b300": 103, "gb300": 103}
DEEPSEEK = ("deepseek_v3", "deepseek_v32")


def at(options: Any, path: str) -> Any:
    for key in path.split("."):
        options = options.get(key) if isinstance(options, dict) else None
    return options


def inputs(words: dict[str, Any]) -> RuleInputs:
    """Rule inputs that know these words only."""
    known = {word: MISSING if value is None else value for word, value in words.items()}
    return RuleInputs({}, RuleContext(release.load("1.2.1"), role=words.get("role", "agg")), known)


def words_of(section: Section) -> dict[str, Any]:
    """The words that heuristics ask for, as a section's own options and metadata tell them."""
    options, workers = section["config"], section["workers"] or 1
    tp, adp = options.get("tensor_parallel_size"), bool(options.get("enable_attention_dp"))
    batch = options.get("max_batch_size")
    speculative = options.get("speculative_config") or {}
    drafts = speculative.get("num_nextn_predict_layers") or speculative.get("max_draft_len") or 0
    per_worker = -(-section["concurrency"] // workers) if section["concurrency"] else None
    gpu = str(section["gpu"]).lower()
    model_type = MODEL_TYPES.get(section["family"])
    return {
        "role": section["role"],
        "model_type": model_type,
        "precision": "MXFP4" if model_type == "gpt_oss" else PRECISIONS.get(section["precision"]),
        "gpu": gpu,
        "sm": SM.get(gpu),
        "moe": model_type != "llama",
        "quantized": True,
        "num_gpus": tp,
        "tensor_parallel_size": tp,
        "effective.tensor_parallel_size": tp,
        "effective.max_batch_size": batch,
        "concurrency": per_worker if section["role"] == "decode" else section["concurrency"],
        "workload_concurrency": section["concurrency"],
        "isl": section["isl"],
        "osl": section["osl"],
        "attention_dp": adp,
        "max_batch_size": batch,
        "speculation": speculative.get("decoding_type"),
        "draft_tokens": drafts,
        "requests_per_rank": -(-per_worker // (tp if adp else 1)) if per_worker and tp else None,
        "batch_tokens": batch * (1 + drafts) if batch else section["concurrency"],
        "request_tokens": section["isl"] + section["osl"] if section["isl"] else None,
        "prompt_tokens": batch * section["isl"] if batch and section["isl"] else None,
    }


def decided(section: str, option: str, words: dict[str, Any]) -> Any:
    """What heuristics give an option where these words hold; `None` where they leave it alone."""
    (heuristic,) = (row for row in heuristics.section(section, ENGINE) if row.option == option)
    given = inputs(words)
    for row in heuristic.fitting(given):
        return None if row.use_engine_default else row.evaluate(given)
    return None


Applies = Callable[[Section, dict[str, Any]], Any]
Explains = Callable[[Section, dict[str, Any]], bool]


def same(chapter: str, option: str) -> Explains:
    def explains(section: Section, words: dict[str, Any]) -> bool:
        return bool(decided(chapter, option, words) == at(section["config"], option))

    return explains


def is_recipe(section: Section) -> bool:
    return bool(section["kind"] == "slurm-recipe")


def is_server(role: str) -> Applies:
    return lambda section, words: is_recipe(section) and section["role"] == role


def aggregated(*model_types: str) -> Applies:
    return lambda section, words: (
        section["role"] == "agg" and section["concurrency"] and words["model_type"] in model_types
    )


def largest_graph(section: Section) -> int:
    graphs = at(section["config"], "cuda_graph_config") or {}
    sizes: list[int] = graphs.get("batch_sizes") or [graphs.get("max_batch_size") or 0]
    return max(sizes)


ADP = "enable_attention_dp"
BACKEND = "moe_config.backend"
MTP = "mtp_draft_tokens"


def adp(section: Section, words: dict[str, Any]) -> bool:
    given: bool = words["attention_dp"]
    return bool(decided("parallelism.rules", ADP, words)) == given


def depth(section: Section, words: dict[str, Any]) -> bool:
    return bool(decided("speculation.depth", MTP, words) == words["draft_tokens"])


@by_table
def test_a_row_fits_if_all_its_conditions_hold(
    when: dict[str, Any], words: dict[str, Any], fits: bool
) -> None:
    assert all_hold(when, inputs(words)) is fits


def every_heuristic() -> Iterator[Heuristic]:
    for path in heuristics.files(ENGINE):
        for name in heuristics.load(path).sections:
            yield from heuristics.section(f"{path.stem}.{name}", ENGINE)


@pytest.mark.parametrize("path", heuristics.files(ENGINE), ids=lambda path: path.stem)
def test_the_files_keep_to_their_schema(path: Path) -> None:
    assert data_file.validate(path, HeuristicsFile) == []


@by_table
def test_a_mistake_is_refused_with_its_line_and_what_was_meant(
    line: str, changed: str, fault: str, tmp_path: Path
) -> None:
    before, found, after = (DATA / ENGINE.heuristics / "moe.yaml").read_text().partition(line)
    assert found, line
    path = tmp_path / "moe.yaml"
    path.write_text(before + changed + after)
    faults = data_file.validate(path, HeuristicsFile)
    number = before.count("\n") + 1
    assert any(fault in str(row) for row in faults), faults
    assert any(abs(int(row.where.split(":")[1]) - number) <= 1 for row in faults), faults


def test_every_row_has_a_reason_and_says_what_it_rests_on() -> None:
    rows = [
        (rule.option, row)
        for rule in every_heuristic()
        for row in rule.rows
        if not row.use_engine_default
    ]
    assert len(rows) > 100
    for option, one in rows:
        assert one.reason.endswith("."), option
        assert one.source, option


def test_no_variable_names_layers_or_network_devices() -> None:
    names = {rule.option for rule in heuristics.section("environment.variables", ENGINE)}
    assert not {"TLLM_OVERRIDE_LAYER_NUM", "TRTLLM_UCX_INTERFACE", "UCX_NET_DEVICES"} & names


@pytest.mark.parametrize("name", [name for name in release.known() if name >= "1.2"])
def test_the_newest_releases_know_every_option(name: str) -> None:
    table = release.load(name)
    options = {rule.option for rule in every_heuristic() if not rule.option.isupper()} - {
        "coverage"
    }
    assert {option for option in options if table.option_path(option) not in table.paths} == set()


# Rule, sections that it is about, whether heuristics explain one, and the share of the sections
# that the same rule explained in the larger collection that the rows were drawn from.
SCORES: tuple[tuple[str, Applies, Explains, float], ...] = (
    ("R1 attention DP, DeepSeek aggregated", aggregated(*DEEPSEEK), adp, 42 / 46),
    ("R2 attention DP, GPT-OSS", aggregated("gpt_oss"), adp, 25 / 26),
    ("R3 attention DP, Qwen3", aggregated("qwen3_moe", "qwen3_5_moe"), adp, 8 / 8),
    ("R4 attention DP, decode", is_server("decode"), adp, 220 / 223),
    (
        "R5 attention DP, prefill on Blackwell",
        lambda s, w: s["role"] == "prefill" and w["sm"] and w["sm"] >= 100,
        adp,
        180 / 182,
    ),
    ("R6a MoE backend, decode", is_server("decode"), same("moe.backend", BACKEND), 204 / 213),
    ("R6b MoE backend, prefill", is_server("prefill"), same("moe.backend", BACKEND), 203 / 213),
    (
        "R6c MoE backend, aggregated",
        lambda s, w: s["role"] == "agg" and s["concurrency"] and at(s["config"], BACKEND),
        same("moe.backend", BACKEND),
        70 / 83,  # 64 of 72 without the rarer models
    ),
    (
        "R7a MTP depth, no attention DP",
        lambda s, w: (
            s["role"] != "prefill"
            and w["draft_tokens"]
            and not w["attention_dp"]
            and w["model_type"] in DEEPSEEK
        ),
        depth,
        53 / 54,
    ),
    (
        "R7b MTP depth, aggregated with attention DP",
        lambda s, w: (
            s["role"] == "agg"
            and w["draft_tokens"]
            and w["attention_dp"]
            and w["model_type"] in DEEPSEEK
        ),
        depth,
        21 / 21,
    ),
    (
        "R7c MTP depth, decode with attention DP",
        lambda s, w: (
            s["role"] == "decode"
            and w["draft_tokens"]
            and w["attention_dp"]
            and w["model_type"] in DEEPSEEK
        ),
        depth,
        60 / 70,
    ),
    (
        "R8 split output head",
        lambda s, w: is_server("decode")(s, w) and w["draft_tokens"] and w["attention_dp"],
        same("speculation.head", "enable_lm_head_tp_in_adp"),
        59 / 70,
    ),
    (
        "R9 all-reduce over multi-node NVLink",
        lambda s, w: is_server("decode")(s, w) and w["gpu"] in ("gb200", "gb300"),
        same("communication.rules", "allreduce_strategy"),
        98 / 100,
    ),
    (
        "R10, R11 expert parallelism",
        lambda s, w: is_recipe(s) and s["role"] != "agg",
        same("parallelism.rules", "moe_expert_parallel_size"),
        386 / 423,
    ),
    (
        "R12, R13 the largest graph covers the planned batch",
        lambda s, w: s["role"] == "decode" and w["max_batch_size"],
        lambda s, w: largest_graph(s) >= max(batch_sizes(w["max_batch_size"], 16)),
        225 / 225,
    ),
    (
        "R14 decode tokens per step",
        is_server("decode"),
        lambda s, w: bool(
            s["config"]["max_num_tokens"] >= decided("limits.tokens", "max_num_tokens", w)
        ),
        222 / 224,
    ),
    (
        "R15 prefill steps hold a prompt",
        is_server("prefill"),
        lambda s, w: bool(decided("limits.tokens", "max_num_tokens", w) >= s["isl"]),
        223 / 223,
    ),
    (
        "R16 transfer buffers hold a prompt",
        lambda s, w: is_recipe(s) and s["role"] != "agg",
        lambda s, w: bool(
            decided("transfer.rules", "cache_transceiver_config.max_tokens_in_buffer", w)
            >= s["isl"]
        ),
        447 / 447,
    ),
    (
        "R17 longest request, decode",
        is_server("decode"),
        same("limits.tokens", "max_seq_len"),
        247 / 330,
    ),
    (
        "longest request, aggregated",  # 24 of 80 with one margin for all
        aggregated(*DEEPSEEK, "gpt_oss", "qwen3_moe"),
        same("limits.tokens", "max_seq_len"),
        0.7,
    ),
    (
        "tokens per step, aggregated: one prompt fits, and no fewer than the engine's own",
        aggregated(*DEEPSEEK, "gpt_oss", "qwen3_moe", "llama"),
        lambda s, w: bool(
            decided("limits.tokens", "max_num_tokens", w | {"max_batch_size": None})
            >= max(8192, s["isl"])
        ),
        1.0,
    ),
    (
        "tokens per step, aggregated, of prompts that fill the engine's own step",  # 1 with 128
        lambda s, w: (
            aggregated(*DEEPSEEK)(s, w) and (at(s["config"], "max_num_tokens") or 0) > 8192
        ),
        same("limits.tokens", "max_num_tokens"),
        9 / 15,
    ),
    (
        "memory fraction, H200 with attention DP",
        lambda s, w: aggregated(*DEEPSEEK)(s, w) and w["gpu"] == "h200" and w["attention_dp"],
        same("kv_cache.pool", "kv_cache_config.free_gpu_memory_fraction"),
        3 / 4,
    ),
    (
        "R18 overlap scheduler, prefill",
        is_server("prefill"),
        same("scheduling.rules", "disable_overlap_scheduler"),
        224 / 225,
    ),
    (
        "R18b no graphs, prefill",
        is_server("prefill"),
        lambda s, w: (
            decided("cuda_graphs.whole", "cuda_graph_config", w) is None and not largest_graph(s)
        ),
        222 / 225,
    ),
    (
        "R19 overlap scheduler, decode",
        is_server("decode"),
        lambda s, w: not at(s["config"], "disable_overlap_scheduler"),
        213 / 213,
    ),
    (
        "R20 FP8 cache",
        lambda s, w: at(s["config"], "kv_cache_config.dtype") not in (None, "auto"),
        same("kv_cache.type", "kv_cache_config.dtype"),
        515 / 531,
    ),
    (
        "R21 no block reuse between servers",
        lambda s, w: is_recipe(s) and s["role"] != "agg",
        same("kv_cache.pool", "kv_cache_config.enable_block_reuse"),
        447 / 451,
    ),
    (
        "R22 stream interval",
        lambda s, w: (
            at(s["config"], "stream_interval")
            and (is_server("decode")(s, w) or aggregated(*DEEPSEEK, "gpt_oss", "qwen3_moe")(s, w))
        ),
        same("scheduling.rules", "stream_interval"),
        434 / 448,
    ),
    (
        "R23 postprocess workers",
        lambda s, w: is_server("decode")(s, w) or aggregated("deepseek_v3", "qwen3_moe")(s, w),
        same("scheduling.rules", "num_postprocess_workers"),
        358 / 415,
    ),
    (
        "R24 balanced ranks",
        lambda s, w: aggregated("deepseek_v3", "qwen3_moe")(s, w) and w["attention_dp"],
        lambda s, w: (
            at(s["config"], "attention_dp_config")
            == {
                name: decided("parallelism.rules", f"attention_dp_config.{name}", w)
                for name in ("enable_balance", "batching_wait_iters", "timeout_iters")
            }
        ),
        34 / 34,
    ),
    (
        "R25 matrix kernels",
        lambda s, w: is_recipe(s) and s["role"] != "agg",
        same("communication.rules", "nvfp4_gemm_config.allowed_backends"),
        1.0,
    ),
    (
        "low-precision combine, decode in NVFP4",
        lambda s, w: is_server("decode")(s, w) and w["precision"] == "NVFP4",
        same("moe.combine", "moe_config.use_low_precision_moe_combine"),
        1.0,
    ),
    (
        "memory fraction, prefill",
        is_server("prefill"),
        same("kv_cache.pool", "kv_cache_config.free_gpu_memory_fraction"),
        0.9,
    ),
    (
        "memory fraction, decode",
        is_server("decode"),
        same("kv_cache.pool", "kv_cache_config.free_gpu_memory_fraction"),
        215 / 330,
    ),
    (
        "memory fraction, aggregated",
        aggregated(*DEEPSEEK, "gpt_oss", "qwen3_moe"),
        same("kv_cache.pool", "kv_cache_config.free_gpu_memory_fraction"),
        0.75,
    ),
)

# The collection at hand is a part of the one that the shares come from.
MARGIN = 0.015


@pytest.fixture(scope="module")
def sections() -> list[Section]:
    if not CORPUS.is_file():
        pytest.skip(ABSENT)
    found: list[Section] = json.loads(CORPUS.read_text())
    return found


def scored(sections: list[Section], applies: Applies, explains: Explains) -> Iterator[bool]:
    for section in sections:
        words = words_of(section)
        if applies(section, words):
            yield explains(section, words)


@pytest.mark.parametrize(
    ("name", "applies", "explains", "share"), SCORES, ids=[row[0] for row in SCORES]
)
def test_heuristics_explain_published_configurations(
    name: str, applies: Applies, explains: Explains, share: float, sections: list[Section]
) -> None:
    answers = list(scored(sections, applies, explains))
    print(f"\n{name}: {sum(answers)}/{len(answers)}, expected {share:.0%}")
    assert answers
    assert sum(answers) / len(answers) >= share - MARGIN


AGENT_PROMPT = 65_536  # recipes for agents' traces name no length; their prompts are long
FRACTION = "kv_cache_config.free_gpu_memory_fraction"


@pytest.fixture(scope="module")
def recipes() -> list[Section]:
    """Prefill and decode servers of newer models, from recipes of one publisher."""
    if not RECIPES.is_dir():
        pytest.skip(ABSENT)
    found = []
    for row in json.loads((RECIPES / "index.json").read_text())["files"]:
        config = yaml.safe_load((RECIPES / row["file"]).read_text())["backend"]["trtllm_config"]
        family = next(name for name in reversed(MODEL_TYPES) if name in row["model"])
        known = {"family": family, "gpu": row["gpu"], "precision": "nvfp4", "osl": 1024}
        known |= {"isl": row["isl"] or AGENT_PROMPT, "kind": "slurm-recipe"}
        known |= {"concurrency": None, "workers": 1}
        found += [{**known, "role": role, "config": config[role]} for role in row["roles"]]
    return found


@by_table
def test_heuristics_explain_recipes_of_newer_models(
    role: str, chapter: str, option: str, share: float, recipes: list[Section]
) -> None:
    chosen = [row for row in recipes if row["role"] == role]
    answers = [same(chapter, option)(row, words_of(row)) for row in chosen]
    print(f"\n{option}, {role}: {sum(answers)}/{len(answers)}")
    assert len(answers) == 61
    assert sum(answers) / len(answers) >= share
