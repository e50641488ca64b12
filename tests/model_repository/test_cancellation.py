"""Requests that are given up: the engine aborts them, and nothing is logged as an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice

import grpc  # type: ignore[import-untyped]
import httpx
import pytest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.model_repository.conftest import Served

# Without an abort it would take a quarter of an hour.
LONG = "tokens=100000 per_step=1 step_ms=10 name={}"
# The model asks at its own times: each leaves at another moment.
leaves_at_any_moment = pytest.mark.parametrize("repeat", range(3))


@pytest.fixture(autouse=True)
def no_error_is_logged(served: Served) -> Iterator[None]:
    before = len(served.log)
    yield
    [response] = served.client.ask("tokens=1")
    assert response.text == ["0:0"]
    errors = [line for line in served.log[before:].splitlines() if line.startswith("E")]
    assert errors == []


@leaves_at_any_moment
def test_a_cancelled_grpc_stream_is_aborted(served: Served, repeat: int) -> None:
    prompt = LONG.format(f"cancelled-{repeat}")
    with closing(served.client.stream(prompt, streaming=True, max_tokens=100000)) as responses:
        assert len(list(islice(responses, 3 + repeat))) == 3 + repeat
    served.wait_for("abort", prompt)


@leaves_at_any_moment
def test_a_cancelled_request_without_streaming_is_aborted(served: Served, repeat: int) -> None:
    prompt = LONG.format(f"whole-{repeat}")
    request = served.client.request(prompt, max_tokens=100000)
    with grpc.insecure_channel(served.client.grpc_url) as channel:
        call = GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request]))
        served.wait_for("submit", prompt)
        call.cancel()
        served.wait_for("abort", prompt)


@leaves_at_any_moment
def test_a_closed_http_connection_is_aborted(served: Served, repeat: int) -> None:
    prompt = LONG.format(f"disconnected-{repeat}")
    url = f"{served.client.http_url}/v2/models/tensorrt_llm/generate_stream"
    body = {"text_input": prompt, "streaming": True, "sampling_param_max_tokens": 100000}
    with httpx.stream("POST", url, json=body, trust_env=False, verify=False) as response:
        assert next(response.iter_lines()).startswith("data:")
    served.wait_for("abort", prompt)


@leaves_at_any_moment
def test_a_deadline_aborts(served: Served, repeat: int) -> None:
    prompt = LONG.format(f"deadline-{repeat}")
    responses = served.client.stream(prompt, timeout_s=0.3, streaming=True, max_tokens=100000)
    with pytest.raises(grpc.RpcError) as raised:
        list(responses)
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    served.wait_for("abort", prompt)


def test_a_stop_request_ends_the_stream_of_the_same_id_with_one_error(served: Served) -> None:
    prompt = LONG.format("stopped")
    responses = served.client.stream(prompt, id="seven", streaming=True, max_tokens=100000)
    assert next(responses).text == ["0:0"]
    assert served.client.refusal("", id="seven", stop=True) == "request seven is cancelled"
    *_, last = responses
    assert last.error == "the request was cancelled"
    served.wait_for("abort", prompt)


def test_a_stop_request_ends_all_requests_of_its_id_and_no_other(served: Served) -> None:
    prompts = [LONG.format(f"twin-{index}") for index in range(2)]
    twins = [
        served.client.stream(prompt, id="twin", streaming=True, max_tokens=100000)
        for prompt in prompts
    ]
    other = served.client.stream("tokens=100 step_ms=5", id="other", streaming=True, max_tokens=100)
    for responses in (*twins, other):
        next(responses)
    served.client.refusal("", id="twin", stop=True)
    for prompt, responses in zip(prompts, twins, strict=True):
        assert list(responses)[-1].error == "the request was cancelled"
        served.wait_for("abort", prompt)
    *_, last = other
    assert last.final
    assert not last.error


def test_a_stop_request_without_id_or_without_a_running_request_says_so(served: Served) -> None:
    assert "the request has no id" in served.client.refusal("", stop=True)
    assert served.client.refusal("", id="gone", stop=True) == "no request gone is running"


def test_many_clients_that_leave_at_once_are_all_noticed(served: Served) -> None:
    prompts = [LONG.format(f"crowd-{index}") for index in range(24)]
    streams = [
        served.client.stream(prompt, streaming=True, max_tokens=100000) for prompt in prompts
    ]
    for responses in streams:
        next(responses)
    for responses in streams:
        responses.close()
    assert all(served.wait_for("abort", prompt) for prompt in prompts)
