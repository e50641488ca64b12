"""Requests and answers of the reference server as gRPC has them: messages in frames of HTTP/2."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from launch.bench.clients import kserve_grpc
from launch.bench.clients.kserve_grpc import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    STREAM,
    content,
    decode_fields,
    encode_fields,
    frame,
    frames,
)

from .schedule import Trap

MAX_TOKENS = "sampling_param_max_tokens"
METADATA = "/ModelMetadata"
PREFIX_BYTES = 5  # of a message: whether it is compressed, and its length
OK, UNAVAILABLE = "0", "14"


@dataclass(frozen=True, slots=True)
class GrpcRequest:
    fields: Mapping[str, str]
    message: bytes

    @property
    def tokens(self) -> int | None:
        """As many as a request for inference asks for."""
        request = kserve_grpc.protobuf("ModelInferRequest").FromString(self.message)
        contents = zip(request.inputs, request.raw_input_contents, strict=True)
        raw = next((raw for row, raw in contents if row.name == MAX_TOKENS), None)
        return struct.unpack("<i", raw)[0] if raw else None


def read_request(raw: bytes) -> GrpcRequest | None:
    """What a connection was sent, if that is a whole request."""
    fields: dict[str, str] = {}
    message = b""
    for one in frames(raw[len(PREFACE) :]):
        if one.kind == HEADERS:
            fields.update(decode_fields(content(one)))
        elif one.kind == DATA:
            message += content(one)
            if one.flags & END_STREAM:
                return GrpcRequest(fields, message[PREFIX_BYTES:])
    return None


def framed(messages: Sequence[Sequence[bytes]], trap: Trap) -> Iterator[bytes]:
    """What is sent at each step: the head before the first, and the status behind the last."""
    last = len(messages) - 1
    for place, several in enumerate(messages):
        head = _fields({":status": "200", "content-type": "application/grpc"}, 0)
        if trap.ending == "refused":
            yield head + _fields({"grpc-status": UNAVAILABLE, "grpc-message": "full"}, END_STREAM)
            return
        sent = b"".join(_message(one) for one in several)
        is_end = place == last and trap.ending not in ("cut", "stalled")
        end = _fields({"grpc-status": OK}, END_STREAM) if is_end else b""
        yield (b"" if place else head) + sent + end


def metadata(declared: Mapping[str, str], model: str) -> bytes:
    """The answer to who asks for the model's."""
    told = kserve_grpc.protobuf("ModelMetadataResponse")(name=model, versions=["1"])
    for name, datatype in declared.items():
        told.inputs.add(name=name, datatype=datatype, shape=[-1])
    return b"".join(framed([[told.SerializeToString()]], Trap()))


def _message(data: bytes) -> bytes:
    return frame(DATA, 0, STREAM, b"\0" + len(data).to_bytes(4, "big") + data)


def _fields(fields: Mapping[str, str], flags: int) -> bytes:
    return frame(HEADERS, END_HEADERS | flags, STREAM, encode_fields(list(fields.items())))
