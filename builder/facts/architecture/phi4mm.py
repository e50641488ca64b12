"""Phi-4-multimodal of Microsoft: a Phi whose linear layers carry adapters for pictures and for
speech.

Names and shapes: modeling_phi4mm.py beside the weights of microsoft/Phi-4-multimodal-instruct. What
reads pictures and sound is left out.
"""

from __future__ import annotations

from dataclasses import replace

from .fields import Config
from .grouped_query import REQUIRED, Decoder
from .tensors import Architecture, Tensors, linear

_ADAPTERS = ("vision", "speech")
_DECODER = Decoder(bias="none", fused=True, tied=True)


def _adapters(row: Tensors, module: str, config: Config) -> list[Tensors]:
    out_features, in_features = row.shape
    tensors = []
    for name in _ADAPTERS:
        rank = config[f"{name}_lora"]["r"]
        tensors += [
            linear(f"{module}.lora_A.{name}", rank, in_features, row.role, row.layers),
            linear(f"{module}.lora_B.{name}", out_features, rank, row.role, row.layers),
        ]
    return tensors


def _phi4mm(config: Config) -> list[Tensors]:
    tensors = []
    for row in _DECODER(config):
        if not row.linear or row.layers is None:
            tensors.append(row)
            continue
        module = row.pattern.removesuffix(".weight")
        tensors.append(replace(row, pattern=f"{module}.base_layer.weight"))
        tensors += _adapters(row, module, config)
    return tensors


ROWS = (Architecture("Phi4MMForCausalLM", "gqa", REQUIRED, _phi4mm),)
