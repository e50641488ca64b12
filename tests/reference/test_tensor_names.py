"""The tensors of an architecture's row are those of its class in transformers, name by name."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import pytest
import torch
import transformers

from builder.facts.architecture import architectures
from builder.facts.architecture.tensors import Tensors

# Sizes that make the shapes of all parts differ, as far as a family lets them be chosen.
GLOBAL = {"attention_k_eq_v": True, "num_global_key_value_heads": 2, "num_hidden_layers": 12}
EXPERTS = {"num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 704}
MAMBA = {"layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 0}
FAMILIES: list[tuple[str, str, dict[str, Any]]] = [
    ("ArceeForCausalLM", "ArceeConfig", {}),
    ("ApertusForCausalLM", "ApertusConfig", {}),
    ("AfmoeForCausalLM", "AfmoeConfig", {"num_experts": 8}),
    ("Glm4vForConditionalGeneration", "Glm4vConfig", {}),
    ("Glm4vMoeForConditionalGeneration", "Glm4vMoeConfig", {"n_routed_experts": 8}),
    (
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {**GLOBAL, **EXPERTS, "enable_moe_block": True, "hidden_size_per_layer_input": 0},
    ),
    (
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {"num_hidden_layers": 12, "num_kv_shared_layers": 6, "use_double_wide_mlp": True},
    ),
    ("Gemma4ForConditionalGeneration", "Gemma4Config", GLOBAL),
    ("Exaone4_5_ForConditionalGeneration", "Exaone4_5_Config", {"model_type": "exaone4"}),
    ("FalconH1ForCausalLM", "FalconH1Config", {"mamba_rms_norm": True, "projectors_bias": False}),
    ("Gemma3nForCausalLM", "Gemma3nTextConfig", {"num_kv_shared_layers": 0, "layer_types": None}),
    ("JambaForCausalLM", "JambaConfig", {"num_hidden_layers": 6, "num_experts": 4}),
    ("JambaForCausalLM", "JambaConfig", {"num_hidden_layers": 6, "num_experts": 1}),
    ("Lfm2ForCausalLM", "Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"]}),
    ("GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig", {**MAMBA, "mamba_n_groups": 2}),
]
_OTHERS = re.compile(r"visual|vision|audio|act_fn")  # towers, and parameters of an activation
_FUSED = re.compile(r"(.*\.(?:mlp|feed_forward)\.experts)\.(gate_up_proj|down_proj)")


def of_the_class(name: str, config_name: str, sizes: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Fields of a small model, and its tensors as checkpoints have them: an expert in each."""
    fields = {"num_hidden_layers": 3, "tie_word_embeddings": False, **sizes}
    kind = getattr(transformers, config_name)
    nested = "ForConditionalGeneration" in name
    config = kind(text_config=fields, tie_word_embeddings=False) if nested else kind(**fields)
    with torch.device("meta"):
        model = getattr(transformers, name)(config)
    written = config.to_dict()
    written = (
        {**written, "text_config": {**written["text_config"], **fields}}
        if nested
        else {
            **written,
            **fields,
        }
    )
    shapes: dict[str, Any] = {}
    for tensor, value in model.state_dict().items():
        shape, fused = tuple(value.shape), _FUSED.fullmatch(tensor)
        if _OTHERS.search(tensor):
            continue
        if fused is None:
            shapes[tensor] = shape
            continue
        parts = {"gate_up_proj": ("gate_proj", "up_proj")}.get(fused[2], ("down_proj",))
        for expert in range(shape[0]):
            for part in parts:
                place = f"{fused[1]}.{expert}.{part}.weight"
                shapes[place] = (shape[1] // len(parts), shape[2])
    return written, shapes


def of_both(
    name: str, config_name: str, sizes: dict[str, Any]
) -> tuple[list[Tensors], dict[str, Any]]:
    """The tensors of a configuration by our row of its architecture; the shapes of the class."""
    config, theirs = of_the_class(name, config_name, sizes)
    row = architectures()[name].of(config)
    assert not row.missing_fields(config)
    return list(row.tensors(row.text(config))), theirs


@pytest.mark.parametrize(("name", "config_name", "sizes"), FAMILIES, ids=str)
def test_names_and_shapes_are_those_of_the_class(
    name: str, config_name: str, sizes: dict[str, Any]
) -> None:
    rows, theirs = of_both(name, config_name, sizes)
    ours = {tensor: tensors.shape for tensors in rows for tensor in tensors.names()}
    assert ours == theirs


# Families whose files name the tensors otherwise than their class does.
RENAMED: list[tuple[str, str, dict[str, Any]]] = [
    ("HYV3ForCausalLM", "HYV3Config", {"num_experts": 4}),
    ("KimiLinearForCausalLM", "KimiLinearConfig", {"num_hidden_layers": 5, "num_experts": 4}),
    ("LagunaForCausalLM", "LagunaConfig", {"num_attention_heads_per_layer": [48, 64, 64]}),
    (
        "InklingForConditionalGeneration",
        "InklingConfig",
        {"n_routed_experts": 4, "mlp_layer_types": ["dense", "sparse", "sparse"]},
    ),
]


@pytest.mark.parametrize(("name", "config_name", "sizes"), RENAMED, ids=str)
def test_all_values_are_those_of_the_class(
    name: str, config_name: str, sizes: dict[str, Any]
) -> None:
    rows, theirs = of_both(name, config_name, sizes)
    ours = sum(tensors.parameters for tensors in rows)
    assert ours == sum(prod(shape) for shape in theirs.values())
