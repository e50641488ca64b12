"""A small Triton over gRPC that is right, or wrong in one way."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)

from tests.launch.faulty_server import WORDS
from tests.launch.faulty_triton import INPUTS, MODEL, unknown


class Servicer(GRPCInferenceServiceServicer):  # type: ignore[misc]
    """A decoupled model; an error is in the stream. What is not written here is not implemented."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def ServerLive(self, *_: object) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, *_: object) -> Any:
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, *_: object) -> Any:
        return service_pb2.ModelReadyResponse(ready=self._fault != "not_ready")

    def ServerMetadata(self, *_: object) -> Any:
        return service_pb2.ServerMetadataResponse(name="s", version="2.51.0")

    def RepositoryIndex(self, *_: object) -> Any:
        state = "LOADING" if self._fault == "loading" else "READY"
        answer = service_pb2.RepositoryIndexResponse()
        answer.models.add(name=MODEL, version="1", state=state)
        return answer

    def ModelMetadata(self, *_: object) -> Any:
        answer = service_pb2.ModelMetadataResponse(name=MODEL, versions=["1"])
        for name, kind in INPUTS.items():
            answer.inputs.add(name=name, datatype=kind, shape=[1])
        return answer

    def ModelConfig(self, *_: object) -> Any:
        answer = service_pb2.ModelConfigResponse()
        answer.config.model_transaction_policy.decoupled = True
        return answer

    def ModelInfer(self, request: Any, context: Any) -> Any:
        if self._fault == "unary":
            return _response(request, "text", "length", True)
        return context.abort(grpc.StatusCode.UNIMPLEMENTED, "the model is decoupled")

    def refuse(self, _: Any, context: Any) -> Any:
        return context.abort(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted")

    SystemSharedMemoryStatus = TraceSetting = LogSettings = refuse
    RepositoryModelLoad = RepositoryModelUnload = refuse

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for request in requests:
            yield from self._answers(request)

    def _answers(self, request: Any) -> Iterator[Any]:
        inputs, error = _inputs(request)
        sent = {
            name: value.int64_param
            for name, value in request.parameters.items()
            if not name.startswith("triton_")
        }
        inputs |= {name: value for name, value in sent.items() if name != "cumulative_text"}
        error = error or unknown(inputs, self._fault)
        if error:
            yield service_pb2.ModelStreamInferResponse(error_message=error)
            return
        texts, reason = _texts(inputs)
        if self._fault == "wrong_id" and request.id:
            request.id = "rivers"
        if not inputs["streaming"]:
            texts = ["".join(texts)]
        for index, text in enumerate(texts):
            last = index == len(texts) - 1
            final = (last and self._fault != "no_final") or self._fault == "all_final"
            response = _response(request, text, reason if last else "None", final)
            yield service_pb2.ModelStreamInferResponse(infer_response=response)
            time.sleep(0.001)


def _inputs(request: Any) -> tuple[dict[str, Any], str]:
    """The first value of each input and all stop words, or what is wrong with them."""
    if request.model_name != MODEL:
        return {}, "unknown model"
    values: dict[str, Any] = {}
    for row, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        several = row.name == "sampling_param_stop"
        if INPUTS.get(row.name) != row.datatype or (list(row.shape) != [1] and not several):
            return {}, f"input {row.name} is wrong"
        code = {"BOOL": "<?", "INT32": "<i", "FP32": "<f"}.get(row.datatype)
        found = [struct.unpack(code, raw)[0]] if code else list(_strings(raw))
        values[row.name] = found if several else found[0]
    heat, limit = (
        values.get(f"sampling_param_{name}", 1) for name in ("temperature", "max_tokens")
    )
    top_k, top_p = (values.get(f"sampling_param_{name}", 1) for name in ("top_k", "top_p"))
    wrong = heat < 0 or limit < 1 or top_k < 0 or top_p > 1 or not values.get("text_input")
    return values, "a wrong value" if wrong else ""


def _strings(raw: bytes) -> Iterator[str]:
    while raw:
        (length,) = struct.unpack_from("<I", raw)
        yield raw[4 : 4 + length].decode()
        raw = raw[4 + length :]


def _texts(inputs: dict[str, Any]) -> tuple[list[str], str]:
    first = zlib.crc32(inputs["text_input"].encode())
    limit = inputs.get("sampling_param_max_tokens", 32)
    tokens = [f" {WORDS[(first + index) % len(WORDS)]}" for index in range(limit)]
    for index, token in enumerate(tokens):
        if token in inputs.get("sampling_param_stop", ()):
            return tokens[:index], "stop"
    return tokens, "length"


def _response(request: Any, text: str, reason: str, final: bool) -> Any:
    answer = service_pb2.ModelInferResponse(model_name=MODEL, id=request.id)
    answer.parameters["triton_final_response"].bool_param = final
    for name, value in (("text_output", text), ("finish_reason", reason)):
        answer.outputs.add(name=name, datatype="BYTES", shape=[1])
        data = value.encode()
        answer.raw_output_contents.append(struct.pack("<I", len(data)) + data)
    return answer


@contextmanager
def running(fault: str = "") -> Iterator[str]:
    """The address of a server with this fault, or with none."""
    server = grpc.server(ThreadPoolExecutor(32))
    add_GRPCInferenceServiceServicer_to_server(Servicer(fault), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
