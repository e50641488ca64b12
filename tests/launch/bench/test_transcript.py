"""A record is judged by what its stream said: final mark, counts, deltas or whole texts."""

from __future__ import annotations

import pytest

from launch.bench.clients.transcript import Transcript
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
