"""What is an error only where a file names a release, or an image of the engine's publisher."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline
from builder.facts import engines, release
from builder.lint.releases import Pins as Stated


def severities(folder: Path, name: str, text: str, *releases: str) -> set[tuple[str, str]]:
    file = folder / name
    file.write_text(text)
    report = lint.check([file], lint.CheckOptions(releases), pipeline.deployment_diagnostics)
    return {(row.severity, row.rule) for row in report.findings if "version" not in row.rule}


VLLM = "#!/bin/bash\nvllm serve some/model {}\n"
TRT = "max_batch_size: 8\n{}\n"

# What a former release takes: its table has it, or it was gone before the first table.
FORMER = {
    "of an older table": ("a.yaml", TRT.format("enable_trtllm_sampler: true"), "1.2.1"),
    "before the first table": ("a.yaml", TRT.format("use_cuda_graph: true"), "1.2.1"),
    "a group's": (
        "a.yaml",
        "max_batch_size: 8\ncache_transceiver_config: {backend: UCX, max_num_tokens: 8}\n",
        "1.2.1",
    ),
    "a flag of an older table": ("a.sh", VLLM.format("--calculate-kv-scales"), "0.32.0"),
    "a flag from before": ("a.sh", VLLM.format("--num-scheduler-steps 8"), "0.32.0"),
    "a key from before": ("a.yaml", "max-model-len: 8\nnum-scheduler-steps: 8\n", "0.32.0"),
    "a switch with a value": ("a.sh", VLLM.format("--enable-chunked-prefill=false"), "0.32.0"),
    "a value of another form": ("a.sh", VLLM.format("--limit-mm-per-prompt image=4"), "0.32.0"),
}


@pytest.mark.parametrize("name", FORMER)
def test_what_a_former_release_takes_is_an_error_only_for_a_release_that_is_named(
    name: str, tmp_path: Path
) -> None:
    file, text, newest = FORMER[name]
    assert {severity for severity, _ in severities(tmp_path, file, text)} == {"warning"}
    assert "error" in {severity for severity, _ in severities(tmp_path, file, text, newest)}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.yaml", TRT.format("kv_cache_config: {dtyp: fp8}")),
        ("a.yaml", TRT.format("max_num_tokens: many")),
        ("a.sh", VLLM.format("--max-modl-len 8")),
        ("a.sh", VLLM.format("--max-model-len many")),
        ("a.sh", VLLM.format("--enforce-eager=false")),
        ("a.yaml", TRT.format("kv_cache_config: {free_gpu_memory_fraction: 80}")),
        ("a.sh", "trtllm-serve some/model --kv_cache_free_gpu_memory_fraction 8.5\n"),
    ],
)
def test_what_no_release_takes_is_an_error_for_an_assumed_one_too(
    file: str, text: str, tmp_path: Path
) -> None:
    assert "error" in {severity for severity, _ in severities(tmp_path, file, text)}


# What an image names: its release, and whether it may have other options than that.
IMAGES = {
    "image: vllm/vllm-openai:v0.20.0": ("0.20.0", False),
    "image: localhost:5000/vllm/vllm-openai:v0.20.0": ("0.20.0", False),
    "image: registry.example/mirror/vllm-openai:v0.20.0": ("0.20.0", False),
    'image: "${REGISTRY}/vllm-openai:${TAG:-v0.20.0}"': ("0.20.0", False),
    "image: public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v0.8.5.post1": ("0.8.5.post1", False),
    "image: vllm/vllm-openai:latest": ("", False),
    "image: vllm/vllm-openai:nightly": ("", True),
    "image: vllm/vllm-openai:some-model": ("", True),
    "pip install vllm==0.20.1.dev3": ("0.20.1.dev3", True),
    "image: cr.example.com/aibrix/vllm-openai-aibrix-kvcache:v0.10.2-20251022": ("0.10.2", True),
    "FROM rocm/vllm:rocm6.4.1_vllm_0.9.1_20250715": ("0.9.1", True),
    "docker run --gpus all acme/vllm-openai:v0.20.0": ("0.20.0", True),
    "image: lmcache/vllm-openai:latest": ("", True),
    "image: ghcr.io/acme/my-vllm:main": ("", True),
}
NO_IMAGES = (
    "url: http://vllm:8000/v1",
    "expr: vllm:num_requests_running",
    "- ~/.cache/vllm:/root/.cache/vllm:ro",
    "repository: https://example.com/charts/vllm",
    "model: acme/vllm-tuned",
    "container: vllm",
    "docker run --rm $IMAGE vllm serve some/model",
    "from vllm import LLM",
    "image_name = vllm_image",
)


@pytest.mark.parametrize("line", IMAGES)
def test_the_tag_of_any_image_with_the_engine_in_its_name_names_the_release(line: str) -> None:
    (row,) = Stated(line, (), engines.load("vllm")).statements
    version, is_fork = IMAGES[line]
    assert (row.releases, row.is_fork) == ((version,) if version else (), is_fork)


@pytest.mark.parametrize("line", NO_IMAGES)
def test_a_line_without_an_image_names_none(line: str) -> None:
    assert not Stated(line, (), engines.load("vllm")).statements
    assert not Stated(line.replace("vllm", "tensorrt_llm"), ()).statements


@pytest.mark.parametrize(
    ("line", "version", "is_fork"),
    [
        ("image: acme/trtllm-custom:1.2.1", "1.2.1", True),
        ("image: acme/tensorrt-llm-tuned:main", "", True),
        ("image: registry.example/mirror/trtllm-serve:v1.2.1", "1.2.1", False),
        ("image: nvcr.io/nvidia/tensorrt-llm/release:1.3.0.dev20260101", "1.3.0.dev20260101", True),
    ],
)
def test_so_it_is_for_the_other_engine(line: str, version: str, is_fork: bool) -> None:
    rows = Stated(line, ()).statements
    assert (rows[0].releases, rows[0].is_fork) == ((version,) if version else (), is_fork)


CHART = """\
servingEngineSpec:
  modelSpec:
    - name: one
      repository: {repository}
      tag: {tag}
      modelURL: some/model
      vllmConfig:
        extraArgs: ["--not-known-to-any", "1", "--max-model-len", "many"]
"""


@pytest.mark.parametrize(
    ("repository", "tag", "severity"),
    [
        ("vllm/vllm-openai", "v0.20.0", "error"),
        ("vllm/vllm-openai", "nightly", "warning"),
        ("acme/vllm-openai", "v0.20.0", "warning"),
        ("acme/vllm-tuned", "my-build", "warning"),
        ("public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo", "v0.8.5.post1", "warning"),
    ],
)
def test_what_a_table_refuses_of_a_fork_is_a_warning(
    repository: str, tag: str, severity: str, tmp_path: Path
) -> None:
    found = severities(tmp_path, "values.yaml", CHART.format(repository=repository, tag=tag))
    assert {row[0] for row in found if row[1] in ("unknown-flag", "flag-value")} == {severity}


def test_what_is_wrong_with_every_engine_stays_an_error_in_a_fork(tmp_path: Path) -> None:
    text = (
        "services:\n  a:\n    image: acme/vllm-openai:v0.20.0\n"
        "    command: [--model, some/model, --tensor-parallel-size, '4']\n"
        "    deploy: {resources: {reservations: {devices: "
        "[{driver: nvidia, count: 2, capabilities: [gpu]}]}}}\n"
    )
    assert ("error", "gpus-below-ranks") in severities(tmp_path, "compose.yaml", text)


def test_a_line_without_a_release_is_judged_by_all_beside_one_that_names_one(
    tmp_path: Path,
) -> None:
    text = (
        "services:\n"
        "  a: {image: 'vllm/vllm-openai:v0.32.0', command: [--model, m/m, --swap-space, '4']}\n"
        "  b: {image: 'vllm/vllm-openai:latest', command: [--model, m/m, --swap-space, '4']}\n"
    )
    (tmp_path / "compose.yaml").write_text(text)
    report = lint.check(
        [tmp_path / "compose.yaml"], lint.CheckOptions(), pipeline.deployment_diagnostics
    )
    rows = [(row.location.line, row.severity) for row in report.findings if "flag" in row.rule]
    assert rows == [(2, "error"), (3, "warning")]


def test_the_oldest_tables_are_those_that_these_cases_need() -> None:
    vllm = engines.load("vllm")
    assert "calculate_kv_scales" in release.load("0.14.1", engine=vllm).top_level
    assert "enable_trtllm_sampler" in release.load("1.0.0").top_level
