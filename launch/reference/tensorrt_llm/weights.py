"""The weights of a checkpoint folder as plain float32 tensors, whatever format they are stored in.

Layouts as in `builder/facts/weight_layouts.py`. Scales of activations and of the KV cache have no
use here, because everything is computed in float32.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import ceil
from pathlib import Path

import torch
from safetensors import safe_open

from builder.diagnostics import Diagnostic
from builder.errors import BadFacts
from builder.facts import checkpoint as checkpoints
from builder.facts.checkpoint import Checkpoint
from builder.facts.weight_layouts import FP8_BLOCK

from .logger import logger

Weights = dict[str, torch.Tensor]

# Values of the sixteen E2M1 codes; bit 3 is the sign.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)

# Parts of a checkpoint that are not used: towers for images, and scales of the KV cache, which the
# exporter writes for latent attention as well, under projections that it does not have.
_IGNORED = re.compile(
    r"^(model\.)?(visual|vision_tower|mm_projector|multi_modal_projector)\.|\.[kv]_scale$"
)


def _e2m1(packed: torch.Tensor) -> torch.Tensor:
    """The values of codes in pairs; the low nibble of a byte is the value of the even index."""
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
    return torch.tensor(E2M1, device=packed.device)[codes.int()]


def dequantize_nvfp4(
    weight: torch.Tensor, weight_scale: torch.Tensor, weight_scale_2: torch.Tensor
) -> torch.Tensor:
    """float32 `[out, in]` from codes uint8 `[out, in/2]`, block scales of 16 or 32 and a scalar."""
    if weight_scale.dtype != torch.float8_e4m3fn:
        return dequantize_int(weight, weight_scale)  # the scalar makes FP8 of the scales
    values = _e2m1(weight)
    group = values.shape[-1] // weight_scale.shape[-1]
    scales = weight_scale.float().repeat_interleave(group, dim=-1)
    return values * scales * weight_scale_2.float()


def dequantize_int(weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """float32 `[out, in]` from int8 values, or from pairs of them in uint8 `[out/2, in]`, and a
    scale for each output or each group of inputs.

    The low nibble of a byte is the value of the even output.
    """
    values = weight.float()
    if weight.dtype == torch.uint8:
        pairs = torch.stack((weight & 0xF, weight >> 4), dim=1).flatten(0, 1).int()
        values = torch.where(pairs < 8, pairs, pairs - 16).float()
    scales = weight_scale.float().reshape(len(values), -1)
    return values * scales.repeat_interleave(values.shape[1] // scales.shape[1], dim=1)


def dequantize_fp8(weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """float32 `[out, in]` from E4M3 values and one scale, or one for each output or each block.

    Values of other types, which have no more tensors than these, follow their own rules.
    """
    if weight.dtype in (torch.uint8, torch.int8):
        whole = weight.dtype == torch.int8 or weight_scale.is_floating_point()
        return (dequantize_int if whole else dequantize_scales_of_32)(weight, weight_scale)
    if weight_scale.dtype == torch.uint8:
        return dequantize_scales_of_32(weight, weight_scale)
    if weight_scale.dim() == _OF_MODELOPT_BLOCKS:
        weight_scale = weight_scale[:, 0, :, 0]
    elif weight_scale.dim() == 1 and len(weight_scale) == len(weight):
        weight_scale = weight_scale.unsqueeze(-1)
    of_blocks = weight_scale.dim() > 1 and weight_scale.shape[-2] != weight.shape[-2]
    if of_blocks:
        return dequantize_fp8_block(weight, weight_scale)
    return weight.float() * weight_scale.float()


def dequantize_fp8_block(weight: torch.Tensor, weight_scale_inv: torch.Tensor) -> torch.Tensor:
    """float32 `[..., out, in]` from E4M3 values and a scale for each block of 128 x 128."""
    rows, columns = weight.shape[-2:]
    scales = weight_scale_inv.float()
    scales = scales.repeat_interleave(FP8_BLOCK, dim=-2).repeat_interleave(FP8_BLOCK, dim=-1)
    return weight.float() * scales[..., :rows, :columns]


def dequantize_packed_nvfp4(
    weight: torch.Tensor, weight_scale: torch.Tensor, global_scale: torch.Tensor
) -> torch.Tensor:
    """As llm-compressor stores NVFP4: scales were multiplied by the global one."""
    return dequantize_nvfp4(weight, weight_scale, 1 / global_scale.float())


def dequantize_fused_nvfp4(
    weight: torch.Tensor, weight_scale: torch.Tensor, weight_scale_2: torch.Tensor
) -> torch.Tensor:
    """All experts in one tensor, `[experts, in_features, out_features]`."""
    by_rows = weight.transpose(-1, -2), weight_scale.transpose(-1, -2)
    return dequantize_nvfp4(*by_rows, weight_scale_2).transpose(-1, -2)


def dequantize_mxfp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 `[experts, in, out]` from codes uint8 `[experts, out, in/32, 16]` and E8M0 exponents.

    An exponent `e` means `2 ** (e - 127)` and belongs to 32 input channels.
    """
    plain = torch.ldexp(_e2m1(blocks), scales.int().unsqueeze(-1) - 127)
    return plain.flatten(-2).transpose(1, 2).contiguous()


def dequantize_scales_of_32(weight: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """float32 `[out, in]` from E4M3 values, or E2M1 codes in pairs, and E8M0 exponents of 32."""
    values = _e2m1(weight) if weight.dtype == torch.uint8 else weight.float()
    return torch.ldexp(values, weight_scale.int().repeat_interleave(32, dim=-1) - 127)


def dequantize_packed_integers(
    packed: torch.Tensor, weight_scale: torch.Tensor, weight_shape: torch.Tensor
) -> torch.Tensor:
    """float32 `[out, in]` from integers of 4 or 8 bits in words of 32, as compressed-tensors packs
    them: the lowest bits are the first value, and zero is in the middle."""
    rows, columns = map(int, weight_shape)
    bits = 4 if packed.shape[1] == ceil(columns / 8) else 8
    places = torch.arange(0, 32, bits, device=packed.device)
    values: torch.Tensor = (packed.unsqueeze(-1) >> places) & (2**bits - 1)
    values = values.flatten(-2)[:rows, :columns] - 2 ** (bits - 1)
    groups = weight_scale.float().repeat_interleave(columns // weight_scale.shape[1], dim=1)
    return values.float() * groups


_OF_MODELOPT_BLOCKS = 4  # dimensions of such scales, two of them of size one

# By the suffixes of the tensors that a format stores.
_DEQUANTIZE: dict[tuple[str, ...], Callable[..., torch.Tensor]] = {
    ("weight", "weight_scale", "weight_scale_2"): dequantize_nvfp4,
    ("weight_packed", "weight_scale", "weight_global_scale"): dequantize_packed_nvfp4,
    ("", "_weight_scale", "_weight_scale_2"): dequantize_fused_nvfp4,
    ("", "_weight_scale"): dequantize_fp8,
    ("", "_scale_inv"): dequantize_fp8_block,
    ("weight", "weight_scale"): dequantize_fp8,
    ("weight", "weight_scale_inv"): dequantize_fp8,
    ("_blocks", "_scales"): dequantize_mxfp4,
    ("weight_packed", "weight_scale"): dequantize_scales_of_32,
    ("weight_packed", "weight_scale", "weight_shape"): dequantize_packed_integers,
}
# Scales of activations, which have no use where everything is computed in float32.
_OF_ACTIVATIONS = ("input_scale", "input_global_scale", "activation_scale")


def load(folder: Path) -> tuple[Checkpoint, Weights, Weights]:
    """The facts of a checkpoint, its dequantized weights and, apart, those of the MTP layers.

    Raises `BadFacts` with all missing and unexpected tensors.
    """
    checkpoint = checkpoints.read_folder(folder)
    if checkpoint.is_bare:
        what = "no *.safetensors files"
        raise BadFacts(Diagnostic(str(folder), what, "copy the weights and the tokenizer as well"))
    stored = _read(folder)
    main: Weights = {}
    mtp: Weights = {}
    for tensors in checkpoint.architecture.tensors(checkpoint.text_config):
        for name in tensors.names():
            layout = checkpoint.quantization.stored(tensors, name)
            parts = {part.name: stored.pop(part.name) for part in layout}
            for scale in checkpoint.quantization.kv_scales(checkpoint.architecture, tensors, name):
                stored.pop(scale.name, None)
            weight = parts[name].float() if len(parts) == 1 else _plain(name, parts)
            inputs = stored.pop(f"{name.removesuffix('.weight')}.pre_quant_scale", None)
            if inputs is not None:  # AWQ scales what comes in
                weight = weight * inputs.float()
            (mtp if tensors.mtp else main)[name] = weight
    _refuse_unexpected(folder, stored)
    return checkpoint, main, mtp


def _plain(name: str, parts: Weights) -> torch.Tensor:
    module = name.removesuffix("weight")
    used = {
        part.removeprefix(module): tensor
        for part, tensor in parts.items()
        if not part.endswith(_OF_ACTIVATIONS)
    }
    dequantize = _DEQUANTIZE.get(tuple(used))
    if dequantize is None:
        what = f"is stored as {', '.join(used)}, which the engine does not read"
        raise BadFacts(Diagnostic(name, what, "export the checkpoint with ModelOpt"))
    return dequantize(*used.values())


def _read(folder: Path) -> Weights:
    tensors: Weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - the file is not a mapping
                tensors[name] = file.get_tensor(name)
    return tensors


def _refuse_unexpected(folder: Path, stored: Weights) -> None:
    ignored = [name for name in stored if _IGNORED.search(name)]
    if ignored:
        logger.info("%d tensors of a vision tower or the KV cache are not loaded", len(ignored))
    if unexpected := sorted(set(stored) - set(ignored)):
        shown = ", ".join(unexpected[:8]) + (", ..." if len(unexpected) > 8 else "")
        what = f"{len(unexpected)} tensors that the architecture does not have: {shown}"
        raise BadFacts(Diagnostic(str(folder), what, "compare config.json with the exporter's log"))
