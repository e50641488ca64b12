"""The command line: what it prints, for people and for machines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from builder import deployment, pipeline
from builder.cli.deployments import summary_text
from tests.conftest import Run
from tests.tables import by_table

PRESET = "deepseek-v3.2-nvfp4-gb200"


def test_presets_are_a_table_that_fits_a_terminal(builder: Run) -> None:
    lines = builder("presets").stdout.splitlines()
    assert lines[0].split() == ["PRESET", "PRECISION", "GPUS", "RELEASE", "PUBLISHED"]
    assert max(map(len, lines)) <= 80
    assert any(PRESET in line and "272 tok/s" in line for line in lines)


def test_presets_as_json(builder: Run) -> None:
    rows = json.loads(builder("presets", "--json").stdout)
    (row,) = (row for row in rows if row["name"] == PRESET)
    assert row == {
        "name": PRESET,
        "model": "nvidia/DeepSeek-V3.2-NVFP4",
        "precision": "NVFP4",
        "gpu": "gb200",
        "num_gpus": 4,
        "release": "1.2.1",
        "published": [
            {
                "source": "Microsoft and NVIDIA, DeepSeek-V3.2 on GB200 (2026-02)",
                "concurrency": 1,
                "output_tokens_per_s": 272,
                "median_e2e_latency_ms": 5801,
            }
        ],
    }


def test_plan_as_json_has_decisions_memory_and_published_figures(builder: Run) -> None:
    document = json.loads(builder("plan", PRESET, "--json").stdout)
    assert {"path", "value", "reason", "evidence", "source"} == set(document["decisions"][0])
    assert set(document["memory"]["per_gpu"]) == {
        "total_gib",
        "weights_gib",
        "kv_cache_gib",
        "activations_gib",
        "cuda_graphs_gib",
        "other_gib",
    }
    assert document["memory"]["fits"] is True
    assert document["published"][0]["figures"][0]["output_tokens_per_s"] == 272


@by_table
def test_a_plan_of_what_nobody_published_names_the_most_alike(
    checkpoint: str, gpu: str, num_gpus: int, nearest: str | None, tmp_path: Path, builder: Run
) -> None:
    (tmp_path / "deployment.yaml").write_text(
        f"name: near\ncheckpoint: {checkpoint}\nhardware: {{gpu: {gpu}, num_gpus: {num_gpus}}}\n"
        "engine: {name: tensorrt_llm, release: 1.3.0rc23}\n"
        "workload: {isl: 1000, osl: 500, concurrency: 16}\ntargets: [trtllm_serve]\n"
    )
    done = builder("plan", "deployment.yaml", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)["nearest_published"]
    assert found is None if nearest is None else nearest in found


@by_table
def test_text_fits_a_terminal(verb: Sequence[str], builder: Run) -> None:
    done = builder(*verb)
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80


def table(text: str, title: str) -> dict[str, list[str]]:
    """The rows of one table of a text by their first cell; its cells are two blanks apart."""
    (block,) = (part for part in text.split("\n\n") if part.startswith(title))
    rows = (re.split(r"\s{2,}", line.strip()) for line in block.splitlines())
    return {name: cells for name, *cells in rows}


def test_plan_begins_with_limits_memory_and_options_in_tables_with_units(builder: Run) -> None:
    text = builder("plan", PRESET).stdout
    assert len(text.splitlines()) <= 45
    limits = table(text, "LIMIT")
    assert limits["longest prompt"] == ["8,192", "tokens, by max_num_tokens"]
    assert limits["KV cache holds"] == ["565", "requests of 2,400 tokens"]
    assert limits["max batch size"] == ["64", "requests"]
    memory = table(text, "ESTIMATED MEMORY")
    assert memory["ESTIMATED MEMORY"] == ["EACH GPU", "4 GPUS", "UNIT"]
    assert memory["total reported by CUDA"] == ["184.3", "737.2", "GiB"]
    options = table(text, "OPTION")
    assert options["max_batch_size"] == ["64", "documented"]
    assert options["cuda_graph_config.batch_sizes"] == ["[1 to 16, 32, 64]", "documented"]
    assert "engine defaults: pipeline_parallel_size 1, enable_attention_dp false,\n" in text
    assert "not set:         served_model_name, reasoning_parser, guided_decoding_backend\n" in text


@pytest.mark.parametrize("preset", deployment.preset_names())
def test_the_plan_of_every_preset_is_one_screen_and_whole(preset: str) -> None:
    """No line is wider than a terminal, and a value that is wrapped loses nothing."""
    planned = pipeline.plan(preset)
    document = pipeline.manifest_facts(planned)
    text = summary_text(document, planned.plan.deployment, preset)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 56
    for row in document["decisions"]:
        if isinstance(row["value"], str) and not row["path"].startswith("environment."):
            assert row["value"] in re.sub(r"[\s\"]|documented|derived|assumed", "", text)


def test_limits_of_ranks_and_servers_stand_beside_their_sums(builder: Run) -> None:
    limits = table(builder("plan", "deepseek-r1-0528-nvfp4-gb200x16").stdout, "LIMIT")
    assert limits["LIMIT"] == ["EACH RANK", "EACH SERVER", "UNIT"]
    assert limits["max batch size"] == ["256", "4,096", "requests"]
    limits = table(builder("plan", "llama-3.3-70b-fp8-h100").stdout, "LIMIT")
    assert limits["LIMIT"] == ["EACH SERVER", "ALL SERVERS", "UNIT"]
    assert limits["max batch size"] == ["8", "16", "requests"]


def test_reasons_stand_behind_why(builder: Run) -> None:
    assert "  why " not in builder("plan", PRESET).stdout
    text = builder("plan", PRESET, "--why").stdout
    assert text.startswith(f"{PRESET}: ")
    assert 'moe_config.backend = "TRTLLM"\n  why ' in text
    assert "max_num_tokens = 8192\n  why       Not set: the published deployment leaves it" in text


def test_inspect_names_architecture_size_and_mtp(builder: Run) -> None:
    text = builder("inspect", "nvidia/DeepSeek-V3.2-NVFP4").stdout
    for part in ("DeepseekV32ForCausalLM", "415.04 GB, published 415.00 GB", "MTP layers     1"):
        assert part in text


Explain = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pipeline.render(PRESET, tmp_path_factory.mktemp("explained") / "bundle").folder


@pytest.fixture
def explain(builder: Run, bundle: Path) -> Explain:
    return lambda *words: builder("explain", bundle, *words)


def test_explain_answers_for_one_option_and_for_a_group(explain: Explain) -> None:
    one = explain("moe_config.backend").stdout
    assert one.startswith('moe_config.backend = "TRTLLM"\n  why ')
    group = json.loads(explain("kv_cache_config", "--json").stdout)
    assert [row["path"] for row in group if row["evidence"] != "engine default"] == [
        "kv_cache_config.dtype",
        "kv_cache_config.free_gpu_memory_fraction",
    ]


def test_explain_answers_for_what_is_left_to_the_engine(explain: Explain) -> None:
    one = explain("enable_chunked_prefill").stdout
    assert one.startswith("enable_chunked_prefill = false\n  why       Not set: the engine's own")
    assert "engine default: option table of release 1.2.1" in one
    group = table(explain("kv_cache_config").stdout, "ENGINE DEFAULT")
    assert group["kv_cache_config.enable_block_reuse"] == ["true"]
    assert "kv_cache_config.dtype" not in group
    assert explain("custom_tokenizer").stdout.startswith("--custom_tokenizer")
    assert "take every other answer" in explain("reasoning_parser").stdout
    assert explain("chat_template").stdout.startswith("--chat_template = null")


def test_explain_leaves_out_options_of_methods_that_the_plan_does_not_use(explain: Explain) -> None:
    def names(path: str) -> list[str]:
        return [row["path"] for row in json.loads(explain(path, "--json").stdout)]

    found = names("speculative_config")
    assert "speculative_config.num_nextn_predict_layers" in found
    assert "speculative_config.relaxed_topk" in found
    others = ("medusa_choices", "eagle_choices", "max_matching_ngram_size")
    assert not {f"speculative_config.{name}" for name in others} & {*found}
    assert names("speculative_config.eagle_choices") == ["speculative_config.eagle_choices"]
    assert names("sparse_attention_config") == ["sparse_attention_config.algorithm"]


@by_table
def test_explain_tells_what_an_unknown_option_is_called(
    explain: Explain, asked: str, told: str
) -> None:
    done = explain(asked)
    assert done.returncode == 2
    assert told in done.stderr


def test_warnings_go_to_stderr_and_stop_nothing(builder: Run) -> None:
    tight = ("--set", "workload.isl=4000")
    done = builder("render", "deepseek-v3.2-fp8-gb200", "-o", "bundle", *tight)
    assert done.returncode == 0
    assert done.stderr.startswith("warning: workload.concurrency: the KV cache holds")


def test_miniature_keeps_what_is_already_there(builder: Run, tmp_path: Path) -> None:
    assert builder("miniature", "llama-tiny", "-o", "tiny").returncode == 0
    done = builder("miniature", "llama-tiny", "-o", "tiny")
    assert done.returncode == 2
    assert "exists and is not empty" in done.stderr


def test_a_closed_pipe_ends_quietly() -> None:
    command = f"{sys.executable} -m builder plan {PRESET} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if not line.startswith("warning: ")] == []


def test_a_table_that_is_none_is_refused_wherever_it_is_named(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"format": 2}')
    (tmp_path / "f.yaml").write_text("max_batch_size: 8\n")
    for arguments in (
        ("release", "list", "bad.json"),
        ("check", "f.yaml", "--release", "bad.json"),
        ("plan", PRESET, "--set", "engine.release=bad.json"),
        ("release", "import", "--name", "x", "--like", "bad.json", "-o", "x.json"),
    ):
        done = builder(*arguments)
        assert done.returncode == 3, done.stderr
        assert "bad.json:1: types: is missing; add it" in done.stderr
        assert "Traceback" not in done.stderr and "bug" not in done.stderr
