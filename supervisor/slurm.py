"""Slurm as seen by the job: every command that its supervisor gives."""

from __future__ import annotations

import errno
import itertools
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

COMMAND_TIMEOUT_S = 20.0  # of a Slurm command; a busy controller answers late
OUTPUT_BYTES = 2**20  # of a command that are read at most
KILL_WAIT_S = 15.0  # for a step that Slurm was told to kill

# Options that srun would take over from the job's environment. Each step sets its own; and in a
# job with --gpus-per-node, --gres=none is refused unless these are gone (Slurm 22.05).
SRUN_INPUT = re.compile(
    r"SLURM_(NTASKS|NPROCS|NNODES|TASKS_PER|GPUS|CPUS_PER|MEM_PER|TRES_PER|DISTRIBUTION)"
)
# What a job has from Slurm, and a successor must not inherit.
JOB_ONLY = re.compile(r"(SLURM|SLURMD|PMI|PMIX)_|(CUDA|ROCR)_VISIBLE_DEVICES$|GPU_DEVICE_ORDINAL$")
# How Slurm's commands find the controller, and show who they are.
ACCESS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
# Options of Slurm's commands that a shell may hold: they would win over those of a batch script,
# leave jobs out of a list, ask another cluster, or change how times and nodes are written.
COMMAND_INPUT = re.compile(
    r"(SBATCH|SALLOC|SQUEUE|SINFO|SCANCEL|SACCT|SCONTROL)_"
    r"|SLURM_(CLUSTERS|BITSTR_LEN|DEBUG_FLAGS|EXIT_ERROR|JSON|TIME_FORMAT|YAML)$"
)
EPOCH = {"SLURM_TIME_FORMAT": "%s"}  # times as seconds, whatever the zone of the node
SCRIPT = "serve.sbatch"  # what a successor runs
NO_SUCH_JOB = "Invalid job id"
# States of a job that waits or runs, and of one that no longer does. Any other word is no state.
ALIVE = {
    *("CONFIGURING", "EXPEDITING", "PENDING", "POWER_UP_NODE", "REQUEUED", "REQUEUE_FED"),
    *("REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "RUNNING", "SIGNALING", "STAGE_OUT", "STOPPED"),
    *("SUSPENDED", "UPDATE_DB"),
}
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "SPECIAL_EXIT", "TIMEOUT"),
}
STATES = ALIVE | ENDED | {"COMPLETING"}


class Cluster:
    """This job as Slurm knows it: every Slurm command that the supervisor gives."""

    def __init__(self) -> None:
        self.job_id = os.environ["SLURM_JOB_ID"]
        self.node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
        self.timeout_s = COMMAND_TIMEOUT_S
        groups = int(os.environ.get("SLURM_HET_SIZE", "0"))
        suffixes = [f"_HET_GROUP_{index}" for index in range(groups)] or [""]
        self.job_ids = [os.environ[f"SLURM_JOB_ID{suffix}"] for suffix in suffixes]
        lists = [os.environ[f"SLURM_JOB_NODELIST{suffix}"] for suffix in suffixes]
        self.groups = [node_names(one) for one in lists]
        self.nodes = list(itertools.chain(*self.groups))
        self.before_command: Callable[[], None] = lambda: None  # each may take `timeout_s`
        self._addresses: dict[str, str] = {}
        array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
        owners = [f"{array}_{task}"] if array and task else self.job_ids
        self._own_step = re.compile(rf"({'|'.join(owners)})(\+[0-9]+)?\.[0-9]+")

    def command(
        self, *argv: str, environment: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Its result; 124 where the controller does not answer in time, 127 where it is missing."""
        self.before_command()
        given = os.environ if environment is None else environment
        variables = {key: value for key, value in given.items() if not COMMAND_INPUT.match(key)}
        variables |= EPOCH if argv[0] == "scontrol" else {}
        try:
            return subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.timeout_s,
                check=False,
                env=variables,
                cwd=cwd,
            )
        except subprocess.TimeoutExpired:
            what = f"no answer in {self.timeout_s:.0f} s"
            return subprocess.CompletedProcess(argv, 124, "", what)
        except OSError as fault:  # it, or the folder, may be away for a moment
            return subprocess.CompletedProcess(argv, 127, "", f"{argv[0]}: {fault.strerror}")

    def address(self, node: str) -> str:
        """The node's name, or its address where the name means nothing to this host.

        Raises `OSError` where Slurm does not say, which may pass.
        """
        if node not in self._addresses:
            try:
                socket.getaddrinfo(node, None)
                self._addresses[node] = node
            except socket.gaierror:
                done = self.command("scontrol", "show", "node", "-o", node)
                row = rf"^NodeName={re.escape(node)} .*\bNodeAddr=(\S+)"
                if not (found := re.search(row, done.stdout, re.MULTILINE)):
                    what = f"scontrol show node: {done.stderr.strip() or 'no NodeAddr'}"
                    raise OSError(errno.EAGAIN, what, node) from None
                self._addresses[node] = found.group(1)
        return self._addresses[node]

    def srun(
        self, name: str, nodes: Sequence[str], *options: str, het_group: int | None = None
    ) -> list[str]:
        """A step of this job on exactly these nodes, which may overlap other steps."""
        command = ["srun", f"--job-name={name}", f"--nodes={len(nodes)}"]
        command += [f"--nodelist={','.join(nodes)}", "--overlap", "--kill-on-bad-exit=1"]
        if len(self.groups) > 1:
            holding = [index for index, group in enumerate(self.groups) if nodes[0] in group]
            command.append(f"--het-group={holding[0] if het_group is None else het_group}")
        return [*command, *options]

    def auxiliary_step(self, name: str, nodes: Sequence[str], *argv: str) -> list[str]:
        """A small step without GPUs, one task on each node."""
        options = [f"--ntasks={len(nodes)}", "--ntasks-per-node=1", "--gres=none", "--mpi=none"]
        return [*self.srun(name, nodes, *options), *argv]

    def environment(self) -> dict[str, str]:
        """For `srun`."""
        inputs = (SRUN_INPUT, COMMAND_INPUT)
        return {k: v for k, v in os.environ.items() if not any(one.match(k) for one in inputs)}

    def start(
        self, argv: Sequence[str], output: Path, cwd: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """An `srun` in the background, which no signal to this process reaches."""
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as file:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=cwd,
                env={**self.environment(), **environment},
                start_new_session=True,
            )

    def step_ids(self) -> dict[str, str]:
        """Of this job's steps, by name. Steps of other jobs may be listed, such as those of all
        tasks by the number of an array's last one.
        """
        listed = ["squeue", "--steps", "--noheader", f"--jobs={','.join(self.job_ids)}"]
        rows = self.command(*listed, "--format=%i|%j").stdout.split()
        steps = [(step, name) for step, _, name in (row.partition("|") for row in rows)]
        return {name: step for step, name in steps if self._own_step.fullmatch(step)}

    def signal_step(self, step_id: str, name: str) -> None:
        self.command("scancel", "--signal", name, step_id)

    def kill_step(self, step_id: str) -> None:
        self.command("scancel", step_id)

    def job_info(self, job_id: str) -> dict[str, str]:
        """What `scontrol` shows of a job; empty for one that it no longer knows.

        By the number of an array's last task it shows them all, and a site may print more. An
        answer that breaks off in the state counts as empty.
        """
        for row in self.command("scontrol", "show", "job", "-o", job_id).stdout.splitlines():
            pairs = [pair.split("=", 1) for pair in row.split() if "=" in pair]
            info = dict(reversed(pairs))  # the first counts: paths at the end may hold anything
            is_whole = info.get("JobState") in STATES
            if is_whole and info.get("JobId", job_id) == job_id:
                return info
        return {}

    def job_state(self, job_id: str) -> str | None:
        """The state of a job in Slurm's words, empty where Slurm has no such job; `None` where it
        does not say: an answer without the job's own row says nothing.

        All tasks of an array are shown by the number of the last one, and a site may print more.
        """
        listed = ["squeue", "--noheader", "--states=all", f"--jobs={job_id}", "--format=%T %A"]
        done = self.command(*listed)
        if done.returncode:
            return "" if NO_SUCH_JOB in done.stderr else None
        rows = [row.split() for row in done.stdout.splitlines()]
        states = [row[0] for row in rows if row[1:] == [job_id] and row[0] in STATES]
        return min(states, key=lambda state: state not in ALIVE, default=None)

    def is_another_program(self, job_id: str) -> bool:
        """Whether a job has neither this one's name nor its script, nor that of a successor.

        On a cluster that was set up anew, or in a state folder of another one, numbers come again.
        """
        other, own = self.job_info(job_id), self.job_info(self.job_id)
        scripts = {SCRIPT, Path(own.get("Command", "")).name}
        if not own or "Command" not in other:
            return False
        is_named_so = other.get("JobName") == own.get("JobName")
        return not is_named_so and Path(other["Command"]).name not in scripts

    def newer_job(self, script: Path) -> str | None:
        """The last job of that script that was submitted after this one and has not ended.

        Jobs of this one's user only. Raises `OSError` where Slurm does not say: this job runs, so
        that an answer without it is not the whole queue.
        """
        done = self.command("squeue", "--noheader", "--me", "--format=%A %o")
        rows = [row.partition(" ") for row in done.stdout.splitlines()]
        if done.returncode or self.job_id not in [job for job, _, _ in rows]:
            raise OSError(f"squeue: {done.stderr.strip() or 'does not list this job'}")
        ids = [job for job, _, command in rows if command.strip() == str(script)]
        newer = [int(one) for one in ids if one.isdecimal() and int(one) > int(self.job_id)]
        return str(max(newer)) if newer else None

    def lost_nodes(self, nodes: Iterable[str]) -> list[str]:
        """The nodes that are down or do not answer the controller."""
        down, silent = self.down_and_silent_nodes(nodes)
        return sorted(down + silent)

    def down_and_silent_nodes(self, nodes: Iterable[str]) -> tuple[list[str], list[str]]:
        """The nodes that Slurm has given up, and nodes that do not answer the controller (`*`)."""
        asked = list(nodes)
        listed = ["sinfo", "--noheader", "--Node", f"--nodes={','.join(asked)}"]
        rows = [row.split() for row in self.command(*listed, "--format=%N %t").stdout.splitlines()]
        states = dict(row for row in rows if len(row) == 2 and row[0] in asked)
        down = [name for name, state in states.items() if "down" in state]
        silent = [name for name, state in states.items() if state.endswith("*")]
        return down, [name for name in silent if name not in down]

    def now(self) -> float | None:
        """The controller's time: all else that Slurm's commands say of it is of this node's clock.

        RunTime and the time left are differences to the clock of the host that a command runs on.
        """
        shown = self.command("scontrol", "show", "config").stdout
        found = re.search(r"^Configuration data as of (\d+)$", shown, re.MULTILINE)
        return epoch(found.group(1)) if found else None

    def times(self) -> tuple[float | None, float | None]:
        """When a running job began, and its time limit; `None` where Slurm does not say."""
        info = self.job_info(self.job_id)
        if info.get("JobState") != "RUNNING":  # it ended
            return None, None
        start, end = (info.get(name, "") for name in ("StartTime", "EndTime"))
        return epoch(start), epoch(end)

    def submit(self, script: Path, options: Sequence[str], environment: Mapping[str, str]) -> str:
        """The id of a new job in the environment and folder of this one's submission, and more.

        The folder may be gone: that of the script then, which is there.

        Raises `OSError` where Slurm refuses it.
        """
        folder = os.environ.get("SLURM_SUBMIT_DIR")
        if folder and not os.path.isdir(folder):  # noqa: PTH112  (no folder where it is stale)
            folder = str(script.parent)
        own = {k: v for k, v in os.environ.items() if not JOB_ONLY.match(k) or k in ACCESS}
        done = self.command(
            *["sbatch", "--parsable", *options, str(script)],
            environment={**own, **environment},
            cwd=folder,
        )
        job_id = submitted_job(done.stdout)
        if done.returncode or job_id is None:
            raise OSError(f"sbatch {script}: {done.stderr.strip() or done.returncode}")
        return job_id


def submitted_job(output: str) -> str | None:
    """The number that `sbatch --parsable` printed: the last one alone in a line."""
    lines = re.findall(r"^([0-9]+)(?:;.*)?$", output.strip(), re.MULTILINE)
    return lines[-1] if lines else None


def node_names(listed: str) -> list[str]:
    """The nodes of a list as Slurm writes it, such as `gpu[01-03,7],login`."""
    names = []
    for one in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", listed):
        found = [""]
        for text, spans in re.findall(r"([^\[]*)(?:\[([^\]]*)\])?", one):
            numbers = list(_numbers(spans)) if spans else [""]
            found = [f"{name}{text}{number}" for name in found for number in numbers]
        names += found
    return names


def _numbers(spans: str) -> Iterator[str]:
    """Those of `01-03,7`, as wide as the first of each span."""
    for span in spans.split(","):
        first, _, last = span.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}}"


def epoch(text: str) -> float | None:
    """A time as Slurm writes seconds, of this century and the next; `None` for words such as
    `Unknown`, and for a number that breaks off.
    """
    return float(text) if re.fullmatch("[0-9]{10}", text) else None


def own_argv(*arguments: object) -> list[str]:
    """This package as a step runs it; it leaves no bytecode in the bundle."""
    return [sys.executable, "-B", str(Path(__file__).resolve().parent), *map(str, arguments)]


class Output:
    """What a command adds to a log, which it may have from an earlier run of the same job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = 0
        with suppress(OSError):
            self._start = path.stat().st_size

    def read(self) -> str:
        """Its first part, where that is long. Raises `OSError`, also for what is no file."""
        with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            file.seek(self._start)  # which no pipe allows
            return file.read(OUTPUT_BYTES).decode(errors="replace")


class AuxiliarySteps:
    """Small steps without GPUs in addition to the service's: a check, a request, a wait.

    `tick` is called while a step runs, so that the service stays watched.
    """

    def __init__(
        self, cluster: Cluster, bundle: Path, folder: Path, tick: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._bundle = bundle
        self._folder = folder
        self._tick = tick

    def start(
        self, name: str, nodes: Sequence[str], argv: Sequence[str]
    ) -> tuple[subprocess.Popen[bytes], Output]:
        """The step and its log: in the job's folder, else of this node. Raises `OSError`."""
        command = self._cluster.auxiliary_step(name, nodes, *argv)
        try:
            log = Output(self._folder / f"{name}.log")
            return self._cluster.start(command, log.path, self._bundle, {}), log
        except OSError:  # the folder cannot be written for a while
            log = Output(Path(tempfile.gettempdir()) / f"{self._cluster.job_id}-{name}.log")
            return self._cluster.start(command, log.path, Path("/"), {}), log

    def run(
        self, name: str, nodes: Sequence[str], argv: Sequence[str], timeout_s: float
    ) -> tuple[int | None, str]:
        """Exit code (`None`: no end in time; 127: it cannot be started) and output."""
        try:
            process, log = self.start(name, nodes, argv)
        except OSError as fault:
            return 127, str(fault)
        deadline = time.monotonic() + timeout_s
        try:
            while process.poll() is None and time.monotonic() < deadline:
                self._tick()
        finally:
            code = process.poll()
            if code is None:
                process.terminate()  # srun kills its tasks
                with suppress(subprocess.TimeoutExpired):
                    process.wait(KILL_WAIT_S)
        try:
            return code, log.read()
        except OSError as fault:
            return code, str(fault)
