"""The tensors of a checkpoint, added up by role and dtype."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .architecture import Architecture, Config, Role, Tensors
from .quantization import Quantization
from .safetensors import Stored

Kind = tuple[Role, bool, str]


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """What the tensors of one role and dtype add up to."""

    role: Role
    mtp: bool
    dtype: str
    count: int
    nbytes: int


def computed(
    architecture: Architecture, config: Config, quantization: Quantization
) -> tuple[TensorGroup, ...]:
    """By arithmetic; one expert stands for all experts of its layer."""

    def rows() -> Iterator[tuple[Kind, int, int]]:
        for tensors in architecture.tensors(architecture.text(config)):
            experts = max(1, tensors.experts)
            for layer in tensors.layers or (None,):
                name = tensors.pattern.format(layer=layer, expert=0)
                scales = quantization.kv_scales(architecture, tensors, name)
                for tensor in quantization.stored(tensors, name) + scales:
                    kind = (tensors.role, tensors.mtp, tensor.dtype)
                    yield kind, experts, tensor.nbytes * experts

    return _added_up(rows())


def stored(
    architecture: Architecture, config: Config, found: Iterable[Stored]
) -> tuple[TensorGroup, ...]:
    """Those of files, each tensor under the role that its name has."""
    roles = _roles(architecture, config)

    def rows() -> Iterator[tuple[Kind, int, int]]:
        for tensor in found:
            known = roles.get(_module(tensor.name))
            if known is not None:  # else of a vision tower or the like, not of the language model
                yield (known.role, known.mtp, tensor.dtype), 1, tensor.nbytes

    return _added_up(rows())


def _added_up(rows: Iterable[tuple[Kind, int, int]]) -> tuple[TensorGroup, ...]:
    counts: Counter[Kind] = Counter()
    totals: Counter[Kind] = Counter()
    for kind, count, nbytes in rows:
        counts[kind] += count
        totals[kind] += nbytes
    return tuple(TensorGroup(*kind, counts[kind], totals[kind]) for kind in sorted(counts))


def _roles(architecture: Architecture, config: Config) -> dict[str, Tensors]:
    return {
        _module(name): tensors
        for tensors in architecture.tensors(architecture.text(config))
        for name in tensors.names()
    }


def _module(name: str) -> str:
    """The module of a tensor: its name without `.weight`, a scale or a bias."""
    return re.sub(
        r"\.(weight(_scale(_2|_inv)?)?|input_scale|[kv]_scale|bias)$|_(blocks|scales)$", "", name
    )
