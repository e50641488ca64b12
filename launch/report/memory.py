"""The memory budget of a GPU, as a bar and as a table."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from .evidence import RunEvidence
from .number_format import number
from .tables import NUMERIC, PageTable, make_table

WIDTH, HEIGHT = 640, 26
GAP = 1.5
PARTS = {
    "weights_gib": "weights",
    "kv_cache_gib": "KV cache",
    "activations_gib": "activations",
    "cuda_graphs_gib": "CUDA graphs",
    "other_gib": "other",
}


def parts(run: RunEvidence) -> list[tuple[str, float]]:
    """The memory budget of one GPU in GiB, and what is free."""
    budget = (run.manifest or {}).get("memory", {}).get("per_gpu")
    if not budget:
        return []
    used = [(name, budget[key]) for key, name in PARTS.items()]
    free = budget["total_gib"] - sum(gib for _, gib in used)
    return [*used, ("free", free)] if free > 0 else used


def table(run: RunEvidence) -> PageTable | None:
    budget = parts(run)
    if not run.manifest or not budget:
        return None
    found = run.manifest["memory"]
    rows = [(name, f"{number(gib)} GiB") for name, gib in budget]
    rows += [
        ("total", f"{number(found['per_gpu']['total_gib'])} GiB"),
        ("KV cache per token", f"{number(found['kv_bytes_per_token'])} bytes"),
        ("tokens in the KV cache", number(found["kv_tokens"])),
        ("requests at a time", number(found["max_concurrency"])),
    ]
    columns = [("part", "text"), ("size", NUMERIC)]
    return make_table("Memory budget of each GPU, estimated", columns, rows)


def bar(budget: Sequence[tuple[str, float]]) -> Markup:
    """Parts by name and GiB, in the colours of the key below the bar."""
    total = sum(gib for _, gib in budget)
    at = 0.0
    drawn = []
    for index, (name, gib) in enumerate(budget):
        width = gib / total * WIDTH
        drawn.append(
            Markup('<rect class="{}" x="{:.1f}" width="{:.1f}" height="{}"/>').format(
                colour(index, name), at, max(width - GAP, 0.5), HEIGHT
            )
        )
        at += width
    label = f"Memory of a GPU, {number(total)} GiB"
    return Markup(
        '<svg class="bar" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>'
    ).format(WIDTH, HEIGHT, label, Markup("").join(drawn))


def colour(index: int, name: str) -> str:
    return "free" if name == "free" else f"s{index}"
