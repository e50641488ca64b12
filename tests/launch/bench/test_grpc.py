"""gRPC as the load client speaks it is what gRPC's own library speaks, on any way that it takes."""

from __future__ import annotations

import asyncio
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from tritonclient.grpc import service_pb2

from builder.errors import NotReady
from launch.access import Access
from launch.bench.clients import connect, connection, kserve_grpc
from launch.bench.clients.connection import Malformed
from launch.bench.request import LoadRequest, RequestRecord
from launch.endpoint import Endpoint
from launch.smoke import triton_tensors

MODEL = "m"
Answers = Callable[[Any, Any], AsyncIterator[Any]]


def response(text: str, tokens: int, final: bool) -> Any:
    answer = service_pb2.ModelStreamInferResponse()
    answer.infer_response.parameters["triton_final_response"].bool_param = final
    values = {
        "text_output": struct.pack("<I", len(text.encode())) + text.encode(),
        "finish_reason": struct.pack("<I6s", 6, b"length") if final else struct.pack("<I", 0),
        "num_output_tokens": struct.pack("<i", tokens),
    }
    for name, raw in values.items():
        datatype = "INT32" if name.startswith("num") else "BYTES"
        answer.infer_response.outputs.add(name=name, datatype=datatype, shape=[1])
        answer.infer_response.raw_output_contents.append(raw)
    return answer


def ask(
    answers: Answers,
    ask: LoadRequest,
    credentials: Any = None,
    access: Access | None = None,
    model: str = MODEL,
) -> RequestRecord:
    """Of a server of gRPC's own library that answers so."""
    found: list[RequestRecord] = []

    async def metadata(request: Any, context: Any) -> Any:
        if request.name != MODEL:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model: é")
        told = service_pb2.ModelMetadataResponse(name=MODEL)
        for name in ("text_input", "sampling_param_max_tokens", "return_num_output_tokens"):
            told.inputs.add(name=name, datatype="BYTES" if name == "text_input" else "INT32")
        return told

    async def serve() -> None:
        server = grpc.aio.server()
        handlers = {
            "ModelMetadata": grpc.unary_unary_rpc_method_handler(
                metadata,
                service_pb2.ModelMetadataRequest.FromString,
                service_pb2.ModelMetadataResponse.SerializeToString,
            ),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(
                answers,
                service_pb2.ModelInferRequest.FromString,
                service_pb2.ModelStreamInferResponse.SerializeToString,
            ),
        }
        handler = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
        server.add_generic_rpc_handlers((handler,))
        address = "127.0.0.1:0"
        port = (
            server.add_secure_port(address, credentials)
            if credentials
            else server.add_insecure_port(address)
        )
        await server.start()
        endpoint = Endpoint(
            "triton", None, f"127.0.0.1:{port}", model=model, access=access or Access()
        )
        try:
            found.append(await connect(endpoint, "grpc").send(ask))
        finally:
            await server.stop(None)

    connection.run(serve())
    return found[0]


async def tokens(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    """A text as long as the request, a token at a time, and then an empty final response."""
    request = await anext(requests)
    [length] = struct.unpack_from(
        "<I", request.raw_input_contents[list_of(request).index("text_input")]
    )
    for count in (1, 2):
        yield response("x" * length, count, final=False)
    yield response("", 2, final=True)


def list_of(request: Any) -> list[str]:
    return [row.name for row in request.inputs]


@pytest.mark.parametrize("length", [1, 20_000, 1_000_000])
def test_prompts_and_answers_are_as_long_as_they_are(length: int) -> None:
    record = ask(tokens, LoadRequest("p" * length, 2, keep_text=True))
    assert record.failure is None
    assert record.message_tokens == (1, 1)
    assert record.text == "x" * length * 2
    assert record.sent_ns < (record.first_token_ns or 0) <= record.ended_ns


def test_a_status_is_told_in_its_own_words() -> None:
    with pytest.raises(NotReady, match="NOT_FOUND: no such model: é"):
        ask(tokens, LoadRequest("Hi"), model="other")


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (grpc.StatusCode.UNAVAILABLE, "unavailable", True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "unavailable", True),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "timeout", False),
        (grpc.StatusCode.INVALID_ARGUMENT, "rpc", False),
    ],
)
def test_a_status_says_what_kind_of_failure_it_is(code: Any, kind: str, retryable: bool) -> None:
    async def refuse(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        await context.abort(code, "100 % full")
        yield None

    failure = ask(refuse, LoadRequest("Hi")).failure
    assert failure is not None
    assert (failure.kind, failure.retryable) == (kind, retryable)
    assert failure.message == f"{code.name}: 100 % full"


def test_the_key_the_headers_and_the_time_of_an_ask_are_sent() -> None:
    shown: dict[str, str] = {}

    async def keep(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        shown.update(dict(context.invocation_metadata()), time_s=context.time_remaining())
        async for one in tokens(requests, context):
            yield one

    asked = LoadRequest("Hi", 2, headers={"A-Header": "b"}, timeout_s=30)
    assert ask(keep, asked, access=Access(key="secret")).failure is None
    assert shown["triton-grpc-protocol-api-key"] == "secret"
    assert shown["a-header"] == "b"
    assert 0 < float(shown["time_s"]) <= 30


def test_a_server_is_left_when_a_request_is_given_up() -> None:
    left = asyncio.Event()

    async def silent(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        context.add_done_callback(lambda _: left.set())
        yield response("x", 1, final=False)
        await asyncio.Event().wait()

    record = ask(silent, LoadRequest("Hi", 2, timeout_s=0.3))
    assert record.failure is not None
    assert record.failure.kind == "timeout"
    assert record.first_token_ns is not None
    assert left.is_set()


@pytest.fixture
def identity(tmp_path: Path) -> Iterator[tuple[bytes, bytes]]:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ("-subj", "/CN=served", "-addext", "subjectAltName=DNS:served")
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject)
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    yield key.read_bytes(), certificate.read_bytes()


def test_a_server_that_wants_a_certificate_is_measured(identity: tuple[bytes, bytes]) -> None:
    key, certificate = identity
    wanted = grpc.ssl_server_credentials([identity], certificate, require_client_auth=True)
    access = Access(None, True, certificate, certificate, key, "served")
    assert ask(tokens, LoadRequest("Hi", 2), wanted, access).failure is None
    without = Access(None, True, certificate, server_name="served")
    with pytest.raises(NotReady):
        ask(tokens, LoadRequest("Hi", 2), wanted, without)


def test_fields_are_read_as_they_were_written() -> None:
    fields = [(":path", "/a"), ("long", "x" * 300), ("empty", "")]
    assert kserve_grpc.decode_fields(kserve_grpc.encode_fields(fields)) == fields


@pytest.mark.parametrize(
    ("block", "fields"),
    [
        # Examples of RFC 7541, appendix C: 2.1, 2.2, 4.1 (its last field), 6.1 (its first).
        (b"\x40\x0acustom-key\x0dcustom-header", [("custom-key", "custom-header")]),
        (b"\x04\x0c/sample/path", [(":path", "/sample/path")]),
        (bytes.fromhex("418cf1e3c2e5f23a6ba0ab90f4ff"), [(":authority", "www.example.com")]),
        (bytes.fromhex("4882 6402".replace(" ", "")), [(":status", "302")]),
        (b"\x20\x88", [(":status", "200")]),
    ],
)
def test_fields_are_read_in_every_form(block: bytes, fields: list[tuple[str, str]]) -> None:
    assert kserve_grpc.decode_fields(block) == fields


@pytest.mark.parametrize(
    "block", [b"\xff", b"\x00", b"\x00\x05ab", b"\xbe", b"\x00\x84\xff\xff\xff\xff"]
)
def test_what_are_no_fields_is_refused(block: bytes) -> None:
    with pytest.raises(Malformed, match="HPACK"):
        kserve_grpc.decode_fields(block)


@pytest.mark.parametrize("name", sorted(kserve_grpc.MESSAGES.keys() - {"Parameter", "Tensor"}))
def test_messages_are_those_of_triton(name: str) -> None:
    published = getattr(service_pb2, name).DESCRIPTOR
    for number, words in kserve_grpc.MESSAGES[name].items():
        field, kind = words.rstrip("*").split()
        true = published.fields_by_number[number]
        assert (true.name, true.is_repeated) == (field, words.endswith("*"))
        assert (true.message_type is not None) == (kind not in kserve_grpc.SCALARS)
        assert true.message_type or true.type == kserve_grpc.SCALARS[kind]


@pytest.mark.parametrize("number", ["9" * 5000, "\u0663", "-1", "17", "x", ""])
def test_a_status_that_is_none_is_told_as_it_came(number: str) -> None:
    exchange = asyncio.run(an_exchange())
    exchange.fields, exchange.is_whole = {"grpc-status": number}, True
    failure = kserve_grpc._failure(exchange, False)
    assert failure is not None
    assert failure.message == f"{number}: "[:300]


async def an_exchange() -> kserve_grpc.Http2Exchange:
    return kserve_grpc.Http2Exchange([(":method", "POST")], b"")


def test_a_frame_longer_than_allowed_ends_the_exchange() -> None:
    """Before it is all there: 16 MiB of one frame would be copied for each of its parts."""

    async def received() -> kserve_grpc.Http2Exchange:
        exchange = await an_exchange()
        head = (1 << 23).to_bytes(3, "big") + bytes(6)
        for at, part in enumerate((head, *[b"x" * 8192] * 4)):
            exchange.received(at, part)
        return exchange

    exchange = asyncio.run(received())
    assert exchange.ended.done()
    assert "more than 16384 bytes" in str(exchange.fault)


def test_inputs_of_a_datatype_that_nobody_packs_are_sent_as_what_they_are() -> None:
    for kind in ("FP16", "BF16", "\u202e", ""):
        assert triton_tensors.datatype("x", [0.5], {"x": kind}) == "FP32"
    assert triton_tensors.datatype("x", [0.5], {"x": "FP64"}) == "FP64"


@pytest.mark.parametrize("data", [b"\xff" * 9, b"\x0a\xff", b"\x22\x05ab"], ids=repr)
def test_metadata_that_is_no_message_is_said(data: bytes) -> None:
    async def serve() -> None:
        server = grpc.aio.server()
        answer = grpc.unary_unary_rpc_method_handler(no_message)
        rows = {"ModelMetadata": answer}
        handler = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", rows)
        server.add_generic_rpc_handlers((handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            one = Endpoint("triton", None, f"127.0.0.1:{port}", model=MODEL)
            with pytest.raises(NotReady, match=f"grpc://127.0.0.1:{port}"):
                await connect(one, "grpc").prepare()
        finally:
            await server.stop(None)

    async def no_message(*_: object) -> bytes:
        return data

    connection.run(serve())
