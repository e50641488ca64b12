"""Failures of a step's tasks, as its srun reports them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# How srun reports failed tasks, for example `srun: error: node2: tasks 2-3: Killed`.
_SPAN = "[0-9]{1,6}(?:-[0-9]{1,6})?"
TASKS_ENDED = re.compile(rf"srun: error: (\S+: tasks? ({_SPAN}(?:,{_SPAN})*): (.*))")
TERMINATED = "Terminated"  # how --kill-on-bad-exit ends the other tasks
EXITED = "Exited"  # with a code; any other end is a crash


@dataclass(frozen=True)
class TaskFailure:
    """Tasks of one node that ended in the same way at about the same time.

    `cause` is how they ended, `message` srun's line without its prefix.
    """

    ranks: list[int]
    cause: str
    message: str


def task_failures(srun_output: str) -> list[TaskFailure]:
    """In the order in which srun reports them."""
    found = filter(None, map(TASKS_ENDED.match, srun_output.splitlines()))
    return [TaskFailure(ranks_of(row[2]), cause=row[3], message=row[1]) for row in found]


def ranks_of(text: str) -> list[int]:
    """Those of `0,2-4`."""
    spans = [part.partition("-") for part in text.split(",")]
    return [rank for a, _, b in spans for rank in range(int(a), int(b or a) + 1)]


def first_failed_rank(failures: Sequence[TaskFailure], per_node: int) -> int:
    """The rank that ended first and caused the others to end, if srun's output shows it.

    A node reports what ended within 0.1 s by rank and not by time, so that a server (rank 0) that
    ends as it lost a rank comes first. But ranks run one program, which Slurm ends alike: the few
    that ended otherwise were first. Where half a node ended as rank 0 did, all failed alike.
    """
    first = failures[0]
    if 0 not in first.ranks:
        return first.ranks[0]
    causes: dict[str, list[int]] = {}
    for one in failures:
        if one.cause != first.cause or 2 * (len(first.ranks) - 1) < per_node:
            causes.setdefault(one.cause, []).extend(rank for rank in one.ranks if rank)
    groups = [
        (len(ranks), cause.startswith(EXITED), cause) for cause, ranks in causes.items() if ranks
    ]
    odd = [cause for size, is_exit, cause in sorted(groups) if cause != TERMINATED]
    crashed_alone = [group[:2] for group in groups] == [(1, False)]
    return causes[odd[0]][0] if odd and (len(groups) > 1 or crashed_alone) else 0
