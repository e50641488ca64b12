"""The end of a server whose engine is dead: clients are told, then the process fails.

Triton 2.51 has no way for a model to end its server with an exit status that says so. Therefore the
server is first asked to end as by an operator, which closes it to new requests and ends its streams
in order, and is ended by a signal of its own, SIGUSR1, when Triton unloads this model: exit status
138 in a shell. Where that signal does not reach it, as with the first process of a container, this
process ends without answering, on which Triton aborts.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import triton_python_backend_utils as pb_utils

SHARED_MEMORY = Path("/dev/shm")
# From the request to end the server until its model is unloaded, and from the signal to its end.
UNLOAD_TIMEOUT_S = 20.0
SIGNAL_TIMEOUT_S = 2.0
POLL_S = 0.05


class Death:
    """Declared once, from any thread; `tell_clients` is called with the reason, then once."""

    def __init__(self, tell_clients: Callable[[str], None]) -> None:
        self._tell_clients = tell_clients
        self._server = os.getppid()
        self._lock = threading.Lock()
        self.reason: str | None = None

    def declare(self, reason: str) -> None:
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
        pb_utils.Logger.log_error(f"the engine is dead: {reason}; the server ends")
        self._tell_clients(reason)
        overdue = threading.Timer(UNLOAD_TIMEOUT_S, self.strike)
        overdue.daemon = True
        overdue.start()
        os.kill(self._server, signal.SIGTERM)

    def strike(self) -> None:
        """End the server, and this process with it."""
        # Not by Triton's logger, which may be late.
        words = f"the server exits because the engine is dead: {self.reason}"
        print(words, file=sys.stderr, flush=True)
        _forget_shared_memory()
        os.kill(self._server, signal.SIGUSR1)
        deadline_s = time.monotonic() + SIGNAL_TIMEOUT_S
        while os.getppid() == self._server and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        os._exit(1)


def _forget_shared_memory() -> None:
    """Remove the name of the region that this process shares with the server, which would stay.

    Triton gives it to its Python process as the second argument.
    """
    region = Path("/proc/self/cmdline").read_text().split("\0")[2]
    (SHARED_MEMORY / Path(region).name).unlink(missing_ok=True)
