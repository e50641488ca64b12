"""What the Triton model refuses: each request gets its own error, and the next one is served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.model_repository.conftest import MODEL_YAML, Serve, Served
from tests.model_repository.triton_client import Response


@pytest.fixture(autouse=True)
def healthy_afterwards(served: Served) -> Iterator[None]:
    yield
    [response] = served.client.ask("tokens=2")
    assert response.text == ["0:0 0:1"]


WRONG_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "temperature": ({"temperature": -1.0}, "sampling_param_temperature: is -1; it must be"),
    "temperature nan": ({"temperature": float("nan")}, "sampling_param_temperature: is nan;"),
    "top_k": ({"top_k": -1}, "sampling_param_top_k: is -1; it must be at least 0"),
    "top_p": ({"top_p": 1.5}, "sampling_param_top_p: is 1.5; it must be above 0 and at most"),
    "frequency_penalty": ({"frequency_penalty": float("inf")}, "is inf; it must be a finite"),
    "max_tokens": ({"max_tokens": 0}, "sampling_param_max_tokens: is 0; it must be at least 1"),
    "best_of": ({"best_of": 0}, "sampling_param_best_of: is 0; it must be between 1 and 128"),
    "best_of above": ({"best_of": 2**31 - 1}, "best_of: is 2147483647; it must be between 1"),
    "n": ({"n": 0}, "sampling_param_n: is 0; it must be between 1 and 128"),
    "n and best_of": (
        {"n": 3, "best_of": 2},
        "best_of: is 2; it must be at least sampling_param_n",
    ),
    "best_of in a stream": (
        {"n": 1, "best_of": 2, "streaming": True},
        "sampling_param_best_of: is 2, above sampling_param_n, which is 1; a stream cannot know",
    ),
    "min_tokens": ({"min_tokens": -1}, "sampling_param_min_tokens: is -1; it must be at least 0"),
    "min_tokens above": (
        {"min_tokens": 9, "max_tokens": 8},
        "sampling_param_min_tokens: is 9; it must be at most max_tokens, which is 8",
    ),
    "repetition_penalty": ({"repetition_penalty": 0.0}, "is 0; it must be a finite number above 0"),
    "min_p": ({"min_p": float("nan")}, "sampling_param_min_p: is nan; it must be between 0 and 1"),
    "logprobs": (
        {"logprobs": 101},
        "sampling_param_logprobs: is 101; it must be between 0 and 100",
    ),
    "prompt_logprobs": ({"prompt_logprobs": -1}, "sampling_param_prompt_logprobs: is -1;"),
    "unknown to the release": (
        {"no_repeat_ngram_size": 2},
        "sampling_param_no_repeat_ngram_size: this engine's release has no such parameter",
    ),
    "priority": ({"priority": 1.5}, "priority: is 1.5; it must be between 0 and 1"),
    "stop_token_ids": ({"stop_token_ids": [1, -2]}, "stop_token_ids: holds -2; token ids are at"),
    "bad_token_ids": (
        {"bad_token_ids": [1000]},
        "sampling_param_bad_token_ids: holds 1000; this model's token ids are 0 to 999",
    ),
    "bad": ({"bad": [""]}, "sampling_param_bad: holds an empty string"),
    "many stop words": (
        {"sampling_param_stop": ["a"] * 257},
        "stop: has 257 elements; at most 256",
    ),
    "guided json": (
        {"guided_decoding_json": "{"},
        "sampling_param_guided_decoding_json: is no JSON: ",
    ),
    "guided json list": ({"guided_decoding_json": "[1]"}, "json: is [1]; an object in JSON is exp"),
    "structural tag": (
        {"guided_decoding_structural_tag": "{"},
        "sampling_param_guided_decoding_structural_tag: is no JSON: ",
    ),
    "two guides": (
        {"guided_decoding_regex": "a", "guided_decoding_json_object": True},
        "sampling_param_guided_decoding_regex and sampling_param_guided_decoding_json_obj",
    ),
    "no guided decoding": (
        {"guided_decoding_regex": "a+"},
        "sampling_param_guided_decoding_regex: this engine was started without guided decoding; "
        "set guided_decoding_backend in model.yaml",
    ),
    "timeout": (
        {"parameters": {"timeout": -5}},
        "timeout: is -5; it must be microseconds, at least",
    ),
    "cumulative_text": (
        {"parameters": {"cumulative_text": 1}},
        "cumulative_text: is 1; it must be true or false",
    ),
    "stop": ({"sampling_param_stop": ["a", ""]}, "sampling_param_stop: holds an empty string"),
    "stop bytes": ({"sampling_param_stop": [b"\xff"]}, "sampling_param_stop: is not UTF-8"),
    "text_input": ({"text_input": ""}, "text_input: is empty"),
    "text_input shape": ({"text_input": []}, "text_input: has shape [0]; [1] is expected"),
    "two prompts": ({"text_input": ["a", "b"]}, "text_input: has shape [2]; [1] is expected"),
    "text_input bytes": ({"text_input": [b"a\xff"]}, "text_input: is not UTF-8: invalid start"),
}
WRONG_TOKENS: dict[str, tuple[dict[str, Any], str]] = {
    "beyond": (
        {"input_ids": [1, 1000]},
        "input_ids: holds 1000; this model's token ids are 0 to 99",
    ),
    "negative": ({"input_ids": [-1]}, "input_ids: holds -1; token ids are at least 0"),
    "empty": ({"input_ids": []}, "input_ids: is empty; a prompt has at least one token"),
}


@pytest.mark.parametrize(("inputs", "message"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_a_wrong_value_is_named_with_what_is_allowed(
    served: Served, inputs: dict[str, Any], message: str
) -> None:
    error = served.client.refusal(None, **{"text_input": "tokens=1", **inputs})
    assert error.startswith(message.split(":")[0]) or message in error
    assert message in error


@pytest.mark.parametrize(("inputs", "message"), WRONG_TOKENS.values(), ids=WRONG_TOKENS)
def test_wrong_token_ids_are_named(served: Served, inputs: dict[str, Any], message: str) -> None:
    assert served.client.refusal(None, **inputs).startswith(message)


def test_a_guide_reaches_an_engine_that_has_guided_decoding(start: Serve) -> None:
    served = start(MODEL_YAML + "guided_decoding_backend: xgrammar\n")
    guides = {
        **dict.fromkeys(("json", "structural_tag"), '{"type": "object"}'),
        **dict.fromkeys(("regex", "grammar"), "a"),
    }
    for name, guide in guides.items():
        served.client.ask("tokens=1 name=guided", **{f"guided_decoding_{name}": guide})
    given = [row["sampling"]["guided_decoding"] for row in served.events("submit")]
    assert all(
        f"{name}={guide!r}" in row for row, (name, guide) in zip(given, guides.items(), strict=True)
    )


def test_a_missing_prompt_is_named(served: Served) -> None:
    error = served.client.refusal(None, max_tokens=3)
    assert error == "text_input: is missing; send the prompt as one string"


def test_a_value_that_the_engine_refuses_is_the_clients_fault(served: Served) -> None:
    error = served.client.refusal("tokens=1", temperature=0.0, best_of=2)
    assert error == "greedy decoding allows no best_of above 1"
    assert "Traceback" not in log_since(served, error)


def test_a_prompt_that_the_engine_finds_too_long_is_the_clients_fault(served: Served) -> None:
    words = "prompt-of-9-exceeds-max_num_tokens-8"
    error = served.client.refusal(f"fail={words}")
    assert error == words
    assert words not in served.log


def test_a_fault_of_the_engine_is_passed_on_and_logged_once(served: Served) -> None:
    error = served.client.refusal("crash=worker-3-is-gone")
    assert error == "RuntimeError: worker-3-is-gone"
    assert served.log.count("RuntimeError: worker-3-is-gone") == 1


def test_a_fault_in_the_middle_of_a_stream_ends_it(served: Served) -> None:
    *parts, last = served.client.stream("tokens=5 fail=broken fail_at=2", streaming=True)
    assert "".join(part.text[0] for part in parts) == "0:0 0:1"
    assert last.error == "RequestError: broken"


def test_an_engine_that_ends_without_a_final_output_is_a_fault(served: Served) -> None:
    error = served.client.refusal("tokens=2 gone=1")
    assert "without a final output" in error


def test_streaming_from_a_model_that_is_not_decoupled_is_refused(start: Serve) -> None:
    served = start(MODEL_YAML_UNARY)
    refused: Response
    [refused] = served.client.stream("tokens=1", streaming=True)
    assert refused.error.startswith("streaming: is true, but this model answers once per request")
    assert served.client.infer("tokens=2").text == ["0:0 0:1"]


MODEL_YAML_UNARY = """
triton_config: {max_batch_size: 0, decoupled: false}
model: some/checkpoint
"""


def log_since(served: Served, text: str) -> str:
    return served.log.partition(text)[2]
