"""Triton's gRPC inference stream, one request per stream, without the gRPC library.

That library hands each message from thread to thread: it takes several times the CPU time of this
module, and wakes up too late to time a message. tritonclient has the protobuf messages too, but its
import takes longer than a load takes to start; this module has the few messages that a load needs.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady

from ...answers import OTHER_FORMS
from ...endpoint import Endpoint
from ...smoke.client import NotSupported
from ...smoke.triton_tensors import FORMATS, PUBLISHED, datatype, packed
from ..request import Failure, FailureKind, LoadRequest, RequestRecord
from .connection import PREPARE_TIMEOUT_S, Connector, Malformed
from .http2 import Http2Exchange
from .transcript import MOST_LETTERS
from .triton import TritonTranscript, tensors

SERVICE = "inference.GRPCInferenceService"
SLICE = 128  # messages that are read between two looks at what arrives
FINAL, EMPTY_FINAL = "triton_final_response", "triton_enable_empty_final_response"
PREFIX = struct.Struct(">?I")  # of a message: whether it is compressed, and its length
# By their numbers.
_NAMES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
    *("ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"),
    *("ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
    "UNAUTHENTICATED",
)
STATUSES = {str(number): name for number, name in enumerate(_NAMES)}
# Triton rejects as UNAVAILABLE what a full queue cannot take.
BUSY = ("UNAVAILABLE", "RESOURCE_EXHAUSTED")
REFUSED_STREAM = 7  # of HTTP/2: nothing of the request was done

PACKAGE = "inference"
# Fields of each message by their numbers: a name and a type, which is another message's or a
# scalar's; `*` marks what is repeated. Fields that are not here are passed over.
MESSAGES: Mapping[str, Mapping[int, str]] = {
    "InferParameter": {1: "bool_param bool"},
    "Parameter": {1: "key string", 2: "value InferParameter"},
    "Tensor": {1: "name string", 2: "datatype string", 3: "shape int64*"},
    "ModelMetadataRequest": {1: "name string"},
    "ModelMetadataResponse": {1: "name string", 2: "versions string*", 4: "inputs Tensor*"},
    "ModelInferRequest": {
        1: "model_name string",
        3: "id string",
        4: "parameters Parameter*",
        5: "inputs Tensor*",
        7: "raw_input_contents bytes*",
    },
    "ModelInferResponse": {
        1: "model_name string",
        2: "model_version string",
        4: "parameters Parameter*",
        5: "outputs Tensor*",
        6: "raw_output_contents bytes*",
    },
    "ModelStreamInferResponse": {1: "error_message string", 2: "infer_response ModelInferResponse"},
}
FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "bool": FIELD.TYPE_BOOL,
    "bytes": FIELD.TYPE_BYTES,
    "int64": FIELD.TYPE_INT64,
    "string": FIELD.TYPE_STRING,
}


def protobuf(name: str) -> Any:
    """The class of a protobuf message."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="load.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        described = file.message_type.add(name=name)
        for number, words in fields.items():
            field, kind = words.rstrip("*").split()
            label = FIELD.LABEL_REPEATED if words.endswith("*") else FIELD.LABEL_OPTIONAL
            one = described.field.add(name=field, number=number, label=label)
            if kind in SCALARS:
                one.type = SCALARS[kind]
            else:
                one.type, one.type_name = FIELD.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _pool()
_Response = protobuf("ModelStreamInferResponse")


class GrpcClient:
    def __init__(self, endpoint: Endpoint) -> None:
        self._address = endpoint.grpc or ""
        self._scheme = "https" if endpoint.access.encrypted else "http"
        self._server = Connector(f"{self._scheme}://{self._address}", endpoint.access, "h2")
        self._metadata = endpoint.access.grpc_metadata
        self._model = endpoint.model or endpoint.record.default_model or ""
        self._declared: dict[str, str] | None = None

    async def prepare(self) -> None:
        """Raises `NotReady` where the model is not served."""
        message = protobuf("ModelMetadataRequest")(name=self._model).SerializeToString()
        exchange = self._exchange("ModelMetadata", message, {}, PREPARE_TIMEOUT_S)
        found = protobuf("ModelMetadataResponse")()
        async with self._server.exchange(exchange, PREPARE_TIMEOUT_S) as failure:
            try:
                for _, answer in messages(exchange):
                    found.ParseFromString(answer)
            except (Malformed, DecodeError) as error:
                failure = Failure("malformed", str(error))
        if failure := failure or _failure(exchange, False):
            raise NotReady(Diagnostic(f"grpc://{self._address}", failure.message))
        self._declared = {row.name: row.datatype for row in found.inputs} or dict(PUBLISHED)

    async def send(self, request: LoadRequest) -> RequestRecord:
        if self._declared is None:
            await self.prepare()
        message = self._message(request)
        exchange = self._exchange("ModelStreamInfer", message, request.headers, request.timeout_s)
        transcript = TritonTranscript(request)
        async with self._server.exchange(exchange, request.timeout_s) as failure:
            try:
                began = await _read(exchange, transcript)
                failure = failure or _failure(exchange, began)
            except Malformed as error:
                transcript.fail("malformed", str(error))
        transcript.failure = transcript.failure or failure
        return transcript.record(exchange.sent_ns, exchange.ended_ns)

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

    def _message(self, request: LoadRequest) -> bytes:
        try:
            rows = tensors(request, self._declared or {})
        except NotSupported as error:
            raise BadInput(Diagnostic(self._model, str(error))) from None
        message = protobuf("ModelInferRequest")(model_name=self._model, id=str(request.index))
        message.parameters.add(key=EMPTY_FINAL, value={"bool_param": True})
        for name, row in rows.items():
            kind = datatype(name, row, self._declared or {})
            message.inputs.add(name=name, datatype=kind, shape=[len(row)])
            message.raw_input_contents.append(packed(kind, row))
        return bytes(message.SerializeToString())


def messages(exchange: Http2Exchange) -> Iterator[tuple[int, bytes]]:
    """Each one with the arrival of its last byte. Raises `Malformed`."""
    begun = bytearray()
    for arrived_ns, data in exchange.data():
        begun += data
        while len(begun) >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(begun)
            if compressed:
                raise Malformed("a message is compressed, which was not asked for")
            end = PREFIX.size + length
            if len(begun) < end:
                break
            yield arrived_ns, bytes(begun[PREFIX.size : end])
            del begun[:end]


async def _read(exchange: Http2Exchange, transcript: TritonTranscript) -> bool:
    number = 0
    for number, (arrived_ns, message) in enumerate(messages(exchange), 1):
        try:
            _read_message(arrived_ns, message, transcript)
        except (*OTHER_FORMS, DecodeError) as exception:
            transcript.fail("malformed", str(exception)[:MOST_LETTERS])
        if not number % SLICE:
            await asyncio.sleep(0)
    return number > 0


def _read_message(arrived_ns: int, message: bytes, transcript: TritonTranscript) -> None:
    answer = _Response.FromString(message)
    if answer.error_message:
        transcript.fail("in_stream", answer.error_message)
    else:
        response = answer.infer_response
        final = any(one.key == FINAL and one.value.bool_param for one in response.parameters)
        transcript.response(arrived_ns, _values(response), final)


def _values(response: Any) -> Mapping[str, Any]:
    """The first element of every output. Raises `ValueError` for contents without elements."""
    contents = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: _value(output.datatype, raw) for output, raw in contents if raw}


def _value(datatype: str, raw: bytes) -> Any:
    if datatype == "BYTES":
        (length,) = struct.unpack_from("<I", raw)
        return raw[4 : 4 + length].decode("utf-8")
    return struct.unpack_from(f"<{FORMATS[datatype]}", raw)[0] if datatype in FORMATS else None


def _failure(exchange: Http2Exchange, began: bool) -> Failure | None:
    number, http = exchange.fields.get("grpc-status"), exchange.fields.get(":status", "200")
    if number is None and http != "200":
        return Failure("http", f"HTTP status {http}")
    if number is None or not exchange.is_whole:
        refused = exchange.reset == REFUSED_STREAM
        what = "the connection ended" if exchange.reset is None else f"reset with {exchange.reset}"
        return Failure("unavailable" if refused else "cut", what, retryable=True)
    if number == "0":
        return None
    status = STATUSES.get(number, number)
    said = f"{status}: {unquote(exchange.fields.get('grpc-message', ''))}"[:300]
    if status == "DEADLINE_EXCEEDED":
        return Failure("timeout", said)
    kind: FailureKind = "rpc"
    if status in BUSY:
        kind = "cut" if began else "unavailable"
    return Failure(kind, said, retryable=status in BUSY)
