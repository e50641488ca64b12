"""Grouped-query attention: how a decoder of such layers is described, dense models, draft heads.

Names and shapes: the families' modules in Hugging Face transformers 5.23.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from .fields import Config
from .tensors import (
    COMMON,
    GQA,
    Architecture,
    Attention,
    Layers,
    Tensors,
    ends,
    gated_mlp,
    head_dim,
    linear,
    plain_mlp,
)

_TWO_NORMS = ("input_layernorm", "post_attention_layernorm")
FOUR_NORMS = (*_TWO_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")
_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True, slots=True)
class Decoder:
    """The tensors of a decoder whose layers are alike but for their MLPs.

    `bias` names the attention projections that have one: those of `qkv`, `all`, or what
    `attention_bias` of the config says. `qk_norm` is over a `head`, over each of the `heads` by
    itself, or over the `width` of all heads.
    `fused` are models that store query, key and value in one tensor, and gate and up projection.
    `mlps` gives the MLPs where they are not dense ones.
    """

    root: str = "model"
    head: str = "lm_head"
    ends: tuple[str, str] = ("embed_tokens", "norm")
    norms: tuple[str, ...] = _TWO_NORMS
    norm_bias: bool = False
    attention: str = "self_attn"
    bias: Literal["config", "none", "qkv", "all"] = "config"
    qk_norm: Literal["none", "head", "width", "heads"] = "none"
    qk_norm_names: tuple[str, str] = ("q_norm", "k_norm")
    fused: bool = False
    fused_mlp: bool = False
    mlp: Literal["gated", "plain"] = "gated"
    mlp_names: tuple[str, ...] = ()
    mlp_bias: str | None = "mlp_bias"
    tied: bool = False
    mlps: Callable[[str, Config, Layers], list[Tensors]] | None = None

    def __call__(self, config: Config) -> list[Tensors]:
        every = tuple(range(config["num_hidden_layers"]))
        attention = self.attention_tensors(f"{self.root}.layers.{{layer}}", config, every)
        return [*self.without_attention(config), *attention]

    def without_attention(self, config: Config) -> list[Tensors]:
        """All other tensors, for models with unusual attention or with attention in some layers."""
        every = tuple(range(config["num_hidden_layers"]))
        hidden, layer = (config["hidden_size"],), f"{self.root}.layers.{{layer}}"
        tensors = ends(config, self.root, self.head, self.ends, self.tied)
        if self.norm_bias:
            tensors.append(Tensors(f"{self.root}.{self.ends[1]}.bias", hidden, "norm"))
        return [
            *tensors,
            *self.norm_tensors(layer, config, every),
            *(self.mlps or self.mlp_tensors)(layer, config, every),
        ]

    def norm_tensors(self, layer: str, config: Config, layers: Layers) -> list[Tensors]:
        hidden, parts = (config["hidden_size"],), ("weight", "bias")[: 1 + self.norm_bias]
        tensors: list[Tensors] = []
        for name in self.norms:
            tensors += [Tensors(f"{layer}.{name}.{part}", hidden, "norm", layers) for part in parts]
        return tensors

    def attention_tensors(self, layer: str, config: Config, layers: Layers) -> list[Tensors]:
        hidden, width = config["hidden_size"], head_dim(config)
        query, key = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
        module = f"{layer}.{self.attention}"
        sizes = {"q_proj": query, "k_proj": key, "v_proj": key}
        if self.fused:
            sizes = {"qkv_proj": query + 2 * key}
        rows = [(name, size, hidden) for name, size in sizes.items()]
        tensors = []
        for name, out_features, in_features in (*rows, ("o_proj", hidden, query)):
            tensors.append(
                linear(f"{module}.{name}", out_features, in_features, "attention", layers)
            )
            if self._is_biased(config, name):
                bias = f"{module}.{name}.bias"
                tensors.append(Tensors(bias, (out_features,), "attention", layers))
        if self.qk_norm != "none":
            for name, size in zip(self.qk_norm_names, (query, key), strict=True):
                shape = {"width": (size,), "heads": (size // width, width)}.get(
                    self.qk_norm, (width,)
                )
                tensors.append(Tensors(f"{module}.{name}.weight", shape, "norm", layers))
        return tensors

    def _is_biased(self, config: Config, projection: str) -> bool:
        if self.bias == "config":
            return bool(config.get("attention_bias", config.get("use_bias")))
        return self.bias == "all" or (self.bias == "qkv" and projection != "o_proj")

    def mlp_tensors(self, layer: str, config: Config, layers: Layers) -> list[Tensors]:
        hidden, width, mlp = config["hidden_size"], config["intermediate_size"], f"{layer}.mlp"
        bias = bool(self.mlp_bias and config.get(self.mlp_bias))
        if self.mlp == "plain":
            up, down = self.mlp_names or ("up_proj", "down_proj")
            return plain_mlp(mlp, hidden, width, "dense_mlp", layers, names=(up, down), bias=bias)
        if self.fused or self.fused_mlp:
            return [
                linear(f"{mlp}.gate_up_proj", 2 * width, hidden, "dense_mlp", layers),
                linear(f"{mlp}.down_proj", hidden, width, "dense_mlp", layers),
            ]
        tensors = gated_mlp(mlp, hidden, width, "dense_mlp", layers)
        biases = {"gate_proj": width, "up_proj": width, "down_proj": hidden} if bias else {}
        return tensors + [
            Tensors(f"{mlp}.{name}.bias", (size,), "dense_mlp", layers)
            for name, size in biases.items()
        ]


def _eagle3(config: Config) -> list[Tensors]:
    """A draft head: one decoder layer over the next token's embedding and fused hidden states.

    `fc` fuses the hidden states of three layers of the target model, the decoder layer's attention
    reads embedding and fused state side by side, and the head knows the most frequent tokens only,
    which `d2t` maps to those of the target. The embedding is the target's own.
    """
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    drafted = config.get("draft_vocab_size") or vocabulary
    target = config.get("target_hidden_size") or hidden
    query = config["num_attention_heads"] * head_dim(config)
    key = config["num_key_value_heads"] * head_dim(config)
    layer = "midlayer"
    tensors = [
        linear("fc", hidden, 3 * target, "draft_projection"),
        Tensors(f"{layer}.hidden_norm.weight", (hidden,), "norm"),
        Tensors(f"{layer}.input_layernorm.weight", (hidden,), "norm"),
        Tensors(f"{layer}.post_attention_layernorm.weight", (hidden,), "norm"),
        linear(f"{layer}.self_attn.q_proj", query, 2 * hidden, "attention"),
        linear(f"{layer}.self_attn.k_proj", key, 2 * hidden, "attention"),
        linear(f"{layer}.self_attn.v_proj", key, 2 * hidden, "attention"),
        linear(f"{layer}.self_attn.o_proj", hidden, query, "attention"),
        *gated_mlp(f"{layer}.mlp", hidden, config["intermediate_size"], "dense_mlp"),
        Tensors("norm.weight", (hidden,), "norm"),
        linear("lm_head", drafted, hidden, "lm_head"),
    ]
    if drafted != vocabulary:
        tensors.append(Tensors("d2t", (drafted,), "vocabulary_map", dtype="I64"))
    return tensors


REQUIRED = (*COMMON, *GQA, "intermediate_size")


def _row(
    name: str,
    tensors: Callable[[Config], list[Tensors]],
    attention: Attention = "gqa",
    nested: str | None = None,
) -> Architecture:
    return Architecture(name, attention, REQUIRED, tensors, text_config=nested)


_COHERE = Decoder(norms=("input_layernorm",), tied=True)


def _cohere(config: Config) -> list[Tensors]:
    """Command R+ has norms of queries and keys, which Command R lacks."""
    return replace(_COHERE, qk_norm="heads" if config.get("use_qk_norm") else "none")(config)


_LLAMA = Decoder()
_QWEN2, _QWEN3 = Decoder(bias="qkv"), Decoder(qk_norm="head")
_GEMMA2 = Decoder(norms=FOUR_NORMS, tied=True)
_GEMMA3 = Decoder(norms=FOUR_NORMS, qk_norm="head", tied=True)
HUNYUAN = Decoder(qk_norm="head", qk_norm_names=("query_layernorm", "key_layernorm"), tied=True)
_OLMO2 = Decoder(norms=_AFTER, qk_norm="width")
_EXAONE4 = Decoder(norms=_AFTER, qk_norm="head", bias="none")
_GLM4 = Decoder(
    norms=(*_TWO_NORMS, "post_self_attn_layernorm", "post_mlp_layernorm"),
    bias="qkv",
    fused_mlp=True,
)


_LLAVA = ("language_model.model", "language_model.lm_head")
_MULTIMODAL: tuple[tuple[str, Decoder, str, str, Attention], ...] = (
    ("Qwen2VLForConditionalGeneration", _QWEN2, "model", "lm_head", "gqa"),
    ("Qwen2_5_VLForConditionalGeneration", _QWEN2, "model", "lm_head", "gqa"),
    ("Qwen3VLForConditionalGeneration", _QWEN3, "model.language_model", "lm_head", "gqa"),
    ("Glm4vForConditionalGeneration", _GLM4, "model.language_model", "lm_head", "gqa"),
    ("Exaone4_5_ForConditionalGeneration", _EXAONE4, "model.language_model", "lm_head", "gqa"),
    ("Gemma3ForConditionalGeneration", _GEMMA3, *_LLAVA, "gqa_window"),
    ("Mistral3ForConditionalGeneration", _LLAMA, *_LLAVA, "gqa"),
    ("LlavaForConditionalGeneration", _LLAMA, *_LLAVA, "gqa"),
    ("LlavaNextForConditionalGeneration", _LLAMA, *_LLAVA, "gqa"),
)

ROWS = (
    _row("LlamaForCausalLM", _LLAMA),
    _row("Qwen3ForCausalLM", _QWEN3),
    Architecture("LlamaForCausalLMEagle3", "gqa", REQUIRED, _eagle3, draft_head=True),
    *(
        _row(name, _LLAMA)
        for name in (
            *("MistralForCausalLM", "MinistralForCausalLM", "Ministral3ForCausalLM"),
            *("GraniteForCausalLM", "SmolLM3ForCausalLM", "Ernie4_5ForCausalLM"),
            "InternLM3ForCausalLM",
        )
    ),
    _row("Qwen2ForCausalLM", _QWEN2),
    _row("SeedOssForCausalLM", _QWEN2),
    _row("GemmaForCausalLM", Decoder(tied=True)),
    _row("Gemma2ForCausalLM", _GEMMA2, "gqa_window"),
    _row("Gemma3ForCausalLM", _GEMMA3, "gqa_window"),
    _row("Phi3ForCausalLM", Decoder(bias="none", fused=True)),
    _row("CohereForCausalLM", _cohere),
    _row("Cohere2ForCausalLM", _COHERE, "gqa_window"),
    _row("Olmo2ForCausalLM", _OLMO2),
    _row("Olmo3ForCausalLM", _OLMO2, "gqa_window"),
    _row("Exaone4ForCausalLM", _EXAONE4),
    _row("Glm4ForCausalLM", _GLM4),
    _row("GlmForCausalLM", Decoder(bias="qkv", fused_mlp=True)),
    _row("ArceeForCausalLM", Decoder(mlp="plain")),
    _row(
        "ApertusForCausalLM",
        Decoder(
            norms=("attention_layernorm", "feedforward_layernorm"), qk_norm="head", mlp="plain"
        ),
    ),
    _row("NemotronForCausalLM", Decoder(norm_bias=True, mlp="plain")),
    _row("HunYuanDenseV1ForCausalLM", HUNYUAN),
    _row(
        "Starcoder2ForCausalLM",
        Decoder(norm_bias=True, mlp="plain", mlp_names=("c_fc", "c_proj"), mlp_bias="use_bias"),
    ),
    *(
        _row(name, replace(decoder, root=root, head=head), attention, "text_config")
        for name, decoder, root, head, attention in _MULTIMODAL
    ),
)
