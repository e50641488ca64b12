"""LongCat-Flash of Meituan: two parts of latent attention and two MLPs in every layer, and
experts of which some do nothing.

Names and shapes: longcat_flash of Hugging Face transformers 5.23.
"""

from __future__ import annotations

from .deepseek import mla
from .fields import Config
from .tensors import COMMON, Architecture, Tensors, ends, gated_mlp, linear

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


_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

ROWS = (
    Architecture(
        "LongcatFlashForCausalLM",
        "mla",
        (
            *(*COMMON, *_MLA, "intermediate_size"),
            *("moe_intermediate_size", "n_routed_experts", "num_experts_per_tok"),
        ),
        _longcat,
        experts_field="n_routed_experts",
        splits_embedding=False,
        cached_layers=lambda config: len(_PARTS) * int(config["num_hidden_layers"]),
    ),
)
