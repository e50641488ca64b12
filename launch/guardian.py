"""Ends a server whose launcher was killed, as a separate program that outlives the launcher.

`guardian.py MARK GRACE_S LOG` reads lines from its launcher: the server's process id, and `ended`
once the launcher has ended the server itself. Where its input ends without that word, the launcher
is gone. Standard library only, since it is run by its path.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# Marks every process of one server: a process that leaves the group, as MPI workers do, keeps it.
MARK = "TRTLLM_LAUNCH_SERVER"
ENDED = b"ended\n"
POLL_S = 0.05
# For what a server leaves behind: time between being asked to end and being killed.
LEFTOVER_GRACE_S = 5.0
# For a server that is asked again, which tells start scripts to kill and to clean up at once.
AGAIN_GRACE_S = 2.0
# For a server without its launcher: it serves no more, and others need its ports and GPU.
ALONE_GRACE_S = 10.0


def members(group: int, mark: str) -> list[int]:
    """Live processes of a server: its group, and all that carry its mark."""
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [pid for pid in pids if _belongs(pid, group, mark)]


def _belongs(pid: int, group: int, mark: str) -> bool:
    try:
        # After the command name, which may hold spaces and brackets: state, parent, group.
        state, _, its_group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
        if state in "ZX":
            return False
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return int(its_group) == group or f"{MARK}={mark}".encode() in environment


def send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def end(
    server: int,
    mark: str,
    grace_s: float,
    has_ended: Callable[[], bool],
    wait: Callable[[float, Callable[[], bool]], None],
) -> tuple[bool, int]:
    """The server may answer what it has; then all that is left of it is ended and killed.

    Whether the server itself did not end when asked, and how many processes it left. `wait` waits
    so many seconds at most until something is so.
    """
    if not has_ended():
        send([server], signal.SIGTERM)
        wait(grace_s, has_ended)
    killed = not has_ended()
    left = 0
    if killed:
        send([server], signal.SIGTERM)
        wait(AGAIN_GRACE_S, has_ended)
    else:
        left = len(members(server, mark))
        send(members(server, mark), signal.SIGTERM)
        wait(LEFTOVER_GRACE_S, lambda: not members(server, mark))
    send(members(server, mark), signal.SIGKILL)
    return killed, left


def wait_until(timeout_s: float, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + timeout_s
    while not done() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def main() -> None:
    mark, grace_s, log = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    lines = list(sys.stdin.buffer)  # until the launcher has closed it, or is gone
    if lines[-1:] == [ENDED]:
        return
    with Path(log).open("a", encoding="utf-8") as file:
        file.write("The launcher is gone: the server is ended.\n")
    server = int(lines[0]) if lines else -1
    grace = min(float(grace_s), ALONE_GRACE_S)
    end(server, mark, grace, lambda: server not in members(server, mark), wait_until)


if __name__ == "__main__":
    main()
