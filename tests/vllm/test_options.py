"""What is rendered for models that no CPU serves, before the classes of vLLM itself."""

from __future__ import annotations

from pathlib import Path

from builder import pipeline
from builder.facts import checkpoint as checkpoints
from launch import cpu_build
from tests.vllm.conftest import ENGINE, render

# Models that no CPU serves, as their options are rendered for a node.
LARGE = [
    ("qwen3-235b-a22b-fp8", {"gpu": "h200", "num_gpus": 8}),
    ("deepseek-v3.2-nvfp4", {"gpu": "b300", "num_gpus": 8}),
    ("gpt-oss-120b", {"gpu": "h200", "num_gpus": 8}),
    ("kimi-k2.6-nvfp4", {"gpu": "gb300", "num_gpus": 4}),
]
PRESETS = ["llama-3.3-70b-fp8-h100-vllm", "qwen3.5-397b-nvfp4-b300-vllm"]


def test_what_is_rendered_is_taken_by_the_engines_own_classes(tmp_path: Path) -> None:
    asked = {}
    for number, (model, hardware) in enumerate(LARGE):
        bundle = render(tmp_path / str(number), "large", model, hardware=hardware)
        facts = checkpoints.from_bundle(bundle.folder)
        asked[model] = facts, bundle.folder / "vllm_serve" / "config.yaml"
    for preset in PRESETS:
        bundle = pipeline.render(preset, tmp_path / preset, [])
        facts = checkpoints.from_bundle(bundle.folder)
        asked[preset] = facts, bundle.folder / "vllm_serve" / "config.yaml"
    triton = pipeline.render(PRESETS[0], tmp_path / "triton", ["targets={triton_vllm: {}}"])
    [options] = triton.folder.rglob("model.json")
    asked["triton"] = checkpoints.from_bundle(triton.folder), options
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("max_num_sequences: 4\n")
    asked["wrong"] = asked[LARGE[0][0]][0], wrong
    found = dict(zip(asked, cpu_build.refusals(ENGINE, list(asked.values())), strict=True))
    assert "max-num-sequences" in (found.pop("wrong") or "")
    assert ENGINE.cpu_build is not None
    [classes, images] = ENGINE.cpu_build.unjudged
    assert classes in (found.pop("qwen3.5-397b-nvfp4-b300-vllm") or "")
    assert images in (found.pop("kimi-k2.6-nvfp4") or "")
    assert set(found.values()) == {None}, found
