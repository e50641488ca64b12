"""The model of a checkpoint: the architecture's own transformers class, and its MTP layer.

The MTP layer works as the engine's MTP-Eagle does: one layer, used again for every draft token,
on the embedding of the next token and the hidden state before it. It is held as a one-layer model
of the same class, so that masks, rotary embeddings and caches are those of the main model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicCache, LinearAttentionLayer

from builder.diagnostics import Diagnostic
from builder.errors import BadFacts
from builder.facts.architecture import Architecture
from builder.facts.checkpoint import Checkpoint

from . import weights
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

# The names of MTP tensors in a checkpoint, and the place of each in the one-layer model. `{layer}`
# is the number of the first MTP layer. The first matching prefix counts.
_MTP_NAMES: tuple[tuple[str, str], ...] = (
    ("model.layers.{layer}.embed_tokens.", "model.embed_tokens."),
    ("model.layers.{layer}.shared_head.norm.", "model.norm."),
    ("model.layers.{layer}.shared_head.head.", "lm_head."),
    ("model.layers.{layer}.enorm.", "enorm."),
    ("model.layers.{layer}.hnorm.", "hnorm."),
    ("model.layers.{layer}.eh_proj.", "eh_proj."),
    ("model.layers.{layer}.", "model.layers.0."),
    ("mtp.pre_fc_norm_embedding.", "enorm."),
    ("mtp.pre_fc_norm_hidden.", "hnorm."),
    ("mtp.fc.", "eh_proj."),
    ("mtp.norm.", "model.norm."),
    ("mtp.layers.0.", "model.layers.0."),
)
# Architectures whose MTP layer is one decoder layer of their own kind.
_WITH_MTP = frozenset(
    {
        *("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"),
        *("Glm4MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
    }
)
_OWN = ("enorm.", "hnorm.", "eh_proj.")
# What makes a config that of one MTP layer: sparse, with full attention of the model's kind.
_ONE_LAYER: dict[str, Any] = {
    "num_hidden_layers": 1,
    "first_k_dense_replace": 0,
    "mlp_layer_types": ["sparse"],
}


class Model:
    """The main model and, if drafts are wanted, its MTP layer: float32, on the CPU or a GPU."""

    def __init__(
        self, checkpoint: Checkpoint, tensors: Weights, mtp: Weights, with_mtp: bool
    ) -> None:
        self.checkpoint = checkpoint
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        architecture = checkpoint.architecture
        self._class: Any = _class(architecture)
        self.config = self._class.config_class.from_dict(_fields(checkpoint))
        main = _unnest(tensors, architecture)
        self.main = _build(self._class, self.config, main, self.device)
        self.mtp = self._build_mtp(mtp, main) if with_mtp else None

    def _build_mtp(self, mtp: Weights, main: Weights) -> MtpLayer:
        where = "speculative_config"
        if not mtp:
            what = f"{self.checkpoint.name} has no MTP layer"
            raise BadFacts(Diagnostic(where, what, "leave speculative_config out"))
        if self.checkpoint.architecture.name not in _WITH_MTP:
            what = f"the reference engine has no MTP layer of {self.checkpoint.architecture.name}"
            raise BadFacts(Diagnostic(where, what, "leave speculative_config out to rehearse"))
        layer = self.checkpoint.text_config["num_hidden_layers"]
        shared_names = {"model.embed_tokens.weight", "lm_head.weight"} & set(main)
        shared = {name: main[name] for name in shared_names}
        tensors = shared | {
            place: tensor
            for name, tensor in mtp.items()
            if (place := _mtp_place(name, layer)) is not None
        }
        return MtpLayer(self._class, self.config, tensors, self.device)

    @property
    def max_position_embeddings(self) -> int:
        return int(self.config.max_position_embeddings)

    def start(self) -> Decoding:
        return Decoding(self)


def load(folder: Path, with_mtp: bool) -> Model:
    """Raises `BadFacts` if the folder is not a complete checkpoint of a known architecture."""
    log: Any = transformers.utils.logging
    log.set_verbosity_error()
    log.disable_progress_bar()
    return Model(*weights.load(folder), with_mtp)


def _class(architecture: Architecture) -> Any:
    """The class of transformers. Raises `BadFacts` if it has no language model of that name."""
    name = _LANGUAGE_MODELS.get(architecture.name, architecture.name)
    kind = getattr(transformers, name, None) if name.endswith(_LANGUAGE_MODEL_SUFFIX) else None
    if kind is None:
        what = f"the reference engine has no model for {architecture.name}"
        remedy = "start the bundle with the real engine; plan and render do not need this"
        raise BadFacts(Diagnostic("config.json: architectures", what, remedy))
    return kind


def _fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """The config without its quantization and the name of its type.

    The first is undone at load; the second is known from the class, and Kimi-K2 names another.
    """
    dropped = ("quantization_config", "model_type")
    return {
        k: v for k, v in copy.deepcopy(dict(checkpoint.written_config)).items() if k not in dropped
    }


def _unnest(tensors: Weights, architecture: Architecture) -> Weights:
    """Names as the language model alone has them."""
    if architecture.text_config is None:
        return tensors
    return {_unnested(name): tensor for name, tensor in tensors.items()}


def _unnested(name: str) -> str:
    for nested, plain in (("model.language_model.", "model."), ("language_model.", "")):
        if name.startswith(nested):
            return plain + name.removeprefix(nested)
    return name


def _mtp_place(name: str, layer: int) -> str | None:
    """Where an MTP tensor belongs; `None` for MTP layers after the first, which are not used."""
    for prefix, place in _MTP_NAMES:
        prefix = prefix.format(layer=layer)
        if name.startswith(prefix):
            return place + name.removeprefix(prefix)
    return None


def _build(kind: Any, config: Any, tensors: Weights, device: torch.device) -> Any:
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
    problems = [
        Diagnostic(
            kind.__name__, f"{key.replace('_', ' ')}: {', '.join(sorted(map(str, names))[:8])}"
        )
        for key, names in info.items()
        if names
    ]
    if problems:
        raise BadFacts(problems)
    return model.to(device).eval()


class MtpLayer:
    """The MTP layer: hidden states and next tokens in, hidden states and logits out."""

    def __init__(self, kind: Any, config: Any, tensors: Weights, device: torch.device) -> None:
        fields = config.to_dict() | {k: v for k, v in _ONE_LAYER.items() if hasattr(config, k)}
        if hasattr(config, "layer_types"):
            fields["layer_types"] = config.layer_types[-1:]
        self.config = type(config).from_dict(fields)
        own = {name: tensors[name] for name in tensors if name.startswith(_OWN)}
        rest = {name: tensors[name] for name in tensors if name not in own}
        self.layer = _build(kind, self.config, rest, device)
        norm, hidden = type(self.layer.base_model.norm), config.hidden_size
        self._own = torch.nn.ModuleDict(
            {
                "enorm": norm(hidden, eps=config.rms_norm_eps),
                "hnorm": norm(hidden, eps=config.rms_norm_eps),
                "eh_proj": torch.nn.Linear(2 * hidden, hidden, bias=False),
            }
        )
        self._own.load_state_dict(own)
        self._own.to(device).eval()

    def forward(
        self, tokens: torch.Tensor, hidden: torch.Tensor, cache: DynamicCache
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden states `[1, T, hidden_size]` and the logits `[vocab_size]` after the last token.

        `tokens` `[1, T]` follow the tokens whose hidden states `[1, T, hidden_size]` are given.
        """
        embedding = self._own["enorm"](self.layer.get_input_embeddings()(tokens))
        joined = torch.cat((embedding, self._own["hnorm"](hidden)), dim=-1)
        output = self.layer.base_model(
            inputs_embeds=self._own["eh_proj"](joined), past_key_values=cache, use_cache=True
        ).last_hidden_state
        return output, self.layer.get_output_embeddings()(output[0, -1])


class Decoding:
    """The caches of one sequence.

    Each step calls `forward` with tokens that may include drafts, `keep` to drop wrong drafts, and
    `draft` to guess the next tokens, in this order.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self.cache = DynamicCache(config=model.config)
        self.mtp_cache = DynamicCache(config=model.mtp.config) if model.mtp else None
        self._inputs: list[int] = []
        self._hidden = torch.empty(0)
        self._restorers: list[Callable[[], None]] = []

    def forward(self, tokens: list[int], num_logits: int, num_drafts: int) -> torch.Tensor:
        """The logits `[num_logits, vocab_size]` at the last of `tokens`."""
        layers = _linear_layers(self.cache) if num_drafts else []
        self._restorers = [_restorer(layer) for layer in layers]
        self._inputs = tokens
        self._hidden = self._run(tokens)
        logits: torch.Tensor = self._model.main.get_output_embeddings()(
            self._hidden[0, -num_logits:]
        )
        return logits

    def _run(self, tokens: list[int]) -> torch.Tensor:
        output = self._model.main.base_model(
            torch.tensor([tokens], device=self._model.device),
            past_key_values=self.cache,
            use_cache=True,
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def keep(self, count: int) -> None:
        """Keep the first `count` of the last inputs in the cache, as if the others never were.

        A linear-attention state cannot be shortened: it is set back to where it was before the
        inputs, and the kept ones are run again.
        """
        wrong = len(self._inputs) - count
        if wrong and not self._restorers:
            self.cache.crop(-wrong)
        elif wrong:
            for layer in _attention_layers(self.cache):
                layer.crop(-len(self._inputs))
            for restore in self._restorers:
                restore()
            self._run(self._inputs[:count])
        self._inputs = self._inputs[:count]
        self._hidden = self._hidden[:, :count]

    def draft(self, next_token: int, count: int) -> list[int]:
        """Up to `count` guesses of the tokens after `next_token`, which follows the kept inputs."""
        mtp, cache = self._model.mtp, self.mtp_cache
        if mtp is None or cache is None or count < 1:
            return []
        tokens, hidden = [*self._inputs[1:], next_token], self._hidden
        drafts: list[int] = []
        for _ in range(count):
            ids = torch.tensor([tokens], device=self._model.device)
            hidden, logits = mtp.forward(ids, hidden, cache)
            tokens, hidden = [int(logits.argmax())], hidden[:, -1:]
            drafts += tokens
        # Guesses stand on guessed hidden states: the next step enters the true ones instead.
        cache.crop(1 - count)
        return drafts


def _linear_layers(cache: DynamicCache) -> list[Any]:
    return [layer for layer in cache.layers if isinstance(layer, LinearAttentionLayer)]


def _attention_layers(cache: DynamicCache) -> list[Any]:
    return [layer for layer in cache.layers if not isinstance(layer, LinearAttentionLayer)]


def _restorer(layer: Any) -> Callable[[], None]:
    """Sets a linear-attention layer back to the state that it has now."""
    saved = [
        (states, {key: state.clone() for key, state in states.items()})
        for states in (layer.conv_states, layer.recurrent_states)
    ]

    def restore() -> None:
        for states, copies in saved:
            for key, state in copies.items():
                states[key].copy_(state)

    return restore
