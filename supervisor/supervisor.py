#!/usr/bin/env python3
"""Runs one service in one Slurm job: starts its steps, watches them, hands over, ends truthfully.

`service.json` beside this file says what to run. The service's folder, which all nodes see, holds
the endpoint that clients follow, and for each job its record, events and logs. Nothing but files
and signals controls it: `stop`, `drain` and `promote` files, USR1 (the time limit is near), TERM
(Slurm ends the job). Every end has a name, an exit code and a reason (`OUTCOMES`).

Standard library and Python 3.9 only, as it runs on compute nodes outside of containers.
"""

from __future__ import annotations

import argparse
import errno
import functools
import hashlib
import http.client
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

FORMAT = 1
# How a job can end, and its exit code. Slurm shows 0 as COMPLETED and others as FAILED, except
# where it ends the job itself: CANCELLED, PREEMPTED, TIMEOUT, NODE_FAIL.
OUTCOMES = {
    "stopped": 0,
    "handed_over": 0,
    "supervisor_bug": 1,
    "rank_died": 70,
    "server_exited_0": 71,
    "server_failed": 72,
    "health_lost": 73,
    "start_timeout": 74,
    "node_lost": 75,
    "router_died": 76,
    "not_admitted": 77,
    "preempted": 78,
    "time_limit": 79,
    "ports_taken": 80,
    "cancelled": 130,
}
# Ends after which a new job may do better.
RESTARTABLE = {
    "rank_died",
    "server_exited_0",
    "server_failed",
    "health_lost",
    "node_lost",
    "router_died",
    "preempted",
}

LOOPBACK = ("127.0.0.1", "::1")

TICK_S = 0.2
COMMAND_TIMEOUT_S = 20.0  # of a Slurm command; a busy controller answers late
HURRIED_TIMEOUT_S = 2.0  # of one when Slurm is about to kill this job
HEARTBEAT_S = 10.0
LEASE_S = 60.0  # an endpoint whose job was silent for longer is dead
START_PERIOD_S = 0.5  # between probes of a server that is not ready yet
JOB_PERIOD_S = 30.0  # between looks at the job's nodes, and its limit, which may be extended
SUCCESSOR_PERIOD_S = 5.0  # between looks at the queue for the successor
SLURM_GRACE_S = 10.0  # for steps when Slurm ends the job: it kills all after its KillWait
LAST_WORDS_S = 3.0  # for srun, to say why a server is silent, and to end after its last task
KILL_WAIT_S = 15.0  # for a step that Slurm was told to kill
END_MARGIN_S = 5.0  # between the planned end of a job and its time limit
RESERVE_BYTES = 64 * 1024  # freed on a full disk, so that the record can still be written

# Options that srun would take over from the job's environment. Each step says its own; and in a
# job with --gpus-per-node, --gres=none is refused unless these are gone (Slurm 22.05).
SRUN_INPUT = re.compile(
    r"SLURM_(NTASKS|NPROCS|NNODES|TASKS_PER|GPUS|CPUS_PER|MEM_PER|TRES_PER|DISTRIBUTION)"
)
# What a job has from Slurm, and a successor must not inherit.
JOB_ONLY = re.compile(r"(SLURM|SLURMD|PMI|PMIX)_|(CUDA|ROCR)_VISIBLE_DEVICES$|GPU_DEVICE_ORDINAL$")
PLACEHOLDER = re.compile(r"\{(\w+(?::[\w.-]+){0,2})\}")

Json = dict[str, Any]
Tick = Callable[[], None]  # one look at everything


class End(Exception):
    """The job ends: one of `OUTCOMES`, and why."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(f"{outcome}: {why}")
        self.outcome = outcome
        self.why = why


# --- Time and files -------------------------------------------------------------------------------


def stamp(seconds: float | None = None) -> str:
    """UTC to the millisecond, as all files hold times."""
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_of(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def write_json(path: Path, value: Any) -> None:
    """Readers see the old file or the new one, never a part."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def read_json(path: Path) -> Json | None:
    """`None` for a file that is not there, or that a full disk left empty."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def say(text: str) -> None:
    with suppress(OSError):  # the job's own output may be on the full disk
        print(f"{stamp()} {text}", file=sys.stderr, flush=True)


# --- What to run ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepSpec:
    """A row of `steps` of service.json."""

    name: str
    argv: list[str]
    role: str = "agg"
    nodes: int = 1
    first_node: int = 0
    ntasks: int = 1
    ntasks_per_node: int = 1
    gpus_per_node: int | None = None
    gpu_indices: list[int] | None = None
    launcher: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    srun: list[str] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    ready: dict[str, str] | None = None
    files: dict[str, str] = field(default_factory=dict)
    het_group: int | None = None
    critical: bool = True
    start_after: list[str] = field(default_factory=list)
    start_timeout_s: float = 3600.0
    stop_timeout_s: float = 60.0


@dataclass(frozen=True)
class Generation:
    """A request that a sound service answers with text, and how often it is asked."""

    path: str
    body: Json
    period_s: float = 60.0
    timeout_s: float = 60.0
    failures: int = 2


@dataclass(frozen=True)
class Health:
    period_s: float = 5.0
    timeout_s: float = 5.0
    failures: int = 6


@dataclass(frozen=True)
class Times:
    limit_s: float
    successor_lead_s: float
    drain_s: float
    settle_s: float = 2.0  # a drain lasts this long at least, for clients with the old endpoint


@dataclass(frozen=True)
class Limits:
    attempts: int = 3
    crash_window_s: float = 600.0
    retry_s: float = 60.0  # between a successor that failed and the next
    restart: bool = False


@dataclass(frozen=True)
class Spec:
    """service.json, and where it lies."""

    folder: Path
    raw: Json
    name: str
    model: str
    steps: list[StepSpec]
    front: str
    health: Health
    generation: Generation | None
    times: Times
    limits: Limits

    @classmethod
    def read(cls, folder: Path) -> Spec:
        raw = json.loads((folder / "service.json").read_text(encoding="utf-8"))
        if raw.get("format") != FORMAT:
            raise ValueError(f"{folder}/service.json: format {raw.get('format')}, not {FORMAT}")
        health = dict(raw.get("health") or {})
        generation = health.pop("generation", None)
        return cls(
            folder=folder,
            raw=raw,
            name=raw["name"],
            model=raw["model"],
            steps=[StepSpec(**row) for row in raw["steps"]],
            front=raw["front"],
            health=Health(**health),
            generation=Generation(**generation) if generation else None,
            times=Times(**raw["time"]),
            limits=Limits(**(raw.get("limits") or {})),
        )

    @property
    def bundle(self) -> Path:
        return self.folder.parent

    @property
    def manifest(self) -> Path:
        return self.bundle / str(self.raw.get("bundle_digest_file", "manifest.json"))

    @property
    def service_folder(self) -> Path:
        chosen = os.environ.get("SERVICE_STATE_FOLDER") or self.raw.get("state_folder")
        return Path(chosen or Path(os.environ.get("SLURM_SUBMIT_DIR", ".")) / "runs") / self.name

    @property
    def question(self) -> Generation:
        """What is asked to see that the service generates."""
        body = {"model": self.model, "prompt": "One, two, three,", "max_tokens": 8}
        return self.generation or Generation("/v1/completions", body)

    @property
    def stop_timeout_s(self) -> float:
        return max(step.stop_timeout_s for step in self.steps)


# --- Slurm ----------------------------------------------------------------------------------------


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

    def command(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Its result; exit code 124 where the controller does not answer in time."""
        try:
            return subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                check=False,
                **options,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(
                argv, 124, "", f"no answer in {self.timeout_s:.0f} s"
            )

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

    def aside(self, name: str, nodes: Sequence[str], *argv: str) -> list[str]:
        """A small step without GPUs, one task on each node."""
        options = [f"--ntasks={len(nodes)}", "--ntasks-per-node=1", "--gres=none", "--mpi=none"]
        return [*self.srun(name, nodes, *options), *argv]

    def environment(self) -> dict[str, str]:
        """For `srun`."""
        return {key: value for key, value in os.environ.items() if not SRUN_INPUT.match(key)}

    def start(
        self, argv: Sequence[str], log: Path, cwd: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """An `srun` in the background, which no signal to this process reaches."""
        with log.open("ab") as output:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
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

    def facts(self, job_id: str) -> dict[str, str]:
        """What `scontrol` shows of a job; empty for one that it no longer knows."""
        shown = self.command("scontrol", "show", "job", "-o", job_id).stdout.split("\n")[0]
        return dict(pair.split("=", 1) for pair in shown.split() if "=" in pair)

    def is_alive(self, job_id: str) -> bool | None:
        """Whether a job waits or runs; `None` where Slurm does not say."""
        done = self.command("squeue", "--noheader", f"--jobs={job_id}", "--format=%T")
        if done.returncode:
            return False if "Invalid job id" in done.stderr else None
        states = done.stdout.split()
        return bool(states) and states[0] in {"PENDING", "RUNNING", "CONFIGURING", "SUSPENDED"}

    def lost_nodes(self, nodes: Iterable[str]) -> list[str]:
        """Those that are down or do not answer (`*`)."""
        listed = ["sinfo", "--noheader", "--Node", f"--nodes={','.join(nodes)}"]
        rows = self.command(*listed, "--format=%N %t").stdout.splitlines()
        states = dict(row.split() for row in rows)
        return [name for name, state in states.items() if state.endswith("*") or "down" in state]

    def ends_at(self) -> float | None:
        """When the job's time limit is."""
        end = self.facts(self.job_id).get("EndTime", "Unknown")
        if end == "Unknown":
            return None
        return time.mktime(time.strptime(end, "%Y-%m-%dT%H:%M:%S"))

    def submit(self, script: Path, options: Sequence[str], environment: Mapping[str, str]) -> str:
        """The id of a new job in the environment that this one was submitted in, and more.

        Raises `OSError` where Slurm refuses it.
        """
        own = {k: v for k, v in os.environ.items() if not JOB_ONLY.match(k) or k == "SLURM_CONF"}
        done = self.command(
            *["sbatch", "--parsable", *options, str(script)],
            env={**own, **environment},
            cwd=os.environ.get("SLURM_SUBMIT_DIR"),
        )
        if done.returncode:
            raise OSError(f"sbatch {script}: {done.stderr.strip() or done.returncode}")
        return done.stdout.strip().split(";")[0]


class Signals:
    """USR1: the time limit is near. TERM and INT: Slurm ends the job."""

    def __init__(self) -> None:
        self.lead = False
        self.end: str | None = None
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._arrived)

    def _arrived(self, number: int, _frame: object) -> None:
        if number == signal.SIGUSR1:
            self.lead = True
        else:
            self.end = signal.Signals(number).name


class Allocation:
    """What Slurm lends this job, nodes and time, and why it takes them back."""

    def __init__(self, cluster: Cluster, limit_s: float) -> None:
        self.cluster = cluster
        self.until = self._limit = time.time() + limit_s
        self._signals = Signals()
        self._next_look = 0.0

    @property
    def is_taken_back(self) -> bool:
        return self._signals.end is not None

    @property
    def left_s(self) -> float:
        return self.until - time.time()

    @property
    def is_near_end(self) -> bool:
        """Slurm has said so."""
        return self._signals.lead

    def look(self) -> None:
        """Its time limit and its nodes, as Slurm sees them."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + JOB_PERIOD_S
        self.until = min(self._limit, self.cluster.ends_at() or self._limit)
        if lost := self.cluster.lost_nodes(self.cluster.nodes):
            raise End("node_lost", f"{', '.join(lost)} is lost")

    def heed_signal(self) -> None:
        """The reason is looked up, in little time, as Slurm kills what is left soon."""
        said = self._signals.end
        if said is None:
            return
        self.cluster.timeout_s = HURRIED_TIMEOUT_S
        if lost := self.cluster.lost_nodes(self.cluster.nodes):
            raise End("node_lost", f"{said}: {', '.join(lost)} is lost")
        raise self.end_by_slurm() or End("cancelled", said)

    def end_by_slurm(self) -> End | None:
        """Why Slurm ends the job: it says TERM to the tasks and, not always, to this process."""
        facts = self.cluster.facts(self.cluster.job_id)
        state = facts.get("JobState", "RUNNING")
        if (preempted := facts.get("PreemptTime", "None")) != "None" or state == "PREEMPTED":
            return End("preempted", f"by Slurm at {preempted}")
        if int(facts.get("Restarts", 0)) > int(os.environ.get("SLURM_RESTART_COUNT") or 0):
            return End("preempted", "Slurm has put the job back into the queue")
        if state == "RUNNING" and not self.is_taken_back:
            return None
        if self.left_s <= 1 or state == "TIMEOUT":
            return End("time_limit", "Slurm ends the job at its time limit")
        return End("cancelled", f"Slurm shows it as {state}")


# --- Questions to a server and its host -----------------------------------------------------------


def ask(
    address: str, port: int, path: str, timeout_s: float, body: Json | None = None
) -> tuple[int, bytes]:
    """Status and body; no proxy of the environment is between. Raises `OSError`."""
    connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    try:
        content = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, content, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as fault:
        raise OSError(f"{type(fault).__name__}: {fault}") from fault
    finally:
        connection.close()


def health_fault(address: str, port: int, path: str, timeout_s: float) -> str | None:
    """What is wrong with the server; `None` where it is ready."""
    try:
        status, _ = ask(address, port, path, timeout_s)
    except OSError as fault:
        return f"{path}: {fault}"
    return None if status == 200 else f"{path}: HTTP {status}"


def generation_fault(address: str, port: int, question: Generation) -> str | None:
    """What is wrong with a generated answer; `None` where it is text, or the server only busy."""
    try:
        status, body = ask(address, port, question.path, question.timeout_s, question.body)
    except OSError as fault:
        return f"{question.path}: {fault}"
    shown = body[:200].decode(errors="replace")
    if status == 429:
        return None
    if status != 200:
        return f"{question.path}: HTTP {status} {shown}"
    return None if has_text(body) else f"{question.path}: no text in {shown}"


def has_text(body: bytes) -> bool:
    """For the answers of OpenAI's completions and chat, and of Triton's generate."""
    try:
        answer = json.loads(body)
    except ValueError:
        return False
    choice = (answer.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    words = ("content", "reasoning_content")
    return any([choice.get("text"), answer.get("text_output"), *map(message.get, words)])


def connections(port: int) -> int:
    """How many clients are connected to that port of this host."""
    count = 0
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):  # a host without IPv6
            for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                _, local, _, state = row.split()[:4]
                count += state == "01" and int(local.rpartition(":")[2], 16) == port
    return count


def look_at_ports(node: str, wanted: Sequence[int]) -> Json:
    """Which of the wanted ports are taken on this host; one that is free for each 0."""
    sockets = [socket.socket() for _ in wanted]
    taken, free = [], []
    for port, each in zip(wanted, sockets):  # strict= is of Python 3.10
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(port != 0))
        try:
            each.bind(("", port))
        except OSError:
            taken.append(port)
        else:
            free += [] if port else [each.getsockname()[1]]
    for each in sockets:
        each.close()
    return {"node": node, "taken": taken, "free": free}


class Probe(threading.Thread):
    """Asks again and again; `misses` in a row since the server was first known to be ready."""

    def __init__(
        self,
        fault: Callable[[], str | None],
        period_s: float,
        failures: int,
        is_ready: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        self._fault = fault
        self._period_s = period_s
        self._failures = failures
        self._over = threading.Event()
        self.is_ready = is_ready
        self.misses = 0
        self.last: str | None = "not asked yet"
        self.error: BaseException | None = None

    @property
    def is_lost(self) -> bool:
        return self.misses >= self._failures

    def run(self) -> None:
        try:
            while not self._over.is_set():
                began = time.monotonic()
                self.last = self._fault()
                self.is_ready = self.is_ready or self.last is None
                self.misses = self.misses + 1 if self.last and self.is_ready else 0
                period_s = self._period_s if self.is_ready else min(START_PERIOD_S, self._period_s)
                self._over.wait(max(0.0, period_s - (time.monotonic() - began)))
        except BaseException as error:  # the main loop raises it
            self.error = error

    def end(self) -> None:
        self._over.set()


# --- The record -----------------------------------------------------------------------------------


class Record:
    """run.json and events.jsonl of this job. A disk that is full never ends the service."""

    def __init__(self, folder: Path, first: Json) -> None:
        self.folder = folder
        self.run: Json = first
        self._path = folder / "run.json"
        self._reserve = folder / "reserve"
        self._written = 0.0
        folder.mkdir(parents=True, exist_ok=True)
        if (earlier := read_json(self._path)) is not None:  # the job was requeued
            self.run["restarts"] = earlier.get("restarts", 0) + 1
            self._path.replace(folder / f"run-{earlier.get('restarts', 0)}.json")
            for name in ("drain", "promote"):
                (folder / name).unlink(missing_ok=True)
        self.keep(lambda: self._reserve.write_bytes(b"\0" * RESERVE_BYTES))
        self.update()

    def update(self, **values: Any) -> None:
        self.run.update(values, heartbeat=stamp())
        self._written = time.monotonic()
        self.keep(lambda: write_json(self._path, self.run))

    def beat(self) -> None:
        if time.monotonic() - self._written > HEARTBEAT_S:
            self.update()

    def event(self, name: str, **values: Any) -> None:
        say(" ".join([name, *(f"{key}={value}" for key, value in values.items())]))
        line = json.dumps({"time": stamp(), "event": name, **values}) + "\n"
        self.keep(lambda: self._append(line))

    def _append(self, line: str) -> None:
        with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)

    def keep(self, write: Callable[[], object]) -> None:
        """The write, on a full disk into the space of the reserve; else it is only said."""
        try:
            write()
        except OSError as fault:
            if fault.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            say(f"{self.folder}: {fault.strerror}")
            if self._reserve.exists():
                self._reserve.unlink()
                self.keep(write)

    def close(self) -> None:
        self._reserve.unlink(missing_ok=True)


class Endpoint:
    """endpoint.json of the service: what clients follow. Only its owner changes or removes it."""

    def __init__(self, folder: Path, job_id: str) -> None:
        self.path = folder / "endpoint.json"
        self._job_id = job_id

    def owner(self) -> str | None:
        content = read_json(self.path)
        return None if content is None else str(content["job_id"])

    def publish(self, content: Json) -> None:
        """Taken from a predecessor by one rename: clients always find one of the two."""
        write_json(self.path, content)

    def withdraw(self) -> None:
        """Moved aside before it is looked at: a successor may replace it at any moment."""
        if self.owner() != self._job_id:
            return
        aside = self.path.with_name(f".endpoint.{self._job_id}")
        with suppress(FileNotFoundError):
            self.path.replace(aside)
            if (read_json(aside) or {}).get("job_id") != self._job_id:
                with suppress(FileExistsError):  # a still newer one
                    os.link(aside, self.path)
            aside.unlink()


def is_dead(endpoint: Path, cluster: Cluster) -> bool:
    """Whether the job that published this can no longer answer."""
    content = read_json(endpoint)
    if content is None or seconds_of(content["until"]) < time.time():
        return True
    run = read_json(endpoint.parent / content["heartbeat"])
    if run is None or run["state"] == "ended":
        return True
    if time.time() - seconds_of(run["heartbeat"]) > content["lease_s"]:
        return True
    return cluster.is_alive(content["job_id"]) is False


class Lock:
    """successor.lock of the service: who prepares the next job, and which that is."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self._path = folder / "successor.lock"
        self._cluster = cluster

    def take(self) -> bool:
        content = read_json(self._path)
        if content is not None and self._is_stale(content):
            self.release()
        try:
            handle = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        os.close(handle)
        self.name(None)
        return True

    def name(self, successor: str | None) -> None:
        owner = self._cluster.job_id
        write_json(self._path, {"owner": owner, "successor": successor, "since": stamp()})

    def arrived(self) -> None:
        """This job was the successor, and is none any more."""
        if (read_json(self._path) or {}).get("successor") == self._cluster.job_id:
            self.release()

    def release(self) -> None:
        self._path.unlink(missing_ok=True)

    def _is_stale(self, content: Json) -> bool:
        return self._cluster.is_alive(content.get("successor") or content["owner"]) is False


# --- Steps ----------------------------------------------------------------------------------------

# How srun says that tasks ended badly, for example `srun: error: node2: tasks 2-3: Killed`.
TASKS_ENDED = re.compile(r"srun: error: (\S+: tasks? ([\d,-]+): (.*))")
BY_SLURM = "Terminated"  # how --kill-on-bad-exit ends the other tasks
BY_ITSELF = "Exited"  # with a code; any other end is a crash
MOST_SAID = 4


@dataclass(frozen=True)
class BadEnd:
    """Of some tasks of one node, which ended in the same way at about the same time."""

    ranks: list[int]
    way: str
    words: str


def bad_ends(srun_says: str) -> list[BadEnd]:
    """In the order of srun."""
    found = filter(None, map(TASKS_ENDED.match, srun_says.splitlines()))
    return [BadEnd(ranks_of(row[2]), way=row[3], words=row[1]) for row in found]


def ranks_of(text: str) -> list[int]:
    """Those of `0,2-4`."""
    spans = [part.partition("-") for part in text.split(",")]
    return [rank for a, _, b in spans for rank in range(int(a), int(b or a) + 1)]


def first_rank(ends: Sequence[BadEnd], per_node: int) -> int:
    """The rank whose end was the cause of the others', as far as srun's words show it.

    A node reports what ended within 0.1 s by rank and not by time, so that a server (rank 0) that
    ends as it lost a rank comes first. But ranks run one program, which Slurm ends alike: the few
    that ended otherwise were first. Where half a node ended as rank 0 did, all failed alike.
    """
    first = ends[0]
    if 0 not in first.ranks:
        return first.ranks[0]
    ways: dict[str, list[int]] = {}
    for end in ends:
        if end.way != first.way or 2 * (len(first.ranks) - 1) < per_node:
            ways.setdefault(end.way, []).extend(rank for rank in end.ranks if rank)
    groups = [(len(ranks), way.startswith(BY_ITSELF), way) for way, ranks in ways.items() if ranks]
    odd = [way for size, is_exit, way in sorted(groups) if way != BY_SLURM]
    crashed_alone = [group[:2] for group in groups] == [(1, False)]
    return ways[odd[0]][0] if odd and (len(groups) > 1 or crashed_alone) else 0


def own_argv(*arguments: object) -> list[str]:
    """This file again, as a step runs it."""
    return [sys.executable, str(Path(__file__).resolve()), *map(str, arguments)]


class Step:
    """A step of the job: an `srun`, its step id, its state."""

    def __init__(self, spec: StepSpec, cluster: Cluster, bundle: Path, folder: Path) -> None:
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
        self.log = folder / f"{spec.name}.log"
        self.srun_log = folder / f"{spec.name}.srun.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.step_id: str | None = None
        self.probe: Probe | None = None
        self.deadline = 0.0
        self.state = "waiting"

    @property
    def _asked_at(self) -> str:
        """One behind a router is heard on its own node only, which is then this one."""
        host = self.spec.environment.get("SERVE_HOST", "")
        return host if host in LOOPBACK else self.address

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
        return is_lost or (self.spec.critical and bool(bad_ends(self.srun_says())))

    def start(self, fill: Callable[[str], str], health: Health) -> None:
        environment = {key: fill(value) for key, value in self.spec.environment.items()}
        argv, group = map(fill, self._argv()), self.spec.het_group
        self.process = self._cluster.start(
            self._cluster.srun(self.spec.name, self.nodes, *argv, het_group=group),
            *(self.srun_log, self._bundle, environment),
        )
        self.state = "starting"
        self.deadline = time.monotonic() + self.spec.start_timeout_s
        if self.spec.ready:
            port, path = self.ports[self.spec.ready["port"]], self.spec.ready["path"]
            fault = functools.partial(health_fault, self._asked_at, port, path, health.timeout_s)
            self.probe = Probe(fault, health.period_s, health.failures)
            self.probe.start()

    def _argv(self) -> list[str]:
        """Options of srun and what each task runs."""
        spec = self.spec
        options = [f"--ntasks={spec.ntasks}", f"--ntasks-per-node={spec.ntasks_per_node}"]
        options += [f"--output={str(self.log).replace('%', '%%')}", "--open-mode=append"]
        options += ["--label"] if spec.ntasks > 1 else []
        return [*options, *spec.srun, *map(self._absolute, [*spec.launcher, *spec.argv])]

    def _absolute(self, word: str) -> str:
        """A container may start elsewhere than in the bundle, by whose files' names words go."""
        return str(self._bundle / word) if (self._bundle / word).is_file() else word

    def srun_says(self) -> str:
        return self.srun_log.read_text(errors="replace") if self.srun_log.exists() else ""

    def meaning_of_end(self) -> tuple[str, str]:
        """Outcome and reason, where the step ended by itself or should have."""
        ends = bad_ends(self.srun_says())
        if self.exit_code is None and self.probe and not ends:
            return "health_lost", f"{self.probe.misses} misses in a row: {self.probe.last}"
        rank = first_rank(ends, self.spec.ntasks_per_node) if ends else 0
        said = [end.words for end in ends if rank in end.ranks]
        said += [end.words for end in ends if rank not in end.ranks and end.way != BY_SLURM]
        why = "; ".join(said[:MOST_SAID]) or f"srun ended with exit code {self.exit_code}"
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


class SideSteps:
    """Small steps without GPUs that run beside the service's own: a look, a question, a wait."""

    def __init__(self, cluster: Cluster, bundle: Path, folder: Path, tick: Tick) -> None:
        self._cluster = cluster
        self._bundle = bundle
        self._folder = folder
        self._tick = tick

    def start(
        self, name: str, nodes: Sequence[str], argv: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        command = self._cluster.aside(name, nodes, *argv)
        return self._cluster.start(command, self._log(name), self._bundle, {})

    def run(
        self, name: str, nodes: Sequence[str], argv: Sequence[str], timeout_s: float
    ) -> tuple[int | None, str]:
        """Exit code (`None`: no end in time) and output; the service is watched all the while."""
        process = self.start(name, nodes, argv)
        deadline = time.monotonic() + timeout_s
        try:
            while process.poll() is None and time.monotonic() < deadline:
                self._tick()
        finally:
            code = process.poll()
            if code is None:
                process.terminate()  # srun kills its tasks
                process.wait(KILL_WAIT_S)
        return code, self._log(name).read_text(errors="replace")

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


class Ports:
    """The ports of all steps: free, or chosen, before the first step starts."""

    def __init__(self, cluster: Cluster, aside: SideSteps) -> None:
        self._cluster = cluster
        self._aside = aside

    def choose(self, steps: Iterable[Step]) -> None:
        wanted: dict[str, list[tuple[Step, str]]] = {}
        for step in steps:
            if os.environ.get("SERVICE_FREE_PORTS"):
                step.ports = dict.fromkeys(step.ports, 0)
            wanted.setdefault(step.nodes[0], []).extend((step, name) for name in step.ports)
        numbers = {node: [s.ports[name] for s, name in rows] for node, rows in wanted.items()}
        found = self._look({node: ports for node, ports in numbers.items() if ports})
        taken = [f"{node}:{port}" for node, row in found.items() for port in row["taken"]]
        if taken:
            raise End("ports_taken", f"already in use: {', '.join(taken)}")
        for node, row in found.items():
            free = iter(row["free"])
            for step, name in wanted[node]:
                step.ports[name] = step.ports[name] or next(free)

    def _look(self, wanted: Mapping[str, Sequence[int]]) -> dict[str, Json]:
        here = self._cluster.node
        found = {here: look_at_ports(here, wanted[here])} if here in wanted else {}
        # One step for each het group, since a step may not span them.
        for group in self._cluster.groups:
            others = [node for node in group if node in wanted and node != here]
            if others:
                argv = own_argv("ports", json.dumps(wanted))
                code, output = self._aside.run("ports", others, argv, COMMAND_TIMEOUT_S * 3)
                rows = [json.loads(line) for line in output.splitlines() if line[:1] == "{"]
                found.update({row["node"]: row for row in rows})
                if code != 0 or not set(others) <= set(found):
                    raise End("server_failed", f"no look at the ports of {others}: {output}")
        return found


class Steps:
    """The service's steps: laid out on the nodes, started in order, watched, ended."""

    def __init__(self, spec: Spec, allocation: Allocation, record: Record) -> None:
        self._spec = spec
        self._allocation = allocation
        self._cluster = allocation.cluster
        self._record = record
        self._by_name: dict[str, Step] = {}
        self._waiting: list[Step] = []
        self._next_look = 0.0

    @property
    def front(self) -> Step:
        """The one that clients are sent to."""
        return self._by_name[self._spec.front]

    @property
    def all(self) -> list[Step]:
        return list(self._by_name.values())

    @property
    def are_ready(self) -> bool:
        return not self._waiting and all(step.is_settled for step in self.all)

    def lay_out(self) -> None:
        folder = self._record.folder
        for spec in self._spec.steps:
            self._by_name[spec.name] = Step(spec, self._cluster, self._spec.bundle, folder)
        self._waiting = self.all

    def start_next(self) -> None:
        """Those whose turn it is."""
        for step in list(self._waiting):
            if all(self._by_name[name].is_settled for name in step.spec.start_after):
                self._waiting.remove(step)
                self._start(step)

    def _start(self, step: Step) -> None:
        fill = functools.partial(self.fill, own=step)
        for name, template in step.spec.files.items():
            text = (self._spec.bundle / template).read_text(encoding="utf-8")
            for port, number in step.spec.ports.items():  # no placeholder: it must be a number
                text = re.sub(rf"(?m)^port: {number}$", f"port: {step.ports[port]}", text)
            (self._record.folder / name).write_text(fill(text), encoding="utf-8")
        step.start(fill, self._spec.health)
        self._record.event("step_started", step=step.spec.name, nodes=step.nodes)

    def fill(self, text: str, own: Step | None = None) -> str:
        """What only the job knows; other words in braces stay.

        `{bundle}`, `{job}`: folders of the bundle and of this job. `{host}`, `{port:http}`: of the
        step itself, or of the front. `{NAME}`, `{host:NAME}`, `{port:NAME:http}`: of another step.
        """

        def value(found: re.Match[str]) -> str:
            first, *rest = found.group(1).split(":")
            step = self._by_name.get(rest[0] if len(rest) > (first == "port") else first, front)
            if first == "port" and rest[-1:] and rest[-1] in step.ports:
                return str(step.ports[rest[-1]])
            if first == "host" or first in self._by_name:
                return step.address
            return folders.get(found.group(1), found.group(0))

        front = own or self.front
        folders = {"bundle": str(self._spec.bundle), "job": str(self._record.folder)}
        return PLACEHOLDER.sub(value, text)

    def look(self) -> None:
        """Raises `End` where a step means the end of the job."""
        self._learn_ids()
        for step in self.all:
            if step.process is not None:
                self._look_at(step)

    def _learn_ids(self) -> None:
        unknown = [step for step in self.all if step.is_running and not step.step_id]
        if not unknown or time.monotonic() < self._next_look:
            return
        ids = self._cluster.step_ids()
        for step in unknown:
            step.step_id = ids.get(step.spec.name)
        self._next_look = time.monotonic() + START_PERIOD_S

    def _look_at(self, step: Step) -> None:
        if step.probe and step.probe.error:
            raise step.probe.error
        if step.is_failing:
            self._wait([step], LAST_WORDS_S)
        if step.exit_code is not None:
            self._ended(step)
        elif step.is_failing:
            self._lost(step)
        elif step.state == "starting" and step.is_ready:
            step.state = "ready"
            self._record.event("step_ready", step=step.spec.name, step_id=step.step_id)
            self.write_down()
        elif step.state == "starting" and time.monotonic() > step.deadline:
            said = step.probe.last if step.probe else "no step"
            limit = f"not ready after {step.spec.start_timeout_s:.0f} s"
            raise self._end(step, "start_timeout", f"{limit}: {said}")

    def _lost(self, step: Step) -> None:
        """One that is silent, but not critical, is killed; the router has left it out already."""
        outcome, why = step.meaning_of_end()
        if self._is_needed(step):
            raise self._end(step, outcome, why)
        step.state = "lost"
        self._record.event("step_lost", step=step.spec.name, why=why)
        if step.step_id:
            self._cluster.kill_step(step.step_id)

    def _is_needed(self, step: Step) -> bool:
        """Whether the service is over without it: it is critical, or the last of its role."""
        others = (one for one in self.all if one is not step and one.spec.role == step.spec.role)
        return step.spec.critical or all(one.is_over for one in others)

    def _ended(self, step: Step) -> None:
        if step.state == "ended":
            return
        if self._is_needed(step):
            raise self._end(step, *step.meaning_of_end())
        step.state = "ended"
        if step.probe:
            step.probe.end()
        self._record.event("step_ended", step=step.spec.name, exit_code=step.exit_code)
        self.write_down()

    def _end(self, step: Step, outcome: str, why: str) -> End:
        """A step also ends, or is silent, where Slurm ends the job or a node is lost."""
        lost = self._cluster.lost_nodes(step.nodes)
        if lost or "node failure" in step.srun_says().lower():
            lost_here = f"{', '.join(lost) or 'a node'} is lost; {why}"
            return End("node_lost", f"{step.spec.name}: {lost_here}")
        return self._allocation.end_by_slurm() or End(outcome, f"{step.spec.name}: {why}")

    def write_down(self, **values: Any) -> None:
        self._record.update(**values, steps=[step.row() for step in self.all])

    def end(self, most_s: float) -> None:
        """Asked by a signal to their tasks, as one to srun would kill them; then killed."""
        for step in self.all:
            if step.probe:
                step.probe.end()
        running = [step for step in self.all if step.is_running]
        self._learn_ids()
        for step in running:
            if step.step_id:
                self._cluster.signal_step(step.step_id, "TERM")
        self._wait(running, min(most_s, max((s.spec.stop_timeout_s for s in running), default=0)))
        for step in running:
            if step.is_running and step.step_id:
                self._record.event("step_killed", step=step.spec.name)
                self._cluster.kill_step(step.step_id)
        self._wait(running, KILL_WAIT_S)
        for step in running:
            if step.is_running and step.process:
                step.process.kill()

    def _wait(self, steps: Sequence[Step], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while any(step.is_running for step in steps) and time.monotonic() < deadline:
            time.sleep(TICK_S / 4)


# --- The next job ---------------------------------------------------------------------------------


class Continuity:
    """Submits the job that takes over, one at a time, and no more often than allowed."""

    def __init__(self, spec: Spec, cluster: Cluster, record: Record) -> None:
        self._spec = spec
        self._cluster = cluster
        self._record = record
        self._jobs = record.folder.parent
        self._lock = Lock(self._jobs.parent, cluster)
        self._next_look = 0.0
        self._has_given_up = False
        self.successor: str | None = None

    def arrived(self) -> None:
        self._lock.arrived()

    def prepare(self) -> None:
        """A successor, if there is none and one is allowed."""
        tried = len(self._record.run["successors"])
        if self.successor is not None:
            self._look_after(self.successor)
        elif self._has_given_up or time.monotonic() < self._next_look:
            return
        elif tried >= self._spec.limits.attempts:
            self._give_up(f"{tried} successors failed")
        else:
            self._submit()

    def restart(self) -> None:
        """After a failure of this job: a new one, unless jobs of this service fail in a row."""
        window_s, attempts = self._spec.limits.crash_window_s, self._spec.limits.attempts
        failed = recent_failures(self._jobs, time.time() - window_s)
        if self.successor is not None or not self._spec.limits.restart:
            return
        if len(failed) >= attempts:
            self._give_up(f"{len(failed)} jobs failed in {window_s:.0f} s: {', '.join(failed)}")
        else:
            self._submit()

    def _submit(self) -> None:
        self._next_look = time.monotonic() + SUCCESSOR_PERIOD_S
        if not self._lock.take():
            return
        script = self._spec.folder / "serve.sbatch"
        options = json.loads(os.environ.get("SERVICE_SUBMIT_OPTIONS") or "[]")
        mine = {"SERVICE_PREDECESSOR": self._cluster.job_id, "SERVICE_CANARY": ""}
        try:
            job_id = self._cluster.submit(
                script, options, {**mine, "BUNDLE": str(self._spec.bundle)}
            )
        except OSError as fault:
            self._lock.release()
            self._give_up(str(fault))
            return
        self._lock.name(job_id)
        self.successor = job_id
        successors = [*self._record.run["successors"], job_id]
        self._record.update(successor=job_id, successors=successors)
        self._record.event("successor_submitted", job_id=job_id)

    def _look_after(self, successor: str) -> None:
        """Whether the successor still is one. Its record is asked often, the queue rarely."""
        run = read_json(self._jobs / successor / "run.json") or {}
        ended = run.get("state") == "ended"
        if not ended and time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + SUCCESSOR_PERIOD_S
            ended = self._cluster.is_alive(successor) is False
        if ended:
            why = run.get("why") or "gone from the queue"
            self._record.event("successor_failed", job_id=successor, why=why)
            self._lock.release()
            self.successor = None
            self._next_look = time.monotonic() + self._spec.limits.retry_s
            self._record.update(successor=None)

    def _give_up(self, why: str) -> None:
        self._has_given_up = True
        self._record.event("gave_up", why=why)


def recent_failures(jobs: Path, since: float) -> list[str]:
    runs = [read_json(path) or {} for path in jobs.glob("*/run.json")]
    ended = [run for run in runs if run.get("ended") and seconds_of(run["ended"]) > since]
    return sorted(run["job_id"] for run in ended if run.get("exit_code"))


# --- The service ----------------------------------------------------------------------------------


class Admission:
    """Whether clients may be sent to the service: its smoke suite as a step on the front's node."""

    def __init__(self, spec: Spec, record: Record, aside: SideSteps) -> None:
        self._spec = spec
        self._record = record
        self._aside = aside

    def examine(self, steps: Steps) -> None:
        """Raises `End` where it fails."""
        began = time.monotonic()
        argv, timeout_s = self._suite()
        words = [steps.fill(word) for word in argv]
        code, output = self._aside.run("smoke", steps.front.nodes[:1], words, timeout_s)
        lines = output.splitlines()
        own = [line for line in lines if not line.startswith("srun: ")]
        faults = [line for line in own if line.startswith("error: ")]
        what = "\n".join((faults or own or lines)[-20:])
        if code is None:
            what = f"no end in {timeout_s:.0f} s\n{what}"
        seconds = round(time.monotonic() - began, 3)
        result = {"ok": code == 0, "exit_code": code, "seconds": seconds, "what": what}
        self._record.keep(lambda: write_json(self._record.folder / "smoke.json", result))
        if code != 0:
            raise End("not_admitted", f"smoke: {what or f'exit code {code}'}")
        self._record.update(state="admitted", admitted=stamp())
        self._record.event("admitted", seconds=seconds)

    def _suite(self) -> tuple[list[str], float]:
        """The bundle's, else the supervisor's own question."""
        if chosen := self._spec.raw.get("smoke"):
            return chosen["argv"], float(chosen["timeout_s"])
        question = own_argv("smoke", self._spec.folder, "{host}", "{port:http}")
        return question, self._spec.question.timeout_s + 30


class Publication:
    """The endpoint as this job states it: where the service is, until when, in which state."""

    def __init__(self, spec: Spec, allocation: Allocation, record: Record) -> None:
        self._spec = spec
        self._allocation = allocation
        self._cluster = allocation.cluster
        self._record = record
        self.endpoint = Endpoint(spec.service_folder, self._cluster.job_id)
        self._draft = record.folder / "endpoint.json"  # of this job, also before its admission

    def draft(self, front: Step) -> None:
        write_json(self._draft, self._content(front))

    def publish(self, front: Step) -> None:
        self.endpoint.publish(self._content(front))

    def end(self) -> None:
        self.endpoint.withdraw()
        self._draft.unlink(missing_ok=True)

    def is_orphaned(self) -> bool:
        """Whether the job that clients are sent to can no longer answer, or there is none."""
        return is_dead(self.endpoint.path, self._cluster)

    def refuse_second(self) -> None:
        """An endpoint of a job that lives, and that this one does not succeed, stays."""
        owner = self.endpoint.owner()
        if owner in (None, self._cluster.job_id, self._record.run["predecessor"]):
            return
        if not self.is_orphaned():
            raise End("not_admitted", f"job {owner} serves {self._spec.name}; stop or replace it")
        self._close_record_of(str(owner))
        self._record.event("dead_endpoint", job_id=owner)

    def _close_record_of(self, dead: str) -> None:
        path = self._record.folder.parent / dead / "run.json"
        run = read_json(path)
        if run is not None and run["state"] != "ended":
            outcome = "node_lost" if self._cluster.lost_nodes(run["nodes"]) else "killed"
            why = f"found dead by job {self._cluster.job_id}"
            write_json(path, {**run, "state": "ended", "outcome": outcome, "why": why})

    def _content(self, front: Step) -> Json:
        urls = {
            name: f"{'grpc' if name == 'grpc' else 'http'}://{front.address}:{port}"
            for name, port in front.ports.items()
        }
        return {
            "format": FORMAT,
            "service": self._spec.name,
            "generation": self._record.run["generation"],
            "job_id": self._cluster.job_id,
            "step": front.step_id,
            "host": front.address,
            "ports": front.ports,
            "urls": urls,
            "model": self._spec.model,
            "bundle_digest": self._record.run["bundle_digest"],
            "since": stamp(),
            "until": stamp(self._allocation.until),
            "state": "serving",
            "heartbeat": f"jobs/{self._cluster.job_id}/run.json",
            "lease_s": LEASE_S,
        }


class Service:
    """The job from its start to its end."""

    def __init__(self, spec: Spec, cluster: Cluster) -> None:
        self._spec = spec
        self._cluster = cluster
        self._allocation = Allocation(cluster, spec.times.limit_s)
        self._folder = spec.service_folder
        job_folder = self._folder / "jobs" / cluster.job_id
        self._record = Record(job_folder, first_record(spec, self._allocation))
        self._aside = SideSteps(cluster, spec.bundle, job_folder, self._tick)
        self._steps = Steps(spec, self._allocation, self._record)
        self._publication = Publication(spec, self._allocation, self._record)
        self._continuity = Continuity(spec, cluster, self._record)
        self._generation: Probe | None = None

    # The road

    def run(self) -> int:
        """The exit code of the job."""
        try:
            self._start()
            self._admit()
            self._publish()
            while True:
                self._serve()
                self._drain()
                if not self._must_resume():
                    raise End("handed_over", f"to job {self._publication.endpoint.owner()}")
        except End as end:
            return self._finish(end)
        except Exception as error:
            traceback.print_exc()
            return self._finish(End("supervisor_bug", f"{type(error).__name__}: {error}"))

    def _start(self) -> None:
        self._look_at_job()
        self._publication.refuse_second()
        self._steps.lay_out()
        Ports(self._cluster, self._aside).choose(self._steps.all)
        while not self._steps.are_ready:
            self._steps.start_next()
            self._tick()
        self._steps.write_down(ready=stamp())
        self._publication.draft(self._steps.front)

    def _admit(self) -> None:
        self._record.update(state="admitting")
        self._record.event("admitting")
        Admission(self._spec, self._record, self._aside).examine(self._steps)
        promotion = self._record.folder / "promote"
        while os.environ.get("SERVICE_CANARY") and not promotion.exists():
            self._tick()

    def _publish(self) -> None:
        self._publication.refuse_second()
        self._publication.publish(self._steps.front)
        self._record.update(state="serving", published=stamp())
        self._record.event("published", endpoint=str(self._publication.endpoint.path))
        self._continuity.arrived()
        if (question := self._spec.generation) and self._generation is None:
            front = self._steps.front
            where = (front.address, front.ports["http"])
            fault = functools.partial(generation_fault, *where, question)
            self._generation = Probe(fault, question.period_s, question.failures, is_ready=True)
            self._generation.start()

    def _serve(self) -> None:
        """Until another job has the endpoint. The end of the time comes as `End`."""
        lead_s = self._spec.times.successor_lead_s
        while (owner := self._publication.endpoint.owner()) in (self._cluster.job_id, None):
            if owner is None:  # someone removed it
                self._publication.publish(self._steps.front)
            if self._allocation.is_near_end or self._allocation.left_s < lead_s:
                self._continuity.prepare()
            self._tick()
        self._record.event("handover", to=owner)

    def _drain(self) -> None:
        """Until no client is connected, or the time for it is over."""
        self._record.update(state="draining")
        began = time.monotonic()
        is_idle = self._idle_check()
        while (waited_s := time.monotonic() - began) < self._spec.times.drain_s:
            if waited_s > self._spec.times.settle_s and is_idle():
                break
            self._tick(ending=True)
        self._record.event("drained", seconds=round(waited_s, 1))

    def _idle_check(self) -> Callable[[], bool]:
        """Whether no client is connected to the front, asked on its own node."""
        front = self._steps.front
        port, node = front.ports["http"], front.nodes[0]
        if node == self._cluster.node:
            return lambda: connections(port) == 0
        process = self._aside.start(
            "idle", [node], own_argv("idle", port, self._spec.times.drain_s)
        )
        return lambda: process.poll() == 0

    def _must_resume(self) -> bool:
        """A successor that died while this job drained leaves the clients to it again."""
        if not self._publication.is_orphaned():
            return False
        self._record.event("resumed", after=self._publication.endpoint.owner())
        self._publish()
        return True

    def _finish(self, end: End) -> int:
        """First the truth, then the endpoint, then the steps, and last a new job."""
        code = OUTCOMES[end.outcome]
        self._record.update(state="stopping", outcome=end.outcome, why=end.why, exit_code=code)
        self._record.event("ending", outcome=end.outcome, why=end.why)
        self._publication.end()
        if self._generation:
            self._generation.end()
        self._steps.end(SLURM_GRACE_S if self._allocation.is_taken_back else math.inf)
        self._steps.write_down(state="ended", ended=stamp())
        if end.outcome in RESTARTABLE and self._record.run["admitted"] and not self._stop_file:
            self._continuity.restart()
        self._record.event("ended", outcome=end.outcome, exit_code=code)
        self._record.close()
        return code

    # The watch

    def _tick(self, ending: bool = False) -> None:
        """One look at everything; raises `End` where the job must end."""
        self._record.beat()
        self._allocation.heed_signal()
        self._steps.look()
        self._look_at_generation()
        if not ending:
            self._look_at_files()
            self._look_at_time()
        time.sleep(TICK_S)

    def _look_at_generation(self) -> None:
        if self._generation and self._generation.error:
            raise self._generation.error
        if self._generation and self._generation.is_lost:
            raise End("health_lost", f"generation: {self._generation.last}")

    @property
    def _stop_file(self) -> Path | None:
        files = (self._folder / "stop", self._record.folder / "drain")
        return next((file for file in files if file.exists()), None)

    def _look_at_files(self) -> None:
        if file := self._stop_file:
            self._quit(End("stopped", f"{file} is there"))

    def _look_at_time(self) -> None:
        self._look_at_job()
        last_s = self._spec.times.drain_s + self._spec.stop_timeout_s + END_MARGIN_S
        if self._allocation.left_s < last_s:
            tried = ", ".join(self._record.run["successors"]) or "none"
            self._quit(End("time_limit", f"no successor took over; submitted: {tried}"))

    def _look_at_job(self) -> None:
        self._allocation.look()
        until = stamp(self._allocation.until)
        if until != self._record.run["until"]:
            self._record.update(until=until)

    def _quit(self, end: End) -> None:
        """Without a successor: what is in flight is answered, new requests find no endpoint."""
        if self._record.run["state"] == "serving":
            self._publication.endpoint.withdraw()
            self._record.event("withdrawn", why=end.why)
            self._drain()
        raise end


def first_record(spec: Spec, allocation: Allocation) -> Json:
    """run.json of a job that starts."""
    runs = [read_json(path) or {} for path in spec.service_folder.glob("jobs/*/run.json")]
    earlier = [run["generation"] for run in runs if "generation" in run]
    later = ("ready", "admitted", "published", "ended", "outcome", "exit_code", "why")
    return {
        "format": FORMAT,
        "job_id": allocation.cluster.job_id,
        "service": spec.name,
        "generation": 1 + max(earlier, default=0),
        "bundle": str(spec.bundle),
        "bundle_digest": digest_of(spec.manifest) if spec.manifest.is_file() else None,
        "nodes": allocation.cluster.nodes,
        "state": "starting",
        "started": stamp(),
        "until": stamp(allocation.until),
        **dict.fromkeys(later),
        "steps": [],
        "successor": None,
        "successors": [],
        "predecessor": os.environ.get("SERVICE_PREDECESSOR") or None,
        "restarts": 0,
    }


# --- Preflight ------------------------------------------------------------------------------------


class Preflight:
    """What can be known on a compute node before the service's job: one row for each check."""

    def __init__(self, spec: Spec, cluster: Cluster) -> None:
        self._spec = spec
        self._cluster = cluster
        self._wanted: Json = spec.raw.get("preflight") or {}
        self.rows: list[Json] = []

    def run(self) -> bool:
        self._versions()
        self._bundle()
        self._image_and_mounts()
        self._checkpoints()
        self._programs()
        self._gpus()
        self._ports()
        self._steps()
        return all(row["ok"] for row in self.rows)

    def _row(self, check: str, ok: bool, what: str) -> None:
        self.rows.append({"check": check, "ok": ok, "what": what})
        say(f"{'ok    ' if ok else 'FAILED'} {check}: {what}")

    def _versions(self) -> None:
        slurm = self._cluster.command("srun", "--version").stdout.strip()
        python = ".".join(map(str, sys.version_info[:3]))
        self._row("versions", bool(slurm), f"{slurm or 'no srun'}, Python {python}")

    def _bundle(self) -> None:
        """The files of the bundle are those of its manifest."""
        manifest = read_json(self._spec.manifest)
        if manifest is None:
            self._row("bundle", False, f"{self._spec.manifest} is missing or damaged")
            return
        files = manifest.get("files", {})
        wrong = [name for name, row in files.items() if self._is_changed(name, row["sha256"])]
        what = f"{len(files)} files are those of the manifest"
        self._row("bundle", not wrong, f"missing or changed: {', '.join(wrong)}" if wrong else what)

    def _is_changed(self, name: str, digest: str) -> bool:
        path = self._spec.bundle / name
        return not path.is_file() or digest_of(path) != digest

    def _image_and_mounts(self) -> None:
        for image in (self._wanted.get("images") or {}).values():
            if image.startswith(("/", ".")):  # else the name in a registry: a step will show
                self._row("image", Path(image).exists(), image)
        for mount in self._wanted.get("mounts") or []:
            self._row("mount", Path(mount).exists(), mount)

    def _checkpoints(self) -> None:
        """All files of an index are there, and as long as their headers say."""
        for folder in map(Path, (self._wanted.get("checkpoints") or {}).values()):
            faults = checkpoint_faults(folder)
            self._row("checkpoint", not faults, "; ".join(faults) or f"{folder} is complete")

    def _programs(self) -> None:
        if self._wanted.get("images"):
            return
        for program in self._wanted.get("programs") or []:
            found = shutil.which(program)
            self._row("program", found is not None, f"{program}: {found or 'not on the path'}")

    def _gpus(self) -> None:
        wanted = int(self._wanted.get("gpus") or 0)
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        what = f"{len(visible)} on {self._cluster.node}, {wanted} wanted"
        self._row("gpus", len(visible) >= wanted, what)

    def _ports(self) -> None:
        wanted = self._wanted.get("ports") or []
        taken = look_at_ports(self._cluster.node, wanted)["taken"]
        what = f"in use: {', '.join(map(str, taken))}" if taken else f"free: {wanted}"
        self._row("ports", not taken, what)

    def _steps(self) -> None:
        """Slurm lists MPI plugins and takes options that do not work, so that each is tried."""
        self._cluster.timeout_s = float(self._wanted.get("timeout_s") or COMMAND_TIMEOUT_S)
        nodes = self._cluster.groups[0]
        state = self._spec.service_folder / "jobs" / self._cluster.job_id
        for options in sorted({tuple(step.srun) for step in self._spec.steps}):
            tasks = [f"--ntasks={len(nodes)}", "--ntasks-per-node=1"]
            argv = self._cluster.srun("try", nodes, *tasks, *options)
            words = {"{bundle}": str(self._spec.bundle), "{job}": str(state)}
            for word, value in words.items():
                argv = [item.replace(word, value) for item in argv]
            done = self._cluster.command(*argv, "true", env=self._cluster.environment())
            said = [line for line in done.stderr.splitlines() if "error" in line] or ["it runs"]
            self._row("step", done.returncode == 0, f"{' '.join(options)}: {said[0]}")


def checkpoint_faults(folder: Path) -> list[str]:
    if not (folder / "config.json").is_file():
        return [f"{folder} has no config.json"]
    index = read_json(folder / "model.safetensors.index.json") or {}
    names = set((index.get("weight_map") or {}).values())
    files = sorted(folder / name for name in names) or sorted(folder.glob("*.safetensors"))
    return [fault for file in files if (fault := safetensors_fault(file))]


def safetensors_fault(path: Path) -> str | None:
    """What is wrong with the length of a file, by its own header."""
    if not path.is_file():
        return f"{path} is missing"
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        size = path.stat().st_size
        if length > size:
            return f"{path} is cut off: {size} bytes"
        header = json.loads(file.read(length))
    ends = [row["data_offsets"][1] for name, row in header.items() if name != "__metadata__"]
    whole = 8 + length + max(ends, default=0)
    return None if size == whole else f"{path} has {size} bytes, not {whole}"


# --- Verbs ----------------------------------------------------------------------------------------


def serve(folder: str) -> int:
    """The job, until its end."""
    return Service(Spec.read(Path(folder).resolve()), Cluster()).run()


def preflight(folder: str) -> int:
    """0, or 6 where a check failed; the rows in preflight.json of the job."""
    spec, cluster = Spec.read(Path(folder).resolve()), Cluster()
    checks = Preflight(spec, cluster)
    ok = checks.run()
    state = spec.service_folder / "jobs" / cluster.job_id
    state.mkdir(parents=True, exist_ok=True)
    result = {"format": FORMAT, "ok": ok, "node": cluster.node, "time": stamp()}
    write_json(state / "preflight.json", {**result, "checks": checks.rows})
    return 0 if ok else 6


def smoke(folder: str, address: str, port: str) -> int:
    """The built-in generation probe."""
    fault = generation_fault(address, int(port), Spec.read(Path(folder)).question)
    print(fault or "it generates")
    return 1 if fault else 0


def ports(wanted: str) -> int:
    """For the node that this runs on."""
    node = os.environ["SLURMD_NODENAME"]
    print(json.dumps(look_at_ports(node, json.loads(wanted)[node])))
    return 0


def idle(port: str, timeout_s: str) -> int:
    """Waits until no client is connected to the port."""
    deadline = time.monotonic() + float(timeout_s)
    while connections(int(port)) and time.monotonic() < deadline:
        time.sleep(TICK_S)
    return int(connections(int(port)) > 0)


def drain(job_folder: str) -> int:
    """Asks the job of that folder to answer what is in flight and to end."""
    (Path(job_folder) / "drain").touch()
    return 0


# `folder` is that of service.json; by default it is beside this file.
VERBS: dict[str, tuple[Callable[..., int], list[str]]] = {
    "serve": (serve, ["[folder]"]),
    "preflight": (preflight, ["[folder]"]),
    "smoke": (smoke, ["folder", "address", "port"]),
    "ports": (ports, ["wanted"]),
    "idle": (idle, ["port", "timeout_s"]),
    "drain": (drain, ["job_folder"]),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, (run, arguments) in VERBS.items():
        verb = verbs.add_parser(name, description=run.__doc__)
        for argument in arguments:
            nargs, default = ("?", Path(__file__).parent) if argument[0] == "[" else (None, None)
            verb.add_argument(argument.strip("[]"), nargs=nargs, default=default)
    chosen = vars(parser.parse_args())
    return VERBS[chosen.pop("verb")][0](**chosen)


if __name__ == "__main__":
    sys.exit(main())
