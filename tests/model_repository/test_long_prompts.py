"""Prompts of 100,000 tokens: served within the engine's limit, refused above it, felt by nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.model_repository.conftest import Served

pytestmark = pytest.mark.alone

WORDS = " word" * 100_000
PROMPT = f"tokens=3 input=100000 tokenize_ms=500 name={{}}{WORDS}"
TOO_LONG = f"tokens=3 input=200000 name={{}}{WORDS}{WORDS}"
STEP_S = 0.01
# The whole of a prompt is copied a few times on its way, in the same processes.
LONGEST_GAP_S = 0.2


def over_grpc(served: Served, prompt: str) -> str:
    """The answer, or the error."""
    [response] = served.client.stream(prompt)
    return response.error or response.text[0]


def over_http(served: Served, prompt: str) -> str:
    answer = served.client.generate(text_input=prompt).json()
    return str(answer.get("error") or answer["text_output"])


TRANSPORTS = [over_grpc, over_http]
Ask = Callable[[Served, str], str]


def gaps_s(served: Served, name: str, tokens: int) -> Iterator[float]:
    """The times between the responses of a stream of a token every 10 ms."""
    prompt = f"tokens={tokens} step_ms={STEP_S * 1000} name={name}"
    last_s = None
    for _ in served.client.stream(prompt, streaming=True, max_tokens=tokens):
        now_s = time.monotonic()
        if last_s is not None:
            yield now_s - last_s
        last_s = now_s


@pytest.mark.parametrize("ask", TRANSPORTS)
def test_a_long_prompt_is_served_while_streams_flow(served: Served, ask: Ask) -> None:
    name = ask.__name__
    with ThreadPoolExecutor(1) as pool:
        gaps = gaps_s(served, f"beside-{name}", 200)
        assert next(gaps) < LONGEST_GAP_S
        answer = pool.submit(ask, served, PROMPT.format(name))
        longest_s = max(gaps)
        assert answer.done()
    assert answer.result() == "0:0 0:1 0:2"
    assert longest_s < LONGEST_GAP_S
    served.wait_for("finish", PROMPT.format(name))


@pytest.mark.parametrize("ask", TRANSPORTS)
def test_a_prompt_above_the_engines_limit_is_refused_at_once(served: Served, ask: Ask) -> None:
    before_s = time.monotonic()
    error = ask(served, TOO_LONG.format(ask.__name__))
    assert time.monotonic() - before_s < 1
    assert "prompt length (200000)" in error
    assert "should not exceed max_num_tokens (131072)" in error
