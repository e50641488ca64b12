"""The way back to one client: responses in order, one of them the final one, nothing after it.

Any thread may use a `Reply`; its lock is held while a response is on its way.
"""

from __future__ import annotations

import threading
from typing import Any

import triton_python_backend_utils as pb_utils


class Reply:
    """Triton's response sender, which is given up with the final response.

    Once a request is final Triton frees what a question for cancellation would look at, so that
    none is asked while a response is on its way.
    """

    def __init__(self, sender: Any) -> None:
        self._sender: Any | None = sender
        self._lock = threading.Lock()

    def send(self, response: Any, final: bool) -> None:
        """Send a response of Triton's, unless the request has ended already."""
        with self._lock:
            sender = self._sender
            if sender is None:
                return
            if final:
                # Triton unloads a model only after every sender is gone, whoever still holds this.
                self._sender = None
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
            sender.send(response, flags=flags)

    def fail(self, code: int, message: str) -> None:
        """End the request with an error, unless it has ended already."""
        error = pb_utils.TritonError(message, code)
        self.send(pb_utils.InferenceResponse(error=error), final=True)

    def is_cancelled(self) -> bool | None:
        """Whether the client gave up: it cancelled, disconnected or ran into its deadline.

        A round trip to the server process. `None` while a response is on its way.
        """
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._sender is not None and bool(self._sender.is_cancelled())
        finally:
            self._lock.release()
