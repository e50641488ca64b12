"""Prompts of 100,000 tokens: served within the engine's limit, refused above it, felt by nobody."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import takewhile

import pytest

from tests.model_repository.conftest import Served

WORDS = " word" * 100_000
PROMPT = f"tokens=3 input=100000 tokenize_ms=500 name={{}}{WORDS}"
TOO_LONG = f"tokens=3 input=200000 name={{}}{WORDS}{WORDS}"
STEP_S = 0.01
# Of the 50 steps that take as long as getting the tokens of the prompt does, on a busy machine.
STEPS_BESIDE = 10


def over_grpc(served: Served, prompt: str) -> str:
    """The answer, or the error."""
    [response] = served.client.stream(prompt)
    return response.error or response.text[0]


def over_http(served: Served, prompt: str) -> str:
    answer = served.client.generate(text_input=prompt).json()
    return str(answer.get("error") or answer["text_output"])


TRANSPORTS = [over_grpc, over_http]
Ask = Callable[[Served, str], str]


@pytest.mark.parametrize("ask", TRANSPORTS)
def test_a_long_prompt_is_served_while_streams_flow(served: Served, ask: Ask) -> None:
    beside = f"tokens=1000 step_ms={STEP_S * 1000} name=beside-{ask.__name__}"
    prompt = PROMPT.format(ask.__name__)
    stream = served.client.stream(beside, streaming=True, max_tokens=1000)
    with ThreadPoolExecutor(1) as pool, closing(stream):
        next(stream)
        answer = pool.submit(ask, served, prompt)
        steps = sum(1 for _ in takewhile(lambda _: not answer.done(), stream))
    assert answer.result() == "0:0 0:1 0:2"
    assert steps >= STEPS_BESIDE
    served.wait_for("finish", prompt)


@pytest.mark.parametrize("ask", TRANSPORTS)
def test_a_prompt_above_the_engines_limit_is_refused(served: Served, ask: Ask) -> None:
    error = ask(served, TOO_LONG.format(ask.__name__))
    assert "prompt length (200000)" in error
    assert "should not exceed max_num_tokens (131072)" in error
