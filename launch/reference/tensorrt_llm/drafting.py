"""Drafts the tokens after the next one, for the main model to verify all in one step.

A drafter sees what was accepted and guesses what follows. `MtpLayer` works as the engine's
MTP-Eagle does: one layer, used again for every draft token, on the embedding of the next token and
the hidden state before it. `Eagle3Head` does the same with a decoder layer of its own and hidden
states from three layers of the main model; `DraftModel` is a smaller model alone, and `NGram`
looks the text up in itself. How a draft was made changes no output, only how much is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

from builder.diagnostics import Diagnostic
from builder.errors import BadFacts
from builder.facts.checkpoint import Checkpoint

from . import weights
from .decoding import Decoding, in_batches, snapshot
from .networks import DEVICE, Network, build
from .options import Drafting
from .weights import Weights

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


class Drafter(Protocol):
    """Guesses tokens. `config` is that of its cache; `captured` are the layers of the main model
    whose output it reads, after the last hidden state."""

    config: Any
    captured: tuple[int, ...]

    def draft(self, sequences: Sequence[Decoding]) -> None:
        """Set the drafts of each sequence: at most `num_wanted` tokens after `next_token`."""


class NGram:
    """Guesses that the text goes on as it did the first time after the same last tokens.

    The longest match of at most `size` tokens counts, as with `max_matching_ngram_size` and the
    default `is_use_oldest` of the engine; texts of other requests are not looked up.
    """

    captured: tuple[int, ...] = ()

    def __init__(self, config: Any, size: int) -> None:
        self.config, self._size = config, size

    def draft(self, sequences: Sequence[Decoding]) -> None:
        for sequence in sequences:
            text = [*sequence.tokens, *sequence.inputs, sequence.next_token]
            sequence.drafts = self._following(text)[: sequence.num_wanted]

    def _following(self, text: list[int]) -> list[int]:
        for size in range(min(self._size, len(text) - 1), 0, -1):
            for end in range(size, len(text)):
                if text[end - size : end] == text[-size:]:
                    return text[end:]
        return []


class _Chain:
    """Drafts one token after the other with a network, for all sequences at a time."""

    config: Any
    captured: tuple[int, ...] = ()
    _head: Any

    def draft(self, sequences: Sequence[Decoding]) -> None:
        inputs = [self._first(sequence) for sequence in sequences]
        after_first: list[list[Any]] = []
        for number in range(max((sequence.num_wanted for sequence in sequences), default=0)):
            rows = [row for row, one in enumerate(sequences) if one.num_wanted > number]
            caches = [sequences[row].draft_cache for row in rows]
            outputs = in_batches(self.forward, caches, [inputs[row] for row in rows])
            if not number:
                after_first = [snapshot(sequence.draft_cache) for sequence in sequences]
            for row, hidden in zip(rows, outputs, strict=True):
                token = self._token(hidden[0, -1])
                sequences[row].drafts.append(token)
                inputs[row] = (_tensor([token]), hidden[:, -1:])[: len(inputs[row])]
        # Guesses follow from guesses: the next step begins after the inputs that were true.
        for sequence, layers in zip(sequences, after_first, strict=False):
            sequence.draft_cache.layers = layers

    def _first(self, sequence: Decoding) -> tuple[torch.Tensor, ...]:
        """The accepted inputs of `forward` that it has not seen, `[1, T, ...]` each."""
        return _tensor([*sequence.inputs[1:], sequence.next_token]), sequence.hidden

    def forward(self, *inputs: torch.Tensor, **cache: Any) -> torch.Tensor:
        """Hidden states `[B, T, hidden_size]`, here of tokens and the hidden states before them."""
        raise NotImplementedError

    def _token(self, hidden: torch.Tensor) -> int:
        """The likeliest token after a hidden state `[hidden_size]`."""
        return int(self._head(hidden).argmax())


class DraftModel(_Chain):
    """A whole model with the vocabulary of the main one."""

    def __init__(self, network: Network) -> None:
        self.config, self._body = network.config, network.module.base_model
        self._head = network.module.get_output_embeddings()

    def _first(self, sequence: Decoding) -> tuple[torch.Tensor, ...]:
        seen = 1 if sequence.draft_cache.get_seq_length() else 0
        return (_tensor([*sequence.inputs[seen:], sequence.next_token]),)

    def forward(self, *inputs: torch.Tensor, **cache: Any) -> torch.Tensor:
        output: torch.Tensor = self._body(*inputs, **cache).last_hidden_state
        return output


class MtpLayer(_Chain):
    """The MTP layer of a checkpoint, as a one-layer model of the main model's class.

    So its masks, rotary embeddings and caches are those of the main model.
    """

    def __init__(self, main: Network, tensors: Weights) -> None:
        config = main.config
        fields = config.to_dict() | {k: v for k, v in _ONE_LAYER.items() if hasattr(config, k)}
        if hasattr(config, "layer_types"):
            fields["layer_types"] = config.layer_types[-1:]
        self.config = type(config).from_dict(fields)
        own = {name: tensors[name] for name in tensors if name.startswith(_OWN)}
        rest = {name: tensors[name] for name in tensors if name not in own}
        self.layer = build(main.kind, self.config, rest)
        self._head = self.layer.get_output_embeddings()
        norm, hidden = type(self.layer.base_model.norm), config.hidden_size
        self._own = torch.nn.ModuleDict(
            {
                "enorm": norm(hidden, eps=config.rms_norm_eps),
                "hnorm": norm(hidden, eps=config.rms_norm_eps),
                "eh_proj": torch.nn.Linear(2 * hidden, hidden, bias=False),
            }
        )
        self._own.load_state_dict(own)
        self._own.to(DEVICE).eval()

    def forward(self, *inputs: torch.Tensor, **cache: Any) -> torch.Tensor:
        tokens, hidden = inputs
        embedding = self._own["enorm"](self.layer.get_input_embeddings()(tokens))
        joined = self._own["eh_proj"](torch.cat((embedding, self._own["hnorm"](hidden)), dim=-1))
        output: torch.Tensor = self.layer.base_model(
            inputs_embeds=joined, **cache
        ).last_hidden_state
        return output


class _Eagle3Layer(torch.nn.Module):
    """Llama's layer whose attention reads two vectors side by side: embedding and hidden state."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        plain: Any = LlamaDecoderLayer(config, 0)
        self.self_attn, self.mlp = plain.self_attn, plain.mlp
        self.input_layernorm = plain.input_layernorm
        self.post_attention_layernorm = plain.post_attention_layernorm
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            size = getattr(self.self_attn, name).out_features
            wide = torch.nn.Linear(2 * config.hidden_size, size, bias=False)
            setattr(self.self_attn, name, wide)

    def forward(self, hidden_states: torch.Tensor, **more: Any) -> torch.Tensor:
        embedding, hidden = hidden_states.chunk(2, dim=-1)
        joined = torch.cat((self.input_layernorm(embedding), self.hidden_norm(hidden)), dim=-1)
        hidden = hidden + self.self_attn(joined, **more)[0]
        output: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Eagle3Head(_Chain):
    """The draft head of EAGLE-3, with the embedding of the main model.

    It is read as SpecForge and TensorRT-LLM do: `fc` fuses the captured states, what the layer
    gives is the next hidden state, its norm and head give the token, and `d2t` is the distance from
    the head's number of a token to the main model's.
    """

    def __init__(
        self, checkpoint: Checkpoint, tensors: Weights, main: Network, layers: Sequence[int]
    ) -> None:
        fields = {k: v for k, v in checkpoint.written_config.items() if k != "architectures"}
        self.config = LlamaConfig.from_dict(fields | {"num_hidden_layers": 1})
        count = main.config.num_hidden_layers
        # The default is that of tensorrt_llm/_torch/speculative/eagle3.py@001e6700. A miniature has
        # fewer layers than these numbers are for.
        wanted = layers or (1, count // 2 - 1, count - 4)
        self.captured = tuple(max(0, min(layer, count - 1)) for layer in wanted)
        embedding = main.module.get_input_embeddings()
        size = self.config.hidden_size
        width = size * len(self.captured)
        if tensors["fc.weight"].shape != (size, width) or embedding.embedding_dim != size:
            what = f"{checkpoint.name} does not fit hidden states of {main.checkpoint.name}"
            raise _unfit(what, "take a head that was trained for this model")
        self._embedding, self._width = embedding, width
        own = torch.nn.ModuleDict(
            {
                "fc": torch.nn.Linear(width, size, bias=False),
                "midlayer": _Eagle3Layer(self.config),
                "norm": LlamaRMSNorm(size, eps=self.config.rms_norm_eps),
                "lm_head": torch.nn.Linear(size, len(tensors["lm_head.weight"]), bias=False),
            }
        )
        own.load_state_dict({n: t for n, t in tensors.items() if n.startswith(tuple(own))})
        self._body = LlamaForCausalLM(self.config).model
        self._body.layers[0], self._body.norm = own["midlayer"], torch.nn.Identity()
        for module in (own, self._body):
            module.to(DEVICE).eval()
        self._fc, self._head = own["fc"], torch.nn.Sequential(own["norm"], own["lm_head"])
        self._distances = tensors.get("d2t")

    def _first(self, sequence: Decoding) -> tuple[torch.Tensor, ...]:
        tokens, hidden = super()._first(sequence)
        return tokens, self._fc(hidden[..., -self._width :])

    def forward(self, *inputs: torch.Tensor, **cache: Any) -> torch.Tensor:
        tokens, hidden = inputs
        joined = torch.cat((self._embedding(tokens), hidden), dim=-1)
        output: torch.Tensor = self._body(inputs_embeds=joined, **cache).last_hidden_state
        return output

    def _token(self, hidden: torch.Tensor) -> int:
        number = super()._token(hidden)
        return number if self._distances is None else number + int(self._distances[number])


def load(given: Drafting, main: Network, mtp: Weights) -> Drafter:
    """The drafter that options ask for. Raises `BadFacts` for weights that do not fit."""
    if given.method == "ngram":
        return NGram(main.config, given.ngram_size)
    if given.method == "mtp":
        return _mtp_layer(main, mtp)
    folder = Path(str(given.model)).expanduser()
    if not folder.is_dir():
        what = "is not a folder; the reference engine downloads no draft model"
        raise BadFacts(Diagnostic(str(given.model), what, "set DRAFT_CHECKPOINT to its folder"))
    checkpoint, tensors, _ = weights.load(folder)
    if checkpoint.architecture.draft_head != (given.method == "eagle3"):
        what = f"{checkpoint.name} is no draft for {given.method}"
        raise _unfit(what, "compare decoding_type with the draft's config.json")
    if given.method == "eagle3":
        return Eagle3Head(checkpoint, tensors, main, given.layers)
    network = Network(checkpoint, tensors)
    own, wanted = network.config.vocab_size, main.config.vocab_size
    if own != wanted:
        what = f"{checkpoint.name} has {own} tokens in its vocabulary, the model {wanted}"
        raise _unfit(what, "take a draft model of the same family")
    return DraftModel(network)


def _mtp_layer(main: Network, mtp: Weights) -> MtpLayer:
    """That of the first MTP layer; the layers after it are not used."""
    checkpoint = main.checkpoint
    if not mtp:
        raise _unfit(f"{checkpoint.name} has no MTP layer", "leave speculative_config out")
    if checkpoint.architecture.name not in _WITH_MTP:
        what = f"the reference engine has no MTP layer of {checkpoint.architecture.name}"
        raise _unfit(what, "leave speculative_config out to rehearse")
    layer = checkpoint.text_config["num_hidden_layers"]
    places = [(prefix.format(layer=layer), place) for prefix, place in _MTP_NAMES]
    tensors = dict(main.ends)
    for name, tensor in mtp.items():
        for prefix, place in places:
            if name.startswith(prefix):
                tensors[place + name.removeprefix(prefix)] = tensor
                break
    return MtpLayer(main, tensors)


def _unfit(what: str, remedy: str) -> BadFacts:
    return BadFacts(Diagnostic("speculative_config", what, remedy))


def _tensor(tokens: list[int]) -> torch.Tensor:
    return torch.tensor([tokens], device=DEVICE)
