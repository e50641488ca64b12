"""The floor: a Triton model that does nothing but send, a response per token at the asked pace.

There is no engine, no event loop, no measuring and no question whether a client left; one thread
sends the responses of all requests. What it costs is what Triton takes for a response.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from benchmarks import stamps
from benchmarks.prompt_workload import PromptWorkload


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._batches: dict[str, list[Any]] = {}
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            [tensor] = [one for one in request.inputs() if one.name() == "text_input"]
            workload = PromptWorkload.read(tensor.as_numpy()[0].decode())
            senders = self._batches.setdefault(workload.batch, [])
            senders.append(request.get_response_sender())
            if len(senders) == workload.streams:
                del self._batches[workload.batch]
                thread = threading.Thread(target=self._run, args=(workload, senders), daemon=True)
                self._threads = [one for one in self._threads if one.is_alive()] + [thread]
                thread.start()

    def finalize(self) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join()

    def _run(self, workload: PromptWorkload, senders: list[Any]) -> None:
        start = time.monotonic()
        for index in range(workload.tokens):
            wait_s = start + (index + 1) * workload.step_ms / 1000 - time.monotonic()
            if wait_s > 0 and self._closed.wait(wait_s):
                return
            stamp = stamps.write(index, time.monotonic_ns())
            text = np.array([stamp.encode()], dtype=np.object_)
            final = index == workload.tokens - 1
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
            for sender in senders:
                tensors = [pb_utils.Tensor("text_output", text)]
                sender.send(pb_utils.InferenceResponse(output_tensors=tensors), flags=flags)
