"""The fault table: what is done to a service, and how its job must then end.

`python -m tests.slurm.faults 20` runs every row 20 times, on a cluster of its own, and prints how
many ended as stated, and the shortest, median and longest time that they took.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from supervisor.ports import free_ports
from tests import watcher
from tests.slurm.cluster import Cluster, Shape
from tests.slurm.service import Json, Service, hasty_ranks, ranks, server, wait_until

AT_ONCE = 6  # rows that run at the same time
START_TIMEOUT_S = 90.0  # a row may have to wait for another one's node
STOP_S = 3.0  # stop_timeout_s of these services
HEALTH_S = 3 * 0.5 + 3.0  # failures x timeout_s of their health, and for srun to say why
# For Slurm to notice that a step is over, and for its commands on a busy machine.
SLACK_S = 10.0

TWO_NODES = ("--nodes=2", "--ntasks-per-node=2")
FOUR_TASKS = ("--nodes=1", "--ntasks-per-node=4")
QUESTION = {"path": "/v1/completions", "body": {}, "period_s": 0.3, "timeout_s": 1}
GENERATION = {"period_s": 0.3, "timeout_s": 0.5, "failures": 3, "generation": QUESTION}
ROUTER = server("router", role="router", srun=["--gres=none"], start_after=["server0"])
REFUSES = {"argv": ["sh", "-c", "echo it does not answer; exit 3"], "timeout_s": 9}
ONE_NODE = ("--nodelist=node4", "--exclusive")

Do = Callable[[Service, str], None]


def nothing(_: Service, __: str) -> None:
    return


def signal_rank(number: signal.Signals) -> Do:
    def do(service: Service, job_id: str) -> None:
        marks = {"SLURM_JOB_ID": job_id, "SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}
        os.kill(service.cluster.processes(**marks)[-1], number)

    return do


def signal_server(number: signal.Signals) -> Do:
    def do(service: Service, _: str) -> None:
        os.kill(service.ask("/status")["pid"], number)

    return do


def tell_server(**fault: Any) -> Do:
    def do(service: Service, _: str) -> None:
        with suppress(http.client.HTTPException, ConnectionError):  # it ends without an answer
            service.ask("/fault", fault)

    return do


def cancel(service: Service, job_id: str) -> None:
    service.cluster.run("scancel", job_id)


def preempt(service: Service, _: str) -> None:
    options = ["--partition=urgent", *ONE_NODE, "--output=/dev/null", "--wrap=true"]
    service.cluster.run("sbatch", *options)


def kill_node(service: Service, job_id: str) -> None:
    service.cluster.kill_node(service.run(job_id)["nodes"][1])


def fill_disk(service: Service, job_id: str) -> None:
    with (service.folder / "filling").open("wb", buffering=0) as filling, suppress(OSError):
        while True:
            filling.write(b"0" * 4096)
    signal_server(signal.SIGKILL)(service, job_id)


def fail_successor(service: Service, job_id: str) -> None:
    """The job still serves when no attempt is left; then it is stopped."""
    broken = {**service.specification, "steps": [server("server0", "--fail")]}
    (service.bundle / "slurm" / "service.json").write_text(json.dumps(broken))
    service.lead(job_id)
    wait_until(lambda: "gave_up" in service.events(job_id), START_TIMEOUT_S)
    assert service.ask("/v1/completions", {})["job"] == job_id
    (service.folder / "stop").touch()


class Impostor(BaseHTTPRequestHandler):
    """A process of nobody's service that says it is well."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


def take_port(service: Service, job_id: str) -> None:
    """Once its supervisor has seen that it is free, and before the server itself listens."""
    events = service.job_folder(job_id) / "events.jsonl"
    wait_until(lambda: events.exists() and "step_started" in events.read_text(), START_TIMEOUT_S)
    port = service.specification["steps"][0]["ports"]["http"]

    def serve() -> None:
        with HTTPServer(("127.0.0.1", port), Impostor) as impostor:
            impostor.timeout = HEALTH_S
            while not service.run(job_id).get("ended"):
                impostor.handle_request()

    threading.Thread(target=serve, daemon=True).start()


@dataclass(frozen=True, slots=True)
class Fault:
    """One row: the service, what is done once it serves, and its end."""

    name: str
    do: Do
    outcome: str
    within_s: float
    code: int | None = None  # of the job; `None` where Slurm ends it
    why: str = ""  # part of the reason
    state: str = "FAILED"
    steps: list[Json] = field(default_factory=lambda: [server()])
    directives: tuple[str, ...] = ()
    changes: Json = field(default_factory=dict)
    needs: str = ""  # `cluster`, `disk`, `port` or `late server`: something of its own
    during: str = "serving"  # the state in which it is done


FAULTS = [
    Fault(
        *("rank killed", signal_rank(signal.SIGKILL), "rank_died", STOP_S, 70, "task 3: Killed"),
        steps=[ranks(4, nodes=2)],
        directives=TWO_NODES,
    ),
    Fault(
        *("rank killed, server follows", signal_rank(signal.SIGKILL), "rank_died", STOP_S, 70),
        why="task 3: Killed; node",  # the server's own end comes after it
        steps=[hasty_ranks(4)],
        directives=FOUR_TASKS,
    ),
    Fault(
        *("rank exits, server follows", signal_rank(signal.SIGUSR1), "rank_died", STOP_S, 70),
        why="task 3: Exited with exit code 5; node",
        steps=[hasty_ranks(4)],
        directives=FOUR_TASKS,
    ),
    Fault(
        *("server fails, ranks are there", tell_server(exit=9), "server_failed", STOP_S, 72),
        why="task 0: Exited with exit code 9",
        steps=[hasty_ranks(4)],
        directives=FOUR_TASKS,
    ),
    Fault("server killed", signal_server(signal.SIGKILL), "server_failed", STOP_S, 72, "Killed"),
    Fault(
        *("server of several ranks fails", tell_server(exit=9), "server_failed", STOP_S, 72),
        why="exit code 9",
        steps=[ranks(4, nodes=2)],
        directives=TWO_NODES,
    ),
    Fault(
        *("server fails, launcher is late", tell_server(exit=9), "server_failed", STOP_S, 72),
        why="exit code 9",
        steps=[server(launcher=["sh", "-c", '"$@"; code=$?; sleep 2; exit $code', "sh"])],
    ),
    Fault("server ends with 0", signal_server(signal.SIGTERM), "server_exited_0", STOP_S, 71),
    Fault(
        *("server stopped", signal_server(signal.SIGSTOP), "health_lost", HEALTH_S + STOP_S, 73),
        why="misses in a row: /health: timed out",
    ),
    Fault(
        *("server unhealthy", tell_server(health=503), "health_lost", HEALTH_S + STOP_S, 73),
        why="HTTP 503",
    ),
    Fault(
        *("server drips", tell_server(drip=True), "health_lost", HEALTH_S + STOP_S, 73),
        why="misses in a row: /health: timed out",
    ),
    Fault(
        *("server mute", tell_server(mute=True), "health_lost", 3 * 1.3 + STOP_S, 73),
        why="generation: /v1/completions: timed out",
        changes={"health": GENERATION},
    ),
    Fault(
        *("start hangs", nothing, "start_timeout", 2 + STOP_S, 74, "not ready after 2 s"),
        steps=[server("server0", "--start-s=60", start_timeout_s=2)],
    ),
    Fault(
        *("start fails", nothing, "server_failed", STOP_S, 72, "exit code 7"),
        steps=[server("server0", "--fail")],
    ),
    Fault(
        *("smoke fails", nothing, "not_admitted", STOP_S, 77, "smoke: it does not answer"),
        changes={"smoke": REFUSES},
    ),
    Fault(
        *("another on the port while it loads", take_port, "ports_taken", STOP_S, 80),
        why="answers on node",
        needs="late server",
        during="starting",
    ),
    Fault("port taken", nothing, "ports_taken", 0.0, 80, "already in use", needs="port"),
    Fault(
        *("router killed", signal_server(signal.SIGKILL), "router_died", STOP_S, 76, "Killed"),
        steps=[server(), ROUTER],
        changes={"front": "router"},
    ),
    Fault(
        *("successor fails", fail_successor, "stopped", 20.0, 0, "stop is there"), state="COMPLETED"
    ),
    Fault("job cancelled", cancel, "cancelled", STOP_S, state="CANCELLED"),
    Fault("job preempted", preempt, "preempted", 5 + STOP_S, 78, directives=ONE_NODE),
    Fault(
        # Of its time 11 s are for the end; the rest is enough to start on a busy machine.
        *("time is over", nothing, "time_limit", 40.0, 79, "no successor took over"),
        changes={"time": {"limit_s": 40}, "limits": {"attempts": 0}},
    ),
    Fault(
        *("node lost, job kept", kill_node, "node_lost", 20 + STOP_S, 75, "node2 is lost"),
        steps=[ranks(4, nodes=2)],
        directives=(*TWO_NODES, "--no-kill"),
        needs="cluster",
    ),
    Fault(
        *("node lost, job ended", kill_node, "node_lost", 20 + STOP_S, None, "node2 is lost"),
        state="NODE_FAIL",
        steps=[ranks(4, nodes=2)],
        directives=TWO_NODES,
        needs="cluster",
    ),
    Fault("disk full", fill_disk, "server_failed", STOP_S, 72, "137", needs="disk"),
]
# The shortest time limit that Slurm has is a minute.
SLOW = [
    Fault(
        *("Slurm's time limit", nothing, "time_limit", 60.0, 79, "no successor took over"),
        directives=("--time=1",),
        changes={"limits": {"attempts": 0}},
    )
]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a fault led to."""

    run: Json
    state: str
    exit_code: str
    endpoint: Json | None
    seconds: float
    said: str


def play(fault: Fault, cluster: Cluster, folder: Path) -> Ended:
    """The fault, from the start of a service to the end of its last process."""
    with ExitStack() as stack:
        steps = fault.steps
        if fault.needs == "cluster":
            place = tempfile.TemporaryDirectory(prefix="slurm-")
            own = Path(stack.enter_context(place))
            cluster = stack.enter_context(Cluster(own, Shape(nodes=2)))
        if fault.needs == "disk":
            stack.enter_context(small_disk(folder / "state"))
        if fault.needs == "port":
            steps = [server(ports={"http": stack.enter_context(taken_port())})]
        if fault.needs == "late server":
            steps = [server("server0", "--start-s=60", ports={"http": free_ports(1)[0]})]
        changes = dict(fault.changes)
        service = Service(cluster, folder, steps, directives=fault.directives, **changes)
        job_id = service.submit()
        if fault.do is not nothing:
            service.wait_for(job_id, fault.during, START_TIMEOUT_S)
        began = time.monotonic()
        fault.do(service, job_id)
        run = service.wait_for_end(job_id, fault.within_s + SLACK_S)
        return Ended(
            run=run,
            state=service.slurm_state(job_id),
            exit_code=service.slurm(job_id, "ExitCode"),
            endpoint=service.endpoint(),
            seconds=time.monotonic() - began,
            said=service.explain(job_id),
        )


def verdict(fault: Fault, ended: Ended) -> list[str]:
    """What is not as the table says."""
    code = fault.code
    rows = {
        "outcome": (ended.run["outcome"], fault.outcome),
        "state of the record": (ended.run["state"], "ended"),
        "state in Slurm": (ended.state, fault.state),
        "endpoint": (ended.endpoint, None),
        "reason": (fault.why in (ended.run["why"] or ""), True),
        "exit code": (code is None or ended.exit_code == f"{code}:0", True),
        "recorded exit code": (code is None or ended.run["exit_code"] == code, True),
    }
    return [f"{what}: {was!r}, not {must!r}" for what, (was, must) in rows.items() if was != must]


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 1 MiB, which only root may mount."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("times", type=int)
    parser.add_argument("--jobs", type=int, default=3, help="clusters at work at the same time")
    parser.add_argument("--only", default="", help="rows whose name has this")
    chosen = parser.parse_args()
    watcher.begin()
    faults = [fault for fault in (*SLOW, *FAULTS) if chosen.only in fault.name]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        rows = [pool.submit(repeat, fault, chosen.times) for fault in faults]
        return int(sum(row.result() for row in rows) > 0)


def repeat(fault: Fault, times: int) -> int:
    """How often it ended otherwise, on a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as place, ExitStack() as stack:
        cluster = stack.enter_context(Cluster(Path(place) / "cluster"))
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        plays = [pool.submit(play, fault, cluster, Path(place) / str(n)) for n in range(times)]
        wrong = [shown for each in plays if (shown := deviation(fault, each))]
        ended = [each.result().seconds for each in plays if not each.exception()]
    times_s = sorted(ended) or [math.nan]
    shown_s = " / ".join(f"{s:.1f}" for s in (times_s[0], median(times_s), times_s[-1]))
    line = f"{fault.name:32} {fault.outcome:16} {times - len(wrong):3} of {times} as stated"
    print(f"{line}  {shown_s} s of {fault.within_s:.0f} + {SLACK_S:.0f} s", flush=True)
    print(*wrong, sep="\n", end="", file=sys.stderr, flush=True)
    return len(wrong)


def deviation(fault: Fault, played: Future[Ended]) -> str:
    """What is not as stated, with all that explains it; empty where all is."""
    if error := played.exception():
        return f"{fault.name}: {error!r}\n"
    faulty = verdict(fault, played.result())
    return f"{fault.name}: {faulty}\n{played.result().said}\n" if faulty else ""


if __name__ == "__main__":
    sys.exit(main())
