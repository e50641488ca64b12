"""The end of the Triton model: a drain on request, and a process that fails with its engine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc  # type: ignore[import-untyped]
import httpx
import pytest

from tests.model_repository.conftest import MODEL_YAML, Serve, Served
from tests.model_repository.triton_client import Response

LONG = "tokens=100000 step_ms=10 name={}"
# The last signal of a server whose engine is dead is SIGUSR1.
DEAD = 128 + signal.SIGUSR1


def begin(served: Served, prompt: str) -> Generator[Response, None, None]:
    """A stream whose first response is there."""
    responses = served.client.stream(prompt, streaming=True, max_tokens=100000)
    next(responses)
    return responses


def end(responses: Generator[Response, None, None]) -> str:
    """The error of the stream, also where the connection ended with it."""
    last = ""
    with suppress(grpc.RpcError):
        for response in responses:
            last = response.error
    return last


def is_ready(served: Served) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(
            f"{served.client.http_url}/v2/health/ready", trust_env=False, verify=False
        ).is_success
    return False


def answers(served: Served) -> bool:
    """Whether a short request has its tokens, and is neither refused nor unheard."""
    with suppress(grpc.RpcError):
        return not any(response.error for response in served.client.stream("tokens=1"))
    return False


def test_termination_under_load_ends_every_stream_whole_and_exits_0(start: Serve) -> None:
    served = start()
    prompts = [f"tokens=100 step_ms=10 name=load-{index}" for index in range(32)]
    streams = [begin(served, prompt) for prompt in prompts]
    os.kill(served.server.pid, signal.SIGTERM)
    with ThreadPoolExecutor(32) as pool:
        ends: list[list[Response]] = list(pool.map(list, streams))
    assert all(responses[-1].final and not responses[-1].error for responses in ends)
    assert all(responses[-1].text[0].endswith(" 0:99") for responses in ends)
    assert served.server.exit_status(120) == 0
    assert served.regions == []


def test_a_server_that_ends_takes_no_new_request(start: Serve) -> None:
    served = start()
    running = begin(served, "tokens=100 step_ms=20")
    os.kill(served.server.pid, signal.SIGTERM)
    refused_s = time.monotonic() + 10
    while is_ready(served) or answers(served):  # Triton is not ready a moment before it refuses
        assert time.monotonic() < refused_s
    assert list(running)[-1].final
    assert served.server.exit_status(120) == 0


FATAL = {
    "at the start": "die=worker-3-is-gone fail_at=-1",
    "in the middle": "die=worker-3-is-gone fail_at=5 step_ms=20",
}


@pytest.mark.parametrize("prompt", FATAL.values(), ids=FATAL)
def test_an_engine_that_dies_ends_all_streams_and_the_server_with_an_error(
    start: Serve, prompt: str
) -> None:
    served = start()
    running = begin(served, LONG.format("other"))
    fatal = served.client.stream(prompt, streaming=True)
    assert "worker-3-is-gone" in end(fatal)
    error = end(running)
    assert error.startswith("the engine is dead: RuntimeError: worker-3-is-gone")
    assert "retry" in error
    assert_dead(served, "RuntimeError: worker-3-is-gone")


def test_an_engine_that_says_it_cannot_serve_ends_an_idle_server(start: Serve) -> None:
    served = start()
    assert served.client.ask("tokens=1 hang=sick")
    assert_dead(served, "it says that it cannot serve")


@pytest.mark.parametrize("hang", ["request", "loop"])
def test_an_engine_that_hangs_ends_the_server(start: Serve, hang: str) -> None:
    served = start(MODEL_YAML.replace("true}", "true, engine_stall_timeout_s: 1}"))
    running = served.client.stream(f"hang={hang} fail_at=3 step_ms=1", streaming=True)
    assert end(running).startswith("the engine is dead: it has given nothing for")
    assert_dead(served, "it has given nothing for")


def test_a_long_request_without_a_stream_is_no_hang(start: Serve) -> None:
    served = start(MODEL_YAML.replace("true}", "true, engine_stall_timeout_s: 1}"))
    [response] = served.client.ask("tokens=30 step_ms=100")
    assert response.text[0].endswith("0:29")


def assert_dead(served: Served, reason: str) -> None:
    assert served.server.exit_status(120) == DEAD
    last = served.log.splitlines()[-1]
    assert last.startswith(f"the server exits because the engine is dead: {reason}")
    assert served.regions == []
