"""Known defects of releases: which versions have them, and when a deployment meets them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from builder import pipeline
from builder.cli.main import main
from builder.facts import hardware
from builder.facts.data_file import validate
from builder.lint.data_files import schema_of
from builder.rules import defects
from builder.rules.constraints import KnownDefect
from tests.conftest import of_release
from tests.tables import by_table

PAIR = "nvidia-ml-py-by-value"
GUIDED_EAGLE3 = (
    'engine_config.speculative_config={"decoding_type": "Eagle", "max_draft_len": 3, '
    '"speculative_model_dir": "eagle", "draft_len_schedule": {"1": 3, "8": LAST}}'
)


def by_id(found: list[KnownDefect]) -> dict[str, KnownDefect]:
    return {row.row.id: row for row in found}


@by_table
def test_a_defect_is_one_of_exact_releases_or_of_ranges(
    releases: list[str], has: list[str], lacks: list[str]
) -> None:
    row = defects.Defect("a", tuple(releases), "b", "c", "d", "2026-11-28", "reported")
    assert [version for version in (*has, *lacks) if row.is_in(version)] == has


@by_table
def test_a_wrong_row_is_refused_with_its_remedy(
    right: str, wrong: str, fault: str, tmp_path: Path
) -> None:
    shipped = defects.FOLDER / "tensorrt_llm.yaml"
    text = shipped.read_text()
    assert right in text
    changed = tmp_path / shipped.name
    changed.write_text(text.replace(right, wrong, 1))
    assert fault in "\n".join(map(str, validate(changed, schema_of(shipped))))


def test_the_rows_name_gpus_that_are_known_and_are_many() -> None:
    count: Counter[str] = Counter()
    for path in defects.FOLDER.iterdir():
        for row in defects.of_product(path.stem):
            count[path.stem] += row.rule == "known-issue"
            gpus = (row.when or {}).get("gpu", [])
            assert {gpus} if isinstance(gpus, str) else set(gpus) <= set(hardware.known()), row.id
    assert min(count.values()) >= 15
    assert count.total() >= 60


@pytest.mark.parametrize(
    ("version", "certain"), [(None, False), ("13.610.43", True), ("12.575.51", None)]
)
def test_a_condition_of_the_machine_is_never_a_finding_of_its_own(
    version: str | None, certain: bool | None
) -> None:
    planned = pipeline.plan("llama-tiny")
    state = {"pip.nvidia-ml-py": version} if version else {}
    found = by_id(pipeline.known_defects(planned, state)).get(PAIR)
    assert (found.is_certain if found else None) is certain
    assert all("nvidia-ml-py" not in row.message for row in planned.warnings)
    if found:
        assert ("holds only if nvidia-ml-py >= 13.610" in found.text) is not certain
        assert found.document()["only_if"] == ("" if certain else "nvidia-ml-py >= 13.610")


def test_a_plan_shows_defects_that_hold_only_under_a_condition(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "llama-tiny"]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "only if nvidia-ml-py >= 13.610: 1.2.1 ends with a segmentation fault" in shown


@pytest.mark.parametrize(("last", "has"), [("0", True), ("1", False)])
def test_a_schedule_that_reaches_0_with_a_grammar_is_a_warning_of_the_plan(
    last: str, has: bool
) -> None:
    changes = [
        GUIDED_EAGLE3.replace("LAST", last),
        "engine_config.guided_decoding_backend=xgrammar",
    ]
    planned = pipeline.plan("llama-tiny", changes)
    where = "speculative_config.draft_len_schedule"
    said = [row.message for row in planned.warnings if row.where.endswith(where)]
    assert any("bitmask" in text for text in said) is has


def test_a_server_s_container_has_defects_of_its_own() -> None:
    changes = ["images.triton=nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"]
    found = by_id(pipeline.known_defects(pipeline.plan("llama-tiny", changes)))
    assert found["batcher-starvation"].version == "26.07"
    assert not found["batcher-starvation"].is_certain
    assert "decoupled-bls-deadlock" not in found


def test_the_state_of_a_machine_is_enough_without_a_plan() -> None:
    state = {"pip.vllm": "0.20.1", "gpu": "GB300", "options.all2all_backend": "deepep_low_latency"}
    found = by_id(pipeline.known_defects_in(state))
    assert found["deepep-gb300"].is_certain
    assert "deepep-gb300" not in by_id(pipeline.known_defects_in({**state, "gpu": "B200"}))
    assert not pipeline.known_defects_in({"pip.vllm": "0.1.0"})


def test_releases_without_a_table_have_their_defects_in_a_plan() -> None:
    changes = [
        *of_release("1.3.0rc20"),
        "checkpoint=nvidia/DeepSeek-V3.2-NVFP4",
        "hardware.gpu=gb200",
    ]
    planned = pipeline.plan("deepseek-v3.2-nvfp4-gb200", changes)
    assert by_id(pipeline.known_defects(planned))["v3-warm-up"].is_certain
