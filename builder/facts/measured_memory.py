"""The memory of one GPU as a start of the engine logged it, and with what it was started."""

from __future__ import annotations

from typing import Annotated, Any

from ..schema import Bounds, Strict

Gib = Annotated[float, Bounds(gt=0, exact=False)]
Text = Annotated[str, Bounds(min_length=1, max_length=1000)]
Name = Annotated[str, Bounds(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=128)]


class MeasuredMemory(Strict):
    """Measured sizes in GiB, for a plan of the same checkpoint, GPUs, engine and options.

    `kv_cache_gib` is the KV cache of one GPU; with the share of memory that it was given
    (`kv_cache_fraction` where the engine logged another one than planned) it says what everything
    else took. `options` are the planned values by path.
    """

    source: Text
    checkpoint: Text
    gpu: Name
    num_gpus: Annotated[int, Bounds(ge=1)]
    engine: Name
    release: Name
    kv_cache_gib: Gib
    weights_gib: Gib | None = None
    kv_cache_fraction: Annotated[float, Bounds(gt=0, le=1, exact=False)] | None = None
    options: dict[str, Any]
