"""A small Triton over HTTP that is right, or wrong in one way."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.launch.faulty_server import WORDS, Server, version

MODEL = "model"
KEY = "the-key-of-this-test"
MAX_REQUESTS = 20
INPUTS = {
    "text_input": "BYTES",
    "streaming": "BOOL",
    "return_finish_reason": "BOOL",
    "sampling_param_exclude_input_from_output": "BOOL",
    "sampling_param_max_tokens": "INT32",
    "sampling_param_temperature": "FP32",
    "sampling_param_top_k": "INT32",
    "sampling_param_top_p": "FP32",
    "sampling_param_stop": "BYTES",
}
RESTRICTED = ("shared-memory", "model-repository", "model-config", "statistics", "trace", "logging")
MANAGEMENT = ("/systemsharedmemory/", "/repository/", "/config", "/stats", "/trace/", "/logging")
BAD: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "tokens": lambda inputs: inputs.get("sampling_param_max_tokens", 1) < 1,
    "heat": lambda inputs: inputs["sampling_param_temperature"] < 0,
    "top_k": lambda inputs: inputs.get("sampling_param_top_k", 1) < 0,
    "top_p": lambda inputs: inputs.get("sampling_param_top_p", 1) > 1,
    "prompt": lambda inputs: not inputs["text_input"],
}


class Handler(BaseHTTPRequestHandler):
    """A decoupled model with a limit of requests. A request fails with an error in its body."""

    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        fault, path = self.server.fault, self.path.removeprefix("/v2")
        name = self._name()
        documents: dict[str, Any] = {
            "": {"name": "s", "version": "2.51.0"},
            "/health/live": {},
            "/health/ready": {},
            f"/models/{name}/ready": {},
            f"/models/{name}": _metadata(fault),
            f"/models/{name}/config": _config(fault),
            "/models/stats": {},
            "/systemsharedmemory/status": [],
            "/trace/setting": {},
            "/logging": {},
        }
        if self.path == "/metrics":
            self._send(200, self._metrics())
        elif self._is_closed():
            self._send(403, {"error": "This API is restricted"})
        elif path in documents:
            self._send(200, documents[path])
        else:
            self._send(405 if path.endswith("/generate") else 404, {"error": "no"})

    def do_POST(self) -> None:
        data, fault = self.rfile.read(int(self.headers["Content-Length"])), self.server.fault
        verb = self.path.rpartition("/")[2]
        if self._is_closed():
            self._send(403, {"error": "This API is restricted"})
        elif verb == "index":
            state = "UNAVAILABLE" if fault == "index" else "READY"
            self._send(200, [{"name": MODEL, "version": "1", "state": state}])
        elif verb in ("load", "unload"):
            self._send(*((200, {}) if fault == "loads" else (503, {"error": "not allowed"})))
        elif verb == "infer":
            self._send(*((200, {}) if fault == "unary" else (501, {"error": "decoupled"})))
        elif f"/models/{self._name()}/" not in self.path:
            self._send(404, {"error": "unknown model"})
        else:
            self._generate(data, verb == "generate_stream")

    def _generate(self, data: bytes, stream: bool) -> None:
        fault = self.server.fault
        try:
            inputs = json.loads(data)
            right = all(
                _fits(inputs[name], kind) for name, kind in INPUTS.items() if name in inputs
            )
        except ValueError:
            right = False
        if not right or "text_input" not in inputs:
            return self._send(400 if right else 500, {"error": "wrong input"})
        if wrong := unknown(inputs, fault):
            return self._send(400, {"error": f"{wrong}: is not an input of this model"})
        if found := next((name for name, holds in BAD.items() if holds(inputs)), None):
            if fault != f"accepts_{found}":
                return self._send(400, {"error": f"{found} is wrong"})
            inputs |= {"sampling_param_max_tokens": 4, "text_input": "a"}
        tokens = inputs.get("sampling_param_max_tokens", 0)
        if not self._admitted(tokens):
            return self._send(503, {"error": "too many requests"})
        ahead = self.server.is_ahead(tokens)
        try:
            self._answer(inputs, stream)
            self.server.succeeded += 1
        except OSError:
            self.server.succeeded += ahead
            self.server.cancelled += not ahead and fault != "cancel_uncounted"
        finally:
            with self.server.lock:
                self.server.running -= 1
                self.server.lock.notify_all()

    def _admitted(self, tokens: int) -> bool:
        """With one fault, those that others find are over before these begin take no place."""
        fault = self.server.fault
        unlimited = fault == "takes_all" or (fault == "over_at_once" and tokens <= 256)
        with self.server.lock:
            if self.server.running >= MAX_REQUESTS and not unlimited:
                return False
            self.server.running += 1
            return True

    def _answer(self, inputs: Mapping[str, Any], stream: bool) -> None:
        tokens, reason = _tokens(inputs)
        request = inputs.get("id", "")
        if self.server.fault == "wrong_id":
            request = request and "rivers"
        if not stream and inputs.get("streaming"):
            if self.server.fault == "first_part":
                return self._send(200, _part(tokens[:1], None, request))
            return self._send(200, {"error": "expects to produce exactly 1 response"})
        time.sleep(0.004)
        if not stream:
            return self._send(200, _part(tokens, reason, request))
        self.send_response(200)
        self.end_headers()
        cumulative = inputs.get("cumulative_text") and self.server.fault != "no_cumulative"
        for index in range(len(tokens)):
            start = 0 if cumulative else index
            last = reason if index == len(tokens) - 1 else None
            part = _part(tokens[start : index + 1], last, request)
            self.wfile.write(f"data: {json.dumps(part)}\n\n".encode())
            time.sleep(0.001)
        return None

    def _metrics(self) -> str:
        fault, done = self.server.fault, self.server.settled()
        pending = 3 if fault == "pending" else 0
        used = min(done / 100, 1.0) if fault == "kv_cache" else 0.0
        return (
            "# TYPE nv_inference_request_success counter\n"
            f'nv_inference_request_success{{model="{MODEL}"}} {0 if fault == "counts" else done}\n'
            f'nv_inference_pending_request_count{{model="{MODEL}"}} {pending}\n'
            f'trtllm_model_requests_total{{model="{MODEL}",outcome="finished"}} {done}\n'
            f'trtllm_model_requests_total{{outcome="cancelled"}} {self.server.cancelled}\n'
            f"trtllm_model_requests_running {self.server.running}\n"
            f"trtllm_model_kv_cache_utilization {used}\n"
            f'trtllm_model_engine_info{{model="{MODEL}",release="{version(fault)}"}} 1\n'
        )

    def _name(self) -> str:
        """The model; with one fault, whatever is asked for."""
        asked = self.path.removeprefix("/v2/models/").partition("/")[0]
        return asked if self.server.fault == "any_model" else MODEL

    def _is_closed(self) -> bool:
        open_to_all = self.server.fault == "open" and "memory" in self.path
        managed = any(word in self.path for word in MANAGEMENT)
        return managed and not open_to_all and self.headers["api-key"] != KEY

    def _send(self, status: int, document: Any) -> None:
        data = (document if isinstance(document, str) else json.dumps(document)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def unknown(inputs: dict[str, Any], fault: str) -> str:
    """A name that means nothing, or an empty text; a short name is taken for the input's."""
    if fault == "ignores_names":
        return ""
    if "max_tokens" in inputs:
        inputs["sampling_param_max_tokens"] = inputs.pop("max_tokens")
    return next((name for name in inputs if name not in {*INPUTS, "id", "cumulative_text"}), "")


def write_bundle(folder: Path) -> Path:
    """What the rendered files of this server would say."""
    kinds = {name: kind.replace("BYTES", "STRING") for name, kind in INPUTS.items()}
    rows = "".join(
        f'input {{ name: "{name}" data_type: TYPE_{kind} dims: [ 1 ] }}\n'
        for name, kind in kinds.items()
    )
    outputs = "".join(
        f'output {{ name: "{name}" data_type: TYPE_STRING dims: [ -1 ] }}\n'
        for name in ("text_output", "finish_reason")
    )
    (folder / "config.pbtxt").write_text(rows + outputs)
    (folder / "1").mkdir()
    (folder / "1" / "model.yaml").write_text(
        "triton_config: {max_batch_size: 0, decoupled: true}\n"
    )
    return folder


def _metadata(fault: str) -> dict[str, Any]:
    kinds = {**INPUTS, "sampling_param_top_k": "INT64"} if fault == "metadata" else INPUTS
    return {
        "name": MODEL,
        "versions": ["1"],
        "inputs": [{"name": n, "datatype": kind, "shape": [1]} for n, kind in kinds.items()],
        "outputs": [
            {"name": name, "datatype": "BYTES", "shape": [-1]}
            for name in ("text_output", "finish_reason")
        ],
    }


def _config(fault: str) -> dict[str, Any]:
    size = 8 if fault == "config" else 0
    return {"max_batch_size": size, "model_transaction_policy": {"decoupled": True}}


def _tokens(inputs: Mapping[str, Any]) -> tuple[list[str], str]:
    first = zlib.crc32(inputs["text_input"].encode())
    limit = inputs.get("sampling_param_max_tokens", 32)
    tokens = [f" {WORDS[(first + index) % len(WORDS)]}" for index in range(limit)]
    for index, token in enumerate(tokens):
        if token in inputs.get("sampling_param_stop", []):
            return tokens[:index], "stop"
    return tokens, "length"


def _part(tokens: list[str], reason: str | None, request_id: str) -> dict[str, Any]:
    return {"id": request_id, "text_output": "".join(tokens), "finish_reason": reason or "None"}


def _fits(value: Any, kind: str) -> bool:
    kinds: dict[str, tuple[type, ...]] = {"BYTES": (str, list), "BOOL": (bool,), "INT32": (int,)}
    return isinstance(value, kinds.get(kind, (int, float)))
