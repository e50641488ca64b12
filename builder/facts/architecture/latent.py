"""Models with multi-head latent attention: dense, sparse, or over compressed keys."""

from __future__ import annotations

from collections.abc import Callable

from .fields import Config
from .tensors import (
    COMMON,
    Architecture,
    Role,
    Tensors,
    as_mtp,
    ends,
    gated_mlp,
    layer_norms,
    linear,
)

# Latent attention, sparse or not, over a mixture of experts, with MTP layers.
#
# DeepSeek-V2, V3 and V3.2, Kimi-K2, GLM-4.7-Flash and GLM-5 are of this kind.


def mla(
    layer: str, config: Config, layers: tuple[int, ...], module: str = "self_attn"
) -> list[Tensors]:
    """Multi-head latent attention, with the sparse-attention indexer where the config has one."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope, value = (
        config["qk_nope_head_dim"],
        config["qk_rope_head_dim"],
        config["v_head_dim"],
    )
    attention = f"{layer}.{module}"

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


def _indexer(indexer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
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


def _deepseek_moe(layer: str, config: Config, layers: tuple[int, ...]) -> list[Tensors]:
    hidden, experts = config["hidden_size"], config["n_routed_experts"]
    width = config["moe_intermediate_size"]
    bias = f"{layer}.mlp.gate.e_score_correction_bias"
    biased = config.get("topk_method", "noaux_tc") == "noaux_tc"
    return [
        Tensors(f"{layer}.mlp.gate.weight", (experts, hidden), "router", layers),
        *([Tensors(bias, (experts,), "router", layers)] if biased else []),
        *gated_mlp(
            f"{layer}.mlp.experts.{{expert}}", hidden, width, "routed_expert", layers, experts
        ),
        *gated_mlp(
            f"{layer}.mlp.shared_experts",
            hidden,
            width * config["n_shared_experts"],
            "shared_expert",
            layers,
        ),
    ]


def _deepseek(config: Config, root: str = "model", head: str = "lm_head") -> list[Tensors]:
    """The MTP layers follow the last decoder layer in the numbering."""
    layer, hidden = f"{root}.layers.{{layer}}", config["hidden_size"]
    num_layers, dense = config["num_hidden_layers"], config["first_k_dense_replace"]
    every, sparse = tuple(range(num_layers)), tuple(range(dense, num_layers))
    mtp = tuple(range(num_layers, num_layers + (config.get("num_nextn_predict_layers") or 0)))
    tensors = [
        *ends(config, root, head),
        *layer_norms(layer, config, every),
        *mla(layer, config, every),
        *gated_mlp(f"{layer}.mlp", hidden, config["intermediate_size"], "dense_mlp", every[:dense]),
        *_deepseek_moe(layer, config, sparse),
    ]
    if mtp:
        vocabulary = config["vocab_size"]
        tensors += as_mtp(
            Tensors(f"{layer}.embed_tokens.weight", (vocabulary, hidden), "embedding", mtp),
            Tensors(f"{layer}.enorm.weight", (hidden,), "norm", mtp),
            Tensors(f"{layer}.hnorm.weight", (hidden,), "norm", mtp),
            linear(f"{layer}.eh_proj", hidden, 2 * hidden, "mtp_projection", mtp),
            Tensors(f"{layer}.shared_head.norm.weight", (hidden,), "norm", mtp),
            linear(f"{layer}.shared_head.head", vocabulary, hidden, "lm_head", mtp),
            *layer_norms(layer, config, mtp),
            *mla(layer, config, mtp),
            *_deepseek_moe(layer, config, mtp),
        )
    return tensors


_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_REQUIRED = (
    *COMMON,
    *_MLA,
    "intermediate_size",
    "moe_intermediate_size",
    "n_routed_experts",
    "n_shared_experts",
    "first_k_dense_replace",
)


_LANGUAGE_MODEL = ("language_model.model", "language_model.lm_head")


def _row(
    name: str,
    tensors: Callable[[Config], list[Tensors]] = _deepseek,
    sparse: bool = False,
    text_config: str | None = None,
) -> Architecture:
    return Architecture(
        name,
        "mla_dsa" if sparse else "mla",
        (*_REQUIRED, "index_n_heads", "index_head_dim") if sparse else _REQUIRED,
        tensors,
        experts_field="n_routed_experts",
        mtp_field="num_nextn_predict_layers",
        splits_embedding=False,
        text_config=text_config,
    )


_OWN_ROWS = (
    _row("DeepseekV3ForCausalLM"),
    _row("DeepseekV32ForCausalLM", sparse=True),
    _row("GlmMoeDsaForCausalLM", sparse=True),
    _row("DeepseekV2ForCausalLM"),
    _row("Glm4MoeLiteForCausalLM"),
    _row("KimiK2ForCausalLM"),
    _row(
        "KimiK25ForConditionalGeneration",
        lambda config: _deepseek(config, *_LANGUAGE_MODEL),
        text_config="text_config",
    ),
)


# Meituan LongCat-Flash: each layer has two latent attentions, two MLPs and experts; some experts
# do nothing.
#
# Names and shapes: longcat_flash of Hugging Face transformers 5.23.


_PARTS = (0, 1)


def _longcat(config: Config) -> list[Tensors]:
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    hidden, width = config["hidden_size"], config["intermediate_size"]
    router = f"{layer}.mlp.router"
    experts, expert = config["n_routed_experts"], config["moe_intermediate_size"]
    routes = experts + (config.get("zero_expert_num") or 0)
    tensors = [
        *ends(config),
        *gated_mlp(
            f"{layer}.mlp.experts.{{expert}}", hidden, expert, "routed_expert", every, experts
        ),
        linear(f"{router}.classifier", routes, hidden, "router", every),
        Tensors(f"{router}.e_score_correction_bias", (routes,), "router", every),
    ]
    for part in _PARTS:
        tensors += [
            *mla(layer, config, every, f"self_attn.{part}"),
            *gated_mlp(f"{layer}.mlps.{part}", hidden, width, "dense_mlp", every),
            *(
                Tensors(f"{layer}.{name}.{part}.weight", (hidden,), "norm", every)
                for name in ("input_layernorm", "post_attention_layernorm")
            ),
        ]
    return tensors


_LONGCAT_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

_LONGCAT_ROWS = (
    Architecture(
        "LongcatFlashForCausalLM",
        "mla",
        (
            *(*COMMON, *_LONGCAT_MLA, "intermediate_size"),
            *("moe_intermediate_size", "n_routed_experts", "num_experts_per_tok"),
        ),
        _longcat,
        experts_field="n_routed_experts",
        splits_embedding=False,
        cached_layers=lambda config: len(_PARTS) * int(config["num_hidden_layers"]),
    ),
)


# DeepSeek-V4: attention over compressed tokens, experts in every layer, residual streams.
#
# Names and shapes: deepseek_v4 of Hugging Face transformers 5.23, and its table of published
# names.


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
    tensors: list[Tensors] = []
    for part in ("attn", "ffn"):
        for name, shape in (("fn", (rows, hidden)), ("base", (rows,)), ("scale", (3,))):
            row = f"{layer}.hc_{part}_{name}"
            tensors.append(Tensors(row, shape, "norm", layers, dtype="F32"))
    return tensors


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


_V4_ROWS = (
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


ROWS = (*_OWN_ROWS, *_LONGCAT_ROWS, *_V4_ROWS)
