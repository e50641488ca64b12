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
from contextlib import suppress

import model_memory
import triton_python_backend_utils as pb_utils

SERVER = os.getppid()
# From the request to end the server until its model is unloaded, and from the signal to its end.
UNLOAD_TIMEOUT_S = 20.0
SIGNAL_TIMEOUT_S = 2.0
POLL_S = 0.05


class Death:
    """Declared once, from any thread; `tell_clients` is called with the reason, then once."""

    def __init__(self, tell_clients: Callable[[str], None]) -> None:
        self._tell_clients = tell_clients
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
        os.kill(SERVER, signal.SIGTERM)

    def strike(self) -> None:
        """End the server, and this process with it."""
        end_server(f"the engine is dead: {self.reason}", signal.SIGUSR1)


def end_server(reason: str, number: signal.Signals) -> None:
    """End the server by a signal that it does not handle, and this process with it."""
    # Not by Triton's logger, which may be late. The disk of the log may be full.
    with suppress(OSError):
        print(f"the server exits because {reason}", file=sys.stderr, flush=True)
    model_memory.forget()
    if os.getppid() == SERVER:
        os.kill(SERVER, number)
    deadline_s = time.monotonic() + SIGNAL_TIMEOUT_S
    while os.getppid() == SERVER and time.monotonic() < deadline_s:
        time.sleep(POLL_S)
    os._exit(1)
