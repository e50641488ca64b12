"""The next token follows the parameters of the request."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from tensorrt_llm import SamplingParams
from tensorrt_llm.results import CompletionOutput
from tensorrt_llm.sampling import Sampler
from tests.reference.conftest import EngineOf

LOGITS = torch.tensor([2.0, 1.0, 0.5, -1.0, -3.0])


def draws(count: int = 4000, output: list[int] | None = None, **params: Any) -> Counter[int]:
    sampler = Sampler(SamplingParams(**params), [], frozenset({0}), seed=0)
    return Counter(sampler.choose(LOGITS, output or [])[0] for _ in range(count))


def assert_frequencies(counts: Counter[int], probabilities: torch.Tensor) -> None:
    total = counts.total()
    for token, probability in enumerate(probabilities.tolist()):
        deviation = math.sqrt(probability * (1 - probability) / total)
        assert abs(counts[token] / total - probability) <= 4.5 * deviation


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.0}])
def test_greedy_takes_the_likeliest_token(params: dict[str, Any]) -> None:
    assert set(draws(20, **params)) == {0}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_as_often_as_the_temperature_says(temperature: float) -> None:
    expected = (LOGITS / temperature).softmax(dim=-1)
    assert_frequencies(draws(temperature=temperature), expected)


def test_top_k_keeps_the_likeliest_tokens() -> None:
    expected = torch.zeros(5)
    expected[:2] = LOGITS[:2].softmax(dim=-1)
    assert_frequencies(draws(top_k=2), expected)


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    # softmax: 0.60, 0.22, 0.13, ...; 0.7 needs the first two.
    assert set(draws(top_p=0.7)) == {0, 1}
    assert set(draws(top_p=0.5)) == {0}


def test_min_p_drops_tokens_far_below_the_likeliest() -> None:
    assert set(draws(temperature=1.0, min_p=0.2)) == {0, 1, 2}


def test_a_seed_decides_every_draw() -> None:
    params = SamplingParams(temperature=1.0)
    first, same, other = (Sampler(params, [], frozenset(), seed) for seed in (1, 1, 2))
    drawn = [[s.choose(LOGITS, [])[0] for _ in range(50)] for s in (first, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_penalties_lower_tokens_that_were_there() -> None:
    assert draws(1, output=[0], repetition_penalty=4.0) == {1: 1}
    assert draws(1, output=[0], presence_penalty=1.5) == {1: 1}
    assert draws(1, output=[0, 0, 0], frequency_penalty=0.5) == {1: 1}
    assert draws(1, output=[0], frequency_penalty=0.5) == {0: 1}


def test_a_repetition_penalty_lowers_negative_logits_too() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=2.0), [], frozenset(), 0)
    assert sampler.choose(torch.tensor([-1.0, -1.5]), [0])[0] == 1


def test_penalties_count_the_prompt_unless_its_length_is_ignored() -> None:
    for ignored, token in ((0, 1), (1, 0)):
        params = SamplingParams(presence_penalty=1.5, prompt_ignore_length=ignored)
        assert Sampler(params, [0], frozenset(), 0).choose(LOGITS, [])[0] == token


def test_end_tokens_wait_for_min_tokens() -> None:
    assert draws(1, output=[3], min_tokens=2) == {1: 1}
    assert draws(1, output=[3, 3], min_tokens=2) == {0: 1}


def test_bad_tokens_are_never_chosen() -> None:
    assert set(draws(200, temperature=1.0, bad_token_ids=[0, 1])) == {2, 3, 4}


def test_log_probabilities_are_those_of_the_model() -> None:
    params = SamplingParams(temperature=0.1, bad_token_ids=[0])
    _, logprobs = Sampler(params, [], frozenset(), 0).choose(LOGITS, [])
    assert torch.equal(logprobs, LOGITS.log_softmax(dim=-1))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"top_p": 1.5}, "top_p must be from 0 to 1"),
        ({"top_k": -1}, "top_k must be at least 0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"n": 3, "best_of": 2, "top_k": 5}, "best_of must be >= n"),
        ({"n": 2}, "greedy decoding gives one text only"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be above 0"),
    ],
)
def test_parameters_are_checked(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**params)


def test_an_unknown_parameter_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="max_token"):
        SamplingParams(max_token=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "params",
    [
        {"use_beam_search": True},
        {"best_of": 2, "top_k": 5},
        {"embedding_bias": torch.zeros(4)},
    ],
)
def test_what_the_reference_engine_cannot_do_is_refused(
    engine: EngineOf, params: dict[str, Any]
) -> None:
    name = next(iter(params))
    with pytest.raises(ValueError, match=f"{name}: not supported by the reference engine"):
        engine().generate_async("a", SamplingParams(**params))


def completion(engine: EngineOf, **params: Any) -> CompletionOutput:
    output = engine().generate_async("Once upon a", SamplingParams(**params)).result(60)
    return output.outputs[0]


def test_no_seed_gives_different_texts(engine: EngineOf) -> None:
    assert len({completion(engine, temperature=1.5).text for _ in range(4)}) > 1


def test_log_probabilities_are_finite_and_ranked(engine: EngineOf) -> None:
    found = completion(engine, max_tokens=12, temperature=1.0, seed=4, logprobs=3)
    assert len(found.logprobs) == found.length == 12
    for token, entries in zip(found.token_ids, found.logprobs, strict=True):
        assert token in entries
        assert 3 <= len(entries) <= 4
        values = [entry.logprob for entry in entries.values() if (entry.rank or 9) <= 3]
        assert values == sorted(values, reverse=True)
        assert all(math.isfinite(value) and value <= 0 for value in values)
    chosen = [
        entries[token].logprob
        for token, entries in zip(found.token_ids, found.logprobs, strict=True)
    ]
    assert found.cumulative_logprob == pytest.approx(sum(chosen))


def test_prompt_log_probabilities_score_the_tokens_that_follow(engine: EngineOf) -> None:
    llm = engine()
    prompt = llm.tokenizer.encode("the house by the river")
    output = llm.generate_async(prompt, SamplingParams(max_tokens=1, prompt_logprobs=2)).result(60)
    scored = output.outputs[0].prompt_logprobs
    assert len(scored) == len(prompt)
    assert all(token in entries for token, entries in zip(prompt[1:], scored[:-1], strict=True))


def test_min_tokens_delays_the_end(engine: EngineOf) -> None:
    first = completion(engine, max_tokens=1).token_ids[0]
    assert completion(engine, max_tokens=8, stop_token_ids=[first]).length == 0
    later = completion(engine, max_tokens=8, stop_token_ids=[first], min_tokens=3)
    assert later.length >= 3


def test_the_end_token_ends_the_text_unless_it_is_ignored(engine: EngineOf) -> None:
    whole = completion(engine, max_tokens=8).token_ids
    end = whole[3]
    cut = completion(engine, max_tokens=8, end_id=end)
    assert cut.token_ids == whole[: whole.index(end) + 1]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", None)
    assert completion(engine, max_tokens=8, end_id=end, ignore_eos=True).token_ids == whole
    assert completion(engine, max_tokens=8, end_id=-1).token_ids == whole


def test_a_stop_string_that_spans_tokens_ends_the_text(engine: EngineOf) -> None:
    whole = completion(engine, max_tokens=12).text
    words = whole.split()
    stop = f"{words[4][-2:]} {words[5][:2]}"
    cut = completion(engine, max_tokens=12, stop=["never there", stop])
    assert cut.text == whole[: whole.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    with_stop = completion(engine, max_tokens=12, stop=stop, include_stop_str_in_output=True)
    assert with_stop.text == cut.text + stop
