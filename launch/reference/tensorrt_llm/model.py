"""Runs the model of a checkpoint: the architecture's own transformers class, and its MTP layer.

The MTP layer works as the engine's MTP-Eagle does: one layer, used again for every draft token,
on the embedding of the next token and the hidden state before it. It is held as a one-layer model
of the same class, so that masks, rotary embeddings and caches are those of the main model.

Each sequence has caches of its own. For a forward pass of several sequences these are joined into
one, padded on the left, and taken apart again afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

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
# Layers of a cache that can be joined with those of other sequences. DeepSeek-V4 compresses blocks
# of tokens, counted from the start of a sequence: padding on the left would move them.
_JOINED = (
    *(DummyLayer, DynamicLayer, DynamicIndexedLayer, DynamicSlidingWindowLayer),
    LinearAttentionLayer,
)
# Tensors of such layers: with the tokens in the last dimension but one, and by their number.
_BY_TOKEN = ("keys", "values", "indexer_keys")
_STATES = ("conv_states", "recurrent_states")
# Tokens of prompts in one forward pass, padding included. The attention scores of long prompts
# need memory, and more of them at once are no faster.
_PROMPT_TOKENS = 1024


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

    def forward(self, sequences: Sequence[Decoding]) -> None:
        """Run the inputs of each sequence, which sets its hidden states."""
        for sequence in sequences:
            sequence.layers_before = list(sequence.cache.layers)
        self._run(sequences)

    def _run(self, sequences: Sequence[Decoding]) -> None:
        caches = [sequence.cache for sequence in sequences]
        inputs = [(self._tensor(sequence.inputs),) for sequence in sequences]
        outputs = _in_batches(self._hidden_states, caches, inputs)
        for sequence, hidden in zip(sequences, outputs, strict=True):
            sequence.hidden = hidden

    def _hidden_states(self, tokens: torch.Tensor, **cache: Any) -> torch.Tensor:
        hidden: torch.Tensor = self.main.base_model(tokens, **cache).last_hidden_state
        return hidden

    def _tensor(self, tokens: list[int]) -> torch.Tensor:
        return torch.tensor([tokens], device=self.device)

    def logits(self, sequence: Decoding, count: int) -> torch.Tensor:
        """The logits `[count, vocab_size]` at the last inputs of a sequence."""
        logits: torch.Tensor = self.main.get_output_embeddings()(sequence.hidden[0, -count:])
        return logits

    def advance(self, sequences: Sequence[Decoding]) -> None:
        """Keep the accepted inputs in the caches, as if the others never were, and set the next.

        A linear-attention state cannot be shortened: such a cache is set back to where it was
        before the inputs, and the accepted ones are run again.
        """
        again = []
        for sequence in sequences:
            wrong = len(sequence.inputs) - sequence.num_kept
            sequence.inputs = sequence.inputs[: sequence.num_kept]
            sequence.hidden = sequence.hidden[:, : sequence.num_kept]
            if wrong and _has_linear_attention(sequence.cache):
                sequence.cache.layers = sequence.layers_before
                again.append(sequence)
            elif wrong:
                sequence.cache.crop(-wrong)
        self._run(again)
        if self.mtp:
            self._draft(self.mtp, sequences)
        for sequence in sequences:
            sequence.inputs = [sequence.next_token, *sequence.drafts]

    def _draft(self, mtp: MtpLayer, sequences: Sequence[Decoding]) -> None:
        """Guess the tokens after the next one, one for all sequences at a time."""
        for sequence in sequences:
            sequence.inputs = [*sequence.inputs[1:], sequence.next_token]
        for number in range(max((sequence.num_wanted for sequence in sequences), default=0)):
            drafting = [sequence for sequence in sequences if sequence.num_wanted > number]
            caches = [sequence.mtp_cache for sequence in drafting]
            inputs = [(self._tensor(sequence.inputs), sequence.hidden) for sequence in drafting]
            outputs = _in_batches(mtp.forward, caches, inputs)
            for sequence, hidden in zip(drafting, outputs, strict=True):
                sequence.hidden = hidden[:, -1:]
                sequence.inputs = [int(mtp.layer.get_output_embeddings()(hidden[0, -1]).argmax())]
                sequence.drafts += sequence.inputs
        for sequence in sequences:
            # Guesses follow from guessed hidden states: the next step enters the true ones.
            sequence.mtp_cache.crop(min(0, 1 - sequence.num_wanted))


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
    """The MTP layer: hidden states and next tokens in, hidden states out."""

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

    def forward(self, tokens: torch.Tensor, hidden: torch.Tensor, **cache: Any) -> torch.Tensor:
        """Hidden states `[B, T, hidden_size]`.

        `tokens` `[B, T]` follow the tokens whose hidden states are `hidden`.
        """
        embedding = self._own["enorm"](self.layer.get_input_embeddings()(tokens))
        joined = torch.cat((embedding, self._own["hnorm"](hidden)), dim=-1)
        output: torch.Tensor = self.layer.base_model(
            inputs_embeds=self._own["eh_proj"](joined), **cache
        ).last_hidden_state
        return output


class Decoding:
    """One sequence: its caches, the inputs of its current step and their hidden states.

    The first inputs are the prompt; later ones are a token and the drafts after it. Each step is
    `Model.forward`, `accept` and `Model.advance`, in this order.
    """

    def __init__(self, model: Model, prompt: list[int]) -> None:
        self.inputs, self.drafts = prompt, list[int]()
        self.hidden = torch.empty(0)
        self.cache = DynamicCache(config=model.config)
        self.mtp_cache = DynamicCache(config=model.mtp.config if model.mtp else model.config)
        self.layers_before: list[Any] = []
        self.num_kept = self.num_wanted = self.next_token = 0

    def accept(self, num_drafts: int, next_token: int, num_wanted: int) -> None:
        """The first `num_drafts` drafts were right; `num_wanted` new ones follow `next_token`."""
        self.num_kept = len(self.inputs) - len(self.drafts) + num_drafts
        self.next_token, self.num_wanted = next_token, num_wanted
        self.drafts = []


def _has_linear_attention(cache: DynamicCache) -> bool:
    return any(isinstance(layer, LinearAttentionLayer) for layer in cache.layers)


def _in_batches(
    forward: Callable[..., torch.Tensor],
    caches: Sequence[DynamicCache],
    inputs: Sequence[tuple[torch.Tensor, ...]],
) -> list[torch.Tensor]:
    """The outputs `[1, T, ...]` of `forward` for each sequence, in as few passes as possible.

    The inputs of a sequence, `[1, T, ...]` each, continue its cache, which is advanced.
    """
    outputs = [torch.empty(0)] * len(caches)
    for group in _groups(caches, [parts[0].shape[1] for parts in inputs]):
        if len(group) == 1 and not _is_copied(caches[group[0]]):
            (row,) = group
            outputs[row] = forward(*inputs[row], cache=caches[row], use_cache=True)
            continue
        lengths = [caches[row].get_seq_length() + inputs[row][0].shape[1] for row in group]
        parts = zip(*(inputs[row] for row in group), strict=True)
        stacked = [_stack(part, dim=1) for part in parts]
        joined = _join([caches[row] for row in group])
        output = forward(
            *stacked,
            cache=joined,
            use_cache=True,
            **_positions(lengths, stacked[0]),
        )
        for number, (row, length) in enumerate(zip(group, lengths, strict=True)):
            outputs[row] = output[number : number + 1, -inputs[row][0].shape[1] :]
            caches[row].layers = [_part(layer, number, length) for layer in joined.layers]
    return outputs


def _groups(caches: Sequence[DynamicCache], counts: Sequence[int]) -> Iterator[list[int]]:
    """Which sequences share a forward pass: those whose padding is all before their first token.

    These are new sequences, and sequences that are continued by the same number of tokens. Padding
    further back would change the state of a linear attention.
    """
    continued: dict[int, list[int]] = {}
    new: list[int] = []
    for row in sorted(range(len(caches)), key=lambda row: counts[row]):
        if not _can_be_joined(caches[row]):
            yield [row]
        elif caches[row].get_seq_length():
            continued.setdefault(counts[row], []).append(row)
        elif new and (len(new) + 1) * counts[row] > _PROMPT_TOKENS:
            yield new
            new = [row]
        else:
            new.append(row)
    yield from continued.values()
    if new:
        yield new


def _can_be_joined(cache: DynamicCache) -> bool:
    return all(type(layer) in _JOINED for layer in cache.layers)


def _is_copied(cache: DynamicCache) -> bool:
    """Whether a pass must leave the layers before it as they are: `Model.advance` may need them."""
    return _has_linear_attention(cache) and _can_be_joined(cache)


def _positions(lengths: Sequence[int], inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """The masks and positions of sequences that are padded on the left to the same length."""
    longest, count = max(lengths), inputs.shape[1]
    if min(lengths) == longest:
        return {}
    columns = torch.arange(longest, device=inputs.device)
    positions = columns - longest + torch.tensor(lengths, device=inputs.device).unsqueeze(1)
    return {
        "attention_mask": (positions >= 0).long(),
        "position_ids": positions[:, -count:].clamp(min=0),
    }


def _stack(rows: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """A batch of tensors `[1, ...]`, padded at the start of a dimension to the same size."""
    sizes = [row.shape[dim] for row in rows]
    longest = max(sizes)
    if min(sizes) == longest:
        return torch.cat(list(rows))
    shape = list(rows[0].shape)
    shape[0], shape[dim] = len(rows), longest
    batch = rows[0].new_zeros(shape)
    for number, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        batch[number : number + 1].narrow(dim, longest - size, size).copy_(row)
    return batch


def _join(caches: Sequence[DynamicCache]) -> DynamicCache:
    joined = copy.copy(caches[0])
    joined.layers = [
        _join_layers(layers) for layers in zip(*(cache.layers for cache in caches), strict=True)
    ]
    return joined


def _join_layers(layers: Sequence[Any]) -> Any:
    first = layers[0]
    joined = _copy(first)
    for name in _BY_TOKEN:
        if getattr(first, name, None) is not None:
            setattr(joined, name, _stack([getattr(layer, name) for layer in layers], dim=-2))
    for name in _STATES:
        for key, state in getattr(first, name, {}).items():
            if state is not None:
                states = [getattr(layer, name)[key] for layer in layers]
                getattr(joined, name)[key] = torch.cat(states)
    if isinstance(first, DynamicSlidingWindowLayer):
        joined.cumulative_length = max(layer.cumulative_length for layer in layers)
    return joined


def _part(joined: Any, row: int, length: int) -> Any:
    """A layer of one sequence of `length` tokens, from that of a batch."""
    layer = _copy(joined)
    for name in _BY_TOKEN:
        if (tensor := getattr(joined, name, None)) is not None:
            setattr(layer, name, tensor[row : row + 1, ..., -length:, :])
    for name in _STATES:
        for key, state in getattr(joined, name, {}).items():
            if state is not None:
                getattr(layer, name)[key] = state[row : row + 1]
    if isinstance(joined, DynamicSlidingWindowLayer):
        layer.cumulative_length = length
    return layer


def _copy(layer: Any) -> Any:
    copied = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            setattr(copied, name, dict(value))
    return copied
