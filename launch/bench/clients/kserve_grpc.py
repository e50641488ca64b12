"""Triton's gRPC inference stream, one request per stream, without the gRPC library.

That library hands each message from thread to thread: it takes several times the CPU time of this
module, and wakes up too late to time a message. tritonclient has the protobuf messages too, but its
import takes longer than a load takes to start; this module has the few messages that a load needs.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from hpack import Decoder, Encoder, HPACKError

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady

from ...answers import OTHER_FORMS
from ...endpoint import Endpoint
from ...smoke.client import NotSupported
from ...smoke.triton_tensors import FORMATS, PUBLISHED, datatype, packed
from ..request import Failure, FailureKind, LoadRequest, RequestRecord
from .connection import PREPARE_TIMEOUT_S, Connector, Exchange, Malformed
from .transcript import MOST_LETTERS
from .triton import TritonTranscript, tensors

# The part of HTTP/2 (RFC 9113) that one request per connection needs.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM = ACK = 1
END_HEADERS, PADDED, PRIORITY = 4, 8, 32
HEAD_BYTES = 9
STREAM = 1  # the first of a client, and the only one
FRAME_BYTES = 16_384  # the most that any peer takes
FIRST_WINDOW = 65_535  # what may be sent before the peer allows more
MOST = 0x7FFF_FFFF
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE = 1, 2, 4


class Frame(NamedTuple):
    """`end` is the offset of the byte after it."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    end: int


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def frames(raw: bytes) -> Iterator[Frame]:
    at = 0
    while (start := at + HEAD_BYTES) <= len(raw):
        at = start + int.from_bytes(raw[start - 9 : start - 6], "big")
        if at > len(raw):
            return
        stream = int.from_bytes(raw[start - 4 : start], "big") & MOST
        yield Frame(raw[start - 6], raw[start - 5], stream, raw[start:at], at)


def content(one: Frame) -> bytes:
    """The payload of data or fields without padding and priority."""
    payload = one.payload
    if one.flags & PADDED and payload:
        payload = payload[1 : len(payload) - payload[0]]
    return payload[5:] if one.kind == HEADERS and one.flags & PRIORITY else payload


def encode_fields(fields: Sequence[tuple[str, str]]) -> bytes:
    """A block of fields as HPACK (RFC 7541), for a peer that keeps no table of them."""
    encoder = Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode(fields, huffman=False))


def decode_fields(block: bytes) -> list[tuple[str, str]]:
    """Headers of a peer that keeps no table, as `greeting` asks. Raises `Malformed`."""
    try:
        return [(str(name), str(value)) for name, value in Decoder().decode(block)]
    except HPACKError as error:
        raise Malformed(f"HPACK: {error}") from None


def greeting() -> bytes:
    """The first frames of either side: no header table, and the largest windows."""
    values = {HEADER_TABLE_SIZE: 0, ENABLE_PUSH: 0, INITIAL_WINDOW_SIZE: MOST}
    rows = (name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in values.items())
    more = (MOST - FIRST_WINDOW).to_bytes(4, "big")
    return frame(SETTINGS, 0, 0, b"".join(rows)) + frame(WINDOW, 0, 0, more)


def window(settings: bytes) -> int | None:
    """The initial window in a SETTINGS frame."""
    rows = (settings[at : at + 6] for at in range(0, len(settings), 6))
    found = {row[:2]: int.from_bytes(row[2:], "big") for row in rows}
    return found.get(INITIAL_WINDOW_SIZE.to_bytes(2, "big"))


class Http2Exchange(Exchange):
    """A POST. Data beyond the server's windows is sent as soon as they open.

    After its `data` was read, `fields` are the headers and trailers, and `reset` is the error code
    of a reset stream.
    """

    def __init__(self, fields: Sequence[tuple[str, str]], body: bytes) -> None:
        self._unsent, self.is_long = body, len(body) > FRAME_BYTES
        self._windows = [FIRST_WINDOW, FIRST_WINDOW]  # of the connection and of the stream
        self._first_window = FIRST_WINDOW
        self._unread = b""
        self.fields: dict[str, str] = {}
        self.reset: int | None = None
        self.is_whole = False
        head = frame(HEADERS, END_HEADERS, STREAM, encode_fields(fields))
        super().__init__(PREFACE + greeting() + head + self._allowed())

    def look(self, data: bytes) -> None:
        """Most of what arrives is one frame of data."""
        is_plain = not self._unread and data[3:5] == bytes((DATA, 0))
        if is_plain and len(data) == HEAD_BYTES + int.from_bytes(data[:3], "big"):
            return
        raw, end = self._unread + data, 0
        for one in frames(raw):
            end = one.end
            self._react(one)
        self._unread = raw[end:]
        if len(self._unread) > HEAD_BYTES + FRAME_BYTES:  # no peer was allowed more
            self._lose(OSError(f"a frame had more than {FRAME_BYTES} bytes"))

    def _react(self, one: Frame) -> None:
        if one.kind == RESET or (one.kind in (DATA, HEADERS) and one.flags & END_STREAM):
            self.end(self.arrivals[-1])
        elif one.kind == PING and not one.flags & ACK:
            self.say(frame(PING, ACK, 0, one.payload))
        elif one.kind == SETTINGS and not one.flags & ACK:
            self.say(frame(SETTINGS, ACK, 0))
            if (first := window(one.payload)) is not None:
                self._windows[STREAM] += first - self._first_window
                self._first_window = first
            self._say_allowed()
        elif one.kind == WINDOW and one.stream <= STREAM:
            self._windows[one.stream] += int.from_bytes(one.payload, "big") & MOST
            self._say_allowed()

    def _say_allowed(self) -> None:
        if self._unsent and (data := self._allowed()):
            self.say(data)

    def _allowed(self) -> bytes:
        """Frames with as much data as both windows allow; it then counts as sent."""
        size = max(0, min(*self._windows, len(self._unsent)))
        sent, self._unsent = self._unsent[:size], self._unsent[size:]
        self._windows = [left - size for left in self._windows]
        pieces = [sent[at : at + FRAME_BYTES] for at in range(0, size, FRAME_BYTES)]
        last = len(pieces) - 1
        return b"".join(
            frame(DATA, 0 if self._unsent or place < last else END_STREAM, STREAM, piece)
            for place, piece in enumerate(pieces)
        )

    def data(self) -> Iterator[tuple[int, bytes]]:
        """Each frame of data with the arrival of its last byte. Raises `Malformed`."""
        ends = itertools.accumulate(map(len, self.parts))
        arrivals = zip(self.arrivals, ends, strict=True)
        arrived_ns, part_end = 0, -1
        block = b""
        for one in frames(b"".join(self.parts)):
            while part_end < one.end:
                arrived_ns, part_end = next(arrivals)
            if one.kind == DATA:
                yield arrived_ns, content(one)
            elif one.kind in (HEADERS, CONTINUATION):
                block += content(one) if one.kind == HEADERS else one.payload
                if one.flags & END_HEADERS:
                    self.fields.update(decode_fields(block))
                    block = b""
            elif one.kind == RESET:
                self.reset = int.from_bytes(one.payload, "big")
            if one.kind in (DATA, HEADERS) and one.flags & END_STREAM:
                self.is_whole = True


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
