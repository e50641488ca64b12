"""Tokens and their log probabilities as a client gets them, of what each release gives; no server.

Releases give every token a mapping of ids to scores, or in their simple format one number.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
from trtllm_model.deltas import OUTPUTS, TokenDeltas
from trtllm_model.request import Request


def deltas(streaming: bool = True, outputs: tuple[str, ...] = (), **sampling: Any) -> TokenDeltas:
    return TokenDeltas(Request("a prompt", sampling, streaming, outputs))


def sequence(*ids: int, **given: Any) -> SimpleNamespace:
    """One of the engine's, whose lists may be some steps ahead of what counts."""
    fields = {"logprobs": None, "prompt_logprobs": None, **given}
    return SimpleNamespace(token_ids=list(ids), length=len(ids), **fields)


def score(logprob: float, rank: int | None = None) -> SimpleNamespace:
    ranked = {} if rank is None else {"rank": rank}
    return SimpleNamespace(logprob=logprob, **ranked)


def read(found: dict[str, Any], name: str = "logprobs") -> Any:
    [document] = found[name]
    return json.loads(document)


def test_every_token_is_given_once() -> None:
    one, wanted = deltas(outputs=("output_ids",)), ("output_ids", "output_lengths")
    steps = [([5, 6], [9]), ([5, 6, 7], [9]), ([5, 6, 7], [9, 8])]
    found = [one.take([sequence(*a), sequence(*b)], [1], wanted) for a, b in steps]
    assert found == [
        {"output_ids": [5, 6, 9], "output_lengths": [2, 1]},
        {"output_ids": [7], "output_lengths": [1, 0]},
        {"output_ids": [8], "output_lengths": [0, 1]},
    ]


def test_a_list_that_is_ahead_counts_as_far_as_its_step() -> None:
    ahead = SimpleNamespace(token_ids=[5, 6, 7], length=2, logprobs=None, prompt_logprobs=None)
    one = deltas(outputs=("output_ids",))
    assert one.take([ahead], [1], ("output_ids",)) == {"output_ids": [5, 6]}


@pytest.mark.parametrize(("outputs", "waits"), [(("output_ids",), True), (("logprobs",), True)])
def test_new_tokens_wait_for_nobody_who_wants_them(outputs: tuple[str, ...], waits: bool) -> None:
    one = deltas(outputs=outputs)
    assert one.wait([sequence(5)]) is waits
    one.take([sequence(5)], [1], outputs)
    assert one.wait([sequence(5)]) is False
    assert one.wait([sequence(5, 6)]) is waits
    assert deltas(outputs=("finish_reason",)).wait([sequence(5)]) is False


@pytest.mark.parametrize(
    ("streaming", "excludes", "starts", "ids"),
    [
        (False, False, [1, 2], [7]),
        (False, True, [1, 2], [1, 2, 7]),
        (True, False, [1, 2], [1, 2, 7]),
        (False, False, [3, 2], [3, 2, 7]),  # no repetition of the prompt
    ],
)
def test_a_prompt_that_the_engine_repeats_is_no_part_of_the_answer(
    streaming: bool, excludes: bool, starts: list[int], ids: list[int]
) -> None:
    one = deltas(streaming, ("output_ids",), exclude_input_from_output=excludes)
    wanted = ("output_ids", "num_input_tokens", "num_output_tokens")
    found = one.take([sequence(*starts, 7)], [1, 2], wanted)
    assert found == {
        "output_ids": ids,
        "num_input_tokens": [2],
        "num_output_tokens": [len(ids)],
    }


def test_a_prompt_is_repeated_unless_a_request_that_asks_for_nothing_says_so() -> None:
    one = deltas(False, ("output_ids",))
    assert one.take([sequence(1, 7)], [1], ("output_ids",)) == {"output_ids": [1, 7]}


def test_nothing_is_made_that_nobody_wants() -> None:
    assert deltas().take([sequence(5)], [1], ("finish_reason",)) == {}


def test_a_score_has_its_token_and_the_likeliest_ones_instead() -> None:
    scores = [{5: score(-0.5, 2), 6: score(-0.1, 1), 7: score(-3.0, 3)}, {8: score(-0.2)}]
    one = deltas(outputs=("logprobs",), logprobs=2)
    assert read(one.take([sequence(5, 8, logprobs=scores)], [1], ("logprobs",))) == [
        {
            "token_id": 5,
            "logprob": -0.5,
            "rank": 2,
            "top": [
                {"token_id": 6, "logprob": -0.1, "rank": 1},
                {"token_id": 5, "logprob": -0.5, "rank": 2},
            ],
        },
        {"token_id": 8, "logprob": -0.2, "top": [{"token_id": 8, "logprob": -0.2}]},
    ]


def test_scores_are_those_of_the_new_tokens() -> None:
    one, scores = deltas(outputs=("logprobs",), logprobs=0), [-0.1, -0.2, -0.3]
    first = read(one.take([sequence(5, logprobs=scores[:1])], [1], ("logprobs",)))
    rest = read(one.take([sequence(5, 6, 7, logprobs=scores)], [1], ("logprobs",)))
    assert first == [{"token_id": 5, "logprob": -0.1}]
    assert rest == [{"token_id": 6, "logprob": -0.2}, {"token_id": 7, "logprob": -0.3}]


def test_scores_begin_after_a_prompt_that_the_engine_repeats() -> None:
    """It scores the generated tokens alone, wherever those begin."""
    one = deltas(False, ("logprobs",), exclude_input_from_output=False, logprobs=0)
    given = sequence(1, 2, 5, 6, logprobs=[-0.1, -0.2])
    found = read(one.take([given], [1, 2], ("logprobs",)))
    assert found == [{"token_id": 5, "logprob": -0.1}, {"token_id": 6, "logprob": -0.2}]


def test_scores_go_on_where_the_last_ones_ended_in_each_sequence() -> None:
    one = deltas(outputs=("logprobs",), logprobs=0)
    one.take([sequence(5, logprobs=[-0.1]), sequence(7, 8, logprobs=[-0.3, -0.4])], [1], OUTPUTS)
    both = [sequence(5, 6, logprobs=[-0.1, -0.2]), sequence(7, 8, logprobs=[-0.3, -0.4])]
    first, second = one.take(both, [1], ("logprobs", "num_output_tokens"))["logprobs"]
    assert json.loads(first) == [{"token_id": 6, "logprob": -0.2}]
    assert json.loads(second) == []


def test_a_token_whose_own_score_is_not_given_has_the_others() -> None:
    one = deltas(outputs=("logprobs",), logprobs=1)
    [found] = read(one.take([sequence(5, logprobs=[{6: score(-0.1)}])], [1], ("logprobs",)))
    assert found == {"token_id": 5, "top": [{"token_id": 6, "logprob": -0.1}]}


def test_what_json_cannot_write_is_null_and_ranks_last() -> None:
    """The log of a probability that the engine rounds to 0, or that it does not give."""
    scores = {5: score(-math.inf), 6: -0.5, 7: score(math.nan)}
    one = deltas(outputs=("logprobs",), logprobs=3)
    [found] = read(one.take([sequence(5, logprobs=[scores])], [1], ("logprobs",)))
    assert found["logprob"] is None
    assert found["top"][0] == {"token_id": 6, "logprob": -0.5}
    assert [row["logprob"] for row in found["top"]] == [-0.5, None, None]


def test_scores_of_the_prompt_come_once_with_the_first_response() -> None:
    scores = [{5: score(-0.5, 2), 6: score(-0.1, 1)}, -0.7]
    one, wanted = deltas(outputs=("prompt_logprobs",), prompt_logprobs=2), ("prompt_logprobs",)
    assert one.take([sequence(5)], [1], wanted) == {}
    found = one.take([sequence(5, 6, prompt_logprobs=scores)], [1], wanted)
    assert read(found, "prompt_logprobs") == [
        [
            {"token_id": 6, "logprob": -0.1, "rank": 1},
            {"token_id": 5, "logprob": -0.5, "rank": 2},
        ],
        [{"logprob": -0.7}],
    ]
    assert one.take([sequence(5, 6, 7, prompt_logprobs=scores)], [1], wanted) == {}


def test_a_release_that_gives_no_scores_leaves_none() -> None:
    one = deltas(outputs=("logprobs",), logprobs=1)
    assert read(one.take([sequence(5)], [1], ("logprobs",))) == []
