"""The responses to one request: what is new of the engine's outputs, as Triton tensors, in order.

The published model sends every output as a byte string, whatever config.pbtxt declares. Here a
tensor has the data type that config.pbtxt declares, so that a client may trust the metadata.
Strings keep the published spelling: a `finish_reason` that is not there yet reads `None`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from . import deltas
from .deltas import TextDeltas, TokenDeltas
from .inputs import RequestError
from .request import Request

# What the last response of a stream says without being asked.
SUMMARY = ("finish_reason", "num_input_tokens", "num_output_tokens")
# Output -> its group and name in the engine's request_perf_metrics.
PERF_METRICS: Mapping[str, tuple[str, str]] = {
    "kv_cache_reused_block": ("kv_cache_metrics", "num_reused_blocks"),
    "kv_cache_missed_block": ("kv_cache_metrics", "num_missed_blocks"),
    "kv_cache_alloc_new_blocks": ("kv_cache_metrics", "num_new_allocated_blocks"),
    "kv_cache_alloc_total_blocks": ("kv_cache_metrics", "num_total_allocated_blocks"),
    "kv_cache_hit_rate": ("kv_cache_metrics", "kv_cache_hit_rate"),
    "arrival_time_ns": ("timing_metrics", "arrival_time"),
    "first_scheduled_time_ns": ("timing_metrics", "first_scheduled_time"),
    "first_token_time_ns": ("timing_metrics", "first_token_time"),
    "last_token_time_ns": ("timing_metrics", "last_token_time"),
    "acceptance_rate": ("speculative_decoding", "acceptance_rate"),
    "total_accepted_draft_tokens": ("speculative_decoding", "total_accepted_draft_tokens"),
    "total_draft_tokens": ("speculative_decoding", "total_draft_tokens"),
}
MICROSECOND = timedelta(microseconds=1)


class SequenceSnapshot:
    """One output sequence as it was at one step: the engine goes on writing to its own.

    Lists that only grow, such as `token_ids`, are the engine's and may be some steps ahead.
    """

    __slots__ = ("_sequence", "finish_reason", "length", "stop_reason", "text")

    def __init__(self, sequence: Any) -> None:
        self._sequence = sequence
        self.text: str = sequence.text
        self.length = len(sequence.token_ids)
        self.finish_reason = sequence.finish_reason
        self.stop_reason = sequence.stop_reason

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sequence, name)


class Output(NamedTuple):
    """What the engine had for a request after one step."""

    sequences: list[SequenceSnapshot]
    final: bool
    prompt_token_ids: Sequence[int]


class ResponseBuilder:
    """What one request gets in its next response: all that is new since the last one.

    `dtypes` are the numpy types of the model's outputs by name.
    """

    def __init__(self, dtypes: Mapping[str, Any], request: Request) -> None:
        self._dtypes, self._request = dtypes, request
        sampling = request.sampling
        keeps_stops = sampling.get("include_stop_str_in_output", False)
        self._text = TextDeltas(() if keeps_stops else sampling.get("stop", ()))
        self._tokens = TokenDeltas(request)
        self._is_only_text = request.streaming and not (request.outputs or request.cumulative_text)

    def tensors(self, output: Output) -> list[Any] | None:
        """The tensors of the next response, or `None` where there is nothing to say yet.

        The final ones are never `None`; they have the metrics that the engine reports, and those
        of a stream the `SUMMARY`. To be called by one thread at a time.
        """
        request, (sequences, final, prompt_token_ids) = self._request, output
        if self._is_only_text and not final:  # as nearly all are
            texts = [text.encode() for text in self._text.take(sequences)]
            if not any(texts):
                return None
            return [pb_utils.Tensor("text_output", np.array(texts, dtype=np.object_))]
        if not (request.streaming or final):
            return None
        wanted: Sequence[str] = request.outputs
        new_texts = self._text.take(sequences) if request.streaming else []
        # A step without new text, such as half of a character, waits for the next one.
        if not (final or any(new_texts) or self._tokens.wait(sequences)):
            return None
        whole = request.cumulative_text or not request.streaming
        values: dict[str, Sequence[Any]] = {
            "text_output": [sequence.text for sequence in sequences] if whole else new_texts
        }
        if final and request.streaming:
            wanted = tuple(dict.fromkeys((*wanted, *SUMMARY)))
        for name in wanted:
            if name not in deltas.OUTPUTS:
                values[name] = [getattr(sequence, name) for sequence in sequences]
        values |= self._tokens.take(sequences, prompt_token_ids, wanted)
        if final and (metrics := sequences[0].request_perf_metrics) is not None:
            values |= {name: [_read(metrics, *at)] for name, at in PERF_METRICS.items()}
        arrays = {name: self._array(name, column) for name, column in values.items()}
        return [pb_utils.Tensor(name, array) for name, array in arrays.items() if array is not None]

    def _array(self, name: str, column: Sequence[Any]) -> NDArray[Any] | None:
        """A number that the engine does not give is left out: JSON has no way to say so."""
        dtype = self._dtypes.get(name)
        if dtype is np.object_:
            return np.array([str(value).encode("utf-8") for value in column], dtype=np.object_)
        if dtype is None or None in column:
            return None
        return np.array(column, dtype=dtype)


def _read(metrics: Any, group: str, name: str) -> Any:
    """Times in nanoseconds."""
    value = getattr(getattr(metrics, group), name)
    return value // MICROSECOND * 1000 if isinstance(value, timedelta) else value


class ResponseSender:
    """Triton's response sender, given up with the final response: nothing is sent after it.

    Any thread may use it; its lock is held while a response is on its way.
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
            sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0)

    def fail(self, error: RequestError) -> None:
        """End the request with an error, unless it has ended already."""
        code = getattr(pb_utils.TritonError, error.code)
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))
        self.send(response, final=True)

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


@dataclass(eq=False, slots=True)
class Stream:
    """One request on its way to its client."""

    request_id: str
    request: Request
    sender: ResponseSender
    builder: ResponseBuilder
    task: asyncio.Task[None] | None = None  # the loop's, in which the engine's results are read
    asked_s: float = 0.0  # the watchdog's: when the client was last asked whether it gave up
    arrival_s: float = field(default_factory=time.monotonic)
    responses: int = 0
    tokens: int = 0
    sent_s: float = 0.0  # its newest response, which is measured later
    first_sent_s: float = 0.0
    last_sent_s: float = 0.0
    longest_gap_s: float = 0.0
    counted: tuple[int, int] = (0, 0)  # the metrics': of its responses and tokens
    # Guarded by the delivery's lock.
    output: Output | None = None
    error: RequestError | None = None
    is_with_sender: bool = False
    has_ended: bool = False
