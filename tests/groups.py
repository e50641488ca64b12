"""Which tests run one after the other when tests run side by side, and what begins first.

Tests of one group share their servers, and disturb nobody else's. What waits longest begins first,
so that nothing long is left for the end.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent

# The first that fits, in the order in which they begin: those that take longest, of which some wait
# while others compute. A file that none fits is a group of its own, and comes after these.
GROUPS = (
    ("slurm/test_faults.py", "faults on a cluster"),
    ("slurm", "Slurm"),
    ("handoff/test_runbook_commands.py", "runbook"),
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
    ranks = {group: rank for rank, (_, group) in enumerate(GROUPS)}
    groups = {path: _group(path) for path in {item.path for item in items}}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item.path]))
    items.sort(key=lambda item: ranks.get(groups[item.path], len(GROUPS)))


def _group(path: Path) -> str:
    inside = path.relative_to(ROOT)
    for place, group in GROUPS:
        if inside.is_relative_to(place):
            return group
    return inside.as_posix()
