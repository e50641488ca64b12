"""The presets: every published deployment, planned and rendered, with what was published of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from builder import deployment, lint, pipeline
from builder.cli import deployments
from builder.documents import load_yaml
from builder.facts import published_results as results
from builder.lint.read import file as files
from builder.rules.validation import validate
from tests.tables import by_table

PRESETS = deployment.preset_names()

# Presets whose model and GPUs somebody measured, with TensorRT-LLM or not.
NOT_MEASURED = {
    "llama-tiny",
    "qwen3.5-397b-nvfp4-b300",
    "qwen3.5-397b-nvfp4-b300-vllm",
    "deepseek-v3.2-nvfp4-gb300-decode",
    "deepseek-r1-0528-nvfp4-gb200x16",
    "deepseek-v3.2-gb200x32-prefill",
    "deepseek-v3.2-nvfp4-gb200x32",
    "deepseek-v4-pro-b200",
    "glm-5-nvfp4-gb200",
    "kimi-k2.5-nvfp4-gb200",
    "nemotron-3-super-nvfp4-b200",
    "nemotron-3-ultra-nvfp4-gb300",
}
# The published share of the memory leaves less to spare than such budgets were off; the plan warns.
TIGHT = {"kimi-k2.5-nvfp4-gb200"}


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_valid_fits_and_warns_of_nothing_that_was_published(preset: str) -> None:
    planned = pipeline.plan(preset)
    assert list(validate(planned.plan.facts.release, planned.engine.options)) == []
    assert planned.plan.budget.fits
    assert planned.plan.deployment.accepted_advisories == []
    assert [str(row) for row in planned.warnings if row.severity == "error"] == []
    warned = [row.where for row in planned.warnings]
    assert ("workload.concurrency" in warned) is (preset in TIGHT)
    assert [place for place in warned if "engine_config" in place] == [], "an option that it sets"
    assert [place for place in warned if "accepted_warnings" in place] == [], "does not occur"
    for row in planned.plan.deployment.accepted_warnings or []:
        found = [one.rule for one, _ in planned.accepted_warnings if one.where == row.path]
        assert found == [row.rule or ""], "a rule is named where there is one"


def test_presets_say_how_they_differ_from_what_was_published() -> None:
    as_published = {"llama-tiny", "deepseek-v3.2-nvfp4-gb200"}
    for preset in PRESETS:
        if preset not in as_published and "deepseek-v3.2-fp8" not in preset:
            assert deployment.read(preset).get("notes"), preset


def test_a_preset_comes_with_published_figures_where_its_model_and_gpus_were_measured() -> None:
    found = {row["name"] for row in deployments.preset_rows() if row["published"]}
    assert found >= set(PRESETS) - NOT_MEASURED


def test_figures_of_other_engines_are_marked() -> None:
    planned = pipeline.plan("deepseek-v3.2-nvfp4-b300").plan
    (row,) = planned.facts.published
    assert row.engine == "vllm"
    assert row.num_gpus == 8
    assert "whether 4 or 8 GPUs" in row.incomplete
    assert row.figures[0]["output_tokens_per_s_per_user"] == 230


def test_every_figure_has_a_known_metric_and_every_row_a_gpu() -> None:
    known = {*results.UNITS, "concurrency", "load", "note", "mtp_draft_tokens", "accepted_length"}
    for path in results.RESULTS.glob("*.yaml"):
        for row in load_yaml(path.read_text())["deployments"]:
            for figure in row["figures"]:
                assert set(figure) & set(results.UNITS), path.name
                assert set(figure) <= known | {"at_tokens_per_s_per_user"}, path.name


Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """What a program prints that a bundle's script starts in the place of the server."""

    def run(script: Path, program: str, **variables: str) -> str:
        for name in ("trtllm-serve", "tritonserver"):
            (tmp_path / name).write_text(f"#!/bin/sh\n{program}\n")
            (tmp_path / name).chmod(0o755)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
        command = ["bash", str(script)]
        return subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    return run


def test_the_draft_models_place_can_be_changed_at_start(serve: Serve, tmp_path: Path) -> None:
    """The engine gets a copy of the option file that names the other place, quoted safely."""
    bundle = pipeline.render("minimax-m2.5-nvfp4-b300", tmp_path / "bundle")
    programs = {
        "trtllm_serve": 'for last; do :; done; cat "$last"',
        "triton": 'cat "$LLM_CONFIG_PATH"',
    }
    other = "/models/it's a \\ draft: #1"
    for target, program in programs.items():
        for given in ({}, {"DRAFT_CHECKPOINT": other}):
            script = bundle.folder / target / "serve.sh"
            options = yaml.safe_load(serve(script, program, **given))
            expected = given.get("DRAFT_CHECKPOINT", "thoughtworks/MiniMax-M2.5-Eagle3")
            assert options["speculative_config"]["speculative_model"] == expected
            assert options["tensor_parallel_size"] == 4


def test_instances_have_gpus_and_ports_of_their_own(serve: Serve, tmp_path: Path) -> None:
    bundle = pipeline.render("llama-3.3-70b-fp8-h100", tmp_path / "bundle")
    script = bundle.folder / "trtllm_serve" / "serve.sh"
    program = 'echo "$CUDA_VISIBLE_DEVICES $SERVE_HTTP_PORT"'
    found = [serve(script, program, INSTANCE=instance) for instance in ("0", "1")]
    assert found == ["0 8000\n", "1 8010\n"]


def test_variables_of_the_engine_are_set_unless_they_are_set_outside(
    serve: Serve, tmp_path: Path
) -> None:
    preset = "deepseek-v3.2-nvfp4-gb200"
    bundle = pipeline.render(preset, tmp_path / "bundle", ["environment.WORDS=two words"])
    script = bundle.folder / "trtllm_serve" / "serve.sh"
    lines = serve(script, "env", TRTLLM_ENABLE_PDL="0").splitlines()
    assert {"TRTLLM_ENABLE_PDL=0", "TRTLLM_NO_USAGE_STATS=1", "WORDS=two words"} <= {*lines}
    launch = json.loads((bundle.folder / "launch.json").read_text())
    assert launch["environment"]["TRTLLM_ENABLE_PDL"] == "1"


def write(folder: Path, *rows: str) -> str:
    """A deployment with a batch below its load, which is a warning, and acceptances."""
    data = load_yaml((deployment.PRESETS / "deepseek-v3.2-nvfp4-gb200.yaml").read_text())
    data["engine_config"] = {"max_batch_size": 8}
    data["accepted_warnings"] = [yaml.safe_load(row) for row in rows]
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(data))
    return str(file)


BATCH = "{path: engine_config.max_batch_size, reason: the others may wait}"


def test_an_accepted_warning_is_recorded_and_no_longer_given(tmp_path: Path) -> None:
    def places(planned: pipeline.ServicePlan) -> list[str]:
        return [row.where for row in planned.warnings]

    plain = pipeline.plan(write(tmp_path))
    accepting = pipeline.plan(write(tmp_path, BATCH))
    assert [*places(accepting), "engine_config.max_batch_size"] == sorted(
        places(plain), key="engine_config.max_batch_size".__eq__
    )
    (row,) = pipeline.manifest_facts(accepting)["accepted_warnings"]
    assert (row["where"], row["reason"]) == ("engine_config.max_batch_size", "the others may wait")
    assert row["what"].startswith("a batch has 8 places")


@by_table
def test_an_acceptance_of_no_warning_is_told(row: str, told: str, tmp_path: Path) -> None:
    """Known vulnerabilities are accepted elsewhere, with their versions."""
    found = [str(one) for one in pipeline.plan(write(tmp_path, row)).warnings]
    (stale,) = (line for line in found if line.startswith("accepted_warnings.0: "))
    assert told in stale and stale.endswith("; remove it")
    assert [line for line in found if line.startswith("engine_config.max_batch_size: ")]


def test_a_check_of_a_bundle_accepts_what_its_deployment_accepts(tmp_path: Path) -> None:
    bundle = pipeline.render("deepseek-v3.2-nvfp4-gb200x32", tmp_path / "bundle").folder

    def rules() -> set[str]:
        found = lint.check([bundle], lint.CheckOptions(), pipeline.deployment_diagnostics).findings
        return {row.rule for row in found}

    accepted = {"moe-backend-kernels", "prefill-graphs", "transceiver-buffer-covers-prompt"}
    assert not rules() & accepted
    request = bundle / "deployment.yaml"
    request.write_text(request.read_text().replace("accepted_warnings", "notes"))
    files._surroundings.cache_clear()
    # Of a bundle that was changed, the checkpoint's facts are not taken.
    assert accepted - {"moe-backend-kernels"} <= rules()
