"""A vLLM release's table, read from its source without importing it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from builder.errors import BadFacts, BadInput
from builder.facts import engines, release, release_import
from builder.rules.validation import validate
from tests.tables import tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))
# A package as far as the table is read from it.
PACKAGE = TABLES["PACKAGE"]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "vllm-9.9.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in PACKAGE.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in PACKAGE.items():
        path = tmp_path / "site-packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "site-packages"


def options(path: Path) -> dict[str, dict[str, object]]:
    table = release_import.from_source(path, "9.9.1", None)
    return dict(table["types"][table["root"]]["fields"])


def test_an_option_has_the_type_the_bounds_the_default_and_the_state_of_its_class(
    wheel: Path, folder: Path
) -> None:
    found = options(wheel)
    assert found["cache_dtype"] == {"type": "enum", "values": ["auto", "fp8"], "default": "auto"}
    assert found["gpu_memory_utilization"] == {"type": "float", "gt": 0, "le": 1, "default": 0.9}
    assert found["sizes"] == {"type": "list", "items": {"type": "int"}, "default": []}
    assert found["mode"]["values"] == ["NONE", 0, "FULL", 1]
    assert found["max_num_batched_tokens"]["human_readable"] is True
    assert found["old"]["status"] == "deprecated"
    assert "_hidden" not in found, "private fields are no options"
    assert options(folder) == found, "the installed package says the same as the wheel"


def test_flags_and_what_else_a_release_says_are_read(wheel: Path) -> None:
    table = release_import.from_source(wheel, "9.9.1", None)
    flags = {flag["name"]: flag["flags"] for flag in table["serve"]["flags"]}
    assert flags["tensor_parallel_size"] == ["--tensor-parallel-size", "-tp"]
    assert flags["old"] == ["--old", "--no-old"]
    assert flags["quiet"] == ["--quiet"]
    assert flags["port"] == ["--port"]
    assert flags["model_tag"] == ["MODEL_TAG"]
    assert ["POST", "/v1/completions"] in table["endpoints"]["server"]
    assert table["metrics"]["names"] == ["vllm:num_requests_running", "vllm:prompt_tokens_total"]
    assert list(table["supported_architectures"]) == ["LlamaForCausalLM"]
    assert table["unsupported_architectures"] == {"OldModel": "taken out after 0.1.0"}
    assert table["environment"] == {"VLLM_PORT": "vllm/envs.py", "VLLM_API_KEY": "vllm/envs.py"}


def test_a_table_whose_release_reads_a_credential_is_taken(wheel: Path, tmp_path: Path) -> None:
    """It names the variable, and holds no value of it."""
    path = tmp_path / "9.9.1.json"
    path.write_text(json.dumps(release_import.from_source(wheel, "9.9.1", None)))
    assert (
        "VLLM_API_KEY" in release.load(str(path), engine=engines.load("vllm")).table["environment"]
    )
    path.write_text(path.read_text().replace("vllm/envs.py", "hf_" + "a1" * 12))
    with pytest.raises(BadFacts, match="holds a credential"):
        release.load(str(path), engine=engines.load("vllm"))


def test_a_wheel_of_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("other-1.0.dist-info/METADATA", "Name: other\n")
    with pytest.raises(BadFacts, match="holds no vllm"):
        release_import.from_source(other, "1.0", None)
    (tmp_path / "no.whl").write_text("no archive")
    with pytest.raises(BadInput, match="cannot be read"):
        release_import.from_source(tmp_path / "no.whl", "1.0", None)


@pytest.mark.parametrize("name", ["0.14.1", "0.20.0", "0.32.0"])
def test_the_tables_that_ship_judge_options_of_the_engine(name: str) -> None:
    table = release.load(name, engine=engines.load("vllm"))
    good = {
        "tensor_parallel_size": 4,
        "kv_cache_dtype": "fp8",
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 3},
        "compilation_config": {"cudagraph_mode": "FULL_AND_PIECEWISE"},
    }
    assert list(validate(table, good)) == []
    bad = {"tensor_paralel_size": 4, "kv_cache_dtype": "fp7", "gpu_memory_utilization": 1.5}
    rules = {row.where: row.rule for row in validate(table, bad)}
    assert rules == {
        "tensor_paralel_size": "unknown-key",
        "kv_cache_dtype": "unknown-value",
        "gpu_memory_utilization": "value-range",
    }


def test_options_that_came_and_went_are_known_by_their_release() -> None:
    tables = {
        name: release.load(name, engine=engines.load("vllm")) for name in ("0.14.1", "0.32.0")
    }
    assert "moe_backend" not in tables["0.14.1"].top_level
    assert "moe_backend" in tables["0.32.0"].top_level


def test_an_imported_table_is_of_its_engine(tmp_path: Path, wheel: Path) -> None:
    table = release_import.from_source(wheel, "9.9.1", None)
    release_import.write(table, tmp_path / "table.json")
    assert release.load("table.json", tmp_path).engine.name == "vllm"
    with pytest.raises(BadInput, match="option table of vLLM, not of TensorRT-LLM"):
        release.load("table.json", tmp_path, engines.default())
    assert json.loads((tmp_path / "table.json").read_text())["engine"] == "vllm"
