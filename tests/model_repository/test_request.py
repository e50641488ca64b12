"""Inputs of a request as the engine's sampling parameters, without a server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from model_request import Inputs, Invalid, parse


def inputs(**values: Any) -> Inputs:
    text = {"text_input": np.array([b"a prompt"], dtype=np.object_)}
    return {**text, **{name: np.array([value]) for name, value in values.items()}}


def test_defaults_are_those_of_the_published_model() -> None:
    request = parse(inputs(), decoupled=True)
    assert request.prompt == "a prompt"
    assert not request.streaming
    assert request.outputs == ()
    assert request.sampling == {
        "best_of": 1,
        "exclude_input_from_output": False,
        "return_perf_metrics": False,
    }


def test_log_probabilities_are_asked_for_where_their_sum_is_wanted() -> None:
    request = parse(inputs(return_cumulative_logprob=True), decoupled=True)
    assert request.outputs == ("cumulative_logprob",)
    assert request.sampling["logprobs"] == 1


def test_an_input_with_several_elements_is_refused() -> None:
    wrong = {**inputs(), "streaming": np.array([True, False])}
    with pytest.raises(Invalid, match=r"streaming: has shape \[2\]; one element is expected"):
        parse(wrong, decoupled=True)


def test_a_batch_of_prompts_is_refused() -> None:
    wrong = {"text_input": np.array([[b"one"], [b"two"]], dtype=np.object_)}
    with pytest.raises(Invalid, match=r"text_input: has shape \[2, 1\]; \[1\] is expected"):
        parse(wrong, decoupled=True)


def test_values_are_plain_python_numbers() -> None:
    request = parse(inputs(sampling_param_max_tokens=np.int32(7)), decoupled=True)
    assert type(request.sampling["max_tokens"]) is int
