"""A record says what a client saw, and survives its way through requests.jsonl."""

from __future__ import annotations

import json

from launch.bench.record import Failure, Record

RECORD = Record(
    3,
    sent_ns=10,
    ended_ns=90,
    first_token_ns=20,
    last_token_ns=80,
    message_ns=(20, 50, 80),
    message_tokens=(1, 3, 1),
    output_tokens=5,
    count_source="usage",
    server={"acceptance_rate": 0.5},
    failure=Failure("cut", "the connection ended", retryable=True),
)


def test_a_record_comes_back_from_its_json() -> None:
    assert Record.from_json(json.loads(json.dumps(RECORD.as_json()))) == RECORD


def test_json_leaves_out_what_says_nothing() -> None:
    assert Record(0, sent_ns=1, ended_ns=2).as_json() == {
        "index": 0,
        "sent_ns": 1,
        "ended_ns": 2,
        "attempt": 0,
    }


def test_a_request_that_failed_is_not_ok() -> None:
    assert not RECORD.ok
    assert Record(0, sent_ns=1, ended_ns=2).ok
