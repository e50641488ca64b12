"""Triton's `generate_stream`, and the answers of its model whatever carries them.

The extension marks no final event; the event with a finish reason counts as final. NVIDIA's model
sends no token counts, and may send numbers as text; both are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady

from ...endpoint import Endpoint
from ...smoke.client import NotSupported, SmokeRequest
from ...smoke.triton_tensors import METRICS, declared_inputs, inputs
from ..request import LoadRequest, RequestRecord
from . import http1
from .connection import Connector
from .transcript import Transcript, number, whole

TEXT, REASON = "text_output", "finish_reason"
INPUT_COUNT, OUTPUT_COUNT, IDS = "num_input_tokens", "num_output_tokens", "output_ids"
# Outputs that come with every response; what else has a number is what the engine measured.
ORDINARY = {TEXT, REASON, INPUT_COUNT, OUTPUT_COUNT, IDS, "model_name", "model_version", "id"}
ORDINARY |= {"index", "output_lengths", "sequence_id", "sequence_start", "sequence_end"}


class GenerateStreamClient:
    def __init__(self, endpoint: Endpoint) -> None:
        self._server = Connector(endpoint.url or "", endpoint.access)
        self._headers = endpoint.access.http_headers
        model = endpoint.model or endpoint.record.default_model or ""
        self._place = f"/v2/models/{quote(model, safe='')}"
        self._declared: dict[str, str] | None = None

    async def prepare(self) -> None:
        """Raises `NotReady` where the model is not served."""
        await self._server.prepare()
        found = await http1.document(self._server, self._place, self._headers)
        try:
            self._declared = declared_inputs(found.get("inputs"))
        except (LookupError, TypeError):
            where = f"{self._server.url}{self._place}"
            raise NotReady(Diagnostic(where, "lists no inputs of a model")) from None

    async def send(self, request: LoadRequest) -> RequestRecord:
        if self._declared is None:
            await self.prepare()
        path = f"{self._place}/generate_stream"
        body = self._body(request)
        return await http1.send(self._server, path, self._headers, body, TritonTranscript(request))

    def _body(self, request: LoadRequest) -> bytes:
        """Inputs of one element as scalars, which is how the extension writes them."""
        try:
            rows = tensors(request, self._declared or {})
        except NotSupported as error:
            raise BadInput(Diagnostic(self._place, str(error))) from None
        body = {name: row[0] if len(row) == 1 else list(row) for name, row in rows.items()}
        return json.dumps(body).encode()


def tensors(request: LoadRequest, declared: Mapping[str, str]) -> dict[str, Sequence[Any]]:
    """The inputs of a request. Raises `NotSupported` where the model has none for what is asked."""
    prompt = list(request.prompt) if isinstance(request.prompt, tuple) else request.prompt
    smoke_request = SmokeRequest(
        prompt,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_k=None,
        ignore_eos=request.ignore_eos,
        metrics=METRICS in declared,
        messages=request.messages,
    )
    return inputs(smoke_request, True, declared)


class TritonTranscript(Transcript):
    """`final` is the transport's own mark, `None` for a transport without one."""

    def __init__(self, request: LoadRequest) -> None:
        super().__init__(request)
        self.may_be_cumulative = True

    def event(self, arrived_ns: int, data: bytes) -> None:
        if (values := http1.event_object(data, self)) is not None:
            self.response(arrived_ns, values, None)

    def response(self, arrived_ns: int, values: Mapping[str, Any], final: bool | None) -> None:
        if self.is_final or (self.finish_reason is not None and values):
            self.fail("overrun", f"after the final response came {str(values)[:80]}")
            return
        if values:
            self._add_outputs(arrived_ns, values)
        self.is_final = self.finish_reason is not None if final is None else final
        if self.is_final or self.finish_reason is not None:
            if (count := whole(_first(values.get(OUTPUT_COUNT)))) is not None:
                self.output_tokens, self.count_source = count, "final"
            if (prompt := whole(_first(values.get(INPUT_COUNT)))) is not None:
                self.prompt_tokens = prompt
            for name, value in values.items():
                if name not in ORDINARY and (found := number(_first(value))) is not None:
                    self.server[name] = found

    def _add_outputs(self, arrived_ns: int, values: Mapping[str, Any]) -> None:
        text = _first(values.get(TEXT, ""))
        if not isinstance(text, str):
            self.fail("malformed", f"{TEXT} is {text!r}, a string is expected")
            return
        so_far = whole(_first(values.get(OUTPUT_COUNT)))
        self.messages.append((arrived_ns, text, so_far))
        reason = _first(values.get(REASON))
        if reason not in (None, "None", ""):
            self.finish_reason = str(reason)


def _first(value: Any) -> Any:
    """The first element of an output that has one per choice."""
    if not isinstance(value, list):
        return value
    return value[0] if value else None
