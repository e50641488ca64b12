"""One measurement by a client in a process of its own: all streams of a workload at once.

`python -m benchmarks.client JSON` takes a `StreamLoad` and prints a `Measurement`. While streams
run it only keeps what arrives and when; texts are read, checked and timed afterwards.
"""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import json
import re
import struct
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from . import sse, stamps

CHANNELS = 4
TIMEOUT_S = 90.0
EVENT = re.compile(rb"data: ([^\n]*)\n\n")

# What arrived on one stream: CLOCK_MONOTONIC in ns, and bytes.
Arrivals = list[tuple[int, bytes]]
# The same as text, one entry per message.
Messages = list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class StreamLoad:
    """`address` is HOST:PORT. `cumulative`: every message holds all text so far."""

    protocol: Literal["grpc", "sse"]
    address: str
    cumulative: bool
    streams: int
    tokens: int
    step_ms: float


@dataclass(frozen=True, slots=True)
class Measurement:
    """Rates count tokens per second: from the first emission on, to the last receipt or emission.

    `wire_bytes` are those of gRPC messages, or those of the connections for SSE.
    """

    offered_tokens_per_s: float
    tokens_per_s: float
    p50_ms: float
    p99_ms: float
    messages_per_token: float
    wire_bytes_per_token: float
    client_cpu_s_per_1k_tokens: float


async def measure(load: StreamLoad) -> Measurement:
    """Raises `WrongText` if a stream is not what the engine emitted, `OSError` if it failed."""
    prompt = " ".join(
        f"{name}={value}"
        for name, value in (
            ("batch", uuid.uuid4().hex),
            ("streams", load.streams),
            ("tokens", load.tokens),
            ("step_ms", load.step_ms),
        )
    )
    start_cpu_s = time.process_time()
    streams = await receive(load, prompt)
    cpu_s = time.process_time() - start_cpu_s
    texts = [messages(load, arrivals) for arrivals in streams]
    times = [time for stream in texts for time in token_times(stream, load)]
    wire_bytes = sum(len(data) for arrivals in streams for _, data in arrivals)
    return _measurement(times, sum(map(len, texts)), wire_bytes, cpu_s, load.tokens)


async def receive(load: StreamLoad, prompt: str) -> list[Arrivals]:
    """What comes on every stream. Raises `TimeoutError`."""
    streams = _grpc_streams if load.protocol == "grpc" else _sse_streams
    try:
        return await asyncio.wait_for(streams(load, prompt), TIMEOUT_S)
    except TimeoutError as error:
        raise TimeoutError(f"not every stream ended within {TIMEOUT_S:g} s") from error


def messages(load: StreamLoad, arrivals: Arrivals) -> Messages:
    """Raises `OSError` if the server answered with an error."""
    return _grpc_messages(arrivals) if load.protocol == "grpc" else _sse_messages(arrivals)


def token_times(stream: Messages, load: StreamLoad) -> Iterator[tuple[int, int]]:
    """Time of emission in µs and latency in µs of every token of one stream.

    Raises `WrongText` unless the messages together are the text that the engine emitted.
    """
    text, count = "", 0
    for received_ns, part in stream:
        if load.cumulative:
            if not part.startswith(text):
                raise stamps.WrongText(f"a message takes back text after {count} tokens")
            text = part
        else:
            text += part
        for index in range(count, len(text) // stamps.WIDTH):
            token = text[index * stamps.WIDTH : (index + 1) * stamps.WIDTH]
            latency_us = stamps.latency_us(token, index, received_ns)
            yield received_ns // 1000 - latency_us, latency_us
            count += 1
    if len(text) != load.tokens * stamps.WIDTH:
        expected = f"{load.tokens * stamps.WIDTH} characters of {load.tokens} tokens"
        raise stamps.WrongText(f"a stream has {len(text)} of {expected}")


def _measurement(
    times: Sequence[tuple[int, int]], num_messages: int, wire_bytes: int, cpu_s: float, steps: int
) -> Measurement:
    emitted_us = [emitted for emitted, _ in times]
    latencies_ms = sorted(latency / 1000 for _, latency in times)
    first_us, count = min(emitted_us), len(times)
    emission_s = (max(emitted_us) - first_us) / 1e6 * steps / max(1, steps - 1)
    return Measurement(
        offered_tokens_per_s=count / emission_s if emission_s else 0.0,
        tokens_per_s=count / (max(map(sum, times)) - first_us) * 1e6,
        p50_ms=latencies_ms[count // 2],
        p99_ms=latencies_ms[count * 99 // 100],
        messages_per_token=num_messages / count,
        wire_bytes_per_token=wire_bytes / count,
        client_cpu_s_per_1k_tokens=cpu_s / count * 1000,
    )


async def _grpc_streams(load: StreamLoad, prompt: str) -> list[Arrivals]:
    """Raw messages: parsing them here would take time from the server that is measured."""
    import grpc  # type: ignore[import-untyped]

    request = _grpc_request(prompt, load.tokens)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    channels = [grpc.aio.insecure_channel(load.address, options) for _ in range(CHANNELS)]
    calls = [
        channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        for channel in channels
    ]

    async def stream(number: int) -> Arrivals:
        arrivals: Arrivals = []
        call = calls[number % CHANNELS](iter([request]), timeout=TIMEOUT_S)
        async for message in call:
            arrivals.append((time.monotonic_ns(), message))
        return arrivals

    try:
        return await asyncio.gather(*map(stream, range(load.streams)))
    except grpc.aio.AioRpcError as error:
        raise OSError(f"{error.code().name}: {error.details()}") from error
    finally:
        for channel in channels:
            await channel.close()


def _grpc_request(prompt: str, tokens: int) -> bytes:
    from tritonclient.grpc import service_pb2

    data = prompt.encode()
    request = service_pb2.ModelInferRequest(model_name="tensorrt_llm")
    for name, datatype, raw in (
        ("text_input", "BYTES", struct.pack("<I", len(data)) + data),
        ("streaming", "BOOL", struct.pack("<?", True)),
        ("sampling_param_max_tokens", "INT32", struct.pack("<i", tokens)),
    ):
        request.inputs.add(name=name, datatype=datatype, shape=[1])
        request.raw_input_contents.append(raw)
    return bytes(request.SerializeToString())


def _grpc_messages(arrivals: Arrivals) -> Messages:
    from tritonclient.grpc import service_pb2

    read: Messages = []
    for received_ns, data in arrivals:
        answer = service_pb2.ModelStreamInferResponse.FromString(data)
        if answer.error_message:
            raise OSError(answer.error_message)
        response = answer.infer_response
        raw = dict(
            zip(
                (output.name for output in response.outputs),
                response.raw_output_contents,
                strict=True,
            )
        )
        read.append((received_ns, raw.get("text_output", b"")[4:].decode()))
    return read


class _SseStream(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self.arrivals: Arrivals = []
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.arrivals.append((time.monotonic_ns(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def _sse_streams(load: StreamLoad, prompt: str) -> list[Arrivals]:
    host, port = load.address.split(":")
    body = json.dumps({"text_input": prompt, "max_tokens": load.tokens})
    head = (
        f"POST {sse.PATH} HTTP/1.1\r\nHost: {load.address}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    request = (head + body).encode()
    loop = asyncio.get_running_loop()

    async def stream(_number: int) -> Arrivals:
        _, protocol = await loop.create_connection(lambda: _SseStream(request), host, int(port))
        await protocol.closed
        return protocol.arrivals

    return await asyncio.gather(*map(stream, range(load.streams)))


def _sse_messages(arrivals: Arrivals) -> Messages:
    """An event has arrived with its last byte. The server frames every event by itself."""
    data = b"".join(part for _, part in arrivals)
    if not data.startswith(b"HTTP/1.1 200 "):
        raise OSError(data.partition(b"\r\n")[0].decode() or "the server closed the connection")
    ends, end = [], 0
    for _, part in arrivals:
        end += len(part)
        ends.append(end)
    return [
        (arrivals[bisect.bisect_left(ends, event.end())][0], json.loads(event[1])["text_output"])
        for event in EVENT.finditer(data)
    ]


if __name__ == "__main__":
    try:
        result = asyncio.run(measure(StreamLoad(**json.loads(sys.argv[1]))))
    except (OSError, stamps.WrongText) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(json.dumps(dataclasses.asdict(result)))
