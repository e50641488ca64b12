"""What the KV cache keeps: bytes per token, and what a request adds whatever its length."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import fmean
from typing import Literal

from ...facts.checkpoint import Checkpoint
from .weights import Sharding

# How many layers of KV cache MTP needs, which the release's table says: one per draft token in
# releases up to early 2026 (temporary pools of 62 and 64 layers at one and three draft tokens in
# GB200 logs), one in later code, which uses its one MTP layer again for every draft token.
MtpLayers = Literal["per_draft_token", "one"]

_INDEXER_BLOCK = 128  # channels per FP32 scale in the indexer's FP8 key cache

# Bytes of one value by the words of `kv_cache_config.dtype` and of checkpoints. NVFP4 keeps half a
# byte and, for every 16 values, an FP8 scale, which the engine charges as well (TensorRT-LLM,
# _torch/pyexecutor/resource_manager.py: calculate_scaling_factor_size_bytes). The packed format of
# sparse attention has 656 bytes where FP8 has 576 (FlashMLA), and the rest as FP8 has it.
_PLAIN_BYTES = 2.0
_DTYPE_BYTES: dict[str, float] = {
    "nvfp4": 1 / 2 + 1 / 16,
    **dict.fromkeys(("fp8", "float8_e4m3fn", "float8_e5m2", "int8", "uint8"), 1.0),
    "fp8_ds_mla": 656 / 576,
    **dict.fromkeys(("float16", "half", "bfloat16", "int16", "uint16"), _PLAIN_BYTES),
    **dict.fromkeys(("float32", "float", "int32", "uint32"), 4.0),
    **dict.fromkeys(("float64", "double", "int64", "uint64"), 8.0),
}


def kv_dtype_bytes(dtype: str, kv_cache_quant_algo: str | None) -> float:
    """Bytes of one value of the KV cache; `auto` is what the checkpoint is quantized for.

    An unknown word counts as two bytes, the most that a model uses by default.
    """
    word = dtype.lower()
    if word == "auto":
        word = (kv_cache_quant_algo or "bfloat16").lower()
    return _DTYPE_BYTES.get(word, _PLAIN_BYTES)


def kv_bytes_per_token(
    checkpoint: Checkpoint,
    sharding: Sharding,
    kv_dtype_bytes: float,
    mtp_draft_tokens: int,
    mtp_kv_layers: MtpLayers = "per_draft_token",
    max_attention_window: Sequence[int] = (),
) -> int:
    """KV-cache bytes per token on one GPU, of all layers that keep every token.

    Sliding-window attention is sized on all layers unless `max_attention_window` is given: the
    engine does so too (a temporary pool of 131,072 tokens of gpt-oss on 36 layers in a GB200 log).
    """
    drafts = min(1, mtp_draft_tokens) if mtp_kv_layers == "one" else mtp_draft_tokens
    layers = layer_bytes(checkpoint, sharding, kv_dtype_bytes)
    whole = layers
    if max_attention_window:
        longest, windows = max(max_attention_window), _windows(max_attention_window, len(layers))
        whole = [size for size, window in zip(layers, windows, strict=True) if window == longest]
    share = ceil(len(whole) / sharding.pipeline_parallel_size) + drafts
    return ceil(share * fmean(whole or layers))


def layer_bytes(checkpoint: Checkpoint, sharding: Sharding, kv_dtype_bytes: float) -> list[float]:
    """KV-cache bytes of one token on one GPU, of each layer that has a KV cache.

    With sparse attention the indexer keeps FP8 keys and FP32 scales whatever the KV dtype; the
    engine charges them by that dtype all the same.
    """
    config, architecture = checkpoint.text_config, checkpoint.architecture
    layers = architecture.attention_layers(config)
    if architecture.cached_values is not None:
        return [architecture.cached_values(config) * kv_dtype_bytes] * layers
    match architecture.attention:
        case "mla" | "mla_hybrid":
            elements = config["kv_lora_rank"] + config["qk_rope_head_dim"]
        case "mla_dsa":
            index_dim = config["index_head_dim"]
            elements = config["kv_lora_rank"] + config["qk_rope_head_dim"]
            elements += index_dim + 4 * index_dim // _INDEXER_BLOCK
        case _:
            # Keys and values; heads are duplicated when there are fewer than ranks.
            ranks = sharding.attention_ranks
            return [
                2 * ceil(heads / ranks) * width * kv_dtype_bytes
                for heads, width in architecture.key_value_heads(config)
            ]
    return [float(elements * kv_dtype_bytes)] * layers


def _windows(pattern: Sequence[int], layers: int) -> list[int]:
    """The window of each layer: the pattern repeats."""
    return [pattern[layer % len(pattern)] for layer in range(layers)]


def state_bytes_per_request(
    checkpoint: Checkpoint,
    sharding: Sharding,
    kv_dtype_bytes: float = 1,
    max_attention_window: Sequence[int] = (),
) -> int:
    """What one request keeps on one GPU whatever its length.

    Full windows of sliding-window layers; with linear attention the FP32 recurrent state and the
    BF16 convolution window.
    """
    in_windows = 0
    if max_attention_window:
        layers = layer_bytes(checkpoint, sharding, kv_dtype_bytes)
        windows = _windows(max_attention_window, len(layers))
        pairs = zip(layers, windows, strict=True)
        in_windows = ceil(sum(size * window for size, window in pairs if window < max(windows)))
    recurrent = checkpoint.architecture.recurrent
    if recurrent is None:
        return in_windows
    kept = recurrent(checkpoint.text_config)
    states = kept.layers * (kept.state * 4 + kept.window * 2) / sharding.attention_ranks
    return in_windows + int(states)
