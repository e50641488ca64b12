"""The tensors of each supported model architecture: names, shapes and roles, from its config.

A row of `ARCHITECTURES` is all that the rest of the toolkit knows about an architecture. Checkpoint
checks, the memory budget and miniatures read the same rows.

Sources of the tensor names: the published weight names as Hugging Face transformers 5.23 loads
them; EAGLE3 draft heads as SpecForge and NVIDIA Model Optimizer write them.
"""

from __future__ import annotations

from itertools import chain

from . import (
    dense,
    grouped_query,
    inkling,
    latent,
    linear_attention,
    mixtures,
    state_space,
    windowed,
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
    *(latent, grouped_query, mixtures, linear_attention),
    *(dense, windowed, state_space, inkling),
)

ARCHITECTURES: dict[str, Architecture] = {
    row.name: row for row in chain.from_iterable(part.ROWS for part in _PARTS)
}
