"""Load on the real server by clients that cancel, err and vanish: nothing is lost or left behind.

`SOAK_STREAMS=1000 SOAK_ROUNDS=20` makes it a long one; `-s` prints a line for each round.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.model_repository.conftest import Serve, Served
from tests.model_repository.triton_client import read_response

Kind = Literal["whole", "cancelled", "bad", "vanished"]
# Of a hundred clients.
SHARES: dict[Kind, int] = {"cancelled": 10, "bad": 5, "vanished": 1}
CHANNELS = 4
STREAMS = int(os.environ.get("SOAK_STREAMS", "100"))
ROUNDS = int(os.environ.get("SOAK_ROUNDS", "2"))
TIMEOUT_S = 120.0
TOKENS = 100
EXPECTED = " ".join(f"0:{token}" for token in range(TOKENS))
SHORT = f"tokens={TOKENS} per_step=2 step_ms=100 name={{}}"
LONG = "tokens=100000 per_step=2 step_ms=100 name={}"
# What may stay of a round: allocators keep some memory, and connections close a little later.
MEMORY_GROWTH = 1.15
HANDLE_GROWTH = 8
# Rounds until the allocators have taken what they keep.
WARM_UP_ROUNDS = 5


@dataclass(frozen=True)
class Round:
    """What one round of clients left behind."""

    seconds: float
    faults: list[str]
    memory_mib: float
    handles: int


def soak(served: Served, streams: int, rounds: int) -> list[str]:
    """All that went wrong, in words."""
    log_size = len(served.log)
    done: list[Round] = []
    for index in range(rounds):
        done.append(asyncio.run(_round(served, index, streams)))
        last = done[-1]
        print(
            f"round {index + 1}: {streams} streams in {last.seconds:.1f} s, "
            f"{last.memory_mib:.0f} MiB, {last.handles} handles, {len(last.faults)} faults",
            flush=True,
        )
    faults = [fault for one in done for fault in one.faults]
    faults += [line for line in served.log[log_size:].splitlines() if line.startswith("E")]
    warm, last = done[min(WARM_UP_ROUNDS, rounds) - 1], done[-1]
    if last.memory_mib > warm.memory_mib * MEMORY_GROWTH:
        faults.append(f"memory grew from {warm.memory_mib:.0f} to {last.memory_mib:.0f} MiB")
    if last.handles > warm.handles + HANDLE_GROWTH:
        faults.append(f"file handles grew from {warm.handles} to {last.handles}")
    return faults


async def _round(served: Served, index: int, streams: int) -> Round:
    begin_s = time.monotonic()
    kinds = [kind for kind, share in SHARES.items() for _ in range(streams * share // 100)]
    kinds += ["whole"] * (streams - len(kinds))
    random.Random(index).shuffle(kinds)
    channels = [grpc.aio.insecure_channel(served.client.grpc_url) for _ in range(CHANNELS)]
    stubs = [GRPCInferenceServiceStub(channel) for channel in channels]
    clients = [
        _client(served, stubs[number % CHANNELS], kind, f"{index}-{number}")
        for number, kind in enumerate(kinds)
    ]
    faults = await asyncio.gather(*clients, return_exceptions=True)
    for channel in channels:
        await channel.close()
    # Those who left are noticed a little later; then nothing runs any more.
    await asyncio.to_thread(
        served.wait_for_metrics, {"requests_running": 0, "requests_waiting": 0}, 30.0
    )
    words = [str(fault) or repr(fault) for fault in faults if fault]
    handles = sum(len(list((folder / "fd").iterdir())) for folder in served.processes)
    return Round(time.monotonic() - begin_s, words, served.memory_mib, handles)


async def _client(served: Served, stub: Any, kind: Kind, name: str) -> str:
    """What was wrong with the answer, in words."""
    if kind == "vanished":
        return await _vanish(served, LONG.format(name))
    inputs: dict[str, Any] = {"streaming": True, "max_tokens": 100000}
    if kind == "bad":
        inputs["temperature"] = -1.0
    prompt = LONG if kind == "cancelled" else SHORT
    request = served.client.request(prompt.format(name), id=name, **inputs)
    call = stub.ModelStreamInfer(iter([request]), timeout=TIMEOUT_S)
    text, error, final, left = "", "", False, random.Random(name).randrange(1, 6)
    async for message in call:
        response = read_response(message.infer_response, message.error_message)
        error, final, left = response.error, response.final, left - 1
        text += "" if error else response.text[0]
        if kind == "cancelled" and not left:
            call.cancel()
            return ""
    if kind == "bad":
        return "" if error.startswith("sampling_param_temperature:") else f"{name}: error {error!r}"
    if error or not final or text != EXPECTED:
        return f"{name}: final {final}, error {error!r}, text {text[:40]!r}...{text[-40:]!r}"
    return ""


async def _vanish(served: Served, prompt: str) -> str:
    """A client over HTTP whose connection breaks off in the middle of its answer."""
    url = urlsplit(served.client.http_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    body = json.dumps(
        {"text_input": prompt, "streaming": True, "sampling_param_max_tokens": 100000}
    ).encode()
    head = f"POST /v2/models/tensorrt_llm/generate_stream HTTP/1.1\r\nHost: {url.netloc}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await asyncio.wait_for(reader.readuntil(b"data: "), TIMEOUT_S)
    writer.transport.abort()
    return ""


def test_a_crowd_that_cancels_errs_and_vanishes_leaves_nothing_behind(start: Serve) -> None:
    served = start()
    assert soak(served, STREAMS, ROUNDS) == []
    counts, each = served.metrics(), STREAMS * ROUNDS // 100
    left = SHARES["cancelled"] + SHARES["vanished"]
    expected = {"cancelled": left, "invalid": SHARES["bad"], "refused": 0, "failed": 0}
    expected["finished"] = 100 - left - SHARES["bad"]
    for outcome, share in expected.items():
        assert counts[f'requests_total{{outcome="{outcome}"}}'] == share * each
    os.kill(served.server.pid, signal.SIGTERM)
    assert served.server.exit_status(120) == 0
    assert served.regions == []
