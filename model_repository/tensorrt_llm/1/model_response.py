"""A response of this model: the engine's outputs as Triton tensors, sent in order and closed once.

The published model sends every output as a byte string, whatever config.pbtxt declares. Here a
tensor has the data type that config.pbtxt declares, so that a client may trust the metadata.
Strings keep the published spelling: a `finish_reason` that is not there yet reads `None`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray


def _kv_cache(name: str) -> Callable[[Any], Any]:
    return lambda metrics: getattr(metrics.kv_cache_metrics, name)


def _time_ns(name: str) -> Callable[[Any], int]:
    microsecond = timedelta(microseconds=1)
    return lambda metrics: getattr(metrics.timing_metrics, name) // microsecond * 1000


def _drafts(name: str) -> Callable[[Any], Any]:
    return lambda metrics: getattr(metrics.speculative_decoding, name)


# Output -> where it is in the engine's request_perf_metrics.
PERF_METRICS: Mapping[str, Callable[[Any], Any]] = {
    "kv_cache_reused_block": _kv_cache("num_reused_blocks"),
    "kv_cache_missed_block": _kv_cache("num_missed_blocks"),
    "kv_cache_alloc_new_blocks": _kv_cache("num_new_allocated_blocks"),
    "kv_cache_alloc_total_blocks": _kv_cache("num_total_allocated_blocks"),
    "kv_cache_hit_rate": _kv_cache("kv_cache_hit_rate"),
    "arrival_time_ns": _time_ns("arrival_time"),
    "first_scheduled_time_ns": _time_ns("first_scheduled_time"),
    "first_token_time_ns": _time_ns("first_token_time"),
    "last_token_time_ns": _time_ns("last_token_time"),
    "acceptance_rate": _drafts("acceptance_rate"),
    "total_accepted_draft_tokens": _drafts("total_accepted_draft_tokens"),
    "total_draft_tokens": _drafts("total_draft_tokens"),
}


class Tensors:
    """Builds tensors of the data types that the model's configuration declares."""

    def __init__(self, model_config: Mapping[str, Any]) -> None:
        self._dtypes = {
            output["name"]: pb_utils.triton_string_to_numpy(output["data_type"])
            for output in model_config["output"]
        }

    def build(
        self, texts: Sequence[str], outputs: Sequence[Any], wanted: Sequence[str]
    ) -> list[Any]:
        """`text_output` and the wanted fields with one element per output sequence, and metrics.

        Metrics are there once the engine reports them: at the end of a request that asked for them.
        A number that the engine does not give is left out: JSON has no way to say so in an array.
        """
        values = {"text_output": list(texts)}
        for name in wanted:
            values[name] = [getattr(output, name) for output in outputs]
        metrics = getattr(outputs[0], "request_perf_metrics", None)
        if metrics is not None:
            values |= {name: [read(metrics)] for name, read in PERF_METRICS.items()}
        arrays = {name: self._array(name, column) for name, column in values.items()}
        return [pb_utils.Tensor(name, array) for name, array in arrays.items() if array is not None]

    def _array(self, name: str, column: Sequence[Any]) -> NDArray[Any] | None:
        dtype = self._dtypes.get(name)
        if dtype is np.object_:
            return np.array([str(value).encode("utf-8") for value in column], dtype=np.object_)
        if dtype is None or None in column:
            return None
        return np.array(column, dtype=dtype)


class Deltas:
    """The text that is new since it was last taken, per output sequence of one request.

    Computed from the cumulative texts, so that nothing is lost where the engine advanced by
    several steps at once.
    """

    def __init__(self) -> None:
        self._sent: dict[int, int] = {}

    def take(self, outputs: Sequence[Any]) -> list[str]:
        new = [output.text[self._sent.get(index, 0) :] for index, output in enumerate(outputs)]
        self._sent = {index: len(output.text) for index, output in enumerate(outputs)}
        return new


class Reply:
    """The way back to one client: responses in order, one of them the final one, nothing after it.

    The lock keeps the final response and a question for cancellation apart: once a request is
    final, Triton frees what that question would look at.
    """

    def __init__(self, sender: Any) -> None:
        self._sender: Any | None = sender
        self._lock = threading.Lock()

    def send(self, tensors: Sequence[Any], final: bool) -> None:
        self._send(pb_utils.InferenceResponse(output_tensors=list(tensors)), final)

    def fail(self, code: int, message: str) -> None:
        """End the request with an error, unless it has ended already."""
        self._send(pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code)), True)

    def is_cancelled(self) -> bool:
        """Whether the client gave up: it cancelled, disconnected or ran into its deadline."""
        with self._lock:
            return self._sender is not None and bool(self._sender.is_cancelled())

    def _send(self, response: Any, final: bool) -> None:
        with self._lock:
            sender = self._sender
            if sender is None:
                return
            if final:
                # Triton unloads a model only after every sender is gone, whoever still holds this.
                self._sender = None
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
            sender.send(response, flags=flags)
