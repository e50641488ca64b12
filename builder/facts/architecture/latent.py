"""Families with multi-head latent attention: dense, sparse, or over compressed keys."""

from __future__ import annotations

from . import tensors as parts
from .decoder import Decoder, Family
from .fields import Config
from .tensors import Layers, Role, Tensors, linear


def mla(layer: str, config: Config, layers: Layers, module: str = "self_attn") -> list[Tensors]:
    """Multi-head latent attention, with the sparse-attention indexer where the config has one."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    value, attention = config["v_head_dim"], f"{layer}.{module}"

    def part(name: str, out_features: int, in_features: int, role: Role) -> Tensors:
        return linear(f"{attention}.{name}", out_features, in_features, role, layers)

    queries = [
        part("q_a_proj", q_rank, hidden, "attention_replicated"),
        Tensors(f"{attention}.q_a_layernorm.weight", (q_rank,), "norm", layers),
        part("q_b_proj", heads * (nope + rope), q_rank, "attention"),
    ]
    tensors = [
        *(queries if q_rank else [part("q_proj", heads * (nope + rope), hidden, "attention")]),
        part("kv_a_proj_with_mqa", kv_rank + rope, hidden, "attention_replicated"),
        Tensors(f"{attention}.kv_a_layernorm.weight", (kv_rank,), "norm", layers),
        part("kv_b_proj", heads * (nope + value), kv_rank, "attention"),
        part("o_proj", hidden, heads * value, "attention"),
    ]
    return tensors + _indexer(f"{attention}.indexer", config, layers)


def _indexer(indexer: str, config: Config, layers: Layers) -> list[Tensors]:
    """What chooses the tokens that sparse attention reads.

    In GLM-5.2, layers marked `shared` use the choice of the layer before them and have none.
    """
    if "index_head_dim" not in config:
        return []
    hidden, q_rank = config["hidden_size"], config["q_lora_rank"]
    heads, dim = config["index_n_heads"], config["index_head_dim"]
    kinds = config.get("indexer_types") or ()
    own = tuple(i for i in layers if i >= len(kinds) or kinds[i] != "shared")
    return [
        linear(f"{indexer}.wq_b", heads * dim, q_rank, "indexer", own),
        linear(f"{indexer}.wk", dim, hidden, "indexer", own),
        Tensors(f"{indexer}.k_norm.weight", (dim,), "norm", own),
        Tensors(f"{indexer}.k_norm.bias", (dim,), "norm", own),
        linear(f"{indexer}.weights_proj", heads, hidden, "indexer", own),
    ]


# DeepSeek-V2, V3 and V3.2, Kimi-K2, GLM-4.7-Flash and GLM-5: latent attention, sparse or not, with
# a mixture of experts and MTP layers.


def _deepseek_moe(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    hidden, experts = config["hidden_size"], config["n_routed_experts"]
    width, mlp = config["moe_intermediate_size"], f"{layer}.mlp"
    shared, expert = width * config["n_shared_experts"], f"{mlp}.experts.{{expert}}"
    tensors = [
        Tensors(f"{mlp}.gate.weight", (experts, hidden), "router", layers),
        *parts.gated_mlp(expert, hidden, width, "routed_expert", layers, experts),
        *parts.gated_mlp(f"{mlp}.shared_experts", hidden, shared, "shared_expert", layers),
    ]
    if config.get("topk_method", "noaux_tc") == "noaux_tc":
        bias = f"{mlp}.gate.e_score_correction_bias"
        tensors.append(Tensors(bias, (experts,), "router", layers))
    return tensors


def _deepseek(decoder: Decoder, config: Config) -> list[Tensors]:
    """The MTP layers follow the last decoder layer in the numbering."""
    layer, every, mtp = decoder.layer, parts.decoder_layers(config), parts.mtp_layers(config)

    def mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
        dense, mlp = config["first_k_dense_replace"], f"{layer}.mlp"
        hidden, width = config["hidden_size"], config["intermediate_size"]
        return [
            *parts.gated_mlp(mlp, hidden, width, "dense_mlp", layers[:dense]),
            *_deepseek_moe(layer, config, layers[dense:]),
        ]

    tensors = [*decoder.without_attention(config, mlps), *mla(layer, config, every)]
    if not mtp:
        return tensors
    return tensors + parts.as_mtp(
        *parts.mtp_ends(layer, config, mtp),
        *decoder.norm_tensors(layer, config, mtp),
        *mla(layer, config, mtp),
        *_deepseek_moe(layer, config, mtp),
    )


# Meituan LongCat-Flash: each layer has two latent attentions, two MLPs and experts; some experts
# do nothing.


def _longcat(decoder: Decoder, config: Config) -> list[Tensors]:
    layer, every = decoder.layer, parts.decoder_layers(config)
    hidden, width = config["hidden_size"], config["intermediate_size"]
    router, expert = f"{layer}.mlp.router", f"{layer}.mlp.experts.{{expert}}"
    experts, narrow = config["n_routed_experts"], config["moe_intermediate_size"]
    routes = experts + (config.get("zero_expert_num") or 0)
    tensors = [
        *decoder.end_tensors(config),
        *parts.gated_mlp(expert, hidden, narrow, "routed_expert", every, experts),
        linear(f"{router}.classifier", routes, hidden, "router", every),
        Tensors(f"{router}.e_score_correction_bias", (routes,), "router", every),
    ]
    for part in (0, 1):
        tensors += mla(layer, config, every, f"self_attn.{part}")
        tensors += parts.gated_mlp(f"{layer}.mlps.{part}", hidden, width, "dense_mlp", every)
        for name in decoder.norms:
            tensors.append(Tensors(f"{layer}.{name}.{part}.weight", (hidden,), "norm", every))
    return tensors


# DeepSeek-V4: attention over compressed tokens, experts in every layer, residual streams.


# Tokens per entry of the KV cache, by the kind of layer in newer configs.
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
    name: str, config: Config, width: int, rate: int, layers: Layers, role: Role
) -> list[Tensors]:
    wide = 2 * width if rate == _INDEXED else width
    hidden = config["hidden_size"]
    return [
        linear(f"{name}.wkv", wide, hidden, role, layers),
        linear(f"{name}.wgate", wide, hidden, role, layers),
        Tensors(f"{name}.ape", (rate, wide), "norm", layers, dtype="F32"),
        Tensors(f"{name}.norm.weight", (width,), "norm", layers),
    ]


def _attention(layer: str, config: Config, layers: Layers) -> list[Tensors]:
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


def _streams(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """What mixes the residual streams before and after attention and experts."""
    count = config["hc_mult"]
    rows, hidden = (2 + count) * count, count * config["hidden_size"]
    tensors: list[Tensors] = []
    for part in ("attn", "ffn"):
        for name, shape in (("fn", (rows, hidden)), ("base", (rows,)), ("scale", (3,))):
            row = f"{layer}.hc_{part}_{name}"
            tensors.append(Tensors(row, shape, "norm", layers, dtype="F32"))
    return tensors


def _experts(layer: str, config: Config, layers: Layers, hashed: int) -> list[Tensors]:
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
        *parts.gated_mlp(
            f"{moe}.experts.{{expert}}", hidden, width, "routed_expert", layers, experts, names
        ),
        *parts.gated_mlp(
            f"{moe}.shared_experts", hidden, shared, "shared_expert", layers, names=names
        ),
    ]


def _block(layer: str, config: Config, layers: Layers, hashed: int) -> list[Tensors]:
    hidden = (config["hidden_size"],)
    return [
        Tensors(f"{layer}.attn_norm.weight", hidden, "norm", layers),
        Tensors(f"{layer}.ffn_norm.weight", hidden, "norm", layers),
        *_attention(layer, config, layers),
        *_streams(layer, config, layers),
        *_experts(layer, config, layers, hashed),
    ]


def _deepseek_v4(decoder: Decoder, config: Config) -> list[Tensors]:
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
    return tensors + parts.as_mtp(
        linear(f"{layer}.e_proj", hidden, hidden, "mtp_projection", mtp),
        linear(f"{layer}.h_proj", hidden, hidden, "mtp_projection", mtp),
        Tensors(f"{layer}.enorm.weight", (hidden,), "norm", mtp),
        Tensors(f"{layer}.hnorm.weight", (hidden,), "norm", mtp),
        Tensors(f"{layer}.norm.weight", (hidden,), "norm", mtp),
        *_block(layer, config, mtp, 0),
    )


FAMILIES = {
    "deepseek": Family(_deepseek),
    "longcat": Family(_longcat, cached_layers=lambda config: 2 * int(config["num_hidden_layers"])),
    "deepseek_v4": Family(_deepseek_v4, cached_values=_cached_values),
}
