"""The command line of the supervisor: the service, and the small commands of its steps.

Run it by the path of its folder and with `-B`, which keeps bytecode out of the bundle:
`python3 -B BUNDLE/slurm/supervisor serve`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Run by the path of its folder, a package is not known by its name.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from supervisor.checks import canary_error, check_ports, count_connections, foreign_listener
from supervisor.network import environment_of, read
from supervisor.preflight import preflight_checks
from supervisor.service import TICK_S, Service
from supervisor.slurm import Cluster
from supervisor.spec import Spec
from supervisor.state import DRAIN, FORMAT, PREFLIGHT, log, timestamp, write_json

RESULTS = {True: "ok    ", False: "FAILED", None: "unread"}  # of a check of the preflight


def serve(folder: str) -> int:
    """The job, until its end."""
    return Service(Spec.read(Path(folder).resolve()), Cluster()).run()


def preflight(folder: str) -> int:
    """0, or 6 where a check failed; the rows in preflight.json of the job."""
    spec, cluster = Spec.read(Path(folder).resolve()), Cluster()
    rows = []
    for check, ok, what in preflight_checks(spec, cluster):
        rows.append({"check": check, "ok": ok, "what": what})
        log(f"{RESULTS[ok]} {check}: {what}")
    passed = all(row["ok"] is not False for row in rows)
    job = spec.service.job(cluster.job_id)
    job.path.mkdir(parents=True, exist_ok=True)
    result = {"format": FORMAT, "ok": passed, "node": cluster.node, "time": timestamp()}
    write_json(job.path / PREFLIGHT, {**result, "checks": rows})
    return 0 if passed else 6


def network(folder: str) -> int:
    """What this node has for transfers between GPUs of different nodes."""
    file = Path(folder) / "service.json"
    spec = Spec.read(Path(folder)).raw.get("network") or {} if file.is_file() else {}
    node = os.environ.get("SLURMD_NODENAME", "")
    facts = read(node, environment_of(spec, os.environ), Path(spec.get("root", "/")))
    print(json.dumps(facts))
    return 0


def smoke(folder: str, address: str, port: str) -> int:
    """The canary request, once."""
    error = canary_error(address, int(port), Spec.read(Path(folder)).canary_request)
    print(error or "it generates")
    return 1 if error else 0


def ports(wanted: str) -> int:
    """Which ports of the node that this runs on are taken, and which are free."""
    node = os.environ["SLURMD_NODENAME"]
    print(json.dumps(check_ports(node, json.loads(wanted)[node])))
    return 0


def listener(port: str, mark: str) -> int:
    """Which process listens on a port of this node, if it is not one that carries the mark."""
    print(json.dumps({"foreign": foreign_listener(int(port), mark)}))
    return 0


def idle(port: str, timeout_s: str) -> int:
    """Waits until no client is connected to the port."""
    deadline = time.monotonic() + float(timeout_s)
    while count_connections(int(port)) and time.monotonic() < deadline:
        time.sleep(TICK_S)
    return int(count_connections(int(port)) > 0)


def drain(job_folder: str) -> int:
    """Asks the job of that folder to answer what is in flight and to end."""
    (Path(job_folder) / DRAIN).touch()
    return 0


# `folder` is that of service.json; by default it is the one that holds this package.
COMMANDS: dict[str, tuple[Callable[..., int], list[str]]] = {
    "serve": (serve, ["[folder]"]),
    "preflight": (preflight, ["[folder]"]),
    "network": (network, ["[folder]"]),
    "smoke": (smoke, ["folder", "address", "port"]),
    "ports": (ports, ["wanted"]),
    "listener": (listener, ["port", "mark"]),
    "idle": (idle, ["port", "timeout_s"]),
    "drain": (drain, ["job_folder"]),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="supervisor", description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (run, arguments) in COMMANDS.items():
        command = commands.add_parser(name, description=run.__doc__)
        for argument in arguments:
            nargs, default = (
                ("?", Path(__file__).parent.parent) if argument[0] == "[" else (None, None)
            )
            command.add_argument(argument.strip("[]"), nargs=nargs, default=default)
    chosen = vars(parser.parse_args())
    try:
        return COMMANDS[chosen.pop("command")][0](**chosen)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as fault:
        log(f"error: {type(fault).__name__}: {fault}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
