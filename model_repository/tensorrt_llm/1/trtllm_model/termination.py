"""Ends the server process: after an engine failure, or because it was asked to stop.

Triton 2.51 has no way for a model to end its server with an exit status that says why. So after an
engine failure the server is first asked to end as by an operator, which closes it to new requests
and ends its streams in order. When Triton unloads this model, SIGUSR1 ends the server: exit status
138 in a shell. Where that signal does not reach it, as with the first
process of a container, this process ends without answering, on which Triton aborts.

Asked to stop, Triton unloads its models only after its clients have closed their connections, idle
ones too, and fails when its exit timeout is over. Therefore the script that starts the server makes
the file that `SERVE_STOP_FILE` names when it is asked to stop. From then on no request is taken,
those that run are ended and the engine is shut down. Where Triton then does not come to unload this
model, it is ended by SIGALRM, which the script takes for an end in order.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import triton_python_backend_utils as pb_utils

from .unary import shared_memory

SERVER = os.getppid()
# From the request to end the server until its model is unloaded, and from the signal to its end.
UNLOAD_TIMEOUT_S = 20.0
SIGNAL_TIMEOUT_S = 2.0
# For clients to read what Triton still holds for them, and to close their connections.
CONNECTIONS_TIMEOUT_S = 5.0
SERVER_POLL_S = 0.05
STOP_FILE_POLL_S = 0.1


class EngineFailure:
    """Declared once, from any thread, which calls `fail_requests` with the reason."""

    def __init__(self, fail_requests: Callable[[str], None]) -> None:
        self._fail_requests = fail_requests
        self._lock = threading.Lock()
        self.reason: str | None = None

    def declare(self, reason: str) -> None:
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
        pb_utils.Logger.log_error(f"the engine is dead: {reason}; the server ends")
        self._fail_requests(reason)
        overdue = threading.Timer(UNLOAD_TIMEOUT_S, self.terminate)
        overdue.daemon = True
        overdue.start()
        os.kill(SERVER, signal.SIGTERM)

    def terminate(self) -> None:
        """End the server, and this process with it."""
        terminate_server(f"the engine is dead: {self.reason}", signal.SIGUSR1)


class Shutdown:
    """`end` is called once, by the first that wants it; requests begin under the `gate`."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._ending = threading.Lock()
        self._has_ended = False
        self._unloading = threading.Event()
        self.gate = threading.Lock()
        self.is_requested = False
        if "SERVE_STOP_FILE" in os.environ:
            file = Path(os.environ["SERVE_STOP_FILE"])
            threading.Thread(target=self._run, args=[file], name="shutdown", daemon=True).start()

    def unload(self) -> None:
        """What Triton's unloading asks for; returns when everything has ended."""
        self._unloading.set()
        self._end_once()

    def _run(self, file: Path) -> None:
        while not file.exists():
            if self._unloading.wait(STOP_FILE_POLL_S):
                return
        with self.gate:
            self.is_requested = True
        try:
            self._end_once()
        except Exception:
            pb_utils.Logger.log_error(traceback.format_exc())
        if not self._unloading.wait(CONNECTIONS_TIMEOUT_S):
            terminate_server("it was asked to, and all requests have ended", signal.SIGALRM)

    def _end_once(self) -> None:
        with self._ending:
            if not self._has_ended:
                self._has_ended = True
                self._end()


def terminate_server(reason: str, number: signal.Signals) -> None:
    """End the server by a signal that it does not handle, and this process with it."""
    # Not by Triton's logger, which may be late. The disk of the log may be full.
    with suppress(OSError):
        print(f"the server exits because {reason}", file=sys.stderr, flush=True)
    shared_memory().unlink(missing_ok=True)  # which Triton leaves where it is killed
    if os.getppid() == SERVER:
        os.kill(SERVER, number)
    deadline_s = time.monotonic() + SIGNAL_TIMEOUT_S
    while os.getppid() == SERVER and time.monotonic() < deadline_s:
        time.sleep(SERVER_POLL_S)
    os._exit(1)
