"""Triton's gRPC transport: the stream RPC for a decoupled model, the unary one for any other.

Built on the protocol's own messages: tritonclient's asynchronous client cannot ask for the mark of
the final response. The header `triton_grpc_error`, which turns errors into a status of the stream,
is not sent: Triton 2.51 ends with a segmentation fault after a few errors that were asked for so.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from .client import Ask, Fault, Part, Refused
from .endpoint import Endpoint
from .triton_inputs import DATATYPES, finish_reason, inputs

FORMATS = {"BOOL": "<?", "INT32": "<i", "FP32": "<f"}


class TritonGrpcClient:
    transport = "grpc"

    def __init__(self, endpoint: Endpoint, timeout_s: float, streams: bool) -> None:
        self.streams = streams
        self._channel = grpc.aio.insecure_channel(endpoint.grpc)
        self._stub = GRPCInferenceServiceStub(self._channel)
        self._model = endpoint.model or ""
        self._timeout_s = timeout_s

    async def ready(self) -> None:
        answers = {
            "ServerLive": (await self._call("ServerLive")).live,
            "ServerReady": (await self._call("ServerReady")).ready,
            "ModelReady": (await self._call("ModelReady", name=self._model)).ready,
        }
        for name, answer in answers.items():
            if not answer:
                raise Fault(f"{name} gives false, true expected")

    async def metadata(self) -> Mapping[str, Any]:
        return _json(await self._call("ModelMetadata", name=self._model))

    async def config(self) -> Mapping[str, Any]:
        return _json((await self._call("ModelConfig", name=self._model)).config)

    async def generate(self, ask: Ask) -> Part:
        if not self.streams:
            call = self._stub.ModelInfer(self._request(ask, False), timeout=self._timeout_s)
            return _part(await _answered(call))
        parts = [part async for part in self._responses(ask, streaming=False)]
        if len(parts) != 1:
            raise Fault(f"{len(parts)} responses to a request without streaming, 1 expected")
        return parts[0]

    def stream(self, ask: Ask) -> AsyncGenerator[Part, None]:
        return self._responses(ask, streaming=True)

    async def close(self) -> None:
        await self._channel.close()

    async def _call(self, method: str, /, **fields: str) -> Any:
        request = getattr(service_pb2, f"{method}Request")(**fields)
        return await _answered(getattr(self._stub, method)(request, timeout=self._timeout_s))

    async def _responses(self, ask: Ask, streaming: bool) -> AsyncGenerator[Part, None]:
        """All responses until the server ends the stream; leaving early cancels the request."""

        async def requests() -> AsyncIterator[Any]:
            yield self._request(ask, streaming)

        call = self._stub.ModelStreamInfer(requests(), timeout=self._timeout_s)
        error = ""
        try:
            async for message in call:
                if message.error_message:
                    error = error or message.error_message
                else:
                    yield _part(message.infer_response)
        except grpc.aio.AioRpcError as fault:
            raise Refused(f"{fault.code().name}: {fault.details()}") from fault
        finally:
            # Only where it was left early: a cancel right behind an error can make Triton 2.51 keep
            # a hold on the model, which it then never unloads.
            if not call.done():
                call.cancel()
        if error:
            raise Refused(error)

    def _request(self, ask: Ask, streaming: bool) -> Any:
        request = service_pb2.ModelInferRequest(
            model_name=ask.model or self._model, id=ask.request_id
        )
        request.parameters["triton_enable_empty_final_response"].bool_param = self.streams
        for name, row in inputs(ask, streaming).items():
            datatype = DATATYPES[type(row[0])]
            request.inputs.add(name=name, datatype=datatype, shape=[len(row)])
            request.raw_input_contents.append(b"".join(_raw(datatype, value) for value in row))
        return request


async def _answered(call: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as fault:
        raise Refused(f"{fault.code().name}: {fault.details()}") from fault


def _raw(datatype: str, value: Any) -> bytes:
    """One element as the protocol carries it: little-endian, strings behind their length."""
    if datatype == "BYTES":
        data: bytes = value.encode("utf-8")
        return struct.pack("<I", len(data)) + data
    return struct.pack(FORMATS[datatype], value)


def _part(response: Any) -> Part:
    contents = zip(response.outputs, response.raw_output_contents, strict=True)
    # The first string of an output, behind its length.
    texts = {
        output.name: raw[4 : 4 + struct.unpack_from("<I", raw)[0]].decode("utf-8")
        for output, raw in contents
        if output.datatype == "BYTES" and raw
    }
    return Part(
        texts.get("text_output", ""),
        finish_reason(texts.get("finish_reason")),
        response.parameters["triton_final_response"].bool_param,
        response.id,
    )


def _json(message: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found
