"""What changed between two bundles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder import bundle, diff, pipeline
from builder.bundle import Bundle
from builder.cli.bundles import comparison_text
from tests.conftest import Run

SECTIONS = ("request", "decisions", "counterparts", "memory", "inputs")
PRESET = "deepseek-v3.2-nvfp4-gb200"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return pipeline.render(PRESET, tmp_path_factory.mktemp("old") / "bundle")


def newer(folder: Path, *overrides: str) -> Bundle:
    return pipeline.render(PRESET, folder / "new", overrides)


def test_the_same_deployment_has_no_difference(old: Bundle, tmp_path: Path) -> None:
    comparison = diff.compare(old, newer(tmp_path))
    assert not any(comparison.values())
    assert comparison_text(comparison) == "The bundles are the same."


def test_a_changed_decision_comes_with_its_new_reason(old: Bundle, tmp_path: Path) -> None:
    new = newer(tmp_path, "engine_config.kv_cache_config.free_gpu_memory_fraction=0.7")
    [change] = diff.compare(old, new)["decisions"]
    assert (change["kind"], change["before"], change["after"]) == ("changed", 0.8, 0.7)
    assert change["path"] == "kv_cache_config.free_gpu_memory_fraction"
    assert change["reason"].startswith("Set in engine_config")


def test_what_the_request_adds_and_removes_is_listed(old: Bundle, tmp_path: Path) -> None:
    new = newer(tmp_path, "slo.ttft_ms=500", "workload.concurrency=32")
    changes = {
        row["path"]: (row["kind"], row["before"], row["after"])
        for row in diff.compare(old, new)["request"]
    }
    assert changes == {
        "slo.ttft_ms": ("added", None, 500.0),
        "workload.concurrency": ("changed", 64, 32),
    }
    back = {row["path"]: row["kind"] for row in diff.compare(new, old)["request"]}
    assert back["slo.ttft_ms"] == "removed"


def test_an_option_that_another_release_renamed_is_one_change(old: Bundle, tmp_path: Path) -> None:
    decisions = diff.compare(old, newer(tmp_path, "engine.release=main-00043967"))["decisions"]
    [renamed] = [row for row in decisions if row["kind"] == "renamed"]
    assert renamed["old_path"] == "speculative_config.num_nextn_predict_layers"
    assert renamed["path"] == "speculative_config.max_draft_len"
    assert not [row for row in decisions if row["kind"] == "removed"]


def test_an_added_and_a_removed_decision_keep_their_values(old: Bundle, tmp_path: Path) -> None:
    new = newer(tmp_path, "engine_config.max_beam_width=1")
    [added] = diff.compare(old, new)["decisions"]
    assert (added["kind"], added["path"], added["after"]) == ("added", "max_beam_width", 1)
    [removed] = diff.compare(new, old)["decisions"]
    assert (removed["kind"], removed["path"], removed["before"]) == ("removed", "max_beam_width", 1)


def test_true_is_not_one(old: Bundle, tmp_path: Path) -> None:
    """A manifest that holds 1 where the other holds true differs."""
    rows = [{"path": "x", "value": value, "reason": "same"} for value in (1, True)]
    one, other = (
        Bundle(old.folder, {**old.manifest, "decisions": [row]}, "digest") for row in rows
    )
    assert [row["kind"] for row in diff.compare(one, other)["decisions"]] == ["changed"]


def test_files_are_compared_line_by_line(old: Bundle, tmp_path: Path) -> None:
    new = newer(tmp_path, "targets.triton.http_port=9000")
    files = {row["path"]: row for row in diff.compare(old, new)["files"]}
    assert set(files) == {"launch.json", "triton/serve.sh"}
    lines = files["triton/serve.sh"]["lines"]
    assert "-export SERVE_HTTP_PORT=${SERVE_HTTP_PORT:-8000}" in lines
    assert "+export SERVE_HTTP_PORT=${SERVE_HTTP_PORT:-9000}" in lines


def test_a_target_that_is_gone_removes_its_files(old: Bundle, tmp_path: Path) -> None:
    new = newer(tmp_path, "targets=[trtllm_serve]")
    removed = {row["path"] for row in diff.compare(old, new)["files"] if row["kind"] == "removed"}
    assert "triton/serve.sh" in removed
    assert {path.partition("/")[0] for path in removed} == {"triton"}


def test_another_checkpoint_is_named_by_its_facts_file(old: Bundle, tmp_path: Path) -> None:
    new = newer(tmp_path, "checkpoint=deepseek-ai/DeepSeek-V3.2")
    inputs = {(row["kind"], row["path"]) for row in diff.compare(old, new)["inputs"]}
    assert ("added", "data/models/deepseek-v3.2.yaml") in inputs
    assert ("removed", "data/models/deepseek-v3.2-nvfp4.yaml") in inputs


def test_decisions_come_before_files_within_80_columns(
    builder: Run, old: Bundle, tmp_path: Path
) -> None:
    new = newer(tmp_path, "workload.concurrency=32")
    done = builder("diff", old.folder, new.folder)
    assert done.returncode == 0
    text = done.stdout
    assert text.index("Decisions") < text.index("Memory per GPU") < text.index("\nFiles")
    assert max(map(len, text.partition("\nFiles")[0].splitlines())) <= 80


def test_json_holds_the_same(builder: Run, old: Bundle, tmp_path: Path) -> None:
    new = newer(tmp_path, "workload.concurrency=32")
    found = json.loads(builder("diff", old.folder, new.folder, "--json").stdout)
    assert set(found) == {*SECTIONS, "files"}
    assert {row["path"] for row in found["decisions"]} >= {"max_batch_size"}


def test_a_damaged_bundle_is_not_compared(builder: Run, old: Bundle, tmp_path: Path) -> None:
    new = newer(tmp_path)
    (new.folder / "launch.json").write_text("{}")
    done = builder("diff", old.folder, new.folder)
    assert done.returncode == 4
    assert "launch.json" in done.stderr
    assert bundle.read(old.folder).digest == old.digest


def test_bundles_of_two_engines_are_compared_by_what_decisions_mean(tmp_path: Path) -> None:
    one = pipeline.render("deepseek-v3.2-nvfp4-b300", tmp_path / "one")
    other = pipeline.render("deepseek-v3.2-nvfp4-b300-vllm", tmp_path / "other")
    comparison = diff.compare(one, other)
    assert comparison["decisions"] == []
    rows = {row["path"] or row["old_path"]: row for row in comparison["counterparts"]}
    batch = rows["max_num_seqs"]
    assert (batch["verdict"], batch["old_path"]) == ("same", "max_batch_size")
    assert rows["speculative_config.method"]["verdict"] == "same"
    share = rows["gpu_memory_utilization"]
    assert (share["verdict"], share["before"], share["after"]) == ("differs", 0.8, 0.9)
    assert "share of all" in share["note"]
    assert rows["moe_config.backend"]["verdict"] == "only_old"
    text = comparison_text(comparison)
    assert "Decisions that mean the same" in text
    assert "max_batch_size 16 = max_num_seqs 16" in text
