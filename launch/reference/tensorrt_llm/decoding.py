"""One sequence under way, and forward passes over several of them.

Each sequence has its own caches. For a forward pass of several sequences these are joined into
one, padded on the left, and taken apart again afterwards.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
)

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

_Combine = Callable[[list[torch.Tensor]], torch.Tensor]


class Decoding:
    """One sequence: its caches, the inputs of its current step and their hidden states.

    The first inputs are the prompt; later ones are a token and the drafts after it. `tokens` are
    the accepted inputs of earlier steps. Each step is `Model.forward`, `accept` and
    `Model.advance`, in this order.
    """

    def __init__(self, prompt: list[int], config: Any, draft_config: Any) -> None:
        self.inputs, self.drafts, self.tokens = prompt, list[int](), list[int]()
        self.hidden = torch.empty(0)
        self.cache = DynamicCache(config=config)
        self.draft_cache = DynamicCache(config=draft_config)
        self.layers_before: list[Any] = []
        self.num_kept = self.num_wanted = self.next_token = 0

    def accept(self, num_drafts: int, next_token: int, num_wanted: int) -> None:
        """The first `num_drafts` drafts were right; `num_wanted` new ones follow `next_token`."""
        self.num_kept = len(self.inputs) - len(self.drafts) + num_drafts
        self.next_token, self.num_wanted = next_token, num_wanted
        self.drafts = []


def cannot_be_cropped(cache: DynamicCache) -> bool:
    """Whether tokens cannot be taken back from a cache: a state, or a window that lost others."""
    kinds = (LinearAttentionLayer, DynamicSlidingWindowLayer)
    return any(isinstance(layer, kinds) for layer in cache.layers)


def snapshot(cache: DynamicCache) -> list[Any]:
    """The layers of a cache as they are; later passes leave them so."""
    return [_copy(layer) for layer in cache.layers]


def in_batches(
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
        positions = _positions(lengths, stacked[0])
        output = forward(*stacked, cache=joined, use_cache=True, **positions)
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
    return cannot_be_cropped(cache) and _can_be_joined(cache)


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
    longest = max(row.shape[dim] for row in rows)
    padded = []
    for row in rows:
        shape = list(row.shape)
        shape[dim] = longest - row.shape[dim]
        padded.append(torch.cat((row.new_zeros(shape), row), dim) if shape[dim] else row)
    return torch.cat(padded)


def _join(caches: Sequence[DynamicCache]) -> DynamicCache:
    joined = copy.copy(caches[0])
    joined.layers = []
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        layer = _combined(layers, lambda tensors: _stack(tensors, dim=-2), torch.cat)
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length = max(one.cumulative_length for one in layers)
        joined.layers.append(layer)
    return joined


def _part(joined: Any, row: int, length: int) -> Any:
    """A layer of one sequence of `length` tokens, from that of a batch."""
    rows = slice(row, row + 1)
    layer = _combined(
        [joined], lambda batch: batch[0][rows, ..., -length:, :], lambda batch: batch[0][rows]
    )
    if isinstance(joined, DynamicSlidingWindowLayer):
        layer.cumulative_length = length
    return layer


def _combined(layers: Sequence[Any], by_token: _Combine, states: _Combine) -> Any:
    """A copy of the first layer, whose tensors are made from those of all layers."""
    first = layers[0]
    copied = _copy(first)
    for name in _BY_TOKEN:
        if getattr(first, name, None) is not None:
            setattr(copied, name, by_token([getattr(layer, name) for layer in layers]))
    for name in _STATES:
        for key, state in getattr(first, name, {}).items():
            if state is not None:
                getattr(copied, name)[key] = states([getattr(layer, name)[key] for layer in layers])
    return copied


def _copy(layer: Any) -> Any:
    copied = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):
            setattr(copied, name, dict(value))
    return copied
