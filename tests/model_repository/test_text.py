"""Streamed text: joined it is the engine's final text, and no token costs more than the first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from trtllm_model.deltas import TextDeltas

from tests.model_repository.conftest import Served

WORLD = "héllo_世界_🚀_👩‍👩‍👧‍👦_é_الدالة_𝔘𝔫𝔦"  # noqa: RUF001 - joined and combining characters on purpose


def joined(served: Served, prompt: str, **asked: Any) -> str:
    responses = served.client.ask(prompt, streaming=True, **asked)
    return "".join(response.text[0] for response in responses)


def test_characters_split_over_tokens_arrive_whole(served: Served) -> None:
    length = len(WORLD.encode())
    prompt = f"text={WORLD} split=1 tokens={length} step_ms=1"
    responses = served.client.ask(prompt, streaming=True, max_tokens=length)
    assert "".join(response.text[0] for response in responses) == WORLD
    assert not any("\ufffd" in response.text[0] for response in responses)


def test_a_text_that_ends_within_a_character_ends_as_the_engines_does(served: Served) -> None:
    prompt = "text=世界 split=1 tokens=5 step_ms=1"
    [whole] = served.client.ask(prompt)
    assert joined(served, prompt) == whole.text[0] == "世\ufffd"


def test_joined_deltas_of_a_long_output_are_the_final_text(served: Served) -> None:
    prompt = f"text={WORLD} tokens=2000"
    [whole] = served.client.ask(prompt, max_tokens=2000)
    assert joined(served, prompt, max_tokens=2000).encode() == whole.text[0].encode()
    assert len(whole.text[0].split()) == 2000


def test_the_beginning_of_a_stop_word_waits_for_its_end(served: Served) -> None:
    prompt = "text=one_two_END_OF_TEXT tokens=5 step_ms=1"
    [whole] = served.client.ask(prompt, sampling_param_stop=["END OF TEXT"])
    assert joined(served, prompt, sampling_param_stop=["END OF TEXT"]) == whole.text[0]
    assert whole.text[0] == "one two "


def test_a_stop_word_that_is_to_be_in_the_text_waits_for_nothing(served: Served) -> None:
    asked = {"sampling_param_stop": ["END OF TEXT"], "include_stop_str_in_output": True}
    streamed = joined(served, "text=one_two_END_OF_TEXT tokens=5 step_ms=40", **asked)
    assert streamed.startswith("one two END OF")


@pytest.mark.parametrize("streaming", [True, False])
def test_a_text_may_end_with_any_character(served: Served, streaming: bool) -> None:
    responses = served.client.ask("text=a\0 tokens=2 step_ms=40", streaming=streaming)
    assert "".join(response.text[0] for response in responses) == "a\0 a\0"


@pytest.mark.parametrize("streaming", [True, False])
def test_cumulative_text_is_there_for_clients_that_ask(served: Served, streaming: bool) -> None:
    parameters = {"cumulative_text": True}
    responses = served.client.ask("tokens=3 step_ms=20", streaming=streaming, parameters=parameters)
    texts = [response.text[0] for response in responses]
    assert texts[-1] == "0:0 0:1 0:2"
    assert all(texts[-1].startswith(text) for text in texts)
    assert (len(texts) > 1) == streaming


def test_http_takes_the_parameter_beside_the_inputs_too(served: Served) -> None:
    inputs = {"text_input": "tokens=2 step_ms=20", "streaming": True}
    for body in ({"cumulative_text": True}, {"parameters": {"cumulative_text": True}}):
        response = served.client.generate_stream(**inputs, **body)
        assert '"text_output":"0:0 0:1"' in response.text


def test_bytes_on_the_wire_per_token_do_not_grow_with_length(served: Served) -> None:
    sizes = message_sizes(served, "tokens=2000 text=word step_ms=1", max_tokens=2000)
    beside_text = [size - text for size, text in sizes]
    assert sum(text for _, text in sizes) == len(" ".join(["word"] * 2000))
    assert max(beside_text[:-1]) - min(beside_text[:-1]) <= 4, "lengths take more bytes"


def message_sizes(served: Served, prompt: str, **asked: Any) -> list[tuple[int, int]]:
    """Bytes of each message, and of the text in it."""
    request = served.client.request(prompt, streaming=True, **asked)
    with grpc.insecure_channel(served.client.grpc_url) as channel:
        call = GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request]), timeout=60)
        return [
            (message.ByteSize(), len(message.infer_response.raw_output_contents[0]) - 4)
            for message in call
        ]


def sequence(text: str, ended: bool = False) -> SimpleNamespace:
    return SimpleNamespace(text=text, finish_reason="stop" if ended else None)


def taken(steps: list[str], stops: tuple[str, ...] = ()) -> list[str]:
    """What each step of one sequence gives; with the last one it ends."""
    deltas = TextDeltas(stops)
    last = len(steps) - 1
    return [deltas.take([sequence(text, i == last)])[0] for i, text in enumerate(steps)]


@pytest.mark.parametrize(
    ("steps", "stops", "parts"),
    [
        (["a", "ab", "abc"], (), ["a", "b", "c"]),
        (["a\ufffd", "a世"], (), ["a", "世"]),
        (["a\ufffd\ufffd", "a\ufffd\ufffd"], (), ["a", "\ufffd\ufffd"]),
        (["ab", "abX", "abXz"], ("XY",), ["ab", "", "Xz"]),
        (["abX", "ab"], ("XY",), ["ab", ""]),
        (["aXX", "aXXYa", "a"], ("XY",), ["aX", "XYa", ""]),
        (["aST", "aSTO", "aSTOx"], ("STOP", "TOP"), ["a", "", "STOx"]),
        (["abc", "ab"], (), ["abc", ""]),
        (["abc", "a", "abcd"], (), ["abc", "", "d"]),
    ],
)
def test_what_the_engine_may_take_back_is_kept(
    steps: list[str], stops: tuple[str, ...], parts: list[str]
) -> None:
    assert taken(steps, stops) == parts
