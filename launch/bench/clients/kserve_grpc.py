"""Triton's gRPC stream of inferences: one request for each stream, without gRPC's own library.

That one hands a message from thread to thread, each of which wakes up for it: it takes several
times the CPU time of all that is done here, and wakes up too late to tell when the message came.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady

from ...smoke.client import NotSupported
from ...smoke.endpoint import Endpoint
from ...smoke.triton_tensors import FORMATS, PUBLISHED, datatype, packed
from .. import kserve
from ..record import Failure, Kind, Record
from ..request import Ask
from .connection import PREPARE_TIMEOUT_S, Server
from .http2 import Http2Answer, Http2Exchange
from .http_answer import Malformed
from .transcript import Transcript
from .triton_answer import TritonReader, tensors

SERVICE = "inference.GRPCInferenceService"
SLICE = 128  # messages that are read between two looks at what arrives
FINAL, EMPTY_FINAL = "triton_final_response", "triton_enable_empty_final_response"
PREFIX = struct.Struct(">?I")  # of a message: whether it is compressed, and its length
# By their numbers.
STATUSES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
    *("ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"),
    *("ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
    "UNAUTHENTICATED",
)
# Triton rejects as UNAVAILABLE what a full queue cannot take.
BUSY = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
REFUSED_STREAM = 7  # of HTTP/2: nothing of the request was done

_Response = kserve.message("ModelStreamInferResponse")


class KserveGrpcClient:
    def __init__(self, endpoint: Endpoint) -> None:
        self._address = endpoint.grpc or ""
        self._scheme = "https" if endpoint.access.encrypted else "http"
        self._server = Server(f"{self._scheme}://{self._address}", endpoint.access, "h2")
        self._metadata = endpoint.access.grpc_metadata
        self._model = endpoint.model or endpoint.record.default_model or ""
        self._declared: dict[str, str] | None = None

    async def prepare(self) -> None:
        """Raises `NotReady` where the model is not served."""
        asked = kserve.message("ModelMetadataRequest")(name=self._model).SerializeToString()
        exchange = self._exchange("ModelMetadata", asked, {}, PREPARE_TIMEOUT_S)
        found = kserve.message("ModelMetadataResponse")()
        async with self._server.exchange(exchange, PREPARE_TIMEOUT_S) as failure:
            answer = exchange.answer()
            try:
                for _, message in messages(answer):
                    found.ParseFromString(message)
            except Malformed as fault:
                failure = Failure("malformed", str(fault))
        if failure := failure or _failure(answer, False):
            raise NotReady(Diagnostic(f"grpc://{self._address}", failure.message))
        self._declared = {row.name: row.datatype for row in found.inputs} or dict(PUBLISHED)

    async def ask(self, ask: Ask, index: int, scheduled_ns: int | None = None) -> Record:
        if self._declared is None:
            await self.prepare()
        request = self._request(ask, index)
        exchange = self._exchange("ModelStreamInfer", request, ask.headers, ask.timeout_s)
        transcript = Transcript(ask)
        async with self._server.exchange(exchange, ask.timeout_s) as failure:
            answer = exchange.answer()
            try:
                began = await _read(answer, TritonReader(transcript))
                failure = failure or _failure(answer, began)
            except Malformed as fault:
                transcript.fail("malformed", str(fault))
        transcript.failure = transcript.failure or failure
        return transcript.record(index, exchange.sent_ns, exchange.ended_ns, scheduled_ns, None)

    async def close(self) -> None:
        """Every connection ended with its request."""

    def _exchange(
        self, method: str, message: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> Http2Exchange:
        fields = (
            (":method", "POST"),
            (":scheme", self._scheme),
            (":path", f"/{SERVICE}/{method}"),
            (":authority", self._address),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-timeout", f"{int(timeout_s * 1000)}m"),
            *self._metadata,
            *((name.lower(), value) for name, value in headers.items()),
        )
        return Http2Exchange(fields, PREFIX.pack(False, len(message)) + message)

    def _request(self, ask: Ask, index: int) -> bytes:
        try:
            rows = tensors(ask, self._declared or {})
        except NotSupported as fault:
            raise BadInput(Diagnostic(self._model, str(fault))) from None
        request = kserve.message("ModelInferRequest")(
            model_name=ask.model or self._model, id=str(index)
        )
        request.parameters.add(key=EMPTY_FINAL, value={"bool_param": True})
        for name, row in rows.items():
            kind = datatype(name, row, self._declared or {})
            request.inputs.add(name=name, datatype=kind, shape=[len(row)])
            request.raw_input_contents.append(packed(kind, row))
        return bytes(request.SerializeToString())


def messages(answer: Http2Answer) -> Iterator[tuple[int, bytes]]:
    """Each one with the arrival of its last byte. Raises `Malformed`."""
    rest = b""
    for arrived_ns, data in answer.data():
        rest = rest + data if rest else data
        while len(rest) >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(rest)
            if compressed:
                raise Malformed("a message is compressed, which was not asked for")
            end = PREFIX.size + length
            if len(rest) < end:
                break
            yield arrived_ns, rest[PREFIX.size : end]
            rest = rest[end:]


async def _read(answer: Http2Answer, reader: TritonReader) -> bool:
    """Whether there was any message."""
    number = 0
    for number, (arrived_ns, message) in enumerate(messages(answer), 1):
        try:
            _message(arrived_ns, message, reader)
        except (ValueError, struct.error, kserve.DecodeError) as fault:
            reader.transcript.fail("malformed", str(fault))
        if not number % SLICE:
            await asyncio.sleep(0)
    return number > 0


def _message(arrived_ns: int, message: bytes, reader: TritonReader) -> None:
    answer = _Response.FromString(message)
    if answer.error_message:
        reader.transcript.fail("in_stream", answer.error_message)
    else:
        response = answer.infer_response
        final = any(one.key == FINAL and one.value.bool_param for one in response.parameters)
        reader.response(arrived_ns, _values(response), final)


def _values(response: Any) -> Mapping[str, Any]:
    """The first element of every output. Raises `ValueError` for contents that are none."""
    contents = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: _value(output.datatype, raw) for output, raw in contents if raw}


def _value(datatype: str, raw: bytes) -> Any:
    if datatype == "BYTES":
        (length,) = struct.unpack_from("<I", raw)
        return raw[4 : 4 + length].decode("utf-8")
    return struct.unpack_from(f"<{FORMATS[datatype]}", raw)[0] if datatype in FORMATS else None


def _failure(answer: Http2Answer, began: bool) -> Failure | None:
    """What is wrong as gRPC with an answer that was read to its end."""
    number, http = answer.fields.get("grpc-status"), answer.fields.get(":status", "200")
    if number is None and http != "200":
        return Failure("http", f"HTTP status {http}")
    if number is None or not answer.is_whole:
        refused = answer.reset == REFUSED_STREAM
        what = "the connection ended" if answer.reset is None else f"reset with {answer.reset}"
        return Failure("unavailable" if refused else "cut", what, retryable=True)
    if number == "0":
        return None
    known = number.isdecimal() and int(number) < len(STATUSES)
    status = STATUSES[int(number)] if known else number
    said = f"{status}: {unquote(answer.fields.get('grpc-message', ''))}"[:300]
    if status == "DEADLINE_EXCEEDED":
        return Failure("timeout", said)
    kind: Kind = "rpc"
    if status in BUSY:
        kind = "cut" if began else "unavailable"
    return Failure(kind, said, retryable=status in BUSY)
