"""Inputs and parameters of a request as what the engine is asked, without a server."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from trtllm_model.chat import Chat
from trtllm_model.inputs import Inputs, RequestError
from trtllm_model.request import Request, parse

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def inputs(prompt: bytes | None = b"a prompt", **values: Any) -> Inputs:
    text = {} if prompt is None else {"text_input": np.array([prompt], dtype=np.object_)}
    return {**text, **{name: np.atleast_1d(value) for name, value in values.items()}}


def request(arrays: Inputs | None = None, **sent: Any) -> Request:
    return parse(inputs() if arrays is None else arrays, sent, decoupled=True)


def conversation(**more: Any) -> Inputs:
    messages = json.dumps([{"role": "user", "content": "hello"}]).encode()
    return inputs(None, messages=np.array(messages, dtype=np.object_), **more)


def test_defaults_are_those_of_the_published_model() -> None:
    parsed = request()
    assert parsed.prompt == "a prompt"
    assert not parsed.streaming
    assert parsed.outputs == ()
    assert parsed.sampling == {
        "best_of": 1,
        "exclude_input_from_output": False,
        "return_perf_metrics": False,
    }
    assert (parsed.cumulative_text, parsed.priority, parsed.timeout_s) == (False, None, None)


def test_log_probabilities_are_asked_for_where_their_sum_is_wanted() -> None:
    parsed = request(inputs(return_cumulative_logprob=True))
    assert parsed.outputs == ("cumulative_logprob",)
    assert parsed.sampling["logprobs"] == 1


def test_the_sum_of_log_probabilities_asks_for_no_more_of_them_than_the_client_does() -> None:
    asked = inputs(return_cumulative_logprob=True, sampling_param_logprobs=5)
    assert request(asked).sampling["logprobs"] == 5


def test_a_batch_of_prompts_is_refused() -> None:
    wrong = {"text_input": np.array([[b"one"], [b"two"]], dtype=np.object_)}
    with pytest.raises(RequestError, match=r"text_input: has shape \[2, 1\]; \[1\] is expected"):
        request(wrong)


def test_values_are_plain_python_numbers() -> None:
    parsed = request(inputs(sampling_param_max_tokens=np.int32(7)))
    assert type(parsed.sampling["max_tokens"]) is int


def test_n_choices_need_as_many_sequences() -> None:
    assert request(inputs(sampling_param_n=3)).sampling["best_of"] == 3


def test_a_conversation_is_no_text_yet() -> None:
    parsed = request(conversation())
    assert parsed.prompt == Chat([{"role": "user", "content": "hello"}], None, {})


def test_a_template_writes_special_tokens_and_is_not_repeated_in_the_answer() -> None:
    sampling = request(conversation()).sampling
    assert not sampling["add_special_tokens"]
    assert sampling["exclude_input_from_output"]


def test_what_a_client_says_of_a_conversation_wins() -> None:
    said = conversation(sampling_param_add_special_tokens=True)
    assert request(said).sampling["add_special_tokens"]


def test_a_trace_context_is_taken_from_headers_of_any_case() -> None:
    parsed = request(Traceparent=TRACE, tracestate="vendor=1")
    assert parsed.trace_headers == {"traceparent": TRACE, "tracestate": "vendor=1"}


@pytest.mark.parametrize(
    "wrong", ["", "00-ab", TRACE.upper(), TRACE.replace("0af765", "xxxxxx"), "ff" + TRACE[2:], 7]
)
def test_a_trace_context_that_is_wrong_counts_as_none(wrong: Any) -> None:
    assert request(traceparent=wrong, tracestate="vendor=1").trace_headers is None


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"cumulative_text": "yes"}, "cumulative_text: is 'yes'; it must be true or false"),
        ({"timeout": -1}, "timeout: is -1; it must be microseconds, at least 1"),
        ({"timeout": 1.5}, "timeout: is 1.5; it must be microseconds, at least 1"),
        ({"timeout": True}, "timeout: is true; it must be microseconds, at least 1"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_allowed(sent: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        request(**sent)
    assert str(refused.value).startswith(message)
