"""What clients get of tokens: ids in and out, counts, log probabilities, several choices."""

from __future__ import annotations

import json
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.model_repository.conftest import Serve, Served


def test_a_prompt_may_be_token_ids(served: Served) -> None:
    [response] = served.client.ask(
        None, input_ids=[5, 999, 0], max_tokens=2, return_num_input_tokens=True
    )
    assert response.outputs["num_input_tokens"] == [3]
    assert [5, 999, 0] in [event["prompt"] for event in served.events("submit")]


def test_http_takes_and_gives_token_ids(served: Served) -> None:
    body = {"input_ids": [7, 8], "sampling_param_max_tokens": 3, "return_output_ids": True}
    answer = served.client.generate(**body).json()
    assert answer["output_ids"] == [0, 1, 2]
    assert answer["output_lengths"] == 3


def test_token_ids_do_not_wait_for_text(served: Served) -> None:
    prompt = "tokens=3 silent_at=1 step_ms=100"
    responses = served.client.ask(prompt, streaming=True, return_output_ids=True)
    assert [response.outputs["output_ids"] for response in responses] == [[0], [1], [2]]
    assert [response.text for response in responses] == [["0:0"], [""], [" 0:1 0:2"]]


def test_counts_are_those_of_all_tokens_so_far(served: Served) -> None:
    asked: dict[str, Any] = {"return_num_input_tokens": True, "return_num_output_tokens": True}
    responses = served.client.ask("tokens=3 input=11 step_ms=20", streaming=True, **asked)
    for response in responses:
        assert response.outputs["num_input_tokens"] == [11]
    counts = [response.outputs["num_output_tokens"] for response in responses]
    texts = [len(response.text[0].split()) for response in responses]
    assert counts == [[sum(texts[: place + 1])] for place in range(len(texts))]


def test_the_last_response_of_a_stream_sums_it_up_without_being_asked(served: Served) -> None:
    *others, last = served.client.ask("tokens=3 input=11 step_ms=20", streaming=True)
    assert all(list(response.outputs) == ["text_output"] for response in others)
    del last.outputs["text_output"]
    assert last.outputs == {
        "finish_reason": ["stop"],
        "num_input_tokens": [11],
        "num_output_tokens": [3],
    }


def test_several_choices_are_streamed_side_by_side(served: Served) -> None:
    asked: dict[str, Any] = {
        "return_index": True,
        "return_output_ids": True,
        "return_finish_reason": True,
    }
    responses = served.client.ask("tokens=2 step_ms=20", streaming=True, n=3, **asked)
    texts, ids = [""] * 3, [0] * 3
    for response in responses:
        assert response.outputs["index"] == [0, 1, 2]
        texts = [old + new for old, new in zip(texts, response.text, strict=True)]
        lengths = response.outputs["output_lengths"]
        assert len(response.outputs.get("output_ids", [])) == sum(lengths)
        ids = [old + new for old, new in zip(ids, lengths, strict=True)]
    assert texts == ["0:0 0:1", "1:0 1:1", "2:0 2:1"]
    assert ids == [2, 2, 2]
    assert responses[-1].outputs["finish_reason"] == ["stop"] * 3


def test_the_best_of_several_are_given_without_streaming(served: Served) -> None:
    [response] = served.client.ask("tokens=1 name=two-of-three", n=2, best_of=3, return_index=True)
    assert response.text == ["0:0", "1:0"]
    assert response.outputs["index"] == [0, 1]


def scores(response: Any, name: str = "logprobs") -> list[Any]:
    return [json.loads(document) for document in response.outputs[name]]


def test_log_probabilities_come_as_json_for_each_choice(served: Served) -> None:
    [response] = served.client.ask("tokens=2", n=2, logprobs=1)
    one = {"logprob": -0.5, "rank": 1}
    expected = [
        {"token_id": 0, **one, "top": [{"token_id": 0, **one}]},
        {"token_id": 1, **one, "top": [{"token_id": 1, **one}]},
    ]
    assert scores(response) == [expected, expected]


def test_http_gives_log_probabilities_as_one_string(served: Served) -> None:
    answer = served.client.generate(text_input="tokens=1", sampling_param_logprobs=1).json()
    assert json.loads(answer["logprobs"])[0]["token_id"] == 0


def test_priority_and_trace_context_reach_the_engine(served: Served) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    served.client.ask("tokens=1 name=traced", parameters={"traceparent": trace}, priority=0.75)
    served.client.generate(text_input="tokens=1 name=http", traceparent=trace, tracestate="a=b")
    [one] = [event for event in served.events("submit") if "traced" in event["prompt"]]
    [other] = [event for event in served.events("submit") if "name=http" in event["prompt"]]
    assert one["priority"] == 0.75
    assert one["trace_headers"] == {"traceparent": trace}
    assert other["trace_headers"] == {"traceparent": trace, "tracestate": "a=b"}


def test_a_trace_context_in_forwarded_headers_reaches_the_engine(start: Serve) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    served = start(options=["--grpc-header-forward-pattern", "(?i)trace(parent|state)"])
    with grpc.insecure_channel(served.client.grpc_url) as channel:
        requests = iter([served.client.request("tokens=1")])
        headers = [("traceparent", trace), ("tracestate", "vendor=1"), ("other", "x")]
        stub = GRPCInferenceServiceStub(channel)
        assert list(stub.ModelStreamInfer(requests, timeout=20, metadata=headers))
    [submitted] = served.events("submit")
    assert submitted["trace_headers"] == {"traceparent": trace, "tracestate": "vendor=1"}
