"""The way of tokens to clients: none lost, none twice, in order, however fast they come."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.model_repository.conftest import Served
from tests.model_repository.triton_client import Response


def joined(responses: list[Response]) -> str:
    return "".join(response.text[0] for response in responses)


def words(count: int) -> str:
    return " ".join(f"0:{token}" for token in range(count))


def test_tokens_that_wait_leave_together(served: Served) -> None:
    responses = served.client.ask("tokens=2000", streaming=True, max_tokens=2000)
    assert len(responses) < 1000
    assert joined(responses) == words(2000)


def test_a_token_that_comes_alone_leaves_alone(served: Served) -> None:
    responses = served.client.ask("tokens=10 step_ms=50", streaming=True)
    assert [len(response.text[0].split()) for response in responses] == [1] * 10


@pytest.mark.parametrize("streams", [64])
def test_many_fast_streams_get_every_token_once_and_in_order(served: Served, streams: int) -> None:
    def one(index: int) -> str:
        prompt = f"tokens=300 per_step={1 + index % 3} name=fast-{index}"
        return joined(served.client.ask(prompt, streaming=True, max_tokens=300))

    with ThreadPoolExecutor(streams) as pool:
        assert set(pool.map(one, range(streams))) == {words(300)}


def test_a_client_that_does_not_read_holds_up_nobody_and_costs_little(served: Served) -> None:
    lazy = served.client.stream(
        "tokens=20000 per_step=2 name=lazy", streaming=True, max_tokens=20000, timeout_s=60
    )
    next(lazy)
    before_mib = served.memory_mib
    served.wait_for("finish", "tokens=20000 per_step=2 name=lazy", timeout_s=30)
    assert joined(served.client.ask("tokens=20 step_ms=5", streaming=True)) == words(20)
    assert served.memory_mib - before_mib < 64
    rest = list(lazy)
    assert rest[-1].final
    assert rest[-1].text[0].endswith("0:19999")
