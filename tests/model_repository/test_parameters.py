"""Parameters of a request: inputs by other names, those of their own, or refused; no server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import triton_to_np_dtype
from trtllm_model import parameters
from trtllm_model.inputs import Inputs, RequestError

from tests.model_repository.triton_client import DATATYPES

DECLARED = {name: triton_to_np_dtype(datatype) for name, datatype in DATATYPES.items()}


def inputs_of(sent: dict[str, Any], **arrays: Any) -> dict[str, list[Any]]:
    given: Inputs = {name: np.atleast_1d(value) for name, value in arrays.items()}
    merged, _ = parameters.as_inputs(sent, given, DECLARED)
    return {name: array.tolist() for name, array in merged.items()}


def refusal(sent: dict[str, Any], **arrays: Any) -> str:
    with pytest.raises(RequestError) as refused:
        inputs_of(sent, **arrays)
    return str(refused.value)


def request(sent: str = "", *, id: str = "", timeout_us: int = 0, flags: int = 0) -> Any:
    """What Triton hands over of a request beside its inputs."""
    return SimpleNamespace(
        correlation_id=lambda: 0,
        flags=lambda: flags,
        parameters=lambda: sent,
        timeout=lambda: timeout_us,
        request_id=lambda: id,
    )


def test_parameters_are_those_of_the_request_and_its_timeout() -> None:
    found = parameters.read(request('{"cumulative_text":true}', timeout_us=2_500_000))
    assert found == {"cumulative_text": True, "timeout": 2_500_000}


def test_what_is_sent_twice_under_one_name_is_refused_as_triton_hands_both_over() -> None:
    with pytest.raises(RequestError, match=r"^max_tokens: is sent twice; send it once$"):
        parameters.read(request('{"seed":1,"max_tokens":4,"max_tokens":5}'))


def test_of_a_long_name_that_is_sent_twice_the_beginning_is_shown() -> None:
    name = "x" * 1000
    with pytest.raises(RequestError, match=rf"^{'x' * 64}\.\.\.: is sent twice; send it once$"):
        parameters.read(request(f'{{"{name}":1,"{name}":2}}'))


@pytest.mark.parametrize("unread", ["parameters", "request_id"])
def test_what_is_not_utf_8_is_refused_which_triton_keeps_as_bytes(unread: str) -> None:
    sent = request()
    setattr(sent, unread, lambda: b"\xff".decode())
    with pytest.raises(RequestError, match=r"^the id, or a name .* is not UTF-8: invalid start"):
        parameters.read(sent)


def test_an_id_that_every_response_repeats_is_short() -> None:
    assert parameters.read(request(id="i" * 4096)) == {}
    with pytest.raises(RequestError, match=r"^id: has 4097 characters; at most 4096 are allowed"):
        parameters.read(request(id="i" * 4097))


@pytest.mark.parametrize("flags", [1, 2, 3])
def test_the_begin_and_the_end_of_a_sequence_are_refused_which_triton_keeps_as_flags(
    flags: int,
) -> None:
    with pytest.raises(RequestError, match=r"^sequence_start and sequence_end: leave it out"):
        parameters.read(request(flags=flags))


def test_the_id_that_generate_sends_twice_is_no_parameter() -> None:
    assert parameters.read(request('{"id":"seven"}', id="seven")) == {}


def test_their_own_parameters_are_no_inputs() -> None:
    sent = {"cumulative_text": True, "timeout": 5, "Traceparent": "x", "tracestate": "y"}
    assert parameters.as_inputs(sent, {}, DECLARED) == ({}, sent)


@pytest.mark.parametrize(
    ("name", "value", "target"),
    [
        ("max_tokens", 5, "sampling_param_max_tokens"),
        ("temperature", 1, "sampling_param_temperature"),
        ("temperature", 0.5, "sampling_param_temperature"),
        ("top_k", 3, "sampling_param_top_k"),
        ("seed", 2**63 - 1, "sampling_param_seed"),
        ("random_seed", 7, "sampling_param_seed"),
        ("stream", True, "streaming"),
        ("streaming", False, "streaming"),
        ("min_length", 2, "sampling_param_min_tokens"),
        ("num_return_sequences", 2, "sampling_param_n"),
        ("exclude_input_in_output", True, "sampling_param_exclude_input_from_output"),
        ("sampling_param_max_tokens", 5, "sampling_param_max_tokens"),
        ("return_finish_reason", True, "return_finish_reason"),
        ("stop", True, "stop"),
    ],
)
def test_a_short_or_other_name_means_the_input(name: str, value: Any, target: str) -> None:
    assert inputs_of({name: value}) == {target: [value]}


@pytest.mark.parametrize(
    ("name", "target"),
    [("stop", "sampling_param_stop"), ("stop_words", "sampling_param_stop"),
     ("bad_words", "sampling_param_bad"), ("text_input", "text_input")],
)  # fmt: skip
def test_a_text_is_sent_as_the_bytes_of_the_input(name: str, target: str) -> None:
    assert inputs_of({name: "ä"}) == {target: ["ä".encode()]}


def test_a_fraction_may_come_as_a_string_as_older_clients_of_grpc_have_no_other_way() -> None:
    assert inputs_of({"top_p": "0.5"}) == {"sampling_param_top_p": [0.5]}


@pytest.mark.parametrize("name", ["stop_words", "bad_words"])
def test_no_words_of_the_other_backends_are_none(name: str) -> None:
    assert inputs_of({name: ""}) == {}


def test_the_same_said_twice_is_said_once() -> None:
    sent = {"max_tokens": 5, "sampling_param_max_tokens": 5}
    assert inputs_of(sent, sampling_param_max_tokens=5) == {"sampling_param_max_tokens": [5]}


@pytest.mark.parametrize(
    ("sent", "arrays", "message"),
    [
        (
            {"max_tokens": 5},
            {"sampling_param_max_tokens": 6},
            "max_tokens: is 5, and sampling_param_max_tokens says otherwise; send one of them",
        ),
        (
            {"seed": 5, "random_seed": 6},
            {},
            "random_seed: is 6, and seed says otherwise; send one of them",
        ),
        (
            {"stop": "a"},
            {"sampling_param_stop": np.array([b"a", b"b"], dtype=np.object_)},
            "stop: is 'a', and sampling_param_stop says otherwise",
        ),
        (
            {"streaming": True},
            {"streaming": False},
            "streaming: is true, and the input says otherwise; send one of them",
        ),
    ],
)
def test_what_is_said_twice_and_differs_is_refused(
    sent: dict[str, Any], arrays: dict[str, Any], message: str
) -> None:
    assert refusal(sent, **arrays).startswith(message)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_tokens", "5", "max_tokens: is '5'; it must be a whole number, without a point or"),
        ("max_tokens", 5.0, "max_tokens: is 5.0; it must be a whole number, without a point or"),
        ("seed", 2.0**64, "seed: is 1.8446744073709552e+19; it must be a whole number"),
        ("max_tokens", True, "max_tokens: is true; it must be a whole number"),
        ("max_tokens", 2**31, "max_tokens: is 2147483648; it must be a whole number from"),
        ("seed", -1, "seed: is -1; it must be a whole number from 0 to"),
        ("temperature", "warm", "temperature: is 'warm'; it must be a number"),
        ("temperature", "1_0", "temperature: is '1_0'; it must be a number"),
        ("temperature", True, "temperature: is true; it must be a number"),
        ("stream", 1, "stream: is 1; it must be true or false"),
        ("stop", 5, "stop: is 5; it must be a string"),
        ("text_input", 5, "text_input: is 5; it must be a string"),
    ],
)
def test_another_type_is_refused(name: str, value: Any, message: str) -> None:
    assert refusal({name: value}).startswith(message)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("Stream", "write streaming"),
        ("cumulativ_text", "write cumulative_text"),
        ("beam_width", "write sampling_param_best_of, with sampling_param_use_beam_search"),
        ("sequence_id", "leave it out; requests of this model stand alone"),
        ("TIMEOUT", "write timeout"),
        ("top_n_tokens", "write sampling_param_logprobs"),
        ("prompt_vocab_size", "the model's metadata lists them"),
        ("return_foo", "the model's metadata lists them"),
        ("zzz", "the model's metadata lists them"),
        ("", "the model's metadata lists them"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_right_one(name: str, instead: str) -> None:
    assert refusal({name: 1}).startswith(f"{name}: is not an input of this model; {instead}")


@pytest.mark.parametrize(("length", "shown"), [(64, "x" * 64), (65, "x" * 64 + "...")])
def test_of_a_long_unknown_name_the_beginning_is_shown(length: int, shown: str) -> None:
    assert refusal({"x" * length: 1}).startswith(f"{shown}: is not an input of this model; the mod")


def test_a_number_becomes_one_of_the_inputs_own_type() -> None:
    merged, _ = parameters.as_inputs({"top_p": 1, "seed": 7, "stop": "a"}, {}, DECLARED)
    assert {name: array.dtype.kind for name, array in merged.items()} == {
        "sampling_param_top_p": "f",
        "sampling_param_seed": "u",
        "sampling_param_stop": "O",
    }
    assert merged["sampling_param_seed"].dtype == DECLARED["sampling_param_seed"]


def test_a_timeout_below_zero_is_told_as_it_was_sent() -> None:
    assert parameters.read(request(timeout_us=2**64 - 5)) == {"timeout": -5}
