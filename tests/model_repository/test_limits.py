"""Limits of the Triton model: what is above one is refused at once, and says whether to retry."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.model_repository.conftest import Serve, Served

LIMITED = """
triton_config:
  max_batch_size: 0
  decoupled: true
  cancellation_check_period_ms: 50
  max_requests: 4
  max_tokens_per_request: 2000
  max_seconds_per_request: 1.5
model: some/checkpoint
"""


@pytest.fixture(scope="module")
def limited(start: Serve) -> Served:
    return start(LIMITED)


@pytest.fixture(autouse=True)
def idle_before(limited: Served) -> Iterator[None]:
    """No earlier request still has a place, which metrics of a moment ago would not say."""
    deadline_s = time.monotonic() + 10
    while not is_idle(limited):
        assert time.monotonic() < deadline_s
    yield


def is_idle(limited: Served) -> bool:
    metrics = limited.metrics()
    running = metrics["requests_running"] + metrics["requests_waiting"]
    ended = sum(metrics[f'requests_total{{outcome="{how}"}}'] for how in ("finished", "cancelled"))
    return running == 0 and ended == len(limited.events("submit"))


def test_a_request_above_the_limit_is_refused_at_once_and_may_be_retried(limited: Served) -> None:
    prompts = [f"tokens=1000 step_ms=10 name=full-{index}" for index in range(4)]
    streams = [limited.client.stream(prompt, streaming=True, max_tokens=1000) for prompt in prompts]
    for responses in streams:
        next(responses)
    error = limited.client.refusal("tokens=1")
    assert error == "4 requests are running or waiting, no more may; retry later"
    # Triton 2.51 gives every error of a model on this path the status 400.
    response = limited.client.generate(text_input="tokens=1")
    assert response.status_code in (400, 503)
    assert "retry later" in response.text
    for responses in streams:
        responses.close()
    for prompt in prompts:
        limited.wait_for("abort", prompt)
    assert limited.client.ask("tokens=1")


def test_a_crowd_is_served_up_to_the_limit_and_refused_above(limited: Served) -> None:
    def one(index: int) -> str:
        prompt = f"tokens=10 step_ms=50 name=crowd-{index}"
        return list(limited.client.stream(prompt, streaming=True))[-1].error

    with ThreadPoolExecutor(12) as pool:
        errors = list(pool.map(one, range(12)))
    served = errors.count("")
    assert served >= 4
    assert all("retry later" in error for error in errors if error)
    assert len([e for e in limited.events("submit") if "name=crowd-" in e["prompt"]]) == served


def test_more_tokens_than_allowed_are_the_clients_fault(limited: Served) -> None:
    error = limited.client.refusal("tokens=1", max_tokens=2001)
    assert error == "sampling_param_max_tokens: is 2001; this server allows at most 2000"
    assert limited.client.ask("tokens=1", max_tokens=2000)


def test_a_request_that_takes_too_long_is_aborted(limited: Served) -> None:
    prompt = "tokens=1000 step_ms=20 name=slow"
    before_s = time.monotonic()
    *parts, last = limited.client.stream(prompt, streaming=True, max_tokens=1000)
    assert last.error == "the request took longer than its limit of 1.5 s"
    assert len(parts) > 10
    assert time.monotonic() - before_s > 1.4
    limited.wait_for("abort", prompt)


def test_a_cancelled_request_makes_room(limited: Served) -> None:
    for round_ in range(3):
        prompts = [f"tokens=1000 step_ms=10 name=room-{round_}-{index}" for index in range(4)]
        for prompt in prompts:
            with closing(limited.client.stream(prompt, streaming=True, max_tokens=1000)) as stream:
                next(stream)
        for prompt in prompts:
            limited.wait_for("abort", prompt)
    assert limited.client.ask("tokens=1")
