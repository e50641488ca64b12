"""What clients see of a model: its name, its parsers, and whether requests may be guided.

The parsers of a preset's model, and why it has none, are in its golden bundle.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builder import pipeline
from builder.facts import release
from builder.planning import Plan, plan
from builder.rules.flags import flag_faults
from tests.conftest import of_release
from tests.tables import by_table

R1, V32 = "deepseek-r1-0528-nvfp4-gb200", "deepseek-v3.2-nvfp4-gb200"
QWEN35 = "qwen3.5-397b-nvfp4-b300"  # on a release that has a flag for the name


def planned(preset: str, *overrides: str) -> Plan:
    return pipeline.plan(preset, overrides).plan


def flags(found: Plan) -> dict[str, Any]:
    return {row.path: row.value for row in found.flags}


def why_not(found: Plan, name: str) -> str:
    (reason,) = (row.reason for row in found.engine_defaults if row.path == name)
    return reason


def test_a_parser_that_the_release_lacks_is_said() -> None:
    found = planned(R1, *of_release("1.1.0"))
    assert flags(found) == {"--reasoning_parser": "deepseek-r1"}
    assert "release 1.1.0 has no deepseek_v3, so tool calls stay" in why_not(found, "tool_parser")


def test_a_folder_has_the_parsers_that_all_models_of_its_shape_have() -> None:
    """DeepSeek-V3.1 has the shape of R1, and other parsers; V3.2 has a shape of its own."""

    def of_folder(preset: str) -> Plan:
        found = planned(preset)
        unnamed = replace(found.facts.checkpoint, name="weights")
        return plan(found.deployment, replace(found.facts, checkpoint=unnamed))

    assert flags(of_folder(V32))["--tool_parser"] == "deepseek_v32"
    assert flags(of_folder(R1)) == {}
    assert "models of this shape differ in it" in why_not(of_folder(R1), "tool_parser")


def test_a_parser_of_the_option_file_stays_alone() -> None:
    assert "--reasoning_parser" not in flags(planned(R1, "engine_config.reasoning_parser=qwen3"))


@pytest.mark.parametrize(
    ("overrides", "name"), [((), "Qwen3.5-397B-A17B-NVFP4"), (("served_model_name=chat",), "chat")]
)
def test_the_model_has_one_name_wherever_its_weights_lie(
    overrides: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    assert flags(planned(QWEN35, *overrides))["--served_model_name"] == name
    bundle = pipeline.render(QWEN35, tmp_path / "bundle", overrides)
    assert f"--served_model_name {name} " in (bundle.folder / "trtllm_serve/serve.sh").read_text()
    assert bundle.launch["targets"]["trtllm_serve"]["model_name"] == name


def test_a_name_that_the_release_cannot_give_is_warned_of() -> None:
    found = planned(V32, "served_model_name=chat")
    (warning,) = (row for row in found.warnings if row.where == "served_model_name")
    assert "release 1.2.1 has no option for it" in warning.message
    assert warning.fix == (
        "call that folder chat, or choose release 1.3.0rc23, 1.3.0rc24, 1.3.0rc29 or main-00043967"
    )
    assert "served_model_name" not in {row.where for row in planned(V32).warnings}
    only_triton = planned(V32, "served_model_name=chat", "targets=[triton]")
    assert "served_model_name" not in {row.where for row in only_triton.warnings}


@by_table
def test_triton_names_its_model_after_it(
    overrides: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    bundle = pipeline.render("llama-tiny", tmp_path / "bundle", overrides)
    assert bundle.launch["targets"]["triton"]["model_name"] == name
    assert (bundle.folder / f"triton/model_repository/{name}/1/model.yaml").is_file()


def test_requests_may_be_guided_where_the_release_supports_it_and_no_drafts_wait() -> None:
    def backend(preset: str, *overrides: str) -> Any:
        engine = pipeline.plan(preset, overrides).engine
        return engine.options.get("guided_decoding_backend")

    assert backend("gpt-oss-120b-h200") == "xgrammar"
    assert backend(V32, "workload.concurrency=512") is None  # it drafts
    assert backend("llama-tiny") is None  # the matrix does not say
    assert backend("llama-tiny", "engine_config.guided_decoding_backend=llguidance") == "llguidance"
    assert "guided_decoding_backend: xgrammar" in why_not(planned(V32), "guided_decoding_backend")


@by_table
def test_a_flag_of_another_release_is_told_by_its_name_here(
    name: str, spelling: str, remedy: str
) -> None:
    [found] = flag_faults(spelling, "4", release.load(name))
    assert found.fix.startswith(remedy)
