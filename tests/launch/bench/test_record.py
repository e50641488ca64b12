"""A record says what a client saw, and becomes a line of requests.jsonl."""

from __future__ import annotations

import json

from launch.bench.request import Failure, RequestRecord

RECORD = RequestRecord(
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


def test_json_has_what_a_client_saw_but_for_the_many_arrivals() -> None:
    assert json.loads(json.dumps(RECORD.packed().as_json())) == {
        "index": 3, "sent_ns": 10, "ended_ns": 90, "first_token_ns": 20, "last_token_ns": 80,
        "output_tokens": 5, "count_source": "usage", "server": {"acceptance_rate": 0.5},
        "failure": {"kind": "cut", "message": "the connection ended", "retryable": True},
        "attempt": 0,
    }  # fmt: skip


def test_packed_arrivals_are_the_same_arrivals() -> None:
    assert list(RECORD.packed().message_ns) == [20, 50, 80]
    assert list(RECORD.packed().message_tokens) == [1, 3, 1]


def test_json_leaves_out_what_says_nothing() -> None:
    assert RequestRecord(0, sent_ns=1, ended_ns=2).as_json() == {
        "index": 0,
        "sent_ns": 1,
        "ended_ns": 2,
        "attempt": 0,
    }


def test_a_request_that_failed_is_not_ok() -> None:
    assert not RECORD.ok
    assert RequestRecord(0, sent_ns=1, ended_ns=2).ok
