"""The baseline: a Triton model that answers token by token, as the published llmapi model does.

One event loop runs the requests. Every token becomes a response of its own with all text so far;
one thread sends the responses of all requests, each with a blocking send and a blocking question
whether the client cancelled. A second thread asks the same for all requests every 100 ms.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

CANCELLATION_PERIOD_S = 0.1


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        from tensorrt_llm import LLM, SamplingParams

        self._llm = LLM("stand-in")
        self._sampling_params = SamplingParams
        self._responses: queue.SimpleQueue[tuple[Any, Any, bool] | None] = queue.SimpleQueue()
        self._active: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._threads = [
            threading.Thread(target=target, daemon=True)
            for target in (self._loop.run_forever, self._send_responses, self._watch_clients)
        ]
        for thread in self._threads:
            thread.start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            prompt = inputs["text_input"][0].decode()
            parameters = self._sampling_params(
                max_tokens=int(inputs["sampling_param_max_tokens"][0])
            )
            sender = request.get_response_sender()
            coroutine = self._generate(prompt, parameters, sender)
            asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def finalize(self) -> None:
        self._closed.set()
        self._responses.put(None)
        self._loop.call_soon_threadsafe(self._loop.stop)
        for thread in self._threads:
            thread.join()
        self._llm.shutdown()

    async def _generate(self, prompt: str, parameters: Any, sender: Any) -> None:
        result = self._llm.generate_async(prompt, parameters, streaming=True)
        with self._lock:
            self._active[sender] = result
        async for output in result:
            text = np.array([output.outputs[0].text.encode()], dtype=np.object_)
            tensors = [pb_utils.Tensor("text_output", text)]
            response = pb_utils.InferenceResponse(output_tensors=tensors)
            self._responses.put((sender, response, output.finished))

    def _send_responses(self) -> None:
        while (entry := self._responses.get()) is not None:
            sender, response, final = entry
            if sender.is_cancelled():
                self._forget(sender)
            elif final:
                self._forget(sender)
                sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            else:
                sender.send(response)

    def _forget(self, sender: Any) -> None:
        with self._lock:
            self._active.pop(sender, None)

    def _watch_clients(self) -> None:
        while not self._closed.wait(CANCELLATION_PERIOD_S):
            with self._lock:
                for sender, result in self._active.items():
                    if sender.is_cancelled():
                        result.abort()
