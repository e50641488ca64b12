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
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

ENGINE = engines.default()
CORPUS = ROOT.parent / "shared" / "corpus" / "engine-configs.json"
RECIPES = ROOT.parent / "shared" / "corpus-inferencex"

Section = dict[str, Any]

MODEL_TYPES = TABLES["MODEL_TYPES"]
PRECISIONS = {"fp8": "FP8_BLOCK_SCALES", "nvfp4": "NVFP4", "mxfp4": "MXFP4"}
SM = {"h100": 90, "h200": 90, "b200": 100, "gb200": 100, "b300": 103, "gb300": 103}


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


Explains = Callable[[Section, dict[str, Any]], bool]


def same(chapter: str, option: str) -> Explains:
    def explains(section: Section, words: dict[str, Any]) -> bool:
        return bool(decided(chapter, option, words) == at(section["config"], option))

    return explains


def is_recipe(section: Section) -> bool:
    return bool(section["kind"] == "slurm-recipe")


def largest_graph(section: Section) -> int:
    graphs = at(section["config"], "cuda_graph_config") or {}
    sizes: list[int] = graphs.get("batch_sizes") or [graphs.get("max_batch_size") or 0]
    return max(sizes)


ADP, MTP = "enable_attention_dp", "mtp_draft_tokens"


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


# What else explains a section than the value of an option, by the name that the tables give it.
NAMED: dict[str, Explains] = {
    "attention DP": lambda s, w: bool(decided("parallelism.rules", ADP, w)) == w["attention_dp"],
    "MTP depth": lambda s, w: bool(decided("speculation.depth", MTP, w) == w["draft_tokens"]),
    "graphs cover the batch": lambda s, w: (
        largest_graph(s) >= max(batch_sizes(w["max_batch_size"], 16))
    ),
    "no more tokens": lambda s, w: bool(s["config"]["max_num_tokens"] >= tokens(w)),
    "steps hold a prompt": lambda s, w: bool(tokens(w) >= s["isl"]),
    "buffers hold a prompt": lambda s, w: bool(
        decided("transfer.rules", "cache_transceiver_config.max_tokens_in_buffer", w) >= s["isl"]
    ),
    "no fewer than the engine": lambda s, w: bool(
        tokens(w | {"max_batch_size": None}) >= max(8192, s["isl"])
    ),
    "no graphs": lambda s, w: (
        decided("cuda_graphs.whole", "cuda_graph_config", w) is None and not largest_graph(s)
    ),
    "overlap": lambda s, w: not at(s["config"], "disable_overlap_scheduler"),
    "balance": lambda s, w: (
        at(s["config"], "attention_dp_config")
        == {
            name: decided("parallelism.rules", f"attention_dp_config.{name}", w)
            for name in ("enable_balance", "batching_wait_iters", "timeout_iters")
        }
    ),
}


def tokens(words: dict[str, Any]) -> Any:
    return decided("limits.tokens", "max_num_tokens", words)


def applies(of: dict[str, Any], section: Section, words: dict[str, Any]) -> bool:
    """Whether a section is one of these: equal, one of several, or for true given at all."""
    known = {**words, "recipe": is_recipe(section), "concurrency": section["concurrency"]}
    known["long_step"] = (at(section["config"], "max_num_tokens") or 0) > 8192
    for key, wanted in of.items():
        value = known[key] if key in known else at(section["config"], key)
        if wanted is True and not value:
            return False
        if wanted is not True and value not in (wanted if isinstance(wanted, list) else [wanted]):
            return False
    return True


# The collection at hand is a part of the one that the shares come from.
MARGIN = 0.015


@pytest.fixture(scope="module")
def sections() -> list[Section]:
    if not CORPUS.is_file():
        pytest.skip(ABSENT)
    found: list[Section] = json.loads(CORPUS.read_text())
    return found


@by_table
def test_heuristics_explain_published_configurations(
    of: list[dict[str, Any]],
    explains: str | list[str],
    right: float,
    all_: float,
    sections: list[Section],
) -> None:
    """`right` of `all_` is the share that the same rule explained in the larger collection that
    the rows were drawn from."""
    explain = NAMED[explains] if isinstance(explains, str) else same(*explains)
    rows = [(section, words_of(section)) for section in sections]
    answers = [explain(*row) for row in rows if any(applies(one, *row) for one in of)]
    print(f"\n{sum(answers)}/{len(answers)}, expected {right / all_:.0%}")
    assert answers
    assert sum(answers) / len(answers) >= right / all_ - MARGIN


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
