"""Which measured rows are of the model and the GPU that a question names, in whatever spelling."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from ..facts import checkpoint, data_file
from ..facts.schema import Text
from .measurements import MEASUREMENTS

MODELS = MEASUREMENTS / "models.yaml"

# How publishers mark the precision of a copy of a checkpoint at the end of its name.
_PRECISION = re.compile(r"[-_](?:nvfp4|fp4|fp8|bf16|int4|w4a16|awq|dynamic)(?:-v\d+)?$", re.I)
_PRECISIONS = {"nvfp4": "fp4", "mxfp4": "fp4", "w4a8_mxfp4_mxfp8": "fp4", "bfloat16": "bf16"}
_BOARD = re.compile(r"_(?:sxm\d?|nvl\d*|hgx)$")


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model of the rows: the checkpoint whose facts have its shape, and names that it has,
    without the vendor and without the precision. Checkpoints of one shape run at one speed."""

    shape: Text
    names: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class MeasuredModels:
    models: Mapping[str, MeasuredModel]


def measured_models() -> Mapping[str, MeasuredModel]:
    found: Mapping[str, MeasuredModel] = data_file.load(MODELS, MeasuredModels).models
    return found


def listed(name: str) -> str | None:
    """The rows' name of a checkpoint that is listed under its own name."""
    return _by_name().get(plain_name(name))


def plain_name(name: str) -> str:
    """A checkpoint's name without vendor and precision, in small letters."""
    return _PRECISION.sub("", name.strip("/").rpartition("/")[2]).casefold()


@cache
def _by_name() -> Mapping[str, str]:
    return {
        plain_name(name): model
        for model, row in measured_models().items()
        for name in (model, *row.names)
    }


def of_checkpoint(facts: checkpoint.Checkpoint) -> str | None:
    """The rows' name of a checkpoint by its shape, whatever its name or folder is."""
    if found := listed(facts.name):
        return found
    identity = facts.architecture.name, facts.parameters
    for model, row in measured_models().items():
        other = checkpoint.gather(row.shape)
        if (other.architecture.name, other.parameters) == identity:
            return model
    return None


def gpu_name(name: str) -> str:
    """The GPU by its name in `builder/data/hardware`: h100 for h100_sxm."""
    return _BOARD.sub("", name.strip().lower())


def weight_precision(name: str) -> str:
    """The precision of weights in the rows' words: fp4 for NVFP4 and MXFP4."""
    name = name.strip().lower()
    return _PRECISIONS.get(name, name)


def engine_name(name: str) -> str:
    """tensorrt_llm for tensorrt-llm, trtllm and TensorRT-LLM."""
    name = name.strip().lower().replace("-", "_")
    return {"trtllm": "tensorrt_llm", "trt_llm": "tensorrt_llm"}.get(name, name)
