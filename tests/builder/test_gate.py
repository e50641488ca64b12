"""The gate: what a deployment may not run, and what it takes to run it all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from builder import deployment, pipeline
from builder.errors import BadInput
from builder.facts import advisories
from tests.conftest import Run, of_release

ENGINE = "accepted_advisories=[{product: tensorrt_llm, version: 1.1.0, reason: %s}]"
OLD_TRITON = "images.triton=registry.example/nvidia/tritonserver:26.06-trtllm-python-py3"
SITE = """\
name: hall
gpu_request: none
exclusive: true
mpi: pmix
container:
  runtime: pyxis
  images: {triton: "registry.example#nvidia/tritonserver:25.06-trtllm-python-py3"}
"""


def refusal(*settings: str, preset: str = "llama-tiny") -> list[tuple[str, str]]:
    with pytest.raises(BadInput) as caught:
        pipeline.plan(preset, settings)
    return [
        (row.path, row.message) for row in caught.value.diagnostics if row.rule == advisories.RULE
    ]


@pytest.mark.parametrize("preset", deployment.preset_names())
def test_no_preset_needs_an_exception(preset: str) -> None:
    planned = pipeline.plan(preset)
    assert planned.plan.deployment.accepted_advisories == []
    assert not [row for row in planned.warnings if row.severity == "error"]


def test_an_old_engine_and_the_triton_of_its_image_are_refused_together() -> None:
    (engine, what), (server, _) = refusal("engine.release=1.1.0")
    assert (engine, server) == ("engine.release", "targets.triton")
    assert all(row.cve in what for row in advisories.open_for("tensorrt_llm", "1.1.0"))


def test_a_deployment_without_triton_is_not_judged_by_its_image() -> None:
    ((path, _),) = refusal("engine.release=1.1.0", "targets=[trtllm_serve]")
    assert path == "engine.release"


@pytest.mark.parametrize(
    "image",
    [
        "nvcr.io/nvidia/tritonserver:26.06-py3",
        "registry.example:5000/mirror/tritonserver:25.06-trtllm-python-py3",
        f"registry.example/tritonserver:25.06@sha256:{'0' * 64}",
    ],
)
def test_an_old_image_of_any_host_is_refused(image: str) -> None:
    ((path, what),) = refusal(f"images.triton={image}")
    assert path == "images.triton" and "Triton Inference Server 2" in what


def test_an_old_image_of_the_engine_is_refused() -> None:
    ((path, _),) = refusal("images.trtllm_serve=nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc2")
    assert path == "images.trtllm_serve"


def test_an_old_image_of_a_site_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(SITE)
    settings = (f"targets.slurm.site={tmp_path / 'site.yaml'}", "targets.slurm.server=triton")
    ((path, what),) = refusal(*settings)
    assert path == "targets.slurm.site.container.images.triton" and "25.06" in what


@pytest.mark.parametrize("image", ["mine/server:1.0", "mine/tritonserver:latest"])
def test_an_image_whose_tag_tells_no_version_passes(image: str) -> None:
    planned = pipeline.plan("llama-tiny", [f"images.triton=registry.example/{image}"])
    judged = [row.where for row in planned.warnings if row.rule == advisories.RULE]
    assert judged == ["engine.release"], "the image itself cannot be judged"


def test_a_newer_version_with_open_advisories_is_warned_of_once() -> None:
    found = [row for row in pipeline.plan("llama-tiny").warnings if row.rule == advisories.RULE]
    ((where, severity),) = [(row.where, row.severity) for row in found]
    assert (where, severity) == ("engine.release", "warning")


def test_the_other_side_of_a_service_is_not_warned_of_again(tmp_path: Path) -> None:
    image = "{trtllm_serve: /images/engine.sqsh}"
    (tmp_path / "site.yaml").write_text(f"{SITE.partition('  images:')[0]}  images: {image}\n")
    settings = (
        f"targets.slurm.site={tmp_path / 'site.yaml'}",
        "targets.slurm.prefill.deployment=deepseek-v3.2-nvfp4-gb300-prefill",
    )
    planned = pipeline.plan("deepseek-v3.2-nvfp4-gb300-decode", settings)
    assert planned.prefill is not None
    assert [row.rule for row in planned.warnings].count(advisories.RULE) == 1


def test_an_exception_is_taken_and_recorded(tmp_path: Path) -> None:
    bundle = pipeline.render("llama-tiny", tmp_path / "b", of_release("1.1.0"), False, ["handoff"])
    reason = "a test of an old release"
    for row, version in zip(
        bundle.manifest["accepted_advisories"], ("1.1.0", "26.02"), strict=True
    ):
        assert (row["version"], row["reason"]) == (version, reason)
        found = advisories.open_for(row["product"], row["version"])
        assert row["open"] == [each.cve for each in found]
    asked = yaml.safe_load((bundle.folder / "deployment.yaml").read_text())
    assert [row["reason"] for row in asked["accepted_advisories"]] == [reason, reason]
    bill = json.loads((bundle.folder / "handoff/sbom.cdx.json").read_text())
    assert {row["analysis"]["detail"] for row in bill["vulnerabilities"]} == {f"accepted: {reason}"}
    for name in ("runbook.md", "runbook.html"):
        assert (bundle.folder / "handoff" / name).read_text().count(reason) >= 2
    assert sum("accepted: " in row["what"] for row in bundle.manifest["warnings"]) == 2


def test_an_exception_for_an_image_names_its_version() -> None:
    row = '{product: triton, version: "26.06", reason: the fix is carried by our own build}'
    planned = pipeline.plan("llama-tiny", [OLD_TRITON, f"accepted_advisories=[{row}]"])
    assert any("carried by our own build" in row.message for row in planned.warnings)


@pytest.mark.parametrize("version", ["1.0.0", "1.1", "1.1.0rc1", "26.02"])
def test_an_exception_for_another_version_does_not_help(version: str) -> None:
    settings = ("engine.release=1.1.0", "targets=[trtllm_serve]")
    given = ENGINE.replace("1.1.0", f"'{version}'") % "this is not the version in use"
    if version == "1.1":  # the same version, in fewer digits
        pipeline.plan("llama-tiny", [*settings, given])
    else:
        assert len(refusal(*settings, given)) == 1


def test_an_exception_for_nothing_is_warned_of() -> None:
    planned = pipeline.plan("llama-tiny", [ENGINE % "nobody uses this version"])
    (found,) = [row for row in planned.warnings if row.where.startswith("accepted_advisories")]
    assert found.severity == "warning" and found.fix == "remove it"


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ("{product: tensorrt_llm, version: 1.1.0, reason: why not}", "reason"),
        ("{product: tensorrt_llm, version: 1.1.0}", "reason"),
        ("{product: vllm, version: 1.1.0, reason: long enough a reason}", "product"),
        ("{product: triton, version: 26.02, reason: long enough a reason}", "version"),
    ],
)
def test_an_exception_is_whole(row: str, path: str) -> None:
    with pytest.raises(BadInput) as caught:
        pipeline.plan("llama-tiny", [f"accepted_advisories=[{row}]"])
    assert any(f"accepted_advisories.0.{path}" in str(one) for one in caught.value.diagnostics)


def test_render_refuses_with_exit_code_two_and_writes_nothing(builder: Run, tmp_path: Path) -> None:
    done = builder("render", "llama-tiny", "--set", "engine.release=1.1.0", "-o", "bundle")
    assert done.returncode == 2 and not (tmp_path / "bundle").exists()
    assert "CVE-2026-24207 (9.8)" in done.stderr and "accepted_advisories" in done.stderr


def report(done: object) -> list[dict[str, str]]:
    findings: list[dict[str, str]] = json.loads(done.stdout)["findings"]  # type: ignore[attr-defined]
    return [row for row in findings if row["rule"] == advisories.RULE]


def test_check_refuses_a_deployment_file_once_and_takes_its_exception(
    builder: Run, tmp_path: Path
) -> None:
    text = yaml.safe_dump(yaml.safe_load((deployment.PRESETS / "llama-tiny.yaml").read_text()))
    old = text.replace("release: 1.2.1", "release: 1.1.0").replace("triton", "trtllm_serve", 0)
    assert old != text
    (tmp_path / "d.yaml").write_text(old)
    done = builder("check", "d.yaml", "--json")
    assert done.returncode == 2
    assert [row["severity"] for row in report(done)] == ["error", "error"]
    rows = yaml.safe_load(of_release("1.1.0")[1].partition("=")[2])
    (tmp_path / "d.yaml").write_text(old + yaml.safe_dump({"accepted_advisories": rows}))
    done = builder("check", "d.yaml", "--json")
    assert done.returncode == 0
    assert [row["severity"] for row in report(done)] == ["warning", "warning"]


def test_check_judges_a_bundle_as_it_would_be_today(builder: Run, tmp_path: Path) -> None:
    """Its own exception holds for its deployment file and for every file that names the image."""
    settings = [part for each in of_release("1.1.0") for part in ("--set", each)]
    more = ("--target", "compose", "--set", "targets.compose.server=triton")
    key = ("--set", "targets.triton.key_file=/run/key")
    done = builder("render", "llama-tiny", *settings, *more, *key, "-o", "bundle")
    assert done.returncode == 0, done.stderr
    done = builder("check", "bundle", "--json")
    assert done.returncode == 0, done.stdout
    files = {Path(row["file"]).name for row in report(done)}
    assert {"deployment.yaml", "compose.yaml"} <= files
    path = tmp_path / "bundle/deployment.yaml"
    path.write_text(path.read_text().partition("accepted_advisories:")[0])
    found = report(builder("check", "bundle", "--json"))
    assert {Path(row["file"]).name for row in found if row["severity"] == "error"} == files


@pytest.mark.parametrize(
    ("name", "text", "is_found"),
    [
        ("serve.sh", "#!/bin/sh\ndocker run nvcr.io/nvidia/tritonserver:25.06-py3 \\\n", True),
        (
            "job.sbatch",
            "#!/bin/sh\nsrun --container-image=r.example#nvidia/tritonserver:25.06-py3",
            True,
        ),
        (
            "job.sbatch",
            "#!/bin/sh\nsrun --container-image=nvcr.io#nvidia/tritonserver:26.07-py3",
            False,
        ),
        ("serve.sh", "#!/bin/sh\ndocker run nvcr.io/nvidia/tritonserver:25.06-py3-sdk \\\n", False),
    ],
)
def test_files_that_name_an_old_image_are_refused(
    builder: Run, tmp_path: Path, name: str, text: str, is_found: bool
) -> None:
    (tmp_path / name).write_text(f"{text}\n")
    done = builder("check", name, "--json")
    severities = [row["severity"] for row in report(done)]
    assert severities == ["error"] * is_found


def test_a_plain_option_file_deploys_nothing(builder: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("kv_cache_config: {enable_block_reuse: true}\n")
    done = builder("check", "config.yaml", "--release", "1.1.0", "--json")
    assert done.returncode == 0
