"""The bill of materials: valid by the standard, complete, and the same bytes every time."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder import pipeline
from builder.facts import advisories
from builder.targets import components
from tests.tables import by_table

if TYPE_CHECKING:
    from cyclonedx.validation.json import JsonStrictValidator

# One preset of each engine, with and without a draft model and quantized weights.
PRESETS = [
    *("llama-tiny", "llama-3.3-70b-fp8-h100", "deepseek-v3.2-nvfp4-gb200", "gpt-oss-120b-h200"),
    *("llama-3.3-70b-fp8-h100-vllm", "deepseek-v3.2-nvfp4-b300-vllm"),
    *("minimax-m2.5-nvfp4-b300", "deepseek-v3.2-nvfp4-gb300-decode"),
]
DIGEST = "sha256:" + "ab" * 32

Bill = dict[str, Any]


def bill_of(preset: str, folder: Path, *changes: str) -> Bill:
    pipeline.render(preset, folder, changes, more_targets=["handoff"])
    found: Bill = json.loads((folder / components.BILL_FILE).read_bytes())
    return found


def of_type(bill: Bill, kind: str) -> list[Bill]:
    return [row for row in bill["components"] if row["type"] == kind]


def properties(row: Bill) -> dict[str, str]:
    return {one["name"].partition(":")[2]: one["value"] for one in row["properties"]}


@pytest.fixture(scope="module")
def validator() -> JsonStrictValidator:
    from cyclonedx.schema import SchemaVersion  # takes seconds: jsonschema makes grammars
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_bill_is_valid(preset: str, validator: JsonStrictValidator, tmp_path: Path) -> None:
    bill = bill_of(preset, tmp_path / "b")
    assert validator.validate_str(json.dumps(bill)) is None
    references = re.findall(r'"bom-ref": ("[^"]*")', json.dumps(bill))
    assert len(references) == len(set(references))
    named = {row["ref"] for entry in bill["vulnerabilities"] for row in entry["affects"]}
    named |= {name for row in bill["dependencies"] for name in (row["ref"], *row["dependsOn"])}
    assert named <= {json.loads(reference) for reference in references}


def test_every_file_is_in_the_bill_with_its_digest(tmp_path: Path) -> None:
    bill = bill_of("deepseek-v3.2-nvfp4-gb200", tmp_path / "b")
    files = {
        str(p.relative_to(tmp_path / "b")): p for p in (tmp_path / "b").rglob("*") if p.is_file()
    }
    for path in ("manifest.json", "SHA256SUMS", components.BILL_FILE):
        del files[path]  # they hold the digest of the bill
    assert components.bill_digests(bill) == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()
    }


def test_a_bill_without_a_folder_says_what_is_not_known(tmp_path: Path) -> None:
    bill = bill_of("deepseek-v3.2-nvfp4-gb200", tmp_path / "b")
    (model,) = of_type(bill, "machine-learning-model")
    assert model["name"] == "nvidia/DeepSeek-V3.2-NVFP4"
    assert model["modelCard"]["modelParameters"]["modelArchitecture"] == "DeepseekV32ForCausalLM"
    assert properties(model)["digests"].startswith("not known")
    for image in of_type(bill, "container"):
        assert "hashes" not in image
        assert properties(image)["digest"].startswith("not known")


def test_what_is_known_of_checkpoint_and_images_is_there(
    make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    checkpoint = shutil.copytree(make_miniature("nvidia/DeepSeek-V3.2-NVFP4"), tmp_path / "mini")
    (checkpoint / "README.md").write_text("---\nlicense: mit\n---\n")
    bill = bill_of(
        "deepseek-v3.2-nvfp4-gb200",
        tmp_path / "b",
        f"checkpoint={checkpoint}",
        f"images.triton=registry.example/tritonserver:26.07@{DIGEST}",
    )
    (model,) = of_type(bill, "machine-learning-model")
    files = {row["name"]: row for row in model["components"]}
    assert set(files) == {path.name for path in checkpoint.iterdir()}
    weights = (checkpoint / "model.safetensors").read_bytes()
    assert files["model.safetensors"]["hashes"] == [
        {"alg": "SHA-256", "content": hashlib.sha256(weights).hexdigest()}
    ]
    assert properties(files["model.safetensors"])["bytes"] == str(len(weights))
    assert model["licenses"] == [{"license": {"name": "mit"}}]
    hashes = {row["name"]: row.get("hashes") for row in of_type(bill, "container")}
    assert hashes["registry.example/tritonserver"] == [{"alg": "SHA-256", "content": "ab" * 32}]


def test_the_versions_of_engine_and_server_carry_their_vulnerabilities(tmp_path: Path) -> None:
    bill = bill_of("deepseek-v3.2-nvfp4-gb200", tmp_path / "b")
    versions = {row["bom-ref"]: row["version"] for row in of_type(bill, "framework")}
    assert versions == {"product:tensorrt_llm": "1.2.1", "product:triton": "26.07"}
    open_ones = {
        row.cve
        for product, version in (("tensorrt_llm", "1.2.1"), ("triton", "26.07"))
        for row in advisories.open_for(product, version)
    }
    assert {row["id"] for row in bill["vulnerabilities"]} == open_ones
    assert {row["analysis"]["state"] for row in bill["vulnerabilities"]} == {"in_triage"}


def test_an_accepted_version_says_why(tmp_path: Path) -> None:
    reason = "inside an isolated network until the next window"
    versions = {"tensorrt_llm": "1.1.0", "triton": "'26.02'"}
    rows = [
        f"{{product: {product}, version: {version}, reason: {reason}}}"
        for product, version in versions.items()
    ]
    changes = ("engine.release=1.1.0", f"accepted_advisories=[{', '.join(rows)}]")
    bill = bill_of("llama-tiny", tmp_path / "b", *changes)
    found = {json.dumps(one["analysis"]) for one in bill["vulnerabilities"]}
    assert [json.loads(one) for one in found] == [
        {"state": "exploitable", "response": ["will_not_fix"], "detail": f"accepted: {reason}"}
    ]


def test_the_serial_number_is_made_from_the_content(tmp_path: Path) -> None:
    one, same, other = (
        bill_of("llama-tiny", tmp_path / name, f"workload.isl={isl}")
        for name, isl in (("a", 128), ("b", 128), ("c", 129))
    )
    assert one == same
    assert one["serialNumber"] != other["serialNumber"]
    assert "timestamp" not in json.dumps(one)


@by_table
def test_a_severity_is_that_of_its_score_in_cvss_3(
    severity: str, least: float, most: float
) -> None:
    for score in (least, most):
        assert components._rating(score) == {"score": score, "severity": severity}
