"""A record is judged by what its stream said: final mark, counts, deltas or whole texts."""

from __future__ import annotations

import json

import pytest

from launch.bench.clients.openai_sse import OpenAITranscript
from launch.bench.clients.transcript import Transcript
from launch.bench.clients.triton import TritonTranscript
from launch.bench.request import LoadRequest, RequestRecord

Messages = list[tuple[str, int | None]]


def judged(messages: Messages, ask: LoadRequest | None = None, **fields: object) -> RequestRecord:
    """A transcript of texts with their counts so far, final unless told otherwise."""
    transcript = Transcript(ask or LoadRequest("Hi", 10, keep_text=True))
    transcript.may_be_cumulative = True
    transcript.messages = [(at, text, count) for at, (text, count) in enumerate(messages, 1)]
    transcript.is_final = True
    transcript.finish_reason = "length"
    for name, value in fields.items():
        setattr(transcript, name, value)
    return transcript.record(0, 9)


def test_deltas_are_joined() -> None:
    record = judged([("a", None), ("b", None), ("", None)], output_tokens=2)
    assert record.failure is None
    assert (record.text, record.message_ns) == ("ab", (1, 2))


def test_whole_texts_are_told_from_deltas() -> None:
    record = judged([("a", None), ("a b", None), ("a b", None), ("a b c", None)])
    assert (record.text, record.message_ns) == ("a b c", (1, 2, 4))


def test_a_repeated_delta_is_no_whole_text() -> None:
    record = judged([("ha", None), ("ha", None), ("ha", None)])
    assert (record.text, record.message_ns) == ("hahaha", (1, 2, 3))


def test_counts_so_far_become_tokens_of_each_message() -> None:
    record = judged([("a", 2), ("bc", 5), ("", 6)], output_tokens=6)
    assert record.message_tokens == (2, 3, 1)
    assert record.last_token_ns == 3


def test_as_many_tokens_as_messages_are_one_in_each() -> None:
    assert judged([("a", None), ("b", None)], output_tokens=2).message_tokens == (1, 1)
    assert judged([("a", None), ("b", None)], output_tokens=5).message_tokens == ()
    assert judged([("a", None), ("b", None)]).message_tokens == ()


EXACT = LoadRequest("Hi", 10, ignore_eos=True)


@pytest.mark.parametrize(
    ("ask", "messages", "count", "reason"),
    [
        (None, [("a", None)], 11, "length"),
        (EXACT, [("a", None)], 9, "stop"),
        (EXACT, [("a", None)], None, "stop"),
        (None, [("a", 1), ("b", 2)], 3, "length"),
    ],
    ids=["more than allowed", "fewer than due", "ended early, uncounted", "told otherwise"],
)
def test_a_wrong_count_is_no_success(
    ask: LoadRequest | None, messages: Messages, count: int | None, reason: str
) -> None:
    record = judged(messages, ask, output_tokens=count, finish_reason=reason)
    assert record.failure is not None
    assert record.failure.kind == "wrong_count"


def test_a_stream_without_its_final_mark_is_no_success() -> None:
    record = judged([("a", None)], is_final=False, output_tokens=1)
    assert record.failure is not None
    assert record.failure.kind == "unfinished"


def test_the_first_failure_stays() -> None:
    transcript = Transcript(LoadRequest("Hi"))
    transcript.fail("in_stream", "first")
    transcript.fail("overrun", "second")
    failure = transcript.record(0, 1, 200).failure
    assert failure is not None
    assert (failure.kind, failure.message) == ("in_stream", "first")


def told(api: str, *events: object) -> RequestRecord:
    """The record of a stream of these events, whatever they are."""
    made = {"openai": OpenAITranscript, "triton": TritonTranscript}[api]
    transcript = made(LoadRequest("Hi", 8, keep_text=True))
    for at, event in enumerate(events, 1):
        transcript.take(at, json.dumps(event).encode())
    transcript.end()
    return transcript.record(0, 99)


def choice(**fields: object) -> dict[str, object]:
    return {"choices": [{"text": "a", **fields}]}


NO_OBJECTS: tuple[object, ...] = (5, "x", [1])
NO_CHOICES: tuple[object, ...] = (5, "x", {"a": 1}, [5], [None], ["x"], [[]], True)
NO_TEXTS: tuple[object, ...] = (5, {"a": 1}, ["a"], True)


@pytest.mark.parametrize(
    "event",
    [
        *({"choices": value} for value in NO_CHOICES),
        *(choice(text=value) for value in NO_TEXTS),
        *(choice(text=None, delta=value) for value in NO_OBJECTS),
        *(choice(text=None, delta={"content": value}) for value in NO_TEXTS),
        choice(text=None, delta={"reasoning": 5}),
        *(choice(finish_reason=value) for value in NO_TEXTS),
        *({"usage": value} for value in NO_OBJECTS),
        *({"usage": {"prompt_tokens_details": value}} for value in NO_OBJECTS),
        choice(token_ids=5),
    ],
    ids=str,
)
def test_an_event_of_another_form_fails_its_request(event: object) -> None:
    record = told("openai", event)
    assert record.failure is not None
    assert record.failure.kind == "malformed"


@pytest.mark.parametrize("value", [True, "nan", "1e999", float("inf"), [1], {"a": 1}, "x", 10**400])
def test_a_figure_that_is_no_number_is_left_out(value: object) -> None:
    steps = choice(finish_reason="length", avg_decoded_tokens_per_iter=value)
    assert told("openai", steps).server == {}
    rows = {"text_output": "a", "finish_reason": "length", "acceptance_rate": value}
    assert "acceptance_rate" not in told("triton", rows | {"acceptance_rate": [value]}).server


@pytest.mark.parametrize("value", [5, {"a": 1}, ["x", 1], [[]]])
def test_an_output_of_triton_that_is_no_text_fails_its_request(value: object) -> None:
    record = told("triton", {"text_output": [value]})
    assert record.failure is not None
    assert record.failure.kind == "malformed"
