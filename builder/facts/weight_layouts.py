"""The tensors that a checkpoint holds for one linear layer, by the format of the weight and by who
wrote it.

NVFP4, FP8, MXFP8 and INT4 as ModelOpt exports them (NVIDIA/Model-Optimizer, nvfp4_tensor.py and
quant_utils.py), FP8 in 128x128 blocks as DeepSeek publishes it, MXFP4 as OpenAI publishes gpt-oss
(Hugging Face transformers 5.23, integrations/mxfp4.py), AWQ and GPTQ as AutoAWQ and GPTQModel pack
them (vllm/model_executor/layers/quantization/awq.py and gptq.py), and what llm-compressor writes
(vllm-project/compressed-tensors, compressors/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
class Weight:
    """One linear layer: `[out_features, in_features]`, or all experts of a layer in one tensor.

    `group_size` is how many weights of a row share a scale, where the checkpoint says it;
    `zero_points` whether each such group has a zero point as well. `shards` are the parts of its
    rows that were quantized each by itself, in whole blocks.
    """

    module: str
    shape: tuple[int, ...]
    group_size: int | None = None
    zero_points: bool = False
    shards: int = 1

    def tensor(self, name: str, dtype: str, *shape: int) -> Stored:
        return Stored(f"{self.module}{name}", dtype, shape)


Layout = Callable[[Weight], Iterator[Stored]]


def _nvfp4(weight: Weight) -> Iterator[Stored]:
    yield from _nvfp4_weight_only(weight)
    yield weight.tensor(".input_scale", "F32")


def _nvfp4_weight_only(weight: Weight) -> Iterator[Stored]:
    rows, columns = weight.shape
    yield weight.tensor(".weight", "U8", rows, columns // 2)
    yield weight.tensor(".weight_scale", "F8_E4M3", rows, columns // NVFP4_GROUP)
    yield weight.tensor(".weight_scale_2", "F32")


def _nvfp4_packed(weight: Weight) -> Iterator[Stored]:
    yield from _nvfp4_packed_weight_only(weight)
    yield weight.tensor(".input_global_scale", "F32", 1)


def _nvfp4_packed_weight_only(weight: Weight) -> Iterator[Stored]:
    rows, columns = weight.shape
    yield weight.tensor(".weight_packed", "U8", rows, columns // 2)
    yield weight.tensor(".weight_scale", "F8_E4M3", rows, columns // NVFP4_GROUP)
    yield weight.tensor(".weight_global_scale", "F32", 1)


def _nvfp4_fp8(weight: Weight) -> Iterator[Stored]:
    rows, columns = weight.shape
    group = weight.group_size or MXFP4_BLOCK
    yield weight.tensor(".weight", "U8", rows, columns // 2)
    yield weight.tensor(".weight_scale", "F8_E4M3", rows, columns // group)
    yield weight.tensor(".weight_scale_2", "F32")
    yield weight.tensor(".input_scale", "F32")


def _fp8(weight: Weight) -> Iterator[Stored]:
    yield weight.tensor(".weight", "F8_E4M3", *weight.shape)
    yield weight.tensor(".weight_scale", "F32")
    yield weight.tensor(".input_scale", "F32")


def _fp8_static(weight: Weight) -> Iterator[Stored]:
    yield weight.tensor(".weight", "F8_E4M3", *weight.shape)
    yield weight.tensor(".weight_scale_inv", "F32")
    yield weight.tensor(".activation_scale", "F32")


def _fp8_channel(weight: Weight) -> Iterator[Stored]:
    yield weight.tensor(".weight", "F8_E4M3", *weight.shape)
    yield weight.tensor(".weight_scale", "BF16", weight.shape[0], 1)


def _fp8_row(weight: Weight) -> Iterator[Stored]:
    yield weight.tensor(".weight", "F8_E4M3", *weight.shape)
    yield weight.tensor(".weight_scale", "F32", weight.shape[0])


def _blocks(weight: Weight) -> tuple[int, int]:
    rows, columns = weight.shape[-2:]
    blocks = weight.shards * ceil(rows / weight.shards / FP8_BLOCK)
    return blocks, ceil(columns / FP8_BLOCK)


def _fp8_block(weight: Weight) -> Iterator[Stored]:
    yield weight.tensor(".weight", "F8_E4M3", *weight.shape)
    yield weight.tensor(".weight_scale_inv", "F32", *_blocks(weight))


def _fp8_block_compressed(weight: Weight) -> Iterator[Stored]:
    yield weight.tensor(".weight", "F8_E4M3", *weight.shape)
    yield weight.tensor(".weight_scale", "BF16", *_blocks(weight))


def _fp8_block_modelopt(weight: Weight) -> Iterator[Stored]:
    rows, columns = _blocks(weight)
    yield weight.tensor(".weight", "F8_E4M3", *weight.shape)
    yield weight.tensor(".weight_scale", "F32", rows, 1, columns, 1)


def _mxfp4(weight: Weight) -> Iterator[Stored]:
    experts, columns, rows = weight.shape
    blocks = (experts, rows, columns // MXFP4_BLOCK)
    yield weight.tensor("_blocks", "U8", *blocks, MXFP4_BLOCK // 2)
    yield weight.tensor("_scales", "U8", *blocks)


def _nvfp4_fused(weight: Weight) -> Iterator[Stored]:
    experts, rows, columns = weight.shape
    yield weight.tensor("", "U8", experts, rows // 2, columns)
    yield weight.tensor("_weight_scale", "F8_E4M3", experts, rows // NVFP4_GROUP, columns)
    yield weight.tensor("_weight_scale_2", "F32")
    yield weight.tensor("_input_scale", "F32")


def _fp8_fused(weight: Weight) -> Iterator[Stored]:
    yield weight.tensor("", "F8_E4M3", *weight.shape)
    yield weight.tensor("_weight_scale", "F32")
    yield weight.tensor("_input_scale", "F32")


def _fp8_block_fused(weight: Weight) -> Iterator[Stored]:
    yield weight.tensor("", "F8_E4M3", *weight.shape)
    yield weight.tensor("_scale_inv", "F32", weight.shape[0], *_blocks(weight))


def _mxfp4_packed(weight: Weight) -> Iterator[Stored]:
    rows, columns = weight.shape
    yield weight.tensor(".weight_packed", "U8", rows, columns // 2)
    yield weight.tensor(".weight_scale", "U8", rows, columns // MXFP4_BLOCK)


def _mxfp4_modelopt(weight: Weight) -> Iterator[Stored]:
    rows, columns = weight.shape
    yield weight.tensor(".weight", "U8", rows, columns // 2)
    yield weight.tensor(".weight_scale", "U8", rows, columns // MXFP4_BLOCK)


def _mxfp8(weight: Weight) -> Iterator[Stored]:
    rows, columns = weight.shape
    yield weight.tensor(".weight", "F8_E4M3", rows, columns)
    yield weight.tensor(".weight_scale", "U8", rows, columns // MXFP4_BLOCK)


def _mxfp8_published(weight: Weight) -> Iterator[Stored]:
    """As its quant_method has them in MiniMax-M3 and in what NeMo-RL writes (mxfp8_setup.py)."""
    rows, columns = weight.shape
    yield weight.tensor(".weight", "F8_E4M3", rows, columns)
    yield weight.tensor(".weight_scale_inv", "U8", rows, columns // MXFP4_BLOCK)


def _groups(weight: Weight) -> int:
    """How many groups of weights a row has; a size of -1 makes a row one group."""
    columns, size = weight.shape[-1], weight.group_size
    return 1 if size == -1 else ceil(columns / (size or _INT4_GROUP))


def _int4_modelopt(weight: Weight) -> Iterator[Stored]:
    """Two rows to a byte; o_proj and down_proj have a `pre_quant_scale` too."""
    rows, columns = weight.shape
    yield weight.tensor(".weight", "U8", rows // 2, columns)
    yield weight.tensor(".weight_scale", "BF16", rows, _groups(weight))


def _int4_fp8_modelopt(weight: Weight) -> Iterator[Stored]:
    yield from _int4_modelopt(weight)
    yield weight.tensor(".weight_scale_2", "F32")
    yield weight.tensor(".input_scale", "F32")


def _int4_by_channel(weight: Weight) -> Iterator[Stored]:
    rows, columns = weight.shape
    yield weight.tensor(".weight", "U8", rows // 2, columns)
    yield weight.tensor(".weight_scale", "BF16", rows)


def _int8_by_channel(weight: Weight) -> Iterator[Stored]:
    yield weight.tensor(".weight", "I8", *weight.shape)
    yield weight.tensor(".weight_scale", "BF16", weight.shape[0])


def _awq(weight: Weight) -> Iterator[Stored]:
    """Eight weights of a column to a word; the zero points are always there."""
    rows, columns = weight.shape
    groups = _groups(weight)
    yield weight.tensor(".qweight", "I32", columns, rows // 8)
    yield weight.tensor(".qzeros", "I32", groups, rows // 8)
    yield weight.tensor(".scales", "F16", groups, rows)


def _gptq(bits: int) -> Layout:
    def layout(weight: Weight) -> Iterator[Stored]:
        rows, columns = weight.shape
        groups, packed = _groups(weight), 32 // bits
        yield weight.tensor(".qweight", "I32", columns // packed, rows)
        yield weight.tensor(".qzeros", "I32", groups, rows // packed)
        yield weight.tensor(".scales", "F16", groups, rows)
        yield weight.tensor(".g_idx", "I32", columns)

    return layout


def _packed(bits: int) -> Layout:
    def layout(weight: Weight) -> Iterator[Stored]:
        rows, columns = weight.shape
        groups, packed = _groups(weight), 32 // bits
        yield weight.tensor(".weight_packed", "I32", rows, ceil(columns / packed))
        yield weight.tensor(".weight_scale", "BF16", rows, groups)
        yield weight.tensor(".weight_shape", "I64", 2)
        if weight.zero_points:
            yield weight.tensor(".weight_zero_point", "I32", ceil(rows / packed), groups)

    return layout


def _int8_compressed(weight: Weight) -> Iterator[Stored]:
    yield weight.tensor(".weight", "I8", *weight.shape)
    yield weight.tensor(".weight_scale", "BF16", weight.shape[0], 1)


def _fused(bits: int) -> Layout:
    """All experts of a layer in a format that was never published this way: their size only."""

    def layout(weight: Weight) -> Iterator[Stored]:
        experts, rows, columns = weight.shape
        yield weight.tensor("_packed", "U8", experts, rows, columns * bits // 8)
        yield weight.tensor("_scales", "F16", experts, rows, _groups(weight))

    return layout


_FUSED_RANK = 3  # of tensors that hold all experts of a layer

# By format and rank.
_LAYOUTS: Mapping[tuple[str | None, int], Layout] = {
    ("NVFP4", 2): _nvfp4,
    ("FP8", 2): _fp8,
    ("FP8_BLOCK_SCALES", 2): _fp8_block,
    ("NVFP4", 3): _nvfp4_fused,
    ("FP8", 3): _fp8_fused,
    ("FP8_BLOCK_SCALES", 3): _fp8_block_fused,
    ("MXFP4", 3): _mxfp4,
    ("MXFP4", 2): _mxfp4_packed,
    ("MXFP8", 2): _mxfp8,
    ("W4A16_NVFP4", 2): _nvfp4_weight_only,
    ("W4A8_NVFP4_FP8", 2): _nvfp4_fp8,
    ("W4A8_MXFP4_FP8", 2): _mxfp4_modelopt,
    ("W4A16_AWQ", 2): _int4_modelopt,
    ("W4A8_AWQ", 2): _int4_fp8_modelopt,
    ("W4A16", 2): _int4_by_channel,
    ("W8A16", 2): _int8_by_channel,
}

_WRITERS: Mapping[tuple[str | None, str | None, int], Layout] = {
    (COMPRESSED_TENSORS, "NVFP4", 2): _nvfp4_packed,
    (COMPRESSED_TENSORS, "W4A16_NVFP4", 2): _nvfp4_packed_weight_only,
    (COMPRESSED_TENSORS, "FP8_BLOCK_SCALES", 2): _fp8_block_compressed,
    (COMPRESSED_TENSORS, "FP8", 2): _fp8_channel,
    (COMPRESSED_TENSORS, "W4A16", 2): _packed(4),
    (COMPRESSED_TENSORS, "W8A16", 2): _packed(8),
    (COMPRESSED_TENSORS, "W8A8_INT8", 2): _int8_compressed,
    (STATIC_FP8, "FP8", 2): _fp8_static,
    (PUBLISHED_MXFP8, "MXFP8", 2): _mxfp8_published,
    (PUBLISHED_MXFP4, "MXFP4", 2): _mxfp4_modelopt,
    (MODELOPT_BY_CHANNEL, "FP8", 2): _fp8_row,
    (MODELOPT_BY_BLOCK, "FP8_BLOCK_SCALES", 2): _fp8_block_modelopt,
    (AWQ, "W4A16_AWQ", 2): _awq,
    (GPTQ, "W4A16_GPTQ", 2): _gptq(4),
    (GPTQ, "W8A16_GPTQ", 2): _gptq(8),
}


def layout_of(writer: str | None, name: str | None, rank: int) -> Layout | None:
    """How a writer lays out a weight in a format; `None` for one that is not quantized."""
    if found := _WRITERS.get((writer, name, rank)) or _LAYOUTS.get((name, rank)):
        return found
    known = FORMATS.get(name or "")
    return _fused(known.bits) if known and rank == _FUSED_RANK else None
