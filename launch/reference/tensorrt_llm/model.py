"""Runs the steps of the main model and its drafter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from . import drafting, weights
from .decoding import Decoding, cannot_be_cropped, in_batches
from .networks import DEVICE, Network
from .options import Drafting


class Model:
    """The main model and, if drafts are wanted, what makes them."""

    def __init__(self, network: Network, drafter: drafting.Drafter | None) -> None:
        self.checkpoint, self.config = network.checkpoint, network.config
        self.main, self.drafter = network.module, drafter

    def begin(self, prompt: list[int]) -> Decoding:
        return Decoding(prompt, self.config, self.drafter.config if self.drafter else self.config)

    def forward(self, sequences: Sequence[Decoding]) -> None:
        """Run the inputs of each sequence, which sets its hidden states."""
        for sequence in sequences:
            sequence.layers_before = list(sequence.cache.layers)
        self._run(sequences)

    def _run(self, sequences: Sequence[Decoding]) -> None:
        caches = [sequence.cache for sequence in sequences]
        inputs = [(torch.tensor([one.inputs], device=DEVICE),) for one in sequences]
        outputs = in_batches(self._hidden_states, caches, inputs)
        for sequence, hidden in zip(sequences, outputs, strict=True):
            sequence.hidden = hidden

    def _hidden_states(self, tokens: torch.Tensor, **cache: Any) -> torch.Tensor:
        """The last ones and, side by side with them, those of the layers that the drafter reads."""
        layers = self.drafter.captured if self.drafter else ()
        output = self.main.base_model(tokens, output_hidden_states=bool(layers), **cache)
        last: torch.Tensor = output.last_hidden_state
        if not layers:
            return last
        return torch.cat((last, *(output.hidden_states[layer + 1] for layer in layers)), dim=-1)

    def logits(self, sequence: Decoding, count: int) -> torch.Tensor:
        """The logits `[count, vocab_size]` at the last inputs of a sequence."""
        head = self.main.get_output_embeddings()
        logits: torch.Tensor = head(sequence.hidden[0, -count:, : head.weight.shape[-1]])
        return logits

    def advance(self, sequences: Sequence[Decoding]) -> None:
        """Keep the accepted inputs in the caches, as if the others never were, and set the next.

        The state of a linear attention cannot be shortened, and a window cannot get back what it
        dropped: such a cache is set back to where it was before the inputs, and the accepted ones
        are run again.
        """
        again = []
        for sequence in sequences:
            wrong = len(sequence.inputs) - sequence.num_kept
            sequence.inputs = sequence.inputs[: sequence.num_kept]
            sequence.hidden = sequence.hidden[:, : sequence.num_kept]
            if wrong and cannot_be_cropped(sequence.cache):
                sequence.cache.layers = sequence.layers_before
                again.append(sequence)
            elif wrong:
                sequence.cache.crop(-wrong)
        self._run(again)
        if self.drafter:
            self.drafter.draft(sequences)
        for sequence in sequences:
            sequence.tokens += sequence.inputs
            sequence.inputs = [sequence.next_token, *sequence.drafts]


def load(folder: Path, given: Drafting | None = None) -> Model:
    """Raises `BadFacts` if the folder is not a complete checkpoint of a known architecture."""
    log: Any = transformers.utils.logging
    log.set_verbosity_error()
    log.disable_progress_bar()
    checkpoint, tensors, mtp = weights.load(folder)
    network = Network(checkpoint, tensors)
    return Model(network, drafting.load(given, network, mtp) if given else None)
