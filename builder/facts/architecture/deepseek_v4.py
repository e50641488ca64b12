"""DeepSeek-V4: attention over compressed tokens, experts in every layer, residual streams.

Names and shapes: deepseek_v4 of Hugging Face transformers 5.23, and its table of published names.
"""

from __future__ import annotations

from .fields import Config
from .tensors import (
    COMMON,
    Architecture,
    Role,
    Tensors,
    as_mtp,
    gated_mlp,
    linear,
)

# Tokens that one entry of the KV cache stands for, by the kind of layer in newer configs.
_RATES = {"heavily_compressed_attention": 128, "compressed_sparse_attention": 4}
_INDEXED = 4  # the rate at which a layer chooses the entries that it reads


def _ratios(config: Config) -> list[int]:
    """The rate of each layer, 0 where a layer has a window alone; then those of the MTP layers."""
    listed = config.get("compress_ratios")
    if isinstance(listed, list):
        return [int(ratio) for ratio in listed]
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        return [_RATES.get(kind, 0) for kind in kinds]
    # Unlisted, as published models have it: two layers at the high rate, then both in turns.
    layers = config["num_hidden_layers"]
    return [_RATES["heavily_compressed_attention"] if i < 2 or i % 2 else 4 for i in range(layers)]


def _cached_values(config: Config) -> float:
    """Mean over the layers of the values that one layer keeps of a token."""
    total = 0.0
    for ratio in _ratios(config)[: config["num_hidden_layers"]]:
        if ratio:
            indexed = config["index_head_dim"] if ratio == _INDEXED else 0
            total += (config["head_dim"] + indexed) / ratio
    return total / int(config["num_hidden_layers"])


def _compressor(
    name: str, config: Config, width: int, rate: int, layers: tuple[int, ...], role: Role
) -> list[Tensors]:
    wide = 2 * width if rate == _INDEXED else width
    hidden = config["hidden_size"]
    return [
        linear(f"{name}.wkv", wide, hidden, role, layers),
        linear(f"{name}.wgate", wide, hidden, role, layers),
        Tensors(f"{name}.ape", (rate, wide), "norm", layers, dtype="F32"),
        Tensors(f"{name}.norm.weight", (width,), "norm", layers),
    ]


def _attention(layer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    hidden, heads, width = (
        config["hidden_size"],
        config["num_attention_heads"],
        config["head_dim"],
    )
    q_rank, groups, rank = config["q_lora_rank"], config["o_groups"], config["o_lora_rank"]
    attention = f"{layer}.attn"
    return [
        linear(f"{attention}.wq_a", q_rank, hidden, "attention_replicated", layers),
        Tensors(f"{attention}.q_norm.weight", (q_rank,), "norm", layers),
        linear(f"{attention}.wq_b", heads * width, q_rank, "attention", layers),
        linear(f"{attention}.wkv", width, hidden, "attention_replicated", layers),
        Tensors(f"{attention}.kv_norm.weight", (width,), "norm", layers),
        linear(f"{attention}.wo_a", groups * rank, heads * width // groups, "attention", layers),
        linear(f"{attention}.wo_b", hidden, groups * rank, "attention", layers),
        Tensors(f"{attention}.attn_sink", (heads,), "attention", layers, dtype="F32"),
    ]


def _compressors(layer: str, config: Config) -> list[Tensors]:
    attention, ratios = f"{layer}.attn", _ratios(config)[: config["num_hidden_layers"]]
    tensors: list[Tensors] = []
    for rate in sorted(set(ratios) - {0}):
        layers = tuple(i for i, ratio in enumerate(ratios) if ratio == rate)
        compressor = f"{attention}.compressor"
        tensors += _compressor(
            compressor, config, config["head_dim"], rate, layers, "attention_replicated"
        )
        if rate != _INDEXED:
            continue
        heads, width, indexer = (
            config["index_n_heads"],
            config["index_head_dim"],
            f"{attention}.indexer",
        )
        tensors += [
            *_compressor(f"{indexer}.compressor", config, width, rate, layers, "indexer"),
            linear(f"{indexer}.wq_b", heads * width, config["q_lora_rank"], "indexer", layers),
            linear(f"{indexer}.weights_proj", heads, config["hidden_size"], "indexer", layers),
        ]
    return tensors


def _streams(layer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    """What mixes the residual streams before and after attention and experts."""
    count = config["hc_mult"]
    rows, hidden = (2 + count) * count, count * config["hidden_size"]
    return [
        Tensors(f"{layer}.hc_{part}_{name}", shape, "norm", layers, dtype="F32")
        for part in ("attn", "ffn")
        for name, shape in (("fn", (rows, hidden)), ("base", (rows,)), ("scale", (3,)))
    ]


def _experts(layer: str, config: Config, layers: tuple[int, ...], hashed: int) -> list[Tensors]:
    hidden, experts, width = (
        config["hidden_size"],
        config["n_routed_experts"],
        config["moe_intermediate_size"],
    )
    moe, names = f"{layer}.ffn", ("w1", "w3", "w2")
    table, scored = layers[:hashed], layers[hashed:]
    vocabulary, used = config["vocab_size"], config["num_experts_per_tok"]
    shared = width * config["n_shared_experts"]
    return [
        Tensors(f"{moe}.gate.weight", (experts, hidden), "router", layers),
        Tensors(f"{moe}.gate.tid2eid", (vocabulary, used), "router", table, dtype="I64"),
        Tensors(f"{moe}.gate.bias", (experts,), "router", scored, dtype="F32"),
        *gated_mlp(
            f"{moe}.experts.{{expert}}", hidden, width, "routed_expert", layers, experts, names
        ),
        *gated_mlp(f"{moe}.shared_experts", hidden, shared, "shared_expert", layers, names=names),
    ]


def _block(layer: str, config: Config, layers: tuple[int, ...], hashed: int) -> list[Tensors]:
    hidden = (config["hidden_size"],)
    return [
        Tensors(f"{layer}.attn_norm.weight", hidden, "norm", layers),
        Tensors(f"{layer}.ffn_norm.weight", hidden, "norm", layers),
        *_attention(layer, config, layers),
        *_streams(layer, config, layers),
        *_experts(layer, config, layers, hashed),
    ]


def _deepseek_v4(config: Config) -> list[Tensors]:
    hidden, vocabulary, count = config["hidden_size"], config["vocab_size"], config["hc_mult"]
    every = tuple(range(config["num_hidden_layers"]))
    mtp = tuple(range(config.get("num_nextn_predict_layers") or 0))
    streams = [
        Tensors(f"hc_head_{name}", shape, "norm", dtype="F32")
        for name, shape in (("fn", (count, count * hidden)), ("base", (count,)), ("scale", (1,)))
    ]
    layer = "layers.{layer}"
    tensors = [
        Tensors("embed.weight", (vocabulary, hidden), "embedding"),
        Tensors("norm.weight", (hidden,), "norm"),
        linear("head", vocabulary, hidden, "lm_head"),
        *streams,
        *_block(layer, config, every, config.get("num_hash_layers") or 0),
        *_compressors(layer, config),
    ]
    layer = "mtp.{layer}"
    return tensors + as_mtp(
        linear(f"{layer}.e_proj", hidden, hidden, "mtp_projection", mtp),
        linear(f"{layer}.h_proj", hidden, hidden, "mtp_projection", mtp),
        Tensors(f"{layer}.enorm.weight", (hidden,), "norm", mtp),
        Tensors(f"{layer}.hnorm.weight", (hidden,), "norm", mtp),
        Tensors(f"{layer}.norm.weight", (hidden,), "norm", mtp),
        *_block(layer, config, mtp, 0),
    )


ROWS = (
    Architecture(
        "DeepseekV4ForCausalLM",
        "compressed",
        (
            *COMMON,
            *("head_dim", "q_lora_rank", "o_groups", "o_lora_rank", "hc_mult"),
            *("index_n_heads", "index_head_dim", "moe_intermediate_size", "n_routed_experts"),
            *("n_shared_experts", "num_experts_per_tok"),
        ),
        _deepseek_v4,
        experts_field="n_routed_experts",
        mtp_field="num_nextn_predict_layers",
        splits_embedding=False,
        cached_values=_cached_values,
    ),
)
