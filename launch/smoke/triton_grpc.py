"""Triton's gRPC transport: the stream RPC for a decoupled model, the unary one for any other.

Built on the protocol's own messages: tritonclient's asynchronous client cannot ask for the mark of
the final response. The header `triton_grpc_error`, which turns errors into a status of the stream,
is not sent: Triton 2.51 ends with a segmentation fault after a few errors that were asked for so.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from ..endpoint import Endpoint
from .client import CheckFailure, Completion, NotSupported, RequestRejected, SmokeRequest
from .triton_tensors import datatype, declared_inputs, inputs, packed, read_outputs, unpacked

# A harmless method of each API that may be restricted.
RESTRICTED_METHODS = {
    "health": "ServerLive",
    "metadata": "ServerMetadata",
    "shared-memory": "SystemSharedMemoryStatus",
    "model-config": "ModelConfig",
    "model-repository": "RepositoryIndex",
    "statistics": "ModelStatistics",
    "trace": "TraceSetting",
    "logging": "LogSettings",
}
NAMED = ("ModelConfig", "ModelMetadata", "ModelReady")
NO_KEY: tuple[tuple[str, str], ...] = ()


class TritonGrpcClient:
    transport = "grpc"

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self.streams = True
        self._channel = endpoint.access.channel(endpoint.grpc or "", grpc.aio)
        self._metadata = endpoint.access.grpc_metadata
        self._stub = GRPCInferenceServiceStub(self._channel)
        self._model = endpoint.model or ""
        self._timeout_s = timeout_s
        self._declared: Mapping[str, str] | None = None

    async def ready(self) -> str:
        answers = {
            "ServerLive": (await self._call("ServerLive")).live,
            "ServerReady": (await self._call("ServerReady")).ready,
            "ModelReady": (await self._call("ModelReady", name=self._model)).ready,
        }
        for name, answer in answers.items():
            if not answer:
                raise CheckFailure(f"{name} gives false, true expected")
        return f"{', '.join(answers)} give true"

    async def served(self) -> str:
        server = await self._call("ServerMetadata")
        versions = list((await self._call("ModelMetadata", name=self._model)).versions)
        models = (await self._call("RepositoryIndex")).models
        states = [model.state for model in models if model.name == self._model]
        if states != ["READY"]:
            raise CheckFailure(
                f"the index gives {self._model} the states {states}, one READY expected"
            )
        return f"Triton {server.version}, {self._model} {', '.join(versions)} is READY"

    async def metadata(self) -> Mapping[str, Any]:
        return _json(await self._call("ModelMetadata", name=self._model))

    async def config(self) -> Mapping[str, Any]:
        return _json((await self._call("ModelConfig", name=self._model)).config)

    async def generate(self, request: SmokeRequest) -> Completion:
        if not self.streams:
            return await self._infer(await self._message(request, False))
        message = await self._message(request, False)
        found = [one async for one in self._sent(message, self._timeout_s)]
        if len(found) != 1:
            raise CheckFailure(f"{len(found)} responses to a request without streaming, 1 expected")
        return found[0]

    async def stream(
        self, request: SmokeRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[Completion, None]:
        message = await self._message(request, True)
        async with aclosing(self._sent(message, timeout_s or self._timeout_s)) as responses:
            async for response in responses:
                yield response

    async def misuse(self, how: str, request: SmokeRequest) -> str:
        method, _, api = how.partition(" ")
        match method:
            case "closed" if api in RESTRICTED_METHODS:
                return str(await self._call(RESTRICTED_METHODS[api], metadata=NO_KEY))
            case "load" | "unload":
                name = f"RepositoryModel{method.capitalize()}"
                return str(await self._call(name, model_name=self._model))
            case "unary" if self.streams:
                return (await self._infer(await self._message(request, False))).text
            case "streaming" if not self.streams:
                return (await self._infer(await self._message(request, True))).text
            case "unknown_method":
                call = self._channel.unary_unary("/inference.GRPCInferenceService/NoSuchMethod")
                return repr(await _answered(call(b"", timeout=self._timeout_s)))
            case "wrong_shape" | "unknown_input":
                message = await self._message(request, False)
                _spoil(message, method)
                return await self._text(message)
        raise NotSupported(f"gRPC has no {how.replace('_', ' ')}")

    async def close(self) -> None:
        await self._channel.close()

    async def _call(
        self, method: str, /, metadata: Sequence[tuple[str, str]] | None = None, **fields: str
    ) -> Any:
        if method in NAMED:
            fields.setdefault("name", self._model)
        request = getattr(service_pb2, f"{method}Request")(**fields)
        shown = self._metadata if metadata is None else metadata
        call = getattr(self._stub, method)(request, timeout=self._timeout_s, metadata=shown)
        return await _answered(call)

    async def _infer(self, request: Any) -> Completion:
        call = self._stub.ModelInfer(request, timeout=self._timeout_s, metadata=self._metadata)
        return _response(await _answered(call))

    async def _text(self, request: Any) -> str:
        """The answer to a request that may be invalid, over the RPC that the model serves."""
        if not self.streams:
            return (await self._infer(request)).text
        return "".join([one.text async for one in self._sent(request, self._timeout_s)])

    async def _sent(self, request: Any, timeout_s: float) -> AsyncGenerator[Completion, None]:
        """All responses until the server ends the stream; leaving early cancels the request."""

        async def requests() -> AsyncIterator[Any]:
            yield request

        call = self._stub.ModelStreamInfer(requests(), timeout=timeout_s, metadata=self._metadata)
        rejection = ""
        try:
            async for message in call:
                if message.error_message:
                    rejection = rejection or message.error_message
                else:
                    yield _response(message.infer_response)
        except grpc.aio.AioRpcError as error:
            raise RequestRejected(f"{error.code().name}: {error.details()}") from error
        finally:
            # Only where it was left early: a cancel right behind an error can make Triton 2.51 keep
            # a hold on the model, which it then never unloads.
            if not call.done():
                call.cancel()
        if rejection:
            raise RequestRejected(rejection)

    async def _message(self, request: SmokeRequest, streaming: bool) -> Any:
        if self._declared is None:
            self._declared = declared_inputs((await self.metadata()).get("inputs"))
        model = request.model or self._model
        message = service_pb2.ModelInferRequest(model_name=model, id=request.request_id)
        message.parameters["triton_enable_empty_final_response"].bool_param = self.streams
        for name, value in request.parameters.items():
            kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
            setattr(message.parameters[name], kind, value)
        for name, values in inputs(request, streaming, self._declared).items():
            kind = datatype(name, values, self._declared)
            message.inputs.add(name=name, datatype=kind, shape=[len(values)])
            message.raw_input_contents.append(packed(kind, values))
        return message


async def _answered(call: Any) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise RequestRejected(f"{error.code().name}: {error.details()}") from error


def _spoil(request: Any, how: str) -> None:
    if how == "wrong_shape":
        [row] = [row for row in request.inputs if row.name == "sampling_param_max_tokens"]
        row.shape[:] = [2]
        at = list(request.inputs).index(row)
        request.raw_input_contents[at] *= 2
    else:
        request.inputs.add(name="no_such_input", datatype="INT32", shape=[1])
        request.raw_input_contents.append(packed("INT32", [1]))


def _response(response: Any) -> Completion:
    contents = zip(response.outputs, response.raw_output_contents, strict=True)
    values = {output.name: unpacked(output.datatype, raw) for output, raw in contents}
    final = response.parameters["triton_final_response"].bool_param
    return read_outputs({name: row for name, row in values.items() if row}, final, response.id)


def _json(message: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found
