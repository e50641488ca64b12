"""The second model over the same engine: each answer in one response, to clients of unary calls."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc  # type: ignore[import-untyped]
import httpx
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import np_to_triton_dtype

from tests.model_repository.conftest import MODEL, MODEL_YAML, Serve, Served
from tests.model_repository.triton_client import Response

UNARY = f"{MODEL.name}_unary"


@pytest.fixture(scope="module")
def both(start: Serve) -> Served:
    """A server with both models, and a limit of its requests."""
    return start(MODEL_YAML.replace("true}", "true, max_requests: 40}"), unary=True)


@pytest.fixture(autouse=True)
def no_error_is_logged(both: Served) -> Iterator[None]:
    before = len(both.log)
    yield
    both.wait_for_metrics({"requests_running": 0, "requests_waiting": 0})
    assert [line for line in both.log[before:].splitlines() if line.startswith("E")] == []


def ask(served: Served, prompt: str, id: str = "", **inputs: Any) -> Response:
    request = served.client.request(prompt, id, **inputs)
    request.model_name = UNARY
    return served.client.call(request)


def refusal(served: Served, prompt: str, **inputs: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as raised:
        ask(served, prompt, **inputs)
    return raised.value


def test_the_server_has_one_engine(both: Served) -> None:
    assert len(both.events("start")) == 1
    config = httpx.get(
        f"{both.client.http_url}/v2/models/{UNARY}/config", trust_env=False, verify=False
    ).json()
    assert config["model_transaction_policy"] == {"decoupled": False}


def test_a_unary_call_of_grpc_has_its_answer_in_one_response(both: Served) -> None:
    response = ask(both, "tokens=3", id="seven", return_finish_reason=True, best_of=1)
    assert response.text == ["0:0 0:1 0:2"]
    assert response.outputs["finish_reason"] == ["stop"]
    assert response.id == "seven"


def test_infer_and_generate_of_http_have_it_as_well(both: Served) -> None:
    url = f"{both.client.http_url}/v2/models/{UNARY}"
    text = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["tokens=9"]}
    most = {"name": "sampling_param_max_tokens", "shape": [1], "datatype": "INT32", "data": [2]}
    answer = httpx.post(
        f"{url}/infer", json={"inputs": [text, most]}, trust_env=False, verify=False
    ).json()
    found = {row["name"]: row["data"] for row in answer["outputs"]}
    assert found == {"text_output": ["0:0 0:1"]}
    body = {"text_input": "tokens=9", "max_tokens": 2, "temperature": 0.5}
    answer = httpx.post(f"{url}/generate", json=body, trust_env=False, verify=False).json()
    assert answer["text_output"] == "0:0 0:1"


def test_a_client_of_the_published_model_works_unchanged(both: Served) -> None:
    """As its own test calls it: Triton's client, all sampling inputs, no outputs named."""
    sent = {
        "text_input": np.array(["tokens=4"], dtype=object),
        "sampling_param_best_of": np.array([1], dtype=np.int32),
        "sampling_param_temperature": np.array([0.5], dtype=np.float32),
        "sampling_param_top_k": np.array([1], dtype=np.int32),
        "sampling_param_top_p": np.array([0.95], dtype=np.float32),
        "sampling_param_frequency_penalty": np.array([0.0], dtype=np.float32),
        "sampling_param_presence_penalty": np.array([0.0], dtype=np.float32),
        "sampling_param_max_tokens": np.array([3], dtype=np.int32),
        "sampling_param_stop": np.array(["0:9"], dtype=object),
        "sampling_param_seed": np.array([1234], dtype=np.uint64),
        "sampling_param_exclude_input_from_output": np.array([True]),
        "return_finish_reason": np.array([True]),
        "return_stop_reason": np.array([True]),
        "return_cumulative_logprob": np.array([True]),
    }
    inputs = []
    for name, values in sent.items():
        inputs.append(InferInput(name, values.shape, np_to_triton_dtype(values.dtype)))
        inputs[-1].set_data_from_numpy(values)
    result = InferenceServerClient(both.client.grpc_url).infer(UNARY, inputs, request_id="0")
    assert result.as_numpy("text_output")[0].decode() == "0:0 0:1 0:2"
    assert result.as_numpy("finish_reason")[0] == b"length"
    assert result.as_numpy("stop_reason")[0] == b"None"
    assert result.as_numpy("cumulative_logprob").shape == (1,)
    assert result.get_response().id == "0"


def test_streams_go_on_over_the_other_model_at_the_same_time(both: Served) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = pool.map(lambda n: ask(both, f"tokens={n + 1} step_ms=5").text, range(16))
        parts = list(both.client.stream("tokens=20 step_ms=5", streaming=True))
        assert [len(text[0].split()) for text in answers] == list(range(1, 17))
    assert len(parts) > 10


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"max_tokens": 0}, "sampling_param_max_tokens: is 0; it must be at least 1"),
        ({"sampling_param_stop": [b"\xff"]}, "sampling_param_stop: is not UTF-8"),
    ],
)
def test_what_is_wrong_is_refused_as_by_the_other_model(
    both: Served, inputs: dict[str, Any], message: str
) -> None:
    error = refusal(both, "tokens=1", **inputs)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(message)


def test_both_models_share_one_limit(both: Served) -> None:
    streams = [
        both.client.stream("tokens=10000 step_ms=20", streaming=True, max_tokens=10000)
        for _ in range(40)
    ]
    for responses in streams:
        next(responses)
    error = refusal(both, "tokens=1")
    assert error.code() == grpc.StatusCode.UNAVAILABLE
    assert "40 requests are running or waiting" in error.details()
    for responses in streams:
        responses.close()


@pytest.mark.parametrize("repeat", range(3))
def test_a_cancelled_call_is_aborted_in_the_engine(both: Served, repeat: int) -> None:
    prompt = f"tokens=100000 step_ms=10 name=cancelled-{repeat}"
    request = both.client.request(prompt, max_tokens=100000)
    request.model_name = UNARY
    with grpc.insecure_channel(both.client.grpc_url) as channel:
        call = GRPCInferenceServiceStub(channel).ModelInfer.future(request, timeout=20)
        both.wait_for("submit", prompt)
        call.cancel()
        both.wait_for("abort", prompt)


def test_requests_of_both_models_end_before_the_server_does(start: Serve) -> None:
    served = start(MODEL_YAML, unary=True)
    with ThreadPoolExecutor(8) as pool:
        prompts = [f"tokens=50 step_ms=20 name=last-{n}" for n in range(8)]
        answers = [pool.submit(ask, served, prompt, max_tokens=50) for prompt in prompts]
        for prompt in prompts:
            served.wait_for("submit", prompt)
        served.server.stop()
        assert [len(answer.result().text[0].split()) for answer in answers] == [50] * 8
    assert served.server.exit_status(0) == 0
    assert served.regions == []
