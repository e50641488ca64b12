"""The end of a server that was asked to stop, whatever connections its clients keep open.

Triton 2.51 unloads its models only after its clients have closed their connections, idle ones too,
and fails when its exit timeout is over. Therefore the script that starts the server makes the file
that `SERVE_STOP_FILE` names when it is asked to stop. From then on no request is taken, those that
run are ended and the engine is shut down. Where Triton then does not come to unload this model, it
is ended by SIGALRM, which the script takes for an end in order.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import triton_python_backend_utils as pb_utils
from model_death import end_server

POLL_S = 0.1
# For clients to read what Triton still holds for them, and to close their connections.
CONNECTIONS_TIMEOUT_S = 5.0


class Stop:
    """`end` is called once, by the first that wants it; requests begin under the `gate`."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._ending = threading.Lock()
        self._has_ended = False
        self._unloading = threading.Event()
        self.gate = threading.Lock()
        self.is_asked = False
        if "SERVE_STOP_FILE" in os.environ:
            file = Path(os.environ["SERVE_STOP_FILE"])
            threading.Thread(target=self._run, args=[file], name="stop", daemon=True).start()

    def unload(self) -> None:
        """What Triton's unloading asks for; returns when everything has ended."""
        self._unloading.set()
        self._end_once()

    def _run(self, file: Path) -> None:
        while not file.exists():
            if self._unloading.wait(POLL_S):
                return
        with self.gate:
            self.is_asked = True
        try:
            self._end_once()
        except Exception:
            pb_utils.Logger.log_error(traceback.format_exc())
        if not self._unloading.wait(CONNECTIONS_TIMEOUT_S):
            end_server("it was asked to, and all requests have ended", signal.SIGALRM)

    def _end_once(self) -> None:
        with self._ending:
            if not self._has_ended:
                self._has_ended = True
                self._end()
