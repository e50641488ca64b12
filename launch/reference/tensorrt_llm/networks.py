"""Builds the language model of a checkpoint: the architecture's own transformers class."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers

from builder.diagnostics import Diagnostic
from builder.errors import BadFacts
from builder.facts.checkpoint import Checkpoint

from .weights import Weights

# Multimodal architectures whose language model has a separate class.
_LANGUAGE_MODELS = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "KimiK2ForCausalLM": "DeepseekV3ForCausalLM",
    "LlavaForConditionalGeneration": "LlamaForCausalLM",
    "LlavaNextForConditionalGeneration": "LlamaForCausalLM",
    "Mistral3ForConditionalGeneration": "MistralForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
}
# Only classes with this suffix are language models alone.
_LANGUAGE_MODEL_SUFFIX = "ForCausalLM"
_ENDS = {"model.embed_tokens.weight", "lm_head.weight"}

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Network:
    """A language model in float32, on the CPU or a GPU.

    `ends` are its embedding and output head by name, as far as it has them apart. Raises `BadFacts`
    if transformers has no language model of the architecture.
    """

    def __init__(self, checkpoint: Checkpoint, tensors: Weights) -> None:
        self.checkpoint = checkpoint
        architecture = checkpoint.architecture
        name = _LANGUAGE_MODELS.get(architecture.name, architecture.name)
        is_one = name.endswith(_LANGUAGE_MODEL_SUFFIX)
        self.kind: Any = getattr(transformers, name, None) if is_one else None
        if self.kind is None:
            what = f"the reference engine has no model for {architecture.name}"
            remedy = "start the bundle with the real engine; plan and render do not need this"
            raise BadFacts(Diagnostic("config.json: architectures", what, remedy))
        fields = copy.deepcopy(dict(checkpoint.written_config))
        fields.pop("quantization_config", None)  # undone at load
        fields.pop("model_type", None)  # known from the class; Kimi-K2 names another
        self.config = self.kind.config_class.from_dict(fields)
        if architecture.text_config is not None:
            tensors = {_unnested(name): tensor for name, tensor in tensors.items()}
        self.ends = {name: tensors[name] for name in sorted(_ENDS & set(tensors))}
        self.module = build(self.kind, self.config, tensors)


def _unnested(name: str) -> str:
    for nested, plain in (("model.language_model.", "model."), ("language_model.", "")):
        if name.startswith(nested):
            return plain + name.removeprefix(nested)
    return name


def build(kind: Any, config: Any, tensors: Weights) -> Any:
    """A model of the class `kind`. Raises `BadFacts` unless the tensors fit it exactly."""
    model, info = kind.from_pretrained(
        None,
        config=config,
        state_dict=tensors,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    problems = []
    for key, names in info.items():
        if names:
            what = f"{key.replace('_', ' ')}: {', '.join(sorted(map(str, names))[:8])}"
            problems.append(Diagnostic(kind.__name__, what))
    if problems:
        raise BadFacts(problems)
    return model.to(DEVICE).eval()
