"""IBM Granite: mixtures of experts, and the hybrids whose other layers are Mamba-2.

Names and shapes: granitemoe, granitemoeshared and granitemoehybrid of Hugging Face transformers
5.23, with its table of published names.
"""

from __future__ import annotations

from .fields import Config
from .grouped_query import Decoder
from .mamba2 import FIELDS, Mamba2, layers_of_kind
from .tensors import COMMON, GQA, Architecture, Layers, Tensors, linear

_MAMBA = Mamba2(*FIELDS)


def _mlps(layer: str, config: Config, layers: Layers) -> list[Tensors]:
    """Experts, if any, and an MLP for every token; gate and up projection lie in one tensor."""
    hidden, tensors = config["hidden_size"], list[Tensors]()
    if experts := config.get("num_local_experts"):
        moe, width = f"{layer}.block_sparse_moe", config["intermediate_size"]
        tensors += [
            linear(f"{moe}.router.layer", experts, hidden, "router", layers),
            *(
                Tensors(f"{moe}.{name}.weight", shape, "routed_expert", layers, linear=True)
                for name, shape in (
                    ("input_linear", (experts, 2 * width, hidden)),
                    ("output_linear", (experts, hidden, width)),
                )
            ),
        ]
    if shared := config.get("shared_intermediate_size"):
        mlp = f"{layer}.shared_mlp"
        tensors += [
            linear(f"{mlp}.input_linear", 2 * shared, hidden, "shared_expert", layers),
            linear(f"{mlp}.output_linear", hidden, shared, "shared_expert", layers),
        ]
    return tensors


_DECODER = Decoder(tied=True, mlps=_mlps)


def _hybrid(config: Config) -> list[Tensors]:
    layer = "model.layers.{layer}"
    kept = _DECODER.attention_tensors(layer, config, layers_of_kind(config, "attention"))
    others = _DECODER.without_attention(config)
    return [*others, *kept, *_MAMBA.tensors(f"{layer}.mamba", config)]


def _moe(name: str) -> Architecture:
    required = (*COMMON, *GQA, "intermediate_size", "num_local_experts", "num_experts_per_tok")
    return Architecture(name, "gqa", required, _DECODER, experts_field="num_local_experts")


ROWS = (
    _moe("GraniteMoeForCausalLM"),
    _moe("GraniteMoeSharedForCausalLM"),
    Architecture(
        "GraniteMoeHybridForCausalLM",
        "hybrid",
        (*COMMON, *GQA, *_MAMBA.fields, "intermediate_size"),
        _hybrid,
        experts_field="num_local_experts",
        optional_experts=True,
        cached_layers=lambda config: len(layers_of_kind(config, "attention")),
        recurrent=_MAMBA.recurrent,
    ),
)
