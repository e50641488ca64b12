"""The tensors that a checkpoint holds for one linear layer, by the format of the weight and by who
wrote it.

NVFP4, FP8, MXFP8 and INT4 as ModelOpt exports them (NVIDIA/Model-Optimizer, nvfp4_tensor.py and
quant_utils.py), FP8 in 128x128 blocks as DeepSeek publishes it, MXFP4 as OpenAI publishes gpt-oss
(Hugging Face transformers 5.23, integrations/mxfp4.py), AWQ and GPTQ as AutoAWQ and GPTQModel pack
them (vllm/model_executor/layers/quantization/awq.py and gptq.py), and what llm-compressor writes
(vllm-project/compressed-tensors, compressors/).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from .checkpoint_files import Stored
from .hardware import Precision

# Writers that name the tensors of a format in their own way; all others do as ModelOpt does, or
# as the models' publishers.
COMPRESSED_TENSORS = "compressed-tensors"
COMPRESSED_BY_TENSOR = "compressed-tensors by tensor"
STATIC_FP8 = "static fp8"
PUBLISHED_MXFP8 = "published mxfp8"
PUBLISHED_MXFP4 = "published mxfp4"
MODELOPT_BY_CHANNEL = "ModelOpt by channel"
MODELOPT_BY_BLOCK = "ModelOpt by block"
AWQ = "AutoAWQ"
GPTQ = "GPTQModel"

MIXED = "MIXED_PRECISION"  # several formats in one checkpoint

NVFP4_GROUP = 16
FP8_BLOCK = 128
MXFP4_BLOCK = 32
_INT4_GROUP = 128  # where a checkpoint names none


@dataclass(frozen=True, slots=True)
class Format:
    """How weights are kept, and what they are multiplied with.

    `bits` are those of a weight without its scales. `activation_bytes` is the size of a value that
    its kernels read; `arithmetic` is the one of a GPU's precisions that it needs, `None` where the
    rows of the engine say which GPUs it runs on.
    """

    bits: int
    activation_bytes: float
    arithmetic: Precision | None = None


# Names as the engines have them.
FORMATS: Mapping[str, Format] = {
    "NVFP4": Format(4, 0.5, "NVFP4"),
    "FP8": Format(8, 1.0, "FP8"),
    "FP8_BLOCK_SCALES": Format(8, 1.0, "FP8_BLOCK_SCALES"),
    "MXFP4": Format(4, 1.0, "MXFP4"),
    "MXFP8": Format(8, 1.0),
    "W4A16_NVFP4": Format(4, 2.0),
    "W4A8_NVFP4_FP8": Format(4, 1.0),
    "W4A8_MXFP4_FP8": Format(4, 1.0),
    "W4A16_AWQ": Format(4, 2.0),
    "W4A8_AWQ": Format(4, 1.0),
    "W4A16_GPTQ": Format(4, 2.0),
    "W8A16_GPTQ": Format(8, 2.0),
    "W4A16": Format(4, 2.0),
    "W8A16": Format(8, 2.0),
    "W8A8_INT8": Format(8, 1.0),
}


@dataclass(frozen=True, slots=True)
class Groups:
    """How the weights of some modules share scales.

    `group_size` is how many weights of a row share a scale, where the checkpoint says it;
    `zero_points` whether each such group has a zero point as well.
    """

    group_size: int | None = None
    zero_points: bool = False


def _size(words: str, shape: tuple[int, ...], group_size: int | None, shards: int) -> int:
    """A size of a tensor: a number, or a dimension of the layer by its letter.

    `c/8` is rounded down, `c:8` up; `e`, `r` and `c` are experts, rows and columns, `R` and `C`
    the blocks of FP8 in them, and `g` the groups of weights in a row. `shards` are the parts of the
    rows that were quantized each by itself, in whole blocks.
    """
    letter = words[0]
    if letter == "g":  # a size of -1 makes a row one group
        return 1 if group_size == -1 else ceil(shape[-1] / (group_size or _INT4_GROUP))
    if letter == "s":
        return shape[-1] // (group_size or MXFP4_BLOCK)
    if letter == "R":
        return shards * ceil(shape[-2] / shards / FP8_BLOCK)
    if letter == "C":
        return ceil(shape[-1] / FP8_BLOCK)
    if letter.isdecimal():
        return int(words)
    size = shape["rce".index(letter) - 2 if letter != "e" else 0]
    if "/" in words:
        return size // int(words[2:])
    return ceil(size / int(words[2:])) if ":" in words else size


# Tensors of a weight by its format and rank, each with suffix, dtype and sizes. Tensors of rank 3
# hold all experts of a layer; `r` and `c` are their last two dimensions.
_LAYOUTS: Mapping[tuple[str, int], str] = {
    ("NVFP4", 2): ".weight U8 r c/2, .weight_scale F8_E4M3 r c/16, .weight_scale_2 F32, "
    ".input_scale F32",
    ("FP8", 2): ".weight F8_E4M3 r c, .weight_scale F32, .input_scale F32",
    ("FP8_BLOCK_SCALES", 2): ".weight F8_E4M3 r c, .weight_scale_inv F32 R C",
    ("NVFP4", 3): " U8 e r/2 c, _weight_scale F8_E4M3 e r/16 c, _weight_scale_2 F32, "
    "_input_scale F32",
    ("FP8", 3): " F8_E4M3 e r c, _weight_scale F32, _input_scale F32",
    ("FP8_BLOCK_SCALES", 3): " F8_E4M3 e r c, _scale_inv F32 e R C",
    ("MXFP4", 3): "_blocks U8 e c r/32 16, _scales U8 e c r/32",
    ("MXFP4", 2): ".weight_packed U8 r c/2, .weight_scale U8 r c/32",
    ("MXFP8", 2): ".weight F8_E4M3 r c, .weight_scale U8 r c/32",
    ("W4A16_NVFP4", 2): ".weight U8 r c/2, .weight_scale F8_E4M3 r c/16, .weight_scale_2 F32",
    ("W4A8_NVFP4_FP8", 2): ".weight U8 r c/2, .weight_scale F8_E4M3 r s, .weight_scale_2 F32, "
    ".input_scale F32",
    ("W4A8_MXFP4_FP8", 2): ".weight U8 r c/2, .weight_scale U8 r c/32",
    # Two rows to a byte; o_proj and down_proj have a `pre_quant_scale` too.
    ("W4A16_AWQ", 2): ".weight U8 r/2 c, .weight_scale BF16 r g",
    ("W4A8_AWQ", 2): ".weight U8 r/2 c, .weight_scale BF16 r g, .weight_scale_2 F32, "
    ".input_scale F32",
    ("W4A16", 2): ".weight U8 r/2 c, .weight_scale BF16 r",
    ("W8A16", 2): ".weight I8 r c, .weight_scale BF16 r",
}
# Those of a writer who names or stores them in another way.
_WRITERS: Mapping[tuple[str, str], str] = {
    (COMPRESSED_TENSORS, "NVFP4"): ".weight_packed U8 r c/2, .weight_scale F8_E4M3 r c/16, "
    ".weight_global_scale F32 1, .input_global_scale F32 1",
    (COMPRESSED_TENSORS, "W4A16_NVFP4"): ".weight_packed U8 r c/2, .weight_scale F8_E4M3 r c/16, "
    ".weight_global_scale F32 1",
    (COMPRESSED_TENSORS, "FP8_BLOCK_SCALES"): ".weight F8_E4M3 r c, .weight_scale BF16 R C",
    (COMPRESSED_TENSORS, "FP8"): ".weight F8_E4M3 r c, .weight_scale BF16 r 1",
    (COMPRESSED_TENSORS, "W4A16"): ".weight_packed I32 r c:8, .weight_scale BF16 r g, "
    ".weight_shape I64 2, .weight_zero_point I32 r:8 g",
    (COMPRESSED_TENSORS, "W8A16"): ".weight_packed I32 r c:4, .weight_scale BF16 r g, "
    ".weight_shape I64 2, .weight_zero_point I32 r:4 g",
    (COMPRESSED_TENSORS, "W8A8_INT8"): ".weight I8 r c, .weight_scale BF16 r 1",
    (STATIC_FP8, "FP8"): ".weight F8_E4M3 r c, .weight_scale_inv F32, .activation_scale F32",
    # MiniMax-M3, and what NeMo-RL writes (mxfp8_setup.py).
    (PUBLISHED_MXFP8, "MXFP8"): ".weight F8_E4M3 r c, .weight_scale_inv U8 r c/32",
    (PUBLISHED_MXFP4, "MXFP4"): ".weight U8 r c/2, .weight_scale U8 r c/32",
    (MODELOPT_BY_CHANNEL, "FP8"): ".weight F8_E4M3 r c, .weight_scale F32 r",
    (MODELOPT_BY_BLOCK, "FP8_BLOCK_SCALES"): ".weight F8_E4M3 r c, .weight_scale F32 R 1 C 1",
    # Eight weights of a column to a word; the zero points are always there.
    (AWQ, "W4A16_AWQ"): ".qweight I32 c r/8, .qzeros I32 g r/8, .scales F16 g r",
    (GPTQ, "W4A16_GPTQ"): ".qweight I32 c/8 r, .qzeros I32 g r/8, .scales F16 g r, .g_idx I32 c",
    (GPTQ, "W8A16_GPTQ"): ".qweight I32 c/4 r, .qzeros I32 g r/4, .scales F16 g r, .g_idx I32 c",
}
# All experts of a layer, by bits, in a format that was never published this way: their size only.
_FUSED = {4: "_packed U8 e r c/2, _scales F16 e r g", 8: "_packed U8 e r c, _scales F16 e r g"}
_ZERO_POINTS = ".weight_zero_point"


def stored_weight(
    writer: str | None,
    name: str | None,
    module: str,
    shape: tuple[int, ...],
    groups: Groups,
    shards: int,
) -> list[Stored]:
    """The tensors of a linear layer in a format, as a writer stores it; none if it is plain.

    The shape is `[out_features, in_features]`, or that of all experts of a layer in one tensor.
    """
    rank = len(shape)
    layout = _WRITERS.get((writer or "", name or "")) if rank == 2 else None
    layout = layout or _LAYOUTS.get((name or "", rank))
    if layout is None and rank == 3 and name and name in FORMATS:
        layout = _FUSED[FORMATS[name].bits]
    if layout is None:
        return []
    rows = _tensors(layout, shape, groups, shards)
    return [Stored(f"{module}{suffix}", dtype, sizes) for suffix, dtype, sizes in rows]


@lru_cache(maxsize=10_000)
def _tensors(
    layout: str, shape: tuple[int, ...], groups: Groups, shards: int
) -> list[tuple[str, str, tuple[int, ...]]]:
    """Suffix, dtype and shape of each tensor; all experts of all layers share them."""
    found = []
    for row in layout.split(", "):
        suffix, dtype, *words = row.split(" ")
        if suffix != _ZERO_POINTS or groups.zero_points:
            sizes = tuple(_size(word, shape, groups.group_size, shards) for word in words)
            found.append((suffix, dtype, sizes))
    return found
