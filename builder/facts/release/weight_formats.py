"""Which quantized weights a release reads: rows of `builder/data/weight_formats`, one file for each
engine.

What no row says is unknown, and never treated as supported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from ...documents import DATA
from ...schema import Check, Text, one_of
from .. import data_file
from ..hardware import ComputeCapability
from ..quantization import Quantization
from ..weight_layouts import FORMATS
from . import Release, of_all_engines
from .support import Support, SupportState, compute_capability
from .version import order

Layers = Literal["linear", "experts"]
_Format = Annotated[str, one_of(FORMATS)]
_Version = Annotated[str, Check(lambda text: order(text) is not None, "must be a version")]

_WORST: tuple[SupportState, ...] = ("unsupported", "unknown", "supported")


@dataclass(frozen=True, slots=True)
class FormatRow:
    """What is known about formats as some writers store them; see the files."""

    formats: tuple[_Format, ...]
    writers: tuple[Text | None, ...]
    state: Literal["supported", "unsupported"]
    source: Text
    confidence: Literal["read", "inferred"]
    layers: Layers | None = None
    since: _Version | None = None
    until: _Version | None = None
    sm: tuple[ComputeCapability, ...] | None = None

    def fits(self, position: str, sm: int | None) -> bool:
        """Whether it is of a release and a GPU; where none is named, kernels of some GPU count."""
        here = order(position)
        first, last = (None if each is None else order(each) for each in (self.since, self.until))
        if (first or last) and here is None:
            return False
        if here and ((first and here < first) or (last and here > last)):
            return False
        if self.sm is None:
            return True
        return self.state == "supported" if sm is None else sm in self.sm


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """What is known of an engine; `conversion` says how a checkpoint becomes one that it reads."""

    conversion: Text
    rows: tuple[FormatRow, ...]


def table(release: Release) -> WeightFormats:
    path = DATA / release.engine.weight_formats
    found: WeightFormats = data_file.load(path, WeightFormats)
    return found


def reading(
    release: Release, quantization: Quantization, has_experts: bool, sm: int | None
) -> Support | None:
    """What is known of the least known format of a checkpoint; `None` for one in BF16."""
    found = list(_readings(release, quantization, has_experts, sm))
    return min(found, key=lambda row: _WORST.index(row.state), default=None)


def _readings(
    release: Release, quantization: Quantization, has_experts: bool, sm: int | None
) -> Iterator[Support]:
    writer = quantization.writer
    for name in quantization.formats:
        weights = f"{name} ({writer})" if writer else name
        for layers in _layers(quantization, name, has_experts):
            row = _row(release, name, writer, layers, sm)
            if row is None:
                where = "" if sm is None else f" on compute capability {compute_capability(sm)}"
                nobody = f"no source says whether it reads them{where}"
                yield Support("unknown", nobody, weights)
            else:
                yield Support(row.state, row.source, weights)


def _layers(quantization: Quantization, name: str, has_experts: bool) -> tuple[Layers, ...]:
    """Where weights of a format are; of a mixture, the main one is that of the experts."""
    if not has_experts:
        return ("linear",)
    if not quantization.parts:
        return ("linear", "experts")
    return ("experts",) if name == quantization.quant_algo else ("linear",)


def _row(
    release: Release, name: str, writer: str | None, layers: Layers, sm: int | None
) -> FormatRow | None:
    for row in table(release).rows:
        known = name in row.formats and writer in row.writers
        if known and row.layers in (None, layers) and row.fits(release.position, sm):
            return row
    return None


def remedy(release: Release, quantization: Quantization, has_experts: bool, sm: int | None) -> str:
    """The releases that read such a checkpoint on the same GPU, and what else is left."""
    readers: dict[str, list[str]] = {}
    for other in of_all_engines():
        found = reading(other, quantization, has_experts, sm)
        if found is not None and found.state == "supported":
            readers.setdefault(other.engine.title, []).append(other.name)
    title = release.engine.title
    own = readers.pop(title, None)
    ways = [f"choose release {', '.join(own)}, known to read it"] if own else []
    ways += [f"serve it with {name} {', '.join(names)}" for name, names in readers.items()]
    return "; or ".join([*ways, table(release).conversion])
