"""A job on a cluster of one node: Slurm's commands as scripts, servers as real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from supervisor import state
from supervisor.service import Service
from supervisor.slurm import Cluster
from supervisor.spec import Spec

NODE = "node1"
LIMIT_S = 30.0
POLL_S = 0.01

# What a step's process is, `squeue --steps` finds by its file: NAME holds the process.
SRUN = """
for word; do
  case $word in
    --job-name=*) name=${word#*=} ;;
    --output=*) output=${word#*=} ;;
    --*) ;;
    *) break ;;
  esac
  given="$given $word"
  shift
done
echo "$given" >>"$FOLDER/srun"
[ -e "$FOLDER/no-steps" ] && { echo "srun: error: no" >&2; exit 1; }
echo $$ >"$FOLDER/steps/$name"
[ -n "$output" ] && exec >>"$output" 2>&1
exec "$@"
"""
SQUEUE = """
echo "$*" >>"$FOLDER/squeue"
case "$*" in
  *--steps*)
    for one in "$FOLDER"/steps/*; do
      read -r id <"$one" && kill -0 "$id" 2>/dev/null && echo "7.$id|${one##*/}"
    done
    exit 0 ;;
  *--me*) exit 0 ;;
  *) while read -r state; do echo "$state ${3#--jobs=}"; done <"$FOLDER/says/state" ;;
esac
"""
SCANCEL = """
echo "$*" >>"$FOLDER/scancel"
signal=KILL
[ "$1" = --signal ] && signal=$2 && shift 2
kill -$signal ${1#7.}
"""
SCONTROL = """
case "$2" in
  config) echo "Configuration data as of $(date +%s)" ;;
  job) read -r job <"$FOLDER/says/job" && echo "$job" ;;
esac
"""
SBATCH = """
printf '%s\\n' "$*" "$SERVICE_PREDECESSOR" "$BUNDLE" >>"$FOLDER/sbatch"
echo 8
"""
SCRIPTS = {
    "srun": SRUN,
    "squeue": SQUEUE,
    "scancel": SCANCEL,
    "scontrol": SCONTROL,
    "sbatch": SBATCH,
    "sinfo": 'read -r nodes <"$FOLDER/says/nodes" && echo "$nodes"',
}

# Answers every request with the status in a file, and the text of a completion.
SERVER = """
import os, socket, sys
port, mode = int(sys.argv[1]), sys.argv[2]
with socket.create_server(("", port)) as one:
    print("listens", flush=True)
    while True:
        connection, _ = one.accept()
        with connection:
            asked = connection.recv(9999).decode()
            answer = open(mode).read().split()
            if answer[0] == "exit":
                sys.exit(int(answer[1]))
            if not asked:
                continue  # the client left
            path = asked.split()[1]
            status = answer[0] if path == "/health" else answer[1]
            body = b'{"choices": [{"text": "four"}]}' if status == "200" else b"{}"
            head = f"HTTP/1.1 {status} OK\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
            connection.sendall(head.encode() + body)
"""


def free_port() -> int:
    with socket.create_server(("", 0)) as one:
        return int(one.getsockname()[1])


def serve(folder: Path) -> int:
    return Service(Spec.read(folder), Cluster()).run()


def until(is_true: Callable[[], bool]) -> None:
    """Wait for it. Raises `AssertionError` where it takes too long."""
    deadline = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(POLL_S)


class Job:
    """Job 7, whose supervisor runs in this process, in a bundle of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundle = folder / "bundle"
        self.bundle.mkdir()
        (self.bundle / "slurm").mkdir()
        (folder / "steps").mkdir()
        (folder / "says").mkdir()
        (folder / "server.py").write_text(SERVER)
        self.port = free_port()
        self.answer(health=200, completions=200)
        self.slurm(state="RUNNING\n", job="JobState=RUNNING\n", nodes=f"{NODE} idle\n")
        self._actions: list[tuple[str, Callable[[], None]]] = []
        self.document: dict[str, Any] = {
            "format": state.FORMAT,
            "name": "svc",
            "model": "model",
            "steps": [self.server()],
            "front": "server0",
            "health": {"period_s": 0.02, "timeout_s": 2, "failures": 3},
            "time": {"limit_s": 3600, "successor_lead_s": 600, "drain_s": 0.3},
            "limits": {"settle_s": 0.02, "retry_s": 0},
            "state_folder": str(folder / "state"),
            "smoke": {"argv": ["true"], "timeout_s": 5},
        }

    def server(self, name: str = "server0", **changes: Any) -> dict[str, Any]:
        """A step of service.json."""
        words = [str(self.folder / "server.py"), "{port:http}", str(self.folder / "answer")]
        step = {
            "name": name,
            "argv": [sys.executable, "-S", "-E", *words],
            "ports": {"http": self.port},
            "ready": {"port": "http", "path": "/health"},
            "start_timeout_s": 10,
            "stop_timeout_s": 2,
        }
        return {**step, **changes}

    def idle(self, name: str, *argv: str, **changes: Any) -> dict[str, Any]:
        """A step without a port."""
        return {"name": name, "argv": list(argv or ("sleep", "60")), "stop_timeout_s": 2, **changes}

    def answer(self, **status: int | str) -> None:
        """What the servers answer from now on, replaced as a whole."""
        known = getattr(self, "_answers", {}) | status
        self._answers: Mapping[str, int | str] = known
        new = self.folder / "answer.new"
        new.write_text(f"{known['health']} {known['completions']}")
        new.replace(self.folder / "answer")

    def slurm(self, **texts: str) -> None:
        """What Slurm says: `state` of any job asked for, `job` of this one, `nodes`."""
        for name, text in texts.items():
            (self.folder / "says" / name).write_text(text)

    def command(self, name: str, script: str) -> None:
        """Slurm's command by that name is this from now on."""
        (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")

    def given(self, command: str) -> list[str]:
        """The arguments with which a Slurm command was called so far."""
        path = self.folder / command
        return path.read_text().splitlines() if path.exists() else []

    def once(self, event: str, action: Callable[[], None]) -> None:
        """Do this as soon as the job has recorded that event."""
        self._actions.append((event, action))

    def write(self) -> Spec:
        """The bundle's service.json."""
        (self.bundle / "slurm" / "service.json").write_text(json.dumps(self.document))
        return Spec.read(self.bundle / "slurm")

    def run(self, serve: Callable[[Path], int] = serve) -> int:
        """The exit code of the job, at its end."""
        self.service = self.write().service
        done = threading.Event()
        operator = threading.Thread(target=self._operate, args=(done,))
        operator.start()
        late = threading.Timer(LIMIT_S, os.kill, [os.getpid(), signal.SIGTERM])
        late.start()
        try:
            return serve(self.bundle / "slurm")
        finally:
            assert not late.finished.is_set(), "the job did not end"
            late.cancel()
            done.set()
            operator.join()
            for file in (self.folder / "steps").iterdir():
                with suppress(OSError, ValueError):
                    os.kill(int(file.read_text()), signal.SIGKILL)

    def _operate(self, done: threading.Event) -> None:
        waiting = list(self._actions)
        while waiting and not done.is_set():
            names = self.events
            while waiting and waiting[0][0] in names:
                waiting.pop(0)[1]()
            done.wait(POLL_S)

    def stop(self) -> None:
        self.service.stop_file.touch()

    def publish_as(self, job: str) -> None:
        """Another job takes the endpoint."""
        (self.service.path / "jobs" / job).mkdir(parents=True, exist_ok=True)
        until = state.timestamp(time.time() + 3600)
        fresh = {"state": "serving", "heartbeat": state.timestamp(), "until": until}
        state.write_json(self.service.job(job).path / state.RUN, fresh)
        state.write_json(self.service.endpoint_file, {"job_id": job, "until": until})

    @property
    def path(self) -> Path:
        return self.folder / "state" / "svc" / "jobs" / "7"

    @property
    def record(self) -> dict[str, Any]:
        """run.json."""
        return state.read_json(self.path / state.RUN) or {}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """events.jsonl."""
        path = self.path / state.EVENTS
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    @property
    def events(self) -> list[str]:
        return [row["event"] for row in self.rows]

    @property
    def endpoint(self) -> dict[str, Any] | None:
        return state.read_json(self.folder / "state" / "svc" / state.ENDPOINT)
