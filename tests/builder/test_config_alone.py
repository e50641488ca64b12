"""Any model by its `config.json` alone: planned, or refused with the next step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.errors import BadFacts
from builder.facts import checkpoint
from tests.conftest import ROOT, Run

SHAPES = yaml.safe_load((ROOT / "tests/builder/published_shapes.yaml").read_text())
PLANNED = [row for row in SHAPES if row[-1]]
REFUSED = [row for row in SHAPES if not row[-1]]
COMMON = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size"),
)
# Cards round, and count what is tied or lies outside of the language model in one way or the other.
TOLERANCE = 0.02


def folder_of(row: list[Any], folder: Path) -> Path:
    _, architecture, sizes, more, _ = row
    fields = {name: size for name, size in zip(COMMON, sizes, strict=True) if size}
    fields |= {name: value for name, value in more.items() if name != "nested"}
    fields |= {"max_position_embeddings": 32768, "bos_token_id": None, "pad_token_id": None}
    config = {more["nested"]: fields} if "nested" in more else fields
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture], **config}))
    return folder


def name_of(row: list[Any]) -> str:
    return str(row[0])


def test_there_are_sixty_of_them() -> None:
    assert len(SHAPES) >= 60


@pytest.mark.parametrize("row", PLANNED, ids=name_of)
def test_the_parameters_are_those_of_the_card(row: list[Any], tmp_path: Path) -> None:
    facts = checkpoint.gather(str(folder_of(row, tmp_path)))
    assert facts.parameters / 1e9 == pytest.approx(row[-1], rel=TOLERANCE)
    assert facts.nbytes >= 2 * facts.parameters  # BF16, but for what is kept in FP32


@pytest.mark.parametrize("row", PLANNED, ids=name_of)
def test_it_is_planned_and_says_what_is_assumed(
    row: list[Any], tmp_path: Path, builder: Run
) -> None:
    gpus = next(count for count in (1, 2, 4, 8, 16, 72) if row[-1] * 2 < 150 * count)
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "deployment.yaml").write_text(
        f"name: shape\ncheckpoint: {folder_of(row, folder)}\n"
        f"hardware: {{gpu: gb200, num_gpus: {gpus}}}\n"
        "engine: {name: tensorrt_llm, release: main-00043967}\n"
        "workload: {isl: 1000, osl: 500, concurrency: 4}\ntargets: [trtllm_serve, slurm]\n"
    )
    done = builder("plan", "deployment.yaml", cwd=tmp_path)
    assert done.returncode in (0, 2), done.stderr
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr
    if done.returncode == 2:  # heads that cannot be shared by so many GPUs, and the like
        assert ";" in done.stderr
    else:
        assert "its folder holds no weights" in done.stderr


@pytest.mark.parametrize("row", REFUSED, ids=name_of)
def test_another_architecture_is_refused_with_the_next_step(row: list[Any], tmp_path: Path) -> None:
    with pytest.raises(BadFacts, match=r"is not supported; 62 others are.*builder check"):
        checkpoint.gather(str(folder_of(row, tmp_path)))
