"""A server of either API whose answers are right but for what chance spoils in them.

The same seed spoils the same things, whatever is asked in which order.
"""

from __future__ import annotations

import json
import random
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

MODEL = "m"
MOST_QUESTION = 1 << 20
CODECS = (
    *("rot13", "punycode", "idna", "undefined", "unicode_escape", "raw_unicode_escape", "zlib"),
    *("base64", "hex", "bz2", "uu", "quopri", "utf-7", "utf-16", "utf-32", "mbcs", "x", "", "\xff"),
)
ENCODINGS = ("gzip", "deflate", "br", "zstd", "gzip, gzip", "identity", "compress", "\x01")
# Values that a place in an answer may have in the place of its own.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 7, 10**9, 10**30, 1e308, -1e-9, float("nan"), float("inf")),
    *("", "x", "\x00", "\u202e\u200b", "\ud800", "1e999", "nan", "../..", "a" * 5000, "\r\nX: y"),
    *([], [[]], [None], {}, {"a": {}}, {"error": 5}, [1, "a", None], {"": ""}, [[[[[[[]]]]]]]),
)
HEADERS: tuple[bytes, ...] = (
    *(b"Location: http://[::1", b"Location: //", b"Location: \xff\xfe", b"Set-Cookie: a=\xff; x"),
    *(b"Set-Cookie: " + b"=" * 4000, b"Content-Range: bytes 9-1/0", b"Retry-After: -1"),
    *(b"Date: \x80", b'Alt-Svc: h3=":1"', b"WWW-Authenticate: x", b"Trailer: Content-Length"),
    *(b"X: " + b"y" * 30_000, b"\xe2\x80\xae: a", b'Content-Type: \xff/\xff; charset="', b"A:"),
)
STATUSES = (
    *(b"100", b"101", b"103", b"199", b"204", b"206", b"301", b"304", b"308", b"401", b"403"),
    *(b"404", b"418", b"429", b"500", b"503", b"599", b"999", b"20", b"2000", b"x"),
)
CHUNK_SIZES = (
    b"-6",
    b"-4",
    b"-1",
    b"0x5",
    b"1_0",
    b"+3",
    b"",
    b" ",
    b"f" * 15,
    b"f" * 40,
    b"5;\xff",
)
LENGTHS = (b"-1", b"0", b"1", b"99999", b"9" * 5000, b"x", b"1, 2", b"+5", b"\xb2", b"1\r\nX: 2")


def completion(**more: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": " river", "finish_reason": None, **more}
    return {"id": "1", "object": "text_completion", "model": MODEL, "choices": [choice]}


USAGE = {"prompt_tokens": 8, "completion_tokens": 8, "total_tokens": 16}
USAGE_DETAILS = {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}
WHOLE = {**completion(finish_reason="length"), "usage": USAGE_DETAILS}
CHAT = {"message": {"content": " river", "tool_calls": None}, "delta": {"content": " river"}}
GENERATED = {"text_output": " river", "model_name": MODEL, "num_output_tokens": 8}
GENERATED |= {"num_input_tokens": 8, "finish_reason": "length", "total_draft_tokens": 4.0}
PERF = {
    "perf_metrics": {
        "timing_metrics": {"arrival_time": 1.0, "first_token_time": 2.0},
        "kv_cache_metrics": {"num_reused_blocks": 1, "num_missed_blocks": 1},
    }
}
INPUTS = {"text_input": "BYTES", "streaming": "BOOL", "sampling_param_max_tokens": "INT32"}
INPUTS |= {"sampling_param_temperature": "FP32", "return_finish_reason": "BOOL"}
INPUTS |= {"sampling_param_exclude_input_from_output": "BOOL", "sampling_param_top_k": "INT32"}
INPUTS |= {"sampling_param_ignore_eos": "BOOL", "return_num_output_tokens": "BOOL"}
METADATA = {
    "name": MODEL,
    "versions": ["1"],
    "inputs": [{"name": key, "datatype": kind, "shape": [1]} for key, kind in INPUTS.items()],
    "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [-1]}],
}
CONFIG = {"name": MODEL, "max_batch_size": 0, "model_transaction_policy": {"decoupled": True}}
PROMETHEUS = (
    "# HELP x y\n"
    f'nv_inference_request_success{{model="{MODEL}",version="1"}} 3\n'
    'trtllm_model_requests_total{outcome="finished"} 3\n'
    "trtllm_model_requests_running 0\ntrtllm_model_kv_cache_utilization 0.1\n"
    f'trtllm_model_engine_info{{model="{MODEL}",release="1.2.1"}} 1\n'
    f'x_request_success_total{{model_name="{MODEL}"}} 3\n'
)
OWNER = {"id": MODEL, "object": "model", "owned_by": "tensorrt_llm", "max_model_len": 512}
PAGES: Mapping[str, Any] = {
    "/health": {},
    "/version": {"version": "1.2.1"},
    "/v1/models": {"object": "list", "data": [OWNER]},
    "/perf_metrics": [PERF],
    "/v1/completions": WHOLE,
    "/v1/chat/completions": {**WHOLE, "choices": [{**WHOLE["choices"][0], **CHAT}]},
}
KSERVE_PAGES: Mapping[str, Any] = {
    "/v2": {"name": "s", "version": "2.51.0"},
    "/v2/health/live": {},
    "/v2/health/ready": {},
    "/v2/repository/index": [{"name": MODEL, "version": "1", "state": "READY"}],
    f"/v2/models/{MODEL}": METADATA,
    f"/v2/models/{MODEL}/ready": {},
    f"/v2/models/{MODEL}/config": CONFIG,
    f"/v2/models/{MODEL}/generate": GENERATED,
}
TEXTS = {"/prometheus/metrics": PROMETHEUS, "/metrics": PROMETHEUS}


def events(path: str, spoil: Callable[[Any], Any]) -> bytes:
    last: dict[str, Any] = {**GENERATED}
    rows: list[Any] = [{**last, "finish_reason": "None", "num_output_tokens": n} for n in (3, 5)]
    rows.append(last)
    if path.startswith("/v1/"):
        rows = [completion(**CHAT), completion(**CHAT, finish_reason="length")]
        rows.append({"choices": [], "usage": USAGE_DETAILS})
    lines = [json.dumps(spoil(row)) for row in rows] + ["[DONE]"] * path.startswith("/v1/")
    return "".join(f"data: {line}\n\n" for line in lines).encode("utf-8", "surrogatepass")


class Chance:
    """What is spoiled: a few places of all answers of a server."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        chance = random.Random(seed)
        self._share = chance.choice((0.05, 0.2, 0.5))

    def of(self, place: str) -> random.Random:
        return random.Random(f"{self._seed} {place}")

    def is_spoiled(self, place: str) -> bool:
        return self.of(f"whether {place}").random() < self._share


def spoiled(value: Any, chance: random.Random) -> Any:
    """A copy in which one value is another one."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(sorted(value))
        if chance.random() < 0.1:
            return {name: row for name, row in value.items() if name != key}
        return {**value, key: spoiled(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        return [*value[:at], spoiled(value[at], chance), *value[at + 1 :]]
    return chance.choice(VALUES)


def answer(path: str, question: bytes, chance: Chance) -> bytes:
    """All that is sent to a question."""
    name = path.partition("?")[0]
    is_bad, of = chance.is_spoiled(name), chance.of(name)
    how = of.choice(("value", "value", "value", "bytes", "head", "frame")) if is_bad else ""

    def spoil(value: Any) -> Any:
        return spoiled(value, of) if how == "value" else value

    wants_stream = name.endswith("generate_stream") or b'"stream": true' in question
    wants_stream |= b'"stream":true' in question
    pages = {**PAGES, **KSERVE_PAGES}
    if wants_stream:
        body = events(name, spoil)
    elif name in TEXTS:
        body = TEXTS[name].encode()
        body = (
            body.replace(b" 3\n", b" " + str(of.choice(VALUES)).encode("utf-8", "replace") + b"\n")
            if how
            else body
        )
    elif name in pages:
        body = json.dumps(spoil(pages[name])).encode()
    else:
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    if how == "bytes":
        body = _spoiled_bytes(body, of)
    return _framed(body, of, how)


def _spoiled_bytes(body: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(body) + 1)
    kind = chance.randrange(6)
    if kind == 0:
        return body[:at]
    if kind == 1:
        return body[:at] + chance.randbytes(chance.randint(1, 9)) + body[at:]
    if kind == 2:
        return body[:at] + b"\xff" + body[at + 1 :]
    if kind == 3:
        return b"[" * chance.choice((900, 100_000)) + body
    if kind == 4:
        return chance.choice((b"", b"\xef\xbb\xbf" + body, b"\xff\xfe" + body, b"<html>" + body))
    return b"[" + b"[]," * chance.choice((10, 600_000)) + body


def _framed(body: bytes, chance: random.Random, how: str) -> bytes:
    status, lines = b"200 OK", [b"Connection: close", b"Content-Type: application/json"]
    if how == "head":
        status = chance.choice((b"200 OK", b"200 OK", chance.choice(STATUSES) + b" \xff"))
        charset = chance.choice(CODECS).encode("latin-1")
        lines[1] = b"Content-Type: application/json; charset=" + charset
        lines.append(chance.choice(HEADERS))
        if chance.random() < 0.5:
            lines.append(b"Content-Encoding: " + chance.choice(ENCODINGS).encode("latin-1"))
        if chance.random() < 0.2:
            lines = [
                b"HTTP/1.1 " + chance.choice((b"100 Continue", b"103 Early Hints")),
                b"",
                *lines,
            ]
    length = b"Content-Length: %d" % len(body)
    if how == "frame" and chance.random() < 0.5:
        lines.append(b"Transfer-Encoding: " + chance.choice((b"chunked", b"chunked, gzip", b"x")))
        size = chance.choice(CHUNK_SIZES)
        body = b"5\r\n" + body[:5] + b"\r\n" + size + b"\r\n" + body[5:] + b"\r\n0\r\n\r\n"
    elif how == "frame":
        lines.append(b"Content-Length: " + chance.choice(LENGTHS))
    else:
        lines.append(length)
    return b"HTTP/1.1 " + status + b"\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + body


@contextmanager
def http(seed: int) -> Iterator[str]:
    """Where such a server listens: HOST:PORT."""
    chance = Chance(seed)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                question = b""
                while b"\r\n\r\n" not in question and len(question) < MOST_QUESTION:
                    if not (part := self.request.recv(65536)):
                        return
                    question += part
                head, _, body = question.partition(b"\r\n\r\n")
                lengths = (row for row in head.lower().split(b"\r\n") if b"content-length" in row)
                length = int(next(lengths, b":0").partition(b":")[2])
                while len(body) < length and (part := self.request.recv(65536)):
                    body += part
                path = head.split(b" ", 2)[1].decode("latin-1")
                self.request.sendall(answer(path, body, chance))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def infer_response(chance: random.Random, is_bad: bool) -> Any:
    response = service_pb2.ModelInferResponse(model_name=MODEL, id="1")
    response.parameters["triton_final_response"].bool_param = True
    outputs = {
        "text_output": ("BYTES", struct.pack("<I", 6) + b" river"),
        "finish_reason": ("BYTES", struct.pack("<I", 6) + b"length"),
        "num_output_tokens": ("INT32", struct.pack("<i", 8)),
    }
    for name, (kind, raw) in outputs.items():
        if is_bad and chance.random() < 0.5:
            kind = chance.choice(("BYTES", "INT32", "FP16", "BOOL", "FP64", "UINT64", "", "\u202e"))
            tail = chance.randbytes(chance.randint(0, 9))
            raw = chance.choice((raw[:3], raw + b"\xff", b"\xff" * 8, tail))
        response.outputs.add(name=name, datatype=kind, shape=[1])
        response.raw_output_contents.append(raw)
    if is_bad and chance.random() < 0.3:
        response.raw_output_contents.pop()
    return response


class _Grpc(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Every method of Triton's service, each of whose answers may be spoiled."""

    def __init__(self, seed: int) -> None:
        self._chance = Chance(seed)

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method.rpartition("/")[2]
        if method == "ModelStreamInfer":
            return grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.unary_unary_rpc_method_handler(lambda _, context: self._unary(method, context))

    def _unary(self, method: str, context: Any) -> bytes:
        is_bad, of = self._chance.is_spoiled(method), self._chance.of(method)
        found = _document(method, of, is_bad)
        if found is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no")
        assert found is not None
        if is_bad and of.random() < 0.3:
            context.abort(of.choice(list(grpc.StatusCode)[1:]), "\u202e no \x1b[2J")
        return _spoiled_bytes(found, of) if is_bad and of.random() < 0.6 else found

    def _stream(self, requests: Iterator[Any], context: Any) -> Iterator[bytes]:
        is_bad, of = self._chance.is_spoiled("stream"), self._chance.of("stream")
        for _ in requests:
            response = service_pb2.ModelStreamInferResponse()
            response.infer_response.CopyFrom(infer_response(of, is_bad))
            if is_bad and of.random() < 0.2:
                response.error_message = "\u202e no"
            found = response.SerializeToString()
            yield _spoiled_bytes(found, of) if is_bad and of.random() < 0.5 else found


def _document(method: str, chance: random.Random, is_bad: bool) -> bytes | None:
    kind = getattr(service_pb2, f"{method}Response", None)
    if method == "ModelInfer":
        return bytes(infer_response(chance, is_bad).SerializeToString())
    if kind is None or ("Repository" in method and method != "RepositoryIndex"):
        return None
    found = kind()
    if method in ("ServerLive", "ServerReady", "ModelReady"):
        setattr(found, "live" if method == "ServerLive" else "ready", True)
    elif method == "ServerMetadata":
        found.name, found.version = "s", "2.51.0"
    elif method == "RepositoryIndex":
        found.models.add(name=MODEL, version="1", state="READY")
    elif method == "ModelMetadata":
        found.name = MODEL
        for name, datatype in INPUTS.items():
            odd = chance.choice((datatype, "FP16", "\u202e", "")) if is_bad else datatype
            found.inputs.add(name=name, datatype=odd, shape=[1])
    elif method == "ModelConfig":
        found.config.model_transaction_policy.decoupled = True
    return bytes(found.SerializeToString())


@contextmanager
def over_grpc(seed: int) -> Iterator[str]:
    """The same over gRPC."""
    server = grpc.server(ThreadPoolExecutor(16))
    server.add_generic_rpc_handlers((_Grpc(seed),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()
