"""The settings of this model: `model.yaml` beside this file, and variables that move parts of it.

`LLM_CONFIG_PATH` names another file, absolute or relative to this folder. `CHECKPOINT` replaces
`model`, for a checkpoint that is mounted elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True, slots=True)
class Settings:
    """`triton_config` of the file, and everything else as the engine's options."""

    max_batch_size: int
    decoupled: bool
    cancellation_check_period_s: float
    engine_options: Mapping[str, Any]


def read() -> Settings:
    """Raises `ValueError` naming the file and what is wrong with it."""
    path = Path(__file__).parent / os.environ.get("LLM_CONFIG_PATH", "model.yaml")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
        raise ValueError(f"{path}: cannot be read: {fault}") from fault
    if not isinstance(document, dict) or not isinstance(document.get("triton_config"), dict):
        raise ValueError(f"{path}: must be a mapping with a mapping triton_config in it")
    triton = document.pop("triton_config")
    missing = [key for key in ("max_batch_size", "decoupled") if key not in triton]
    if missing:
        raise ValueError(f"{path}: triton_config lacks {' and '.join(missing)}")
    if os.environ.get("CHECKPOINT"):
        document["model"] = os.environ["CHECKPOINT"]
    if not document.get("model"):
        raise ValueError(f"{path}: names no model; set model there, or CHECKPOINT")
    return Settings(
        max_batch_size=int(triton["max_batch_size"]),
        decoupled=bool(triton["decoupled"]),
        cancellation_check_period_s=float(triton.get("cancellation_check_period_ms", 100)) / 1000,
        engine_options=document,
    )
