"""The steps of the service: placed on nodes, started in order, watched and stopped."""

from __future__ import annotations

import errno
import functools
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import slurm
from .allocation import Allocation
from .checks import START_PERIOD_S, Probe, foreign_listener, health_error, ports_of_nodes
from .record import Record
from .slurm import AuxiliarySteps, Cluster, Output
from .spec import PLACEHOLDER, Health, JobExit, Spec, StepSpec
from .state import FREE_PORTS, JobFolder, Json, json_lines

MARK = "SERVICE_STEP"  # a variable of all processes of a step
LOOPBACK = ("127.0.0.1", "::1")
SRUN_REPORT_S = 3.0  # for srun, to say why a server is silent, and to end after its last task
POLL_S = 0.05  # of processes that are about to end
MAX_REASONS = 4
SILENT_S = 600.0  # of the log of a step that starts, from which on it is reported
TAIL_BYTES = 4096
# How srun reports failed tasks, for example `srun: error: node2: tasks 2-3: Killed`.
_SPAN = "[0-9]{1,6}(?:-[0-9]{1,6})?"
TASKS_ENDED = re.compile(rf"srun: error: (\S+: tasks? ({_SPAN}(?:,{_SPAN})*): (.*))")
TERMINATED = "Terminated"  # how --kill-on-bad-exit ends the other tasks
EXITED = "Exited"  # with a code; any other end is a crash


class Step:
    """A step of the job: an `srun`, its step id, its state."""

    def __init__(self, spec: StepSpec, cluster: Cluster, bundle: Path, job: JobFolder) -> None:
        self.spec = spec
        self._cluster = cluster
        self._bundle = bundle
        group = cluster.groups[spec.het_group or 0]
        self.nodes = group[spec.first_node : spec.first_node + spec.nodes]
        if len(self.nodes) < spec.nodes:
            last = spec.first_node + spec.nodes
            raise ValueError(f"step {spec.name} needs {last} nodes; the job has {len(group)}")
        self.address = cluster.address(self.nodes[0])
        self.ports = dict(spec.ports)
        self.mark = f"{MARK}={job.id}/{spec.name}"
        self.log = job.step_log(spec.name)
        self._srun_log = Output(job.step_log(f"{spec.name}.srun"))
        self.process: subprocess.Popen[bytes] | None = None
        self.step_id: str | None = None
        self.probe: Probe | None = None
        self.deadline = 0.0
        self.state = "waiting"
        self.is_silent = False  # and was reported to be

    @property
    def exit_code(self) -> int | None:
        code = None if self.process is None else self.process.poll()
        return 128 - code if code is not None and code < 0 else code

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.exit_code is None

    @property
    def is_ready(self) -> bool:
        return self.step_id is not None and (self.probe is None or self.probe.is_ready)

    @property
    def is_settled(self) -> bool:
        """Seen to be ready; or over, as only one may be that is not critical."""
        return self.state == "ready" or self.is_over

    @property
    def is_over(self) -> bool:
        return self.state in ("lost", "ended")

    @property
    def is_failing(self) -> bool:
        """Lost a task or its health, but srun waits on: for others, or who holds their output."""
        is_lost = self.probe is not None and self.probe.is_lost and not self.is_over
        return is_lost or (self.spec.critical and bool(task_failures(self.srun_output())))

    def start(self, fill: Callable[[str], str], health: Health) -> None:
        environment = {key: fill(value) for key, value in self.spec.environment.items()}
        environment[MARK] = self.mark.partition("=")[2]
        argv, group = map(fill, self._argv()), self.spec.het_group
        self.process = self._cluster.start(
            self._cluster.srun(self.spec.name, self.nodes, *argv, het_group=group),
            *(self._srun_log.path, self._bundle, environment),
        )
        self.state = "starting"
        self.deadline = time.monotonic() + self.spec.start_timeout_s
        if self.spec.ready:
            port, path = self.ports[self.spec.ready["port"]], self.spec.ready["path"]
            # One behind a router listens on its own node only, which is then this one.
            host = self.spec.environment.get("SERVE_HOST", "")
            where = (host if host in LOOPBACK else self.address, port, path)
            check = functools.partial(health_error, *where, health.timeout_s)
            self.probe = Probe(check, health.period_s, health.failures)
            self.probe.start()

    def _argv(self) -> list[str]:
        """Options of srun and what each task runs."""
        spec = self.spec
        options = [f"--ntasks={spec.ntasks}", f"--ntasks-per-node={spec.ntasks_per_node}"]
        options += [f"--output={str(self.log).replace('%', '%%')}", "--open-mode=append"]
        options += ["--label"] if spec.ntasks > 1 else []
        return [*options, *spec.srun, *map(self._absolute, [*spec.launcher, *spec.argv])]

    def _absolute(self, word: str) -> str:
        """A file of the bundle by its whole path: a container may start in another folder."""
        return str(self._bundle / word) if (self._bundle / word).is_file() else word

    def srun_output(self) -> str:
        try:
            return self._srun_log.read()
        except OSError:  # not there yet, or its folder cannot be read for a while
            return ""

    @property
    def silent_s(self) -> float:
        """For how long its log has not grown; 0 where that is not known."""
        try:
            return time.time() - self.log.stat().st_mtime
        except OSError:  # not there yet, or its folder cannot be read for a while
            return 0.0

    def last_line(self) -> str:
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next(filter(None, map(str.strip, reversed(lines))), "")

    def exit_reason(self) -> tuple[str, str]:
        """Outcome and reason, where the step ended by itself or should have."""
        failures = task_failures(self.srun_output())
        if self.exit_code is None and self.probe and not failures:
            return "health_lost", f"{self.probe.failures} misses in a row: {self.probe.last}"
        rank = first_failed_rank(failures, self.spec.ntasks_per_node) if failures else 0
        reasons = [one.message for one in failures if rank in one.ranks]
        others = [one for one in failures if rank not in one.ranks and one.cause != TERMINATED]
        reasons += [one.message for one in others]
        why = "; ".join(reasons[:MAX_REASONS]) or f"srun ended with exit code {self.exit_code}"
        if self.spec.role == "router":
            return "router_died", why
        if self.exit_code == 0:
            return "server_exited_0", why
        return ("rank_died" if rank else "server_failed"), why

    def row(self) -> Json:
        return {
            "name": self.spec.name,
            "role": self.spec.role,
            "step_id": self.step_id,
            "nodes": self.nodes,
            "state": self.state if self.exit_code is None else "ended",
            "exit_code": self.exit_code,
            "ports": self.ports,
        }


class Steps:
    """All steps of the service by name."""

    def __init__(self, spec: Spec, allocation: Allocation, record: Record) -> None:
        self._spec = spec
        self._allocation = allocation
        self._cluster = allocation.cluster
        self._record = record
        self._by_name: dict[str, Step] = {}
        self._waiting: list[Step] = []
        self._next_poll = 0.0

    @property
    def frontend(self) -> Step:
        """The one that clients are sent to."""
        return self._by_name[self._spec.frontend]

    @property
    def all(self) -> list[Step]:
        return list(self._by_name.values())

    @property
    def are_ready(self) -> bool:
        return not self._waiting and all(step.is_settled for step in self.all)

    def create(self) -> None:
        """Each on its nodes, as the job has them."""
        for spec in self._spec.steps:
            step = Step(spec, self._cluster, self._spec.bundle, self._record.job)
            self._by_name[spec.name] = step
        self._waiting = self.all

    def assign_ports(self, auxiliary: AuxiliarySteps) -> None:
        """The wanted ports where they are free, and free ones for 0, before a step starts."""
        wanted: dict[str, list[tuple[Step, str]]] = {}
        for step in self.all:
            if os.environ.get(FREE_PORTS):
                step.ports = dict.fromkeys(step.ports, 0)
            wanted.setdefault(step.nodes[0], []).extend((step, name) for name in step.ports)
        numbers = {node: [s.ports[name] for s, name in rows] for node, rows in wanted.items()}
        named = {node: ports for node, ports in numbers.items() if ports}
        found = ports_of_nodes(self._cluster, auxiliary, named)
        taken: list[str] = []
        for node, row in found.items():
            taken += [f"{node}:{port}" for port in row["taken"]]
        if taken:
            raise JobExit("ports_taken", f"already in use: {', '.join(taken)}")
        for node, row in found.items():
            free = iter(row["free"])
            for step, name in wanted[node]:
                step.ports[name] = step.ports[name] or next(free)

    def check_listeners(self, auxiliary: AuxiliarySteps) -> None:
        """Check that only the servers answer on their ports, before a long load.

        Raises `JobExit` if another process answers, `OSError` if that cannot be found out.
        """
        for step in self.all:
            if not step.spec.ready or step.is_over:
                continue
            port, node = step.ports[step.spec.ready["port"]], step.nodes[0]
            if node == self._cluster.node:
                foreign = foreign_listener(port, step.mark)
            else:
                argv = slurm.own_argv("listener", port, step.mark)
                _, output = auxiliary.run("listener", [node], argv, slurm.COMMAND_TIMEOUT_S * 3)
                rows = [row for row in json_lines(output) if "foreign" in row]
                if not rows:
                    said = output.strip() or "nothing"
                    raise OSError(
                        errno.EIO, f"who listens there is not known: {said}", f"{node}:{port}"
                    )
                foreign = rows[-1]["foreign"]
            if foreign:
                what = f"{foreign} answers on {node}:{port} in its place"
                raise JobExit("ports_taken", f"{step.spec.name}: {what}")

    def start_next(self) -> None:
        """Start the steps that wait for no other step; retry while files cannot be read.

        Raises `JobExit` if that takes longer than a start may.
        """
        for step in list(self._waiting):
            if all(self._by_name[name].is_settled for name in step.spec.start_after):
                step.deadline = step.deadline or time.monotonic() + step.spec.start_timeout_s
                name = step.spec.name
                if self._record.attempt(name, functools.partial(self._try_start, step), False):
                    self._waiting.remove(step)
                elif time.monotonic() > step.deadline:
                    raise JobExit("start_timeout", f"{name}: {self._record.fault(name)}")

    def _try_start(self, step: Step) -> bool:
        try:
            self._start(step)
        except FileNotFoundError as fault:
            if not self._record.job.path.is_dir():  # which is made again
                raise
            what = f"{fault.filename} is missing"  # a program, or a part of the bundle
            raise JobExit("server_failed", f"{step.spec.name}: {what}") from None
        return True

    def _start(self, step: Step) -> None:
        fill = functools.partial(self.fill, own=step)
        for name, template in step.spec.files.items():
            text = (self._spec.bundle / template).read_text(encoding="utf-8")
            for port, number in step.spec.ports.items():  # no placeholder: it must be a number
                text = re.sub(rf"(?m)^port: {number}$", f"port: {step.ports[port]}", text)
            (self._record.job.path / name).write_text(fill(text), encoding="utf-8")
        step.start(fill, self._spec.health)
        self._record.event("step_started", step=step.spec.name, nodes=step.nodes)

    def fill(self, text: str, own: Step | None = None) -> str:
        """`text` with what only the job knows; other words in braces stay.

        `{bundle}`, `{job}`: folders of the bundle and of this job. `{host}`, `{port:http}`: of the
        step itself, or of the frontend. `{NAME}`, `{host:NAME}`, `{port:NAME:http}`: of another.
        """

        def value(found: re.Match[str]) -> str:
            first, *rest = found.group(1).split(":")
            step = self._by_name.get(rest[0] if len(rest) > (first == "port") else first, default)
            if first == "port" and rest[-1:] and rest[-1] in step.ports:
                return str(step.ports[rest[-1]])
            if first == "host" or first in self._by_name:
                return step.address
            return folders.get(found.group(1), found.group(0))

        default = own or self.frontend
        folders = {"bundle": str(self._spec.bundle), "job": str(self._record.job.path)}
        return PLACEHOLDER.sub(value, text)

    def poll(self) -> None:
        """Raises `JobExit` where a step means the end of the job."""
        self._update_step_ids()
        for step in self.all:
            if step.process is not None:
                self._poll_step(step)

    def _update_step_ids(self) -> None:
        unknown = [step for step in self.all if step.is_running and not step.step_id]
        if not unknown or time.monotonic() < self._next_poll:
            return
        ids = self._cluster.step_ids()
        for step in unknown:
            step.step_id = ids.get(step.spec.name)
        self._next_poll = time.monotonic() + START_PERIOD_S

    def _poll_step(self, step: Step) -> None:
        if step.probe and step.probe.error:
            raise step.probe.error
        if step.is_failing:
            self._wait([step], SRUN_REPORT_S)
        if step.exit_code is not None:
            self._on_exit(step)
        elif step.is_failing:
            outcome, why = step.exit_reason()
            if self._is_needed(step):
                raise self._job_exit(step, outcome, why)
            step.state = "lost"  # the router has left it out already
            self._record.event("step_lost", step=step.spec.name, why=why)
            if step.step_id:
                self._cluster.kill_step(step.step_id)
        elif step.state == "starting" and step.is_ready:
            step.state = "ready"
            self._record.event("step_ready", step=step.spec.name, step_id=step.step_id)
            self.record_state()
        elif step.state == "starting" and time.monotonic() > step.deadline:
            last = (step.probe.last if step.probe else None) or "squeue does not show its step"
            limit = f"not ready after {step.spec.start_timeout_s:.0f} s"
            if step.is_silent:
                last += f"; its log is silent for {step.silent_s:.0f} s after: {step.last_line()}"
            raise self._job_exit(step, "start_timeout", f"{limit}: {last}")
        elif step.state == "starting":
            self._report_silence(step)

    def _report_silence(self, step: Step) -> None:
        """An event for a step that starts and has logged nothing for long, with its last line."""
        is_silent = step.silent_s > SILENT_S
        if is_silent and not step.is_silent:
            seconds, last = int(step.silent_s), step.last_line()
            self._record.event("step_silent", step=step.spec.name, seconds=seconds, last=last)
        step.is_silent = is_silent

    def _is_needed(self, step: Step) -> bool:
        """Whether the service is over without it: it is critical, or the last of its role."""
        others = (one for one in self.all if one is not step and one.spec.role == step.spec.role)
        return step.spec.critical or all(one.is_over for one in others)

    def _on_exit(self, step: Step) -> None:
        if step.state == "ended":
            return
        if self._is_needed(step):
            raise self._job_exit(step, *step.exit_reason())
        step.state = "ended"
        if step.probe:
            step.probe.stop()
        self._record.event("step_ended", step=step.spec.name, exit_code=step.exit_code)
        self.record_state()

    def _job_exit(self, step: Step, outcome: str, why: str) -> JobExit:
        """A step also ends, or is silent, where Slurm ends the job or a node is lost."""
        lost = self._cluster.lost_nodes(step.nodes)
        if lost or "node failure" in step.srun_output().lower():
            lost_here = f"{', '.join(lost) or 'a node'} is lost; {why}"
            return JobExit("node_lost", f"{step.spec.name}: {lost_here}")
        return self._allocation.exit_by_slurm() or JobExit(outcome, f"{step.spec.name}: {why}")

    def record_state(self, **values: Any) -> None:
        self._record.update(**values, steps=[step.row() for step in self.all])

    def stop(self, most_s: float) -> None:
        """TERM to their tasks, since one to srun would kill them; what is left is killed."""
        for step in self.all:
            if step.probe:
                step.probe.stop()
        running = [step for step in self.all if step.is_running]
        self._update_step_ids()
        for step in running:
            if step.step_id:
                self._cluster.signal_step(step.step_id, "TERM")
        self._wait(running, min(most_s, max((s.spec.stop_timeout_s for s in running), default=0)))
        for step in running:
            if step.is_running and step.step_id:
                self._record.event("step_killed", step=step.spec.name)
                self._cluster.kill_step(step.step_id)
        self._wait(running, slurm.KILL_WAIT_S)
        for step in running:
            if step.is_running and step.process:
                step.process.kill()

    def _wait(self, steps: Sequence[Step], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while any(step.is_running for step in steps) and time.monotonic() < deadline:
            time.sleep(POLL_S)


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
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranks += range(int(first), int(last or first) + 1)
    return ranks


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
