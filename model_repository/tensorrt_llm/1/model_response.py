"""A response of this model: what is new of the engine's outputs, as Triton tensors.

The published model sends every output as a byte string, whatever config.pbtxt declares. Here a
tensor has the data type that config.pbtxt declares, so that a client may trust the metadata.
Strings keep the published spelling: a `finish_reason` that is not there yet reads `None`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import model_tokens
import numpy as np
import triton_python_backend_utils as pb_utils
from model_request import Request
from model_text import Deltas
from model_tokens import Tokens
from numpy.typing import NDArray

# What the last response of a stream says without being asked.
SUMMARY = ("finish_reason", "num_input_tokens", "num_output_tokens")


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
        self,
        texts: Sequence[str],
        outputs: Sequence[Any],
        wanted: Sequence[str],
        more: Mapping[str, Sequence[Any]] | None = None,
    ) -> list[Any]:
        """`text_output` and the wanted fields with one element per output sequence.

        `more` are columns by name that no field holds. A number that the engine does not give is
        left out: JSON has no way to say so in an array.
        """
        values: dict[str, Sequence[Any]] = {"text_output": texts}
        for name in wanted:
            values[name] = [getattr(output, name) for output in outputs]
        values |= more or {}
        arrays = {name: self._array(name, column) for name, column in values.items()}
        return [pb_utils.Tensor(name, array) for name, array in arrays.items() if array is not None]

    def _array(self, name: str, column: Sequence[Any]) -> NDArray[Any] | None:
        dtype = self._dtypes.get(name)
        if dtype is np.object_:
            return np.array([str(value).encode("utf-8") for value in column], dtype=np.object_)
        if dtype is None or None in column:
            return None
        return np.array(column, dtype=dtype)


class Answer:
    """What one request gets in its next response: all that is new since the last one."""

    def __init__(self, tensors: Tensors, request: Request) -> None:
        self._tensors, self._request = tensors, request
        sampling = request.sampling
        keeps_stops = sampling.get("include_stop_str_in_output", False)
        self._deltas = Deltas(() if keeps_stops else sampling.get("stop", ()))
        self._tokens = Tokens(request)

    def part(
        self, outputs: Sequence[Any], final: bool, prompt_token_ids: Sequence[int]
    ) -> list[Any] | None:
        """The tensors of the next response, or `None` where there is nothing to say yet.

        `outputs` are the engine's sequences at one step, cumulative, each with the `length` of its
        `token_ids`. The final part is never `None`; it has the metrics that the engine reports, and
        that of a stream the `SUMMARY`. To be called by one thread at a time.
        """
        request = self._request
        if not (request.streaming or final):
            return None
        wanted: Sequence[str] = request.outputs
        deltas = self._deltas.take(outputs) if request.streaming else []
        # A step without new text, such as half of a character, waits for the next one.
        if not (final or any(deltas) or self._tokens.wait(outputs)):
            return None
        if final and request.streaming:
            wanted = tuple(dict.fromkeys((*wanted, *SUMMARY)))
        whole = request.cumulative_text or not request.streaming
        texts = [output.text for output in outputs] if whole else deltas
        more = self._tokens.take(outputs, prompt_token_ids, wanted)
        if final and (metrics := outputs[0].request_perf_metrics) is not None:
            more |= {name: [read(metrics)] for name, read in PERF_METRICS.items()}
        fields = [name for name in wanted if name not in model_tokens.OUTPUTS]
        return self._tensors.build(texts, outputs, fields, more)
