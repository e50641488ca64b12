"""Slurm as seen by the job: every command that its supervisor gives."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
# leave jobs out of a list, or change how times are written.
COMMAND_INPUT = re.compile(r"(SBATCH|SALLOC|SQUEUE|SINFO|SCANCEL|SACCT)_|SLURM_TIME_FORMAT$")
EPOCH = {"SLURM_TIME_FORMAT": "%s"}  # times as seconds, whatever the zone of the node
# States of a job that no longer runs.
ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "SPECIAL_EXIT", "TIMEOUT"),
}


class Cluster:
    """This job as Slurm knows it: every Slurm command that the supervisor gives."""

    def __init__(self) -> None:
        self.job_id = os.environ["SLURM_JOB_ID"]
        self.node = os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
        self.timeout_s = COMMAND_TIMEOUT_S
        groups = int(os.environ.get("SLURM_HET_SIZE", "0"))
        suffixes = [f"_HET_GROUP_{index}" for index in range(groups)] or [""]
        self.job_ids = [os.environ[f"SLURM_JOB_ID{suffix}"] for suffix in suffixes]
        self.groups = [self._names(f"SLURM_JOB_NODELIST{suffix}") for suffix in suffixes]
        self.nodes = [name for group in self.groups for name in group]
        self._addresses: dict[str, str] = {}

    def command(
        self, *argv: str, environment: Mapping[str, str] | None = None, cwd: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Its result; 124 where the controller does not answer in time, 127 where it is missing."""
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

    def _names(self, variable: str) -> list[str]:
        done = self.command("scontrol", "show", "hostnames", os.environ[variable])
        if done.returncode:
            raise RuntimeError(f"scontrol show hostnames: {done.stderr.strip()}")
        return done.stdout.split()

    def address(self, node: str) -> str:
        """The node's name, or its address where the name means nothing to this host."""
        if node not in self._addresses:
            try:
                socket.getaddrinfo(node, None)
                self._addresses[node] = node
            except socket.gaierror:
                shown = self.command("scontrol", "show", "node", "-o", node).stdout
                found = re.search(r"\bNodeAddr=(\S+)", shown)
                self._addresses[node] = found.group(1) if found else node
        return self._addresses[node]

    def srun(
        self, name: str, nodes: Sequence[str], *options: str, het_group: int | None = None
    ) -> list[str]:
        """A step of this job on exactly these nodes, beside other steps on them."""
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
        """Of this job's steps, by name."""
        listed = ["squeue", "--steps", "--noheader", f"--jobs={','.join(self.job_ids)}"]
        rows = self.command(*listed, "--format=%i|%j").stdout.split()
        return {name: step for step, _, name in (row.partition("|") for row in rows)}

    def signal_step(self, step_id: str, name: str) -> None:
        self.command("scancel", "--signal", name, step_id)

    def kill_step(self, step_id: str) -> None:
        self.command("scancel", step_id)

    def job_info(self, job_id: str) -> dict[str, str]:
        """What `scontrol` shows of a job; empty for one that it no longer knows."""
        shown = self.command("scontrol", "show", "job", "-o", job_id).stdout.split("\n")[0]
        pairs = [pair.split("=", 1) for pair in shown.split() if "=" in pair]
        return dict(reversed(pairs))  # the first counts: paths at the end may hold anything

    def is_alive(self, job_id: str) -> bool | None:
        """Whether a job waits or runs; `None` where Slurm does not say."""
        done = self.command("squeue", "--noheader", f"--jobs={job_id}", "--format=%T")
        if done.returncode:
            return False if "Invalid job id" in done.stderr else None
        states = done.stdout.split()
        return bool(states) and states[0] not in ENDED | {"COMPLETING"}

    def newer_job(self, script: Path) -> str | None:
        """The last job of that script that was submitted after this one and has not ended.

        Jobs of this one's name and user only. Raises `OSError` where Slurm does not say.
        """
        name = os.environ.get("SLURM_JOB_NAME", "")
        done = self.command("squeue", "--noheader", "--me", f"--name={name}", "--format=%i %o")
        if done.returncode:
            raise OSError(f"squeue: {done.stderr.strip() or done.returncode}")
        rows = [row.partition(" ") for row in done.stdout.splitlines()]
        ids = [job.partition("+")[0] for job, _, command in rows if command.strip() == str(script)]
        newer = [int(one) for one in ids if one.isdecimal() and int(one) > int(self.job_id)]
        return str(max(newer)) if newer else None

    def lost_nodes(self, nodes: Iterable[str]) -> list[str]:
        """Those that are down or do not answer the controller."""
        down, silent = self.down_and_silent_nodes(nodes)
        return sorted(down + silent)

    def down_and_silent_nodes(self, nodes: Iterable[str]) -> tuple[list[str], list[str]]:
        """Those that Slurm has given up, and others that do not answer the controller (`*`)."""
        listed = ["sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}"]
        rows = [row.split() for row in self.command(*listed, "--format=%N %t").stdout.splitlines()]
        states = dict(row for row in rows if len(row) == 2)
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
        job_id = done.stdout.strip().split(";")[0]
        if done.returncode or not job_id.isdecimal():
            raise OSError(f"sbatch {script}: {done.stderr.strip() or done.returncode}")
        return job_id


def epoch(text: str) -> float | None:
    """A time as Slurm writes seconds; `None` for words such as `Unknown` and what is no time."""
    return float(text) if re.fullmatch("[0-9]{1,11}", text) else None


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
    """Small steps without GPUs beside the service's own: a check, a request, a wait.

    `tick` is called while one is waited for, so that the service is watched meanwhile.
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
