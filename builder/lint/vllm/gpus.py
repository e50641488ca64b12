"""The GPUs of a server of vLLM against the ranks that its options make."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ...diagnostics import Diagnostic
from ...facts.release import Release
from ...rules.rule_inputs import as_number
from ..surroundings import gpu_diagnostic
from ..workers import Place

# ParallelConfig.__post_init__: the ranks of a server, and with data parallelism of all of them.
SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
)
# With one of these a server is on several nodes, is one of several, or has sizes in a file: its own
# GPUs tell nothing.
_ELSEWHERE = (
    "config",
    "nnodes",
    "node_rank",
    "data_parallel_size_local",
    "data_parallel_rank",
    "data_parallel_start_rank",
    "data_parallel_address",
    "data_parallel_external_lb",
    "data_parallel_hybrid_lb",
    "data_parallel_backend",
    "distributed_executor_backend",
    "device_ids",
    "headless",
)
# Of these, what only says that there are several nodes.
_ON_NODES = ("distributed_executor_backend", "nnodes", "node_rank")


def ranks(options: Mapping[str, Any], release: Release, on_all_nodes: bool = False) -> int | None:
    """The ranks of a server with GPUs of its own, or with those `on_all_nodes`; `None` where a size
    is not known."""
    if any(name in options and not (on_all_nodes and name in _ON_NODES) for name in _ELSEWHERE):
        return None
    sizes = [as_number(options.get(name, 1)) for name in SIZES if name in release.top_level]
    known = [int(size) for size in sizes if size is not None and size >= 1 and size == int(size)]
    return prod(known) if len(known) == len(sizes) else None


def diagnostic(
    options: Mapping[str, Any], gpus: Place | None, release: Release, is_open: bool
) -> Diagnostic | None:
    """What is wrong where a server has GPUs of its own."""
    if gpus is None or is_open:
        return None
    world = ranks(options, release, gpus.on_all_nodes)
    return None if world is None else gpu_diagnostic(world, gpus.count, gpus.location, gpus.path)
