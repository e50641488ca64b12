"""Which tests run one after the other when tests run side by side, and what begins first.

Tests of one group share their servers, and disturb nobody else's. What takes longest begins first,
so that nothing long is left for the end; what waits for servers runs beside what computes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent

# The first that fits, in the order in which they begin: those that take longest, and mostly wait. A
# file that none fits is a group of its own, and computes.
GROUPS = (
    ("slurm/test_handover.py", "handover on a cluster"),
    ("slurm/test_state_faults.py", "faults of state on a cluster"),
    ("slurm/test_faults.py", "faults on a cluster"),
    ("slurm", "Slurm"),
    ("handoff/test_runbook_commands.py", "runbook"),
    ("model_repository/test_drain.py", "servers of Triton that end"),
    ("model_repository/test_lifecycle.py", "servers of Triton that end"),
    ("model_repository/test_start_script.py", "servers of Triton that end"),
    ("model_repository", "Triton"),
    ("launch/test_rehearse.py", "rehearsal"),
    ("launch/slurm/test_shapes.py", "shapes on a cluster"),
    ("docs/test_pages.py", "pages"),
    ("handoff/test_compose_commands.py", "Docker"),
    ("reference", "reference engine"),
    ("handoff/test_kubernetes_commands.py", "cluster of boxes"),
    ("launch/bench", "bench"),
    ("launch/test_secure.py", "secure"),
    ("launch/test_up.py", "up"),
    ("launch/slurm", "launch slurm"),
    ("monitoring", "monitoring"),
    ("benchmarks/test_triton_stream.py", "streaming"),
    ("kubernetes", "pods"),
    ("launch/report", "browser"),
    ("handoff/test_page.py", "browser"),
)


def arrange(items: list[pytest.Item]) -> None:
    """Mark each test with its group, and sort them by group."""
    groups = {path: _group(path) for path in {item.path for item in items}}
    counts = Counter(groups[item.path] for item in items)
    ranks = {group: rank for rank, group in enumerate(_order(counts))}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item.path]))
    items.sort(key=lambda item: ranks[groups[item.path]])


def _order(counts: Mapping[str, int]) -> list[str]:
    """After each that waits a few that compute, those of most tests first; half come last."""
    waiting = [name for name in dict.fromkeys(name for _, name in GROUPS) if name in counts]
    others = sorted(counts.keys() - waiting, key=lambda name: (-counts[name], name))
    rest, share = iter(others), len(others) // (2 * len(waiting) or 1)
    begun = [name for group in waiting for name in (group, *itertools.islice(rest, share))]
    return [*begun, *rest]


def _group(path: Path) -> str:
    inside = path.relative_to(ROOT)
    for place, group in GROUPS:
        if inside.is_relative_to(place):
            return group
    return inside.as_posix()
