"""A small client of the Triton model over gRPC and HTTP, which shows every response as it came."""

from __future__ import annotations

import struct
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import httpx
import numpy as np
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import deserialize_bytes_tensor, triton_to_np_dtype

CONFIG = Path(__file__).parents[2] / "model_repository" / "tensorrt_llm" / "config.pbtxt"
DATATYPES: Mapping[str, str] = {
    tensor.name: model_config_pb2.DataType.Name(tensor.data_type)
    .removeprefix("TYPE_")
    .replace("STRING", "BYTES")
    for tensor in text_format.Parse(CONFIG.read_text(), model_config_pb2.ModelConfig()).input
}
FORMATS = {"BOOL": "<?", "FP32": "<f", "INT32": "<i", "UINT64": "<Q"}


PARAMETER_FIELDS = {
    bool: "bool_param",
    int: "int64_param",
    float: "double_param",
    str: "string_param",
}


@dataclass(frozen=True)
class Response:
    """Outputs by name as Python values, and their data types."""

    outputs: dict[str, list[Any]]
    datatypes: dict[str, str]
    final: bool
    error: str
    id: str

    @property
    def text(self) -> list[str]:
        return self.outputs["text_output"]


@dataclass(frozen=True)
class Triton:
    """A running server with the model `tensorrt_llm`."""

    http_url: str
    grpc_url: str

    def request(
        self,
        prompt: str | None,
        id: str = "",
        parameters: Mapping[str, bool | float | str] | None = None,
        **inputs: Any,
    ) -> Any:
        """An input that is not a list is sent with one element. `max_tokens` and the like may go
        without their prefix."""
        request = service_pb2.ModelInferRequest(model_name="tensorrt_llm", id=id)
        request.parameters["triton_enable_empty_final_response"].bool_param = True
        for name, value in (parameters or {}).items():
            field = PARAMETER_FIELDS[type(value)]
            setattr(request.parameters[name], field, value)
        if prompt is not None:
            inputs["text_input"] = prompt
        for name, value in inputs.items():
            full = name if name in DATATYPES else f"sampling_param_{name}"
            row = value if isinstance(value, list) else [value]
            datatype = DATATYPES[full]
            request.inputs.add(name=full, datatype=datatype, shape=[len(row)])
            request.raw_input_contents.append(b"".join(_raw(datatype, one) for one in row))
        return request

    def stream(
        self, prompt: str | None, id: str = "", timeout_s: float = 60.0, **inputs: Any
    ) -> Generator[Response, None, None]:
        """Responses to one request as they come; closing the iterator cancels the stream."""
        return self.responses(self.request(prompt, id, **inputs), timeout_s)

    def responses(self, request: Any, timeout_s: float = 60.0) -> Generator[Response, None, None]:
        """The same, to a message of gRPC."""
        with grpc.insecure_channel(self.grpc_url) as channel:
            stub = GRPCInferenceServiceStub(channel)
            call = stub.ModelStreamInfer(iter([request]), timeout=timeout_s)
            try:
                for message in call:
                    yield read_response(message.infer_response, message.error_message)
            finally:
                call.cancel()

    def ask(self, prompt: str | None, id: str = "", **inputs: Any) -> list[Response]:
        """All responses to a request that the server takes."""
        responses = list(self.stream(prompt, id, **inputs))
        assert [response.error for response in responses if response.error] == []
        return responses

    def refusal(self, prompt: str | None, id: str = "", **inputs: Any) -> str:
        """The error that is the only response."""
        [response] = self.stream(prompt, id, **inputs)
        assert response.error
        return response.error

    def infer(self, prompt: str, **inputs: Any) -> Response:
        """The unary call, for a model that is not decoupled."""
        return self.call(self.request(prompt, **inputs))

    def call(self, request: Any) -> Response:
        """The same, of a message of gRPC. Raises `grpc.RpcError` where it is refused."""
        with grpc.insecure_channel(self.grpc_url) as channel:
            stub = GRPCInferenceServiceStub(channel)
            return read_response(stub.ModelInfer(request, timeout=60), "")

    def generate(self, **body: Any) -> httpx.Response:
        return self.post("generate", body)

    def generate_stream(self, **body: Any) -> httpx.Response:
        return self.post("generate_stream", body)

    def post(self, verb: str, body: Mapping[str, Any]) -> httpx.Response:
        url = f"{self.http_url}/v2/models/tensorrt_llm/{verb}"
        return httpx.post(url, json=dict(body), timeout=60, trust_env=False, verify=False)


def _raw(datatype: str, value: Any) -> bytes:
    if datatype == "BYTES":
        data = value if isinstance(value, bytes) else str(value).encode()
        return struct.pack("<I", len(data)) + data
    return struct.pack(FORMATS[datatype], value)


def read_response(response: Any, error: str) -> Response:
    outputs, datatypes = {}, {}
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        datatypes[output.name] = output.datatype
        if output.datatype == "BYTES":
            outputs[output.name] = [text.decode() for text in deserialize_bytes_tensor(raw)]
        else:
            dtype = triton_to_np_dtype(output.datatype)
            outputs[output.name] = np.frombuffer(raw, dtype=dtype).tolist()
    final = response.parameters["triton_final_response"].bool_param
    return Response(outputs, datatypes, final, error, response.id)
