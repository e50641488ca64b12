"""How much memory `check` needs: whole processes, real files where there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.builder import measured
from tests.builder.measured import Measured
from tests.conftest import ROOT

CORPUS = ROOT.parent / "shared" / "corpus"

MANY = 400
GROWTH_MB = 12


def real_texts() -> list[str]:
    """Texts of real files, or of made ones where there are none."""
    files = sorted((CORPUS / "srt-slurm").glob("*.yaml"))
    files += sorted((CORPUS / "trtllm-configs").rglob("*.yaml"))
    if files:
        return [path.read_text() for path in files]
    options = {
        "tensor_parallel_size": 8,
        "max_batch_size": 64,
        "enable_attention_dp": True,
        "kv_cache_config": {"dtype": "fp8", "free_gpu_memory_fraction": 0.8},
        "moe_config": {"backend": "TRTLLM"},
        "cuda_graph_config": {"enable_padding": True, "batch_sizes": list(range(1, 65))},
    }
    recipe = {"backend": {"trtllm_config": {"prefill": options, "decode": options}}}
    return [yaml.safe_dump(options), yaml.safe_dump(recipe)]


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    texts = real_texts()
    for index in range(MANY):
        (folder / f"{index:04}.yaml").write_text(texts[index % len(texts)])
    return folder


def run(*paths: str, cwd: Path) -> Measured:
    found = measured.run("check", *paths, cwd=cwd)
    assert found.done.returncode in (0, 2), found.done.stderr
    return found


def test_many_files_take_no_more_memory_than_a_hundred(
    many_files: Path, record_property: Callable[[str, object], None]
) -> None:
    hundred = [f"{index:04}.yaml" for index in range(100)]
    few, many = run(*hundred, cwd=many_files), run(".", cwd=many_files)
    record_property(
        "peak_mb", {"100 files": round(few.peak_mb), f"{MANY} files": round(many.peak_mb)}
    )
    assert many.done.stdout.splitlines()[-1].startswith("checked ")
    assert many.peak_mb - few.peak_mb < GROWTH_MB
