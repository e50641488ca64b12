"""Gemma 3n of Google: four streams of hidden states and an embedding of every token for each layer.

Names and shapes: gemma3n of Hugging Face transformers 5.23. Published files also hold the keys and
values of the last layers, which use those of others.
"""

from __future__ import annotations

from functools import partial

from .fields import Config
from .gemma4 import per_layer_inputs
from .grouped_query import FOUR_NORMS, REQUIRED, Decoder
from .tensors import Architecture, Layers, Role, Tensors, linear

_ROLE: Role = "attention_replicated"


def _streams(root: str, layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """What predicts the other streams from one, mixes them again, and adds a narrow residual."""
    hidden, streams, rank = config["hidden_size"], config["altup_num_inputs"], config["laurel_rank"]
    altup, laurel = f"{layer}.altup", f"{layer}.laurel"
    return [
        Tensors(f"{altup}.correct_output_scale", (hidden,), "norm", layers),
        linear(f"{altup}.correction_coefs", streams, streams, _ROLE, layers),
        linear(f"{altup}.prediction_coefs", streams**2, streams, _ROLE, layers),
        linear(f"{altup}.modality_router", streams, hidden, _ROLE, layers),
        Tensors(f"{altup}.router_norm.weight", (hidden,), "norm", layers),
        linear(f"{laurel}.linear_left", rank, hidden, _ROLE, layers),
        linear(f"{laurel}.linear_right", hidden, rank, _ROLE, layers),
        Tensors(f"{laurel}.post_laurel_norm.weight", (hidden,), "norm", layers),
        *(
            linear(f"{root}.altup_{name}.{index}", hidden, hidden, _ROLE)
            for name in ("projections", "unembed_projections")
            for index in range(streams - 1)
        ),
    ]


def _gemma3n(config: Config, root: str) -> list[Tensors]:
    layer, every = f"{root}.layers.{{layer}}", tuple(range(config["num_hidden_layers"]))
    decoder = Decoder(root=root, norms=FOUR_NORMS, qk_norm="head", tied=True)
    return [
        *decoder(config),
        *_streams(root, layer, config, every),
        *per_layer_inputs(root, layer, config, every),
    ]


ROWS = tuple(
    Architecture(
        name,
        "gqa_window",
        (*REQUIRED, "altup_num_inputs", "laurel_rank", "hidden_size_per_layer_input"),
        partial(_gemma3n, root=root),
        text_config=nested,
        cached_layers=lambda config: int(
            config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0)
        ),
    )
    for name, root, nested in (
        ("Gemma3nForCausalLM", "model", None),
        ("Gemma3nForConditionalGeneration", "model.language_model", "text_config"),
    )
)
