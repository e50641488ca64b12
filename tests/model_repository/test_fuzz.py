"""Requests that no sound client sends: each is answered, and the server serves on.

`pytest tests/model_repository/test_fuzz.py --fuzzed-requests 10000` sends that many; fewer are sent
by default. Every request follows from the number of its seed, so that a failure can be repeated.
"""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped]
import httpx
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.model_repository.conftest import Serve, Served
from tests.model_repository.triton_client import DATATYPES, FORMATS

CLIENTS = 4
TIMEOUT_S = 30.0
TYPES = ("BYTES", "BOOL", "INT32", "INT64", "UINT64", "FP32", "FP64", "FP16", "INT8")
LIMITS: dict[str, tuple[int, int]] = {"INT32": (-(2**31), 2**31 - 1), "UINT64": (0, 2**64 - 1)}
NUMBERS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e38, -1e38, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    b"",
    b"tokens=1",
    b"tokens=2 step_ms=1",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x00",
    "é世🚀\u202e".encode(),
    b'[{"role": "user", "content": "tokens=1"}]',
    b'[{"role": 1}]',
    b'{"type": "object"}',
    b"[" * 3000,
    b'"\\ud800"',
    b"{{ 7 * 7 }}",
    b"x" * 100_000,
)
SOUND = {"BYTES": b"\x08\0\0\0tokens=1", "BOOL": b"\1", "FP32": struct.pack("<f", 0.5)}
SOUND |= {"INT32": struct.pack("<i", 1), "UINT64": struct.pack("<Q", 1)}
# Names that make an answer long are left to other tests.
NAMES = [name for name in DATATYPES if name != "sampling_param_max_tokens"]


class Dice(random.Random):
    """Choices for one request."""

    def value(self, datatype: str) -> bytes:
        """The bytes of one element, right for its type and often of a sound value."""
        if datatype in SOUND and self.random() < 0.6:
            return SOUND[datatype]
        if datatype == "BYTES":
            text = self.choice(TEXTS) if self.random() < 0.8 else self.randbytes(self.randrange(64))
            return struct.pack("<I", len(text)) + text
        if datatype == "FP32":
            return struct.pack("<f", self.choice(NUMBERS))
        if datatype in LIMITS:
            low, high = LIMITS[datatype]
            number = self.choice([0, 1, 2, 7, low, high, self.randint(low, high)])
            return struct.pack(FORMATS[datatype], number)
        return self.randbytes(1)

    def row(self, datatype: str) -> tuple[list[int], bytes]:
        """A shape and the elements for it."""
        count = 1 if self.random() < 0.8 else self.choice([0, 2, 3, 300])
        shape = [count] if self.random() < 0.95 else self.choice([[1, count], [count, 1], []])
        return shape, b"".join(self.value(datatype) for _ in range(count))

    def spoil(self, shape: list[int], raw: bytes) -> tuple[list[int], bytes]:
        """Something that does not fit: a length, a shape, or plain noise."""
        return self.choice(
            [
                (shape, raw[:-1]),
                (shape, raw + b"\0"),
                (shape, self.randbytes(self.randrange(32))),
                (shape, struct.pack("<I", 2**31) + raw),
                ([*shape, 2], raw),
                ([-1], raw),
                ([2**40], raw),
                ([], raw),
            ]
        )


def grpc_request(dice: Dice) -> Any:
    request = service_pb2.ModelInferRequest(model_name="tensorrt_llm", id=f"{dice.random()}")
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    for name in dice.sample(["cumulative_text", "timeout", "traceparent", "other"], 1):
        if dice.random() < 0.2:
            field = dice.choice(["bool_param", "int64_param", "string_param"])
            value = {"bool_param": True, "int64_param": -5, "string_param": "x"}[field]
            setattr(request.parameters[name], field, value)
    names = dice.sample(NAMES, dice.choice([0, 1, 2, 3, 8]))
    if dice.random() < 0.9 and not {"text_input", "messages", "input_ids"} & set(names):
        names.append("text_input")
    for name in names:
        datatype = DATATYPES[name] if dice.random() < 0.95 else dice.choice(TYPES)
        shape, raw = dice.row(datatype)
        if dice.random() < 0.05:
            shape, raw = dice.spoil(shape, raw)
        full = name if dice.random() < 0.97 else f"{name}x"
        request.inputs.add(name=full, datatype=datatype, shape=shape)
        if dice.random() < 0.99:
            request.raw_input_contents.append(raw)
    return request


def json_value(dice: Dice) -> Any:
    return dice.choice(
        [
            None,
            True,
            0,
            1,
            -1,
            2**70,
            1.5,
            -1e300,
            "",
            "tokens=1",
            0.5,
            1,
            True,
            "é\ud83d\ude80",
            "[]",
            "x" * 10_000,
            [],
            ["a", 1],
            [[1], [2]],
            {"a": {"b": []}},
        ]
    )


def http_request(dice: Dice) -> tuple[str, bytes]:
    """A verb and a body: mostly JSON with wrong values, sometimes no JSON at all."""
    names = dice.sample([*NAMES, "parameters", "unknown"], dice.choice([0, 1, 2, 3, 8]))
    fields = {name: json_value(dice) for name in names}
    if dice.random() < 0.7:
        fields["text_input"] = "tokens=1"
    body = json.dumps(fields).encode()
    if dice.random() < 0.1:
        place = dice.randrange(len(body))
        body = dice.choice([body[:place], body + b"}", dice.randbytes(50), b"", b"[]", b"null"])
    if dice.random() < 0.2:
        return "infer", infer_body(dice, fields)
    return dice.choice(["generate", "generate_stream"]), body


def infer_body(dice: Dice, fields: dict[str, Any]) -> bytes:
    inputs = [
        {
            "name": name,
            "datatype": dice.choice([DATATYPES.get(name, "BYTES"), *TYPES]),
            "shape": dice.choice([[1], [0], [2], [-1], [1, 1], "1", None]),
            "data": value if isinstance(value, list) else [value],
        }
        for name, value in fields.items()
    ]
    return json.dumps({"inputs": inputs}).encode()


def over_grpc(served: Served, seeds: range) -> Iterator[str]:
    """What became of each request: an error or an answer, and never nothing."""
    with grpc.insecure_channel(served.client.grpc_url) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for seed in seeds:
            try:
                messages = list(
                    stub.ModelStreamInfer(iter([grpc_request(Dice(seed))]), timeout=TIMEOUT_S)
                )
            except grpc.RpcError as fault:
                assert fault.code() != grpc.StatusCode.DEADLINE_EXCEEDED, f"gRPC {seed} hangs"
                yield f"gRPC status {fault.code().name}"
                continue
            assert messages, f"gRPC {seed} is not answered"
            yield "gRPC error" if messages[-1].error_message else "gRPC answer"


def over_http(served: Served, seeds: range) -> Iterator[str]:
    with httpx.Client(
        base_url=served.client.http_url, trust_env=False, verify=False, timeout=TIMEOUT_S
    ) as client:
        for seed in seeds:
            verb, body = http_request(Dice(seed))
            response = client.post(f"/v2/models/tensorrt_llm/{verb}", content=body)
            yield f"HTTP {response.status_code}"


def test_the_server_outlives_requests_that_no_sound_client_sends(
    start: Serve, pytestconfig: pytest.Config
) -> None:
    served, count = start(), pytestconfig.getoption("--fuzzed-requests")
    with ThreadPoolExecutor(CLIENTS) as pool:
        ways = [over_grpc, over_http] * (CLIENTS // 2)
        runs = [
            pool.submit(count_outcomes, way(served, range(first, count, CLIENTS)))
            for first, way in enumerate(ways)
        ]
        outcomes = sum((run.result() for run in runs), Counter[str]())
    assert outcomes.total() == count
    assert min(outcomes[name] for name in ("gRPC answer", "gRPC error", "HTTP 200")) > 0, outcomes
    assert served.server.exit_status(0) is None
    [response] = served.client.ask("tokens=2")
    assert response.text == ["0:0 0:1"]
    assert served.client.generate(text_input="tokens=1").json()["text_output"] == "0:0"
    assert "Traceback" not in served.log, "a client's fault is taken for one of the model"


def count_outcomes(outcomes: Iterator[str]) -> Counter[str]:
    return Counter(outcomes)
