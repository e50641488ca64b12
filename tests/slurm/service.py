"""A service for tests: a bundle of stand-in servers, its jobs on a cluster, and what they leave."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.conftest import ROOT
from tests.slurm.cluster import Cluster

SUPERVISOR = ROOT / "supervisor"
SERVER = Path(__file__).parent / "server.py"
LAUNCHER = ROOT / "launch" / "reference" / "bin" / "trtllm-llmapi-launch"
HASTY_LAUNCHER = Path(__file__).parent / "launcher.py"
PATIENCE_S = 120.0  # what takes seconds, on a machine that does much else
POLL_S, LONGEST_POLL_S = 0.05, 0.25  # many a look is a command of Slurm
FOLLOW_S = 1.0  # between a client's looks at the endpoint
PAUSE_S = 0.02  # after each answer
SCRIPT = """\
#!/bin/bash
{directives}
exec {python} -B "$BUNDLE/slurm/supervisor" serve
"""

Json = dict[str, Any]


def server(name: str = "server0", *options: str, **changes: Any) -> Json:
    """A step of service.json."""
    step = {
        "name": name,
        "role": "agg",
        "nodes": 1,
        "first_node": 0,
        "ntasks": 1,
        "ntasks_per_node": 1,
        "gpus_per_node": 1,
        "gpu_indices": None,
        "launcher": [],
        "argv": [sys.executable, str(SERVER), "{port:http}", *options],
        "environment": {},
        "srun": [],
        "ports": {"http": 0},
        "ready": {"port": "http", "path": "/health"},
        "files": {},
        "het_group": None,
        "critical": True,
        "start_after": [],
        "start_timeout_s": 20,
        "stop_timeout_s": 3,
    }
    return {**step, **changes}


def ranks(count: int, nodes: int = 1, **changes: Any) -> Json:
    """A server of several ranks, as the engine's launcher starts it."""
    shape = {"ntasks": count, "nodes": nodes, "ntasks_per_node": count // nodes}
    launcher = [sys.executable, str(LAUNCHER)]
    return server(**{"launcher": launcher, **shape, **changes})


def hasty_ranks(count: int, **changes: Any) -> Json:
    """A server whose rank 0 ends at once when it misses another rank."""
    launcher = [sys.executable, str(HASTY_LAUNCHER), "{job}"]
    return ranks(count, launcher=launcher, **changes)


class Service:
    """A bundle in `folder`, and its jobs on the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        steps: list[Json] | None = None,
        *,
        directives: tuple[str, ...] = (),
        time: Json | None = None,
        files: dict[str, str] | None = None,
        **changes: Any,
    ) -> None:
        self.cluster = cluster
        self.submitted: list[str] = []
        self.bundle = folder / "bundle"
        self.folder = folder / "state" / "test"
        slurm = self.bundle / "slurm"
        slurm.mkdir(parents=True)
        shutil.copytree(
            SUPERVISOR, slurm / "supervisor", ignore=shutil.ignore_patterns("__pycache__")
        )
        (self.bundle / "manifest.json").write_text("{}\n")
        self.specification = {
            "format": 1,
            "name": "test",
            "model": "stand-in",
            "state_folder": str(folder / "state"),
            "steps": steps or [server()],
            "front": "server0",
            "health": {"period_s": 0.3, "timeout_s": 0.5, "failures": 3},
            "smoke": None,
            "time": {
                "limit_s": 300,
                "successor_lead_s": 60,
                "drain_s": 3,
                "settle_s": 0.5,
                **(time or {}),
            },
            "limits": {"attempts": 2, "crash_window_s": 60, "retry_s": 0.5},
            **changes,
        }
        (slurm / "service.json").write_text(json.dumps(self.specification))
        for name, text in (files or {}).items():
            (slurm / name).write_text(text)
        lines = ("--gres=gpu:2", "--no-requeue", *directives)
        text = "\n".join(f"#SBATCH {line}" for line in lines)
        script = slurm / "serve.sbatch"
        script.write_text(SCRIPT.format(directives=text, python=sys.executable))

    def submit(self, *options: str, **environment: str) -> str:
        """The id of a job that serves it."""
        script = self.bundle / "slurm" / "serve.sbatch"
        environment = {"BUNDLE": str(self.bundle), **environment}
        sbatch = ["sbatch", "--parsable", "--output=job-%j.log", *options, str(script)]
        done = self.cluster.run(*sbatch, check=True, cwd=self.bundle.parent, **environment)
        self.submitted.append(done.stdout.strip())
        return self.submitted[-1]

    def lead(self, job_id: str) -> None:
        """What Slurm sends some time before the time limit."""
        self.cluster.run("scancel", "--batch", "--signal=USR1", job_id)

    @property
    def jobs(self) -> list[str]:
        """Ids of its jobs that wait or run, also of those that left no record."""
        script = str(self.bundle / "slurm" / "serve.sbatch")
        listed = ["squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%i %o"]
        rows = self.cluster.run(*listed, check=False).stdout.splitlines()
        return [row.split()[0] for row in rows if row.endswith(script)]

    def close(self) -> None:
        """Whatever still runs of it is killed at once, and what that has submitted meanwhile."""
        while jobs := self.jobs:
            self._kill(jobs)

    def _kill(self, jobs: list[str]) -> None:
        for job_id in jobs:
            for pid in self.cluster.processes(SLURM_JOB_ID=job_id):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.cluster.run("scancel", "--quiet", job_id, check=False)

    def serving(self, *options: str, **environment: str) -> str:
        """The id of a job that serves it and has been admitted."""
        job_id = self.submit(*options, **environment)
        self.wait_for(job_id, "serving")
        return job_id

    def run(self, job_id: str) -> Json:
        """run.json of the job; empty before it starts."""
        path = self.job_folder(job_id) / "run.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def job_folder(self, job_id: str) -> Path:
        return self.folder / "jobs" / job_id

    def endpoint(self) -> Json | None:
        path = self.folder / "endpoint.json"
        try:
            content: Json = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        return content

    def owner(self) -> str | None:
        """The job that the endpoint names."""
        return (self.endpoint() or {}).get("job_id")

    def events(self, job_id: str) -> list[str]:
        lines = (self.job_folder(job_id) / "events.jsonl").read_text().splitlines()
        return [json.loads(line)["event"] for line in lines]

    def ask(self, path: str, body: Json | None = None) -> Json:
        """The front's answer."""
        endpoint = self.endpoint()
        assert endpoint
        return ask(endpoint["host"], endpoint["ports"]["http"], path, body)

    def wait_for(self, job_id: str, state: str, timeout_s: float = PATIENCE_S) -> None:
        order = ("starting", "admitting", "admitted", "serving", "draining", "stopping", "ended")

        def reached() -> bool:
            now = self.run(job_id).get("state")
            if now == "ended" != state:
                raise AssertionError(self.explain(job_id))
            return now is not None and order.index(now) >= order.index(state)

        wait_until(reached, timeout_s, lambda: self.explain(job_id))

    def wait_for_end(self, job_id: str, timeout_s: float = PATIENCE_S) -> Json:
        """run.json of a job that Slurm no longer runs, and of which no process is left."""

        def over() -> bool:
            state = self.slurm_state(job_id)
            is_over = state not in ("PENDING", "RUNNING", "COMPLETING", "")
            return is_over and not self.cluster.processes(SLURM_JOB_ID=job_id)

        wait_until(over, timeout_s, lambda: self.explain(job_id))
        return self.run(job_id)

    def slurm(self, job_id: str, field: str) -> str:
        shown = self.cluster.run("scontrol", "show", "job", "-o", job_id, check=False).stdout
        return next((w.split("=", 1)[1] for w in shown.split() if w.startswith(field + "=")), "")

    def slurm_state(self, job_id: str) -> str:
        return self.slurm(job_id, "JobState")

    def explain(self, job_id: str) -> str:
        """For a test that fails."""
        log = self.bundle.parent / f"job-{job_id}.log"
        texts = [json.dumps(self.run(job_id), indent=1), log.read_text() if log.exists() else ""]
        texts += [f"{p.name}: {p.read_text()}" for p in self.job_folder(job_id).glob("*.log")]
        return "\n".join([*texts, *self.cluster.log_of(job_id)])


def ask(host: str, port: int, path: str, body: Json | None = None, timeout_s: float = 30) -> Json:
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        content = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, content)
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        result: Json = json.loads(answer.read())
        return result
    finally:
        connection.close()


def wait_until(
    condition: Callable[[], bool],
    timeout_s: float = PATIENCE_S,
    fault: Callable[[], str] = lambda: "",
) -> None:
    """Looks more rarely the longer it takes: a tenth of that is lost at most."""
    begun = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - begun
        assert waited_s < timeout_s, fault()
        time.sleep(min(max(POLL_S, waited_s / 10), LONGEST_POLL_S))


class Clients:
    """Threads that ask again and again, while entered, where the endpoint was a moment ago.

    A request that is not answered is a failure: nothing is tried twice. The pause after each leaves
    the processor to Slurm and to the service, and still a hundred requests and more in a second.
    """

    def __init__(self, endpoint: Callable[[], Json | None], count: int = 8) -> None:
        self._endpoint = endpoint
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(count)]
        self.answers: list[str] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, count: int) -> None:
        """So many more answers."""
        before = len(self.answers)
        wait_until(lambda: len(self.answers) >= before + count)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._ask()
            except (OSError, AssertionError, http.client.HTTPException) as fault:
                self.failures.append(f"{time.time()} {fault!r}")

    def _ask(self) -> None:
        endpoint = self._endpoint()
        assert endpoint
        where, until = (endpoint["host"], endpoint["ports"]["http"]), time.monotonic() + FOLLOW_S
        while time.monotonic() < until and not self._over.is_set():
            self.answers.append(ask(*where, "/v1/completions", {})["job"])
            self._over.wait(PAUSE_S)
