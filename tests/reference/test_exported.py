"""Checkpoints in the form that nvidia-modelopt 0.47 writes with transformers 5.

The exporter is too large for the tests: folders of the same files and tensors are made here. With
`--exported FOLDER`, the same tests serve what `export_with_modelopt.py` wrote.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open

from builder.facts import checkpoint
from builder.facts.checkpoint_files import read_header
from builder.facts.weight_layouts import NVFP4_GROUP
from tensorrt_llm import LLM, SamplingParams
from tests.conftest import Run

MODELS = {
    "LlamaForCausalLM": "nvidia/Llama-3.3-70B-Instruct-NVFP4",
    "Qwen3MoeForCausalLM": "nvidia/Qwen3-30B-A3B-NVFP4",
    "DeepseekV3ForCausalLM": "nvidia/DeepSeek-V3.1-NVFP4",
}
NULLS = ("bos_token_id", "eos_token_id", "pad_token_id", "sliding_window", "rope_scaling")
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def in_the_exporters_form(miniature: Path, folder: Path) -> Path:
    """The same weights, under the fields that transformers 5 writes."""
    shutil.copytree(miniature, folder)
    config = json.loads((folder / "config.json").read_text())
    if "num_experts" in config:
        config["num_local_experts"] = config.pop("num_experts")
    config |= dict.fromkeys(NULLS)
    config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), "rope_type": "default"}
    quantization = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
    eight_bits = {"dynamic": False, "num_bits": 8, "type": "float"}
    config["quantization_config"] = {
        "ignore": quantization["exclude_modules"],
        "quant_algo": "NVFP4",
        "kv_cache_scheme": eight_bits,
        "quant_method": "modelopt",
    }
    (folder / "config.json").write_text(json.dumps(config))
    generation = {"_from_model_config": True, "eos_token_id": None, "bos_token_id": None}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.fixture(params=MODELS)
def exported(
    request: pytest.FixtureRequest, make_miniature: Callable[[str], Path], tmp_path: Path
) -> Path:
    architecture: str = request.param
    if given := request.config.getoption("--exported"):
        return Path(given) / architecture
    return in_the_exporters_form(make_miniature(MODELS[architecture]), tmp_path / architecture)


def dequantized(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Its plain weights, computed here and not by the engine under test."""
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            names = set(tensors.keys())
            for name in names:
                tensor = tensors.get_tensor(name)
                if f"{name}_scale_2" in names:
                    rows, half = tensor.shape
                    table = torch.tensor([*E2M1, *(-value for value in E2M1)])
                    codes = torch.empty(rows, 2 * half, dtype=torch.long)
                    codes[:, 0::2], codes[:, 1::2] = tensor.long() % 16, tensor.long() // 16
                    blocks = table[codes].view(rows, -1, NVFP4_GROUP)
                    scales = tensors.get_tensor(f"{name}_scale").float().unsqueeze(-1)
                    scale = tensors.get_tensor(f"{name}_scale_2").float()
                    yield name, (blocks * scales * scale).view(rows, -1)
                elif not name.endswith("_scale") and "_scale_" not in name:
                    yield name, tensor.float()


def greedy(folder: Path, prompt: list[int], length: int) -> list[int]:
    """The continuation by transformers alone."""
    config = json.loads((folder / "config.json").read_text())
    kind: Any = getattr(transformers, config["architectures"][0])
    config.pop("quantization_config")
    fields = {name: value for name, value in config.items() if name != "model_type"}
    layers = config["num_hidden_layers"]
    weights = {
        name: tensor
        for name, tensor in dequantized(folder)
        if not name.startswith(f"model.layers.{layers}.")
    }
    model = kind.from_pretrained(
        None,
        config=kind.config_class.from_dict(fields),
        state_dict=weights,
        dtype=torch.float32,
        attn_implementation="eager",
    )
    with torch.inference_mode():
        (tokens,) = model.generate(
            torch.tensor([prompt]), max_new_tokens=length, min_new_tokens=length, do_sample=False
        )
    return [int(token) for token in tokens[len(prompt) :]]


def test_its_greedy_text_is_that_of_the_dequantized_model(exported: Path) -> None:
    prompt = [5, 300, 77, 410, 12, 9, 220]
    llm = LLM(exported)
    try:
        output: Any = llm.generate_async(
            prompt, SamplingParams(max_tokens=24, ignore_eos=True)
        ).result(60)
    finally:
        llm.shutdown()
    assert output.outputs[0].token_ids == greedy(exported, prompt, 24)


def test_it_is_inspected_planned_and_rendered(exported: Path, builder: Run, tmp_path: Path) -> None:
    facts = checkpoint.gather(str(exported))
    assert (facts.precision, facts.quantization.kv_cache_quant_algo) == ("NVFP4", "FP8")
    held = {tensor.name for file in exported.glob("*.safetensors") for tensor in read_header(file)}
    if facts.architecture.attention == "mla":  # the exporter writes them for projections it lacks
        held = {name for name in held if not name.endswith((".k_scale", ".v_scale"))}
    assert sum(group.count for group in facts.groups) == len(held)
    (tmp_path / "deployment.yaml").write_text(
        f"name: exported\ncheckpoint: {exported}\nhardware: {{gpu: b200, num_gpus: 1}}\n"
        "engine: {name: tensorrt_llm, release: 1.2.1}\n"
        "workload: {isl: 500, osl: 100, concurrency: 4}\ntargets: [trtllm_serve]\n"
    )
    for arguments in (("plan", "deployment.yaml"), ("render", "deployment.yaml", "-o", "bundle")):
        done = builder(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ids", [None, [2, None], [], 2])
def test_any_form_of_the_end_of_text_is_read(
    ids: Any, make_miniature: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = in_the_exporters_form(make_miniature(MODELS["LlamaForCausalLM"]), tmp_path / "c")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    llm = LLM(folder)
    try:
        output: Any = llm.generate_async(
            "Once", SamplingParams(max_tokens=4, ignore_eos=True)
        ).result(60)
    finally:
        llm.shutdown()
    assert output.outputs[0].length == 4
