"""The tensors of each supported model architecture: names, shapes and roles, from its config.

A row of `ARCHITECTURES` is all that the rest of the toolkit knows about an architecture. Checkpoint
checks, the memory budget and miniatures read the same rows.

Sources of the tensor names: the published `config.json` and weight names of DeepSeek-V3/V3.2,
Llama-3, Qwen3, Qwen3-MoE, Qwen3.5-MoE, MiniMax-M2 and gpt-oss as loaded by Hugging Face
transformers 5.23; EAGLE3 draft heads as SpecForge and NVIDIA Model Optimizer write them.
"""

from __future__ import annotations

from . import deepseek, grouped_query
from .tensors import Architecture, Attention, Config, Role, Tensors

__all__ = ["ARCHITECTURES", "Architecture", "Attention", "Config", "Role", "Tensors"]

ARCHITECTURES: dict[str, Architecture] = {
    row.name: row for row in (*deepseek.ROWS, *grouped_query.ROWS)
}
