"""Tiny checkpoints as NVIDIA's own exporter writes them: NVFP4 weights, FP8 KV cache.

Run by hand, in an environment of its own, which takes 1.4 GB: the exporter pins a torch for itself.
The ordinary tests serve checkpoints of the same files and tensors.

    python3 -m venv /tmp/modelopt
    /tmp/modelopt/bin/pip install torch==2.13.0 nvidia-modelopt==0.47.* 'transformers>=5,<6' \
        accelerate safetensors requests datasets
    python -m builder miniature llama-tiny -o /tmp/tokenizer
    /tmp/modelopt/bin/python tests/reference/export_with_modelopt.py /tmp/tokenizer /tmp/exported
    python -m pytest tests/reference/test_exported.py --exported /tmp/exported
"""

from __future__ import annotations

import copy
import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

_COMMON: dict[str, Any] = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "intermediate_size": 256,
}
_GQA = {**_COMMON, "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 32}
_EXPERTS = {"moe_intermediate_size": 64, "num_experts_per_tok": 2}
_MLA = {
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "v_head_dim": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
}
SHAPES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": _GQA,
    "Qwen3MoeForCausalLM": {**_GQA, **_EXPERTS, "num_experts": 8},
    "DeepseekV3ForCausalLM": {
        **_COMMON,
        **_MLA,
        **_EXPERTS,
        "num_hidden_layers": 3,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 1,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
    },
}


def export(name: str, tokenizer: Path, folder: Path) -> None:
    quantization = importlib.import_module("modelopt.torch.quantization")
    writer = importlib.import_module("modelopt.torch.export")
    vocabulary = json.loads((tokenizer / "config.json").read_text())["vocab_size"]
    kind: Any = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**SHAPES[name], vocab_size=vocabulary))
    model.config.architectures = [name]
    model = model.to(torch.bfloat16).eval()
    for parameter in model.parameters():  # far from ties between tokens
        parameter.data.mul_(2.0 if parameter.dim() > 1 else 1.0)
    recipe = copy.deepcopy(quantization.NVFP4_DEFAULT_CFG)
    kv_cache = quantization.FP8_KV_CFG["quant_cfg"]
    combined = importlib.import_module("modelopt.torch.quantization.utils")
    recipe = combined.update_quant_cfg_with_kv_cache_quant(recipe, kv_cache)
    prompts = torch.randint(4, vocabulary, (4, 1, 64))
    model = quantization.quantize(model, recipe, lambda calibrated: list(map(calibrated, prompts)))
    writer.export_hf_checkpoint(model, export_dir=str(folder))
    for file in tokenizer.glob("tokenizer*.json"):
        shutil.copy(file, folder)


if __name__ == "__main__":
    for architecture in SHAPES:
        export(architecture, Path(sys.argv[1]), Path(sys.argv[2]) / architecture)
