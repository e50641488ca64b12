"""A launcher that ends as soon as it misses a rank: `launcher.py FOLDER COMMAND...`.

Rank 0 runs the command and ends with 1 when another rank is gone, within a few milliseconds. The
others wait; SIGUSR1 makes them exit with 5. With ORPHANS=1 in the environment, the command
outlives rank 0.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.005


def lead(command: list[str], others: list[Path]) -> int:
    while not all(other.is_symlink() for other in others):
        time.sleep(POLL_S)
    pids = [int(str(other.readlink())) for other in others]
    server = subprocess.Popen(command)
    while (code := server.poll()) is None and all(map(is_alive, pids)):
        time.sleep(POLL_S)
    if not os.environ.get("ORPHANS"):
        server.kill()
    return 1 if code is None else code


def is_alive(pid: int) -> bool:
    """Not a zombie, which nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


folder, rank = Path(sys.argv[1]), int(os.environ["SLURM_PROCID"])
places = [folder / f"rank-{other}" for other in range(int(os.environ["SLURM_NTASKS"]))]
if rank == 0:
    os._exit(lead(sys.argv[2:], places[1:]))
signal.signal(signal.SIGUSR1, lambda *_: os._exit(5))
places[rank].symlink_to(str(os.getpid()))
while True:
    signal.pause()
