"""The tensors of each supported model architecture: names, shapes and roles, from its config.

A row of `ARCHITECTURES` is all that the rest of the toolkit knows about an architecture. Checkpoint
checks, the memory budget and miniatures read the same rows.

Sources of the tensor names: the published weight names as Hugging Face transformers 5.23 loads
them; EAGLE3 draft heads as SpecForge and NVIDIA Model Optimizer write them.
"""

from __future__ import annotations

from . import (
    deepseek,
    deepseek_v4,
    exaone,
    falcon_h1,
    gemma3n,
    gemma4,
    granite,
    grouped_query,
    hy3,
    hybrid,
    inkling,
    jamba,
    laguna,
    lfm2,
    ling,
    longcat,
    mimo,
    mixtures,
    mllama,
    nemotron_h,
    nemotron_nas,
    phi4mm,
    step,
    step_flash,
)
from .fields import NESTED, Config
from .tensors import Architecture, Attention, Recurrent, Role, Tensors

__all__ = [
    "ARCHITECTURES",
    "NESTED",
    "Architecture",
    "Attention",
    "Config",
    "Recurrent",
    "Role",
    "Tensors",
]

_PARTS = (
    *(deepseek, grouped_query, mixtures, hybrid, deepseek_v4),
    *(exaone, granite, nemotron_nas, gemma4, ling, mllama, gemma3n, phi4mm),
    *(falcon_h1, hy3, inkling, jamba, laguna, lfm2, longcat, mimo, nemotron_h, step, step_flash),
)

ARCHITECTURES: dict[str, Architecture] = {row.name: row for part in _PARTS for row in part.ROWS}
