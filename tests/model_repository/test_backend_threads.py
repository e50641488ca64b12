"""The threads of Triton's Python backend: however few there are, responses go through."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.model_repository.conftest import MODEL_YAML, Serve

STREAMS = 256


@pytest.mark.parametrize(("threads", "senders"), [(1, 8), (4, 2)])
def test_all_of_many_streams_end_whole(start: Serve, threads: int, senders: int) -> None:
    model_yaml = MODEL_YAML.replace("true}", f"true, sender_threads: {senders}}}")
    option = f"python,thread-pool-size={threads}"
    served = start(model_yaml, options=["--backend-config", option])

    def words(index: int) -> list[str]:
        prompt = f"tokens=40 step_ms=5 name={index}"
        responses = served.client.ask(prompt, streaming=True, max_tokens=40)
        return "".join(response.text[0] for response in responses).split()

    with ThreadPoolExecutor(STREAMS) as pool:
        streamed = list(pool.map(words, range(STREAMS)))
    assert streamed == [[f"0:{token}" for token in range(40)]] * STREAMS
    served.wait_for_metrics({'requests_total{outcome="finished"}': STREAMS})
