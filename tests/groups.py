"""Groups the tests that run one after the other, and decides which groups start first.

Tests of one group share servers. The longest groups start first, so that no worker is still busy
long after the others; groups that wait for servers alternate with groups that compute. Runs record
the seconds of each file in pytest's cache. A fresh clone has those of `seconds.json`, which
`python -m tests.groups` writes from the cache after a whole run.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Container, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent

# Tests that mostly wait for servers: the first match names the group of a file. Without recorded
# seconds they start in this order. Any other file is a group of its own, and computes.
GROUPS = (
    ("slurm/test_handover.py", "handover on a cluster"),
    ("slurm/test_state_faults.py", "faults of state on a cluster"),
    ("slurm/test_faults.py", "faults on a cluster"),
    ("diagnosis/test_real_failures.py", "real failures"),
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


# In pytest's cache, or those of runs side by side below it: the seconds that each file took when it
# last ran whole.
CACHED = "files/seconds"
# The same for a clone that has no cache yet, without files that take less than a second.
KEPT = ROOT / "seconds.json"
# For a file that no run recorded.
SECONDS_PER_TEST = 0.2


def arrange(items: list[pytest.Item], before: Mapping[str, float]) -> None:
    """Mark each test with its group, and sort them by group."""
    groups = {path: _group(path) for path in {item.path for item in items}}
    tests = Counter(item.path for item in items)
    seconds: dict[str, float] = defaultdict(float)
    for path, group in groups.items():
        seconds[group] += before.get(_name(path), SECONDS_PER_TEST * tests[path])
    known = {groups[path] for path in groups if _name(path) in before}
    ranks = {group: rank for rank, group in enumerate(_order(seconds, known))}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item.path]))
    items.sort(key=lambda item: ranks[groups[item.path]])


def _order(seconds: Mapping[str, float], known: Container[str]) -> list[str]:
    """After each group that waits a few that compute, the longest first; half of them come last."""
    listed = [name for name in dict.fromkeys(name for _, name in GROUPS) if name in seconds]
    waiting = sorted(listed, key=lambda name: -seconds[name] if name in known else -math.inf)
    others = sorted(seconds.keys() - waiting, key=lambda name: (-seconds[name], name))
    rest, share = iter(others), len(others) // (2 * len(waiting) or 1)
    begun = [name for group in waiting for name in (group, *itertools.islice(rest, share))]
    return [*begun, *rest]


def _group(path: Path) -> str:
    inside = path.relative_to(ROOT)
    for place, group in GROUPS:
        if inside.is_relative_to(place):
            return group
    return inside.as_posix()


def _name(path: Path) -> str:
    return path.relative_to(ROOT.parent).as_posix()


class Stopwatch:
    """Records the seconds of each file, unless a run selects some of its tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        options = self._config.option
        selects = options.keyword or options.markexpr or any("::" in a for a in self._config.args)
        cache = getattr(self._config, "cache", None)
        if cache and exitstatus == 0 and not selects:
            cache.set(CACHED, cache.get(CACHED, {}) | self._seconds)


def recorded(config: pytest.Config) -> dict[str, float]:
    """The seconds of each file, by its path in the checkout."""
    kept: dict[str, float] = json.loads(KEPT.read_text())
    cache = getattr(config, "cache", None)
    return kept | cache.get(CACHED, {}) if cache else kept


def keep(caches: Path = ROOT.parent / ".pytest_cache") -> None:
    """Write `seconds.json` from pytest's caches."""
    seconds: dict[str, float] = {}
    for cached in sorted(caches.rglob(CACHED)):
        seconds |= json.loads(cached.read_text())
    rows = {name: round(value) for name, value in sorted(seconds.items()) if round(value)}
    KEPT.write_text(json.dumps(rows, indent=0) + "\n")


if __name__ == "__main__":
    keep()
