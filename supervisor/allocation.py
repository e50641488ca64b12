"""The nodes and the time that Slurm gave the job, and why it takes them back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from .slurm import Cluster, epoch
from .spec import JobExit
from .state import timestamp

TERMINATING_TIMEOUT_S = 2.0  # of a Slurm command when Slurm is about to kill this job
# Signals that cannot be caught, that end nothing, and that faults of this process raise.
LEFT_ALONE = {
    *(signal.SIGKILL, signal.SIGSTOP),
    *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGPIPE),
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP),
    *(signal.SIGSYS, signal.SIGXFSZ),
}
JOB_PERIOD_S = 30.0  # between polls of the job's nodes, and its limit, which may be extended


class Allocation:
    """What Slurm has of this job, polled and by its signals.

    USR1: the time limit is near. TERM, INT and QUIT: Slurm ends the job. Others that would end this
    process do nothing, but for those of a fault in it.
    """

    def __init__(self, cluster: Cluster, limit_s: float) -> None:
        self.cluster = cluster
        self._limit_s = limit_s
        # The clock of this node may be wrong, or set while the job runs: what passes is counted.
        self._began, self._began_steady_s = time.time(), time.monotonic()
        self._controller_began: float | None = None  # the controller's time at that moment
        self.until = self._began + limit_s
        self._ends_steady_s = self._began_steady_s + limit_s
        self.silent_nodes: list[str] = []  # that Slurm does not hear of, and has not given up
        self.is_near_end = False
        self._signal: str | None = None
        self._next_poll = 0.0
        self._reads: list[Callable[[], None]] = []  # that are left of a poll
        for number in signal.valid_signals() - LEFT_ALONE:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
        if number == signal.SIGUSR1:
            self.is_near_end = True
        elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            self._signal = signal.Signals(number).name

    @property
    def is_terminating(self) -> bool:
        """Whether Slurm ends the job: it was preempted or cancelled, or its time is over."""
        return self._signal is not None

    @property
    def left_s(self) -> float:
        return self._ends_steady_s - time.monotonic()

    def poll(self) -> None:
        """Its time limit and its nodes, as Slurm sees them, every `JOB_PERIOD_S`.

        Each call runs one command at most, since nothing else is done while it waits.
        """
        if not self._reads:
            if time.monotonic() < self._next_poll:
                return
            self._reads = [self._read_clock, self._read_times, self._read_nodes]
        self._reads.pop(0)()
        if not self._reads:
            self._next_poll = time.monotonic() + JOB_PERIOD_S

    def _read_clock(self) -> None:
        waited_s = time.monotonic() - self._began_steady_s
        if (now := self.cluster.now()) is not None:
            self._controller_began = now - waited_s

    def _read_times(self) -> None:
        start, end = self.cluster.times()
        if start is None:
            return
        limit = start + self._limit_s
        self.until = min(limit, end or limit)
        began = self._controller_began
        if began is None or not start - 1 <= began < self.until:  # whole seconds, rounded down
            # By this node's clock, unless it is absurd: early rather than late.
            half_s = (self.until - start) / 2
            began = self._began if 0 <= self._began - start <= half_s else start
        self._ends_steady_s = self._began_steady_s + self.until - began

    def _read_nodes(self) -> None:
        # This node is not asked for: Slurm's daemon may be away while all else on it answers.
        others = [node for node in self.cluster.nodes if node != self.cluster.node]
        down, self.silent_nodes = self.cluster.down_and_silent_nodes(others) if others else ([], [])
        if down:
            raise JobExit("node_lost", f"{', '.join(down)} is lost")

    def handle_signal(self) -> None:
        """Raises the reason, looked up in little time: Slurm soon kills what is left."""
        if self._signal is None:
            return
        self.cluster.timeout_s = TERMINATING_TIMEOUT_S
        if lost := self.cluster.lost_nodes(self.cluster.nodes):
            raise JobExit("node_lost", f"{self._signal}: {', '.join(lost)} is lost")
        raise self.exit_by_slurm() or JobExit("cancelled", self._signal)

    def exit_by_slurm(self) -> JobExit | None:
        """Why Slurm ends the job: it sends TERM to the tasks and, not always, to this process."""
        info = self.cluster.job_info(self.cluster.job_id)
        state = info.get("JobState", "RUNNING")
        preempted = info.get("PreemptTime", "None")
        if preempted[:1].isdecimal() or state == "PREEMPTED":
            when = preempted if (at := epoch(preempted)) is None else timestamp(at)
            return JobExit("preempted", f"by Slurm at {when}")
        restarts, known = info.get("Restarts", "0"), os.environ.get("SLURM_RESTART_COUNT") or 0
        if restarts.isdecimal() and int(restarts) > int(known):
            return JobExit("preempted", "Slurm has put the job back into the queue")
        if state == "RUNNING" and not self.is_terminating:
            return None
        if self.left_s <= 1 or state == "TIMEOUT":
            return JobExit("time_limit", "Slurm ends the job at its time limit")
        return JobExit("cancelled", f"Slurm shows it as {state}")
