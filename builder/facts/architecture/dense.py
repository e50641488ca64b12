"""Dense models with grouped-query attention, and the heads that draft for others."""

from __future__ import annotations

from .row import COMMON, GQA, Architecture
from .tensors import Config, Tensors, ends, gated_mlp, gqa, head_dim, layer_norms, linear, qk_norms


def _llama(config: Config) -> list[Tensors]:
    layer, every = "model.layers.{layer}", tuple(range(config["num_hidden_layers"]))
    hidden, width = config["hidden_size"], config["intermediate_size"]
    return [
        *ends(config),
        *layer_norms(layer, config, every),
        *gqa(layer, config, every),
        *gated_mlp(f"{layer}.mlp", hidden, width, "dense_mlp", every),
    ]


def _qwen3(config: Config) -> list[Tensors]:
    every, width = tuple(range(config["num_hidden_layers"])), head_dim(config)
    return [*_llama(config), *qk_norms("model.layers.{layer}", width, width, every)]


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


_REQUIRED = (*COMMON, *GQA, "intermediate_size")

ROWS = (
    Architecture("LlamaForCausalLM", "gqa", _REQUIRED, _llama),
    Architecture("Qwen3ForCausalLM", "gqa", _REQUIRED, _qwen3),
    Architecture("LlamaForCausalLMEagle3", "gqa", _REQUIRED, _eagle3, draft_head=True),
)
