"""A request gives its result in steps, to threads and to coroutines, and can be ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorrt_llm import LLM, SamplingParams
from tensorrt_llm.llmapi import RequestError
from tensorrt_llm.logger import logger
from tests.reference.conftest import DEEPSEEK, LLAMA, EngineOf, mtp

PROMPT = "Once upon a time there was"
LONG = SamplingParams(max_tokens=100_000, ignore_eos=True)


def steps(llm: LLM, params: SamplingParams, **more: Any) -> list[tuple[str, list[int], str]]:
    """Text so far, new tokens and new text of every step, read by a coroutine."""

    async def read() -> list[tuple[str, list[int], str]]:
        seen = []
        async for output in llm.generate_async(PROMPT, params, streaming=True, **more):
            completion = output.outputs[0]
            seen.append((completion.text, completion.token_ids_diff, completion.text_diff))
        return seen

    return asyncio.run(read())


@pytest.mark.parametrize(
    "params",
    [
        {"max_tokens": 30, "ignore_eos": True},
        {"max_tokens": 30, "temperature": 1.2, "seed": 5},
        {"max_tokens": 30, "stop": [" the", "er"]},
    ],
)
def test_streamed_parts_add_up_to_the_whole_answer(
    engine: EngineOf, params: dict[str, Any]
) -> None:
    llm = engine()
    whole = llm.generate_async(PROMPT, SamplingParams(**params)).result(60).outputs[0]
    seen = steps(llm, SamplingParams(**params))
    assert "".join(text for _, _, text in seen) == whole.text == seen[-1][0]
    assert [token for _, tokens, _ in seen for token in tokens] == whole.token_ids


def test_without_streaming_there_is_one_step(engine: EngineOf) -> None:
    request = engine().generate_async(PROMPT, SamplingParams(max_tokens=9, ignore_eos=True))
    assert [output.outputs[0].length for output in request] == [9]
    assert request.finished


def test_a_consumer_that_comes_late_misses_nothing(engine: EngineOf) -> None:
    llm = engine()
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    early = llm.generate_async(PROMPT, params, streaming=True)
    llm.generate_async(PROMPT, SamplingParams(max_tokens=25, ignore_eos=True)).result(60)
    seen = "".join(output.outputs[0].text_diff for output in early)
    assert seen == early.outputs[0].text


def test_the_stream_interval_thins_out_the_steps(engine: EngineOf) -> None:
    llm = engine(stream_interval=4)
    seen = steps(llm, SamplingParams(max_tokens=10, ignore_eos=True))
    assert [len(tokens) for _, tokens, _ in seen] == [1, 3, 4, 2]


def test_prompts_are_text_tokens_or_a_mapping(engine: EngineOf) -> None:
    llm = engine()
    params = SamplingParams(max_tokens=4)
    tokens = llm.tokenizer.encode(PROMPT)
    given = [PROMPT, tokens, {"prompt": PROMPT}, {"prompt_token_ids": tokens}]
    outputs = [llm.generate_async(one, params).result(60) for one in given]
    assert {output.outputs[0].text for output in outputs} == {outputs[0].outputs[0].text}
    assert all(output.prompt_token_ids == tokens for output in outputs)


def test_several_completions_differ_and_keep_their_index(engine: EngineOf) -> None:
    params = SamplingParams(max_tokens=10, n=3, temperature=1.0, seed=1, ignore_eos=True)
    request = engine().generate_async(PROMPT, params, streaming=True)
    parts = {0: "", 1: "", 2: ""}
    for output in request:
        for completion in output.outputs:
            parts[completion.index] += completion.text_diff
    assert parts == {completion.index: completion.text for completion in request.outputs}
    assert len(set(parts.values())) == 3


def test_the_prompt_can_be_part_of_the_output(engine: EngineOf) -> None:
    params = SamplingParams(max_tokens=3, exclude_input_from_output=False, ignore_eos=True)
    output = engine().generate_async(PROMPT, params).result(60)
    completion = output.outputs[0]
    assert completion.token_ids[:-3] == output.prompt_token_ids
    assert completion.text.startswith(PROMPT)


def test_without_detokenizing_there_are_tokens_only(engine: EngineOf) -> None:
    output = engine().generate_async(PROMPT, SamplingParams(max_tokens=3, detokenize=False))
    assert output.result(60).outputs[0].text == ""
    assert output.outputs[0].length == 3


def test_a_prompt_can_be_cut_from_the_left(engine: EngineOf) -> None:
    params = SamplingParams(max_tokens=1, truncate_prompt_tokens=2)
    assert engine().generate_async([5, 6, 7, 8], params).result(60).prompt_token_ids == [7, 8]


def test_an_aborted_request_ends_as_cancelled(engine: EngineOf) -> None:
    request = engine().generate_async(PROMPT, LONG, streaming=True)
    for output in request:
        if output.outputs[0].length == 3:
            request.abort()
    assert request.aborted()
    assert request.finished
    assert request.outputs[0].finish_reason == "cancelled"


def test_a_request_can_be_aborted_while_it_waits(engine: EngineOf) -> None:
    llm = engine(max_batch_size=1)
    running = llm.generate_async(PROMPT, LONG, streaming=True)
    next(running)
    waiting = llm.generate_async(PROMPT, LONG)
    waiting.abort()
    assert waiting.result(60).outputs[0].finish_reason == "cancelled"
    assert waiting.outputs[0].length == 0
    running.abort()
    assert running.result(60).outputs[0].finish_reason == "cancelled"


def test_waiting_for_a_result_can_time_out(engine: EngineOf) -> None:
    request = engine().generate_async(PROMPT, LONG)
    with pytest.raises(TimeoutError):
        request.result(timeout=0.05)
    request.abort()
    request.result(60)


def test_a_prompt_beyond_max_num_tokens_is_refused_at_once(engine: EngineOf) -> None:
    with pytest.raises(RequestError, match=r"5 tokens is longer than max_num_tokens \(4\)"):
        engine(max_num_tokens=4).generate_async([5] * 5)
    chunked = engine(max_num_tokens=4, enable_chunked_prefill=True)
    assert chunked.generate_async([5] * 5, SamplingParams(max_tokens=2)).result(60).finished


def test_a_prompt_beyond_max_seq_len_fails_in_its_result(engine: EngineOf) -> None:
    request = engine(max_seq_len=8).generate_async([5] * 8)
    with pytest.raises(RequestError, match=r"leaves no room in max_seq_len \(8\)"):
        request.result(60)


def test_max_seq_len_cuts_the_output_with_a_warning(
    engine: EngineOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the engine does, whose log alone has a word of it."""
    said: list[str] = []
    monkeypatch.setattr(logger, "warning", lambda text, *values: said.append(text % values))
    llm = engine(max_seq_len=8)
    output = llm.generate_async([5] * 5, LONG).result(60)
    assert (output.outputs[0].length, output.outputs[0].finish_reason) == (3, "length")
    assert said == ["max_tokens 100000 is cut to the 3 that fit into max_seq_len"]
    for fits in (3, None):
        params = SamplingParams(max_tokens=fits, ignore_eos=True)
        assert llm.generate_async([5] * 5, params).result(60).outputs[0].length == 3
    assert len(said) == 1


@pytest.mark.parametrize(("prompt", "message"), [([], "no tokens"), ([10**6], "token ids outside")])
def test_a_prompt_that_cannot_be_is_refused(
    engine: EngineOf, prompt: list[int], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        engine().generate_async(prompt)


def test_a_fault_in_one_request_ends_that_request_only(engine: EngineOf) -> None:
    llm = engine()
    good = llm.generate_async(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True))
    bad = llm.generate_async(PROMPT, SamplingParams(bad_token_ids=[10**6]))
    with pytest.raises(RequestError, match="IndexError"):
        bad.result(60)
    assert good.result(60).outputs[0].length == 20
    assert llm._check_health()


class Fatal:
    """A tokenizer that takes the process down as a signal would."""

    eos_token_id = 1

    def decode(self, *arguments: Any, **options: Any) -> str:
        raise SystemExit("the tokenizer gave up")


def test_a_crash_of_the_loop_fails_every_request(
    make_miniature: Callable[[str], Path],
) -> None:
    llm = LLM(make_miniature(DEEPSEEK), tokenizer=Fatal())
    assert llm._check_health()
    requests = [llm.generate_async([5, 6, 7]) for _ in range(2)]
    for request in requests:
        with pytest.raises(RequestError, match="has crashed"):
            request.result(60)
    assert not llm._check_health()
    with pytest.raises(RequestError, match="has crashed"):
        llm.generate_async([5])
    llm.shutdown()


def test_shutting_down_fails_what_is_left(make_miniature: Callable[[str], Path]) -> None:
    llm = LLM(make_miniature(DEEPSEEK))
    request = llm.generate_async(PROMPT, LONG)
    llm.shutdown()
    with pytest.raises(RequestError, match="shut down"):
        request.result(60)
    assert not llm._check_health()
    llm.shutdown()


def test_perf_metrics_come_with_the_last_step(engine: EngineOf) -> None:
    llm = engine(DEEPSEEK, speculative_config=mtp(3), return_perf_metrics=True)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    request = llm.generate_async(PROMPT, params, streaming=True)
    assert next(request).outputs[0].request_perf_metrics is None
    metrics = request.result(60).outputs[0].request_perf_metrics
    assert metrics is not None
    timing, blocks = metrics.timing_metrics, metrics.kv_cache_metrics
    points = [
        timing.arrival_time,
        timing.first_scheduled_time,
        timing.first_token_time,
        timing.last_token_time,
    ]
    assert points == sorted(points)
    tokens = len(request.prompt_token_ids) + 40
    assert blocks.num_total_allocated_blocks == -(-tokens // 32)
    assert (blocks.num_reused_blocks, blocks.kv_cache_hit_rate) == (0, 0.0)
    drafts = metrics.speculative_decoding
    assert drafts.acceptance_rate == (
        drafts.total_accepted_draft_tokens / drafts.total_draft_tokens
    )


def test_perf_metrics_can_be_asked_for_by_one_request(engine: EngineOf) -> None:
    params = SamplingParams(max_tokens=2, return_perf_metrics=True)
    assert engine().generate_async(PROMPT, params).result(60).outputs[0].request_perf_metrics
    plain = engine().generate_async(PROMPT, SamplingParams(max_tokens=2)).result(60)
    assert plain.outputs[0].request_perf_metrics is None


def test_a_result_does_not_depend_on_what_else_runs(engine: EngineOf) -> None:
    llm = engine(DEEPSEEK)
    prompts = [f"{PROMPT} {word}" for word in ("a", "river", "and then", "house house", "x")]
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=2, stop=["er", "th"], logprobs=1)
    alone = [llm.generate_async(prompt, params).result(60).outputs[0] for prompt in prompts]
    together = [llm.generate_async(prompt, params) for prompt in prompts]
    aborted = llm.generate_async(PROMPT, LONG, streaming=True)
    next(aborted)
    aborted.abort()
    for one, request in zip(alone, together, strict=True):
        other = request.result(60).outputs[0]
        assert (other.token_ids, other.text) == (one.token_ids, one.text)
        assert (other.finish_reason, other.stop_reason) == (one.finish_reason, one.stop_reason)
    assert {completion.finish_reason for completion in alone} == {"stop"}
    assert aborted.result(60).outputs[0].finish_reason == "cancelled"


def test_a_fault_of_the_model_ends_what_runs_and_the_engine_goes_on(
    make_miniature: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(make_miniature(LLAMA)) as llm:
        with monkeypatch.context() as broken:
            broken.setattr(llm._model, "forward", lambda sequences: 1 / 0)
            requests = [llm.generate_async(PROMPT) for _ in range(2)]
            for request in requests:
                with pytest.raises(RequestError, match="ZeroDivisionError"):
                    request.result(60)
        params = SamplingParams(max_tokens=2, ignore_eos=True)
        assert llm.generate_async(PROMPT, params).result(60).outputs[0].length == 2


def test_no_more_than_max_batch_size_run_at_once(engine: EngineOf) -> None:
    llm = engine(max_batch_size=2, enable_iter_perf_stats=True)
    llm.get_stats()
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    for request in [llm.generate_async(PROMPT, params) for _ in range(5)]:
        request.result(60)
    stats = llm.get_stats()
    assert max(row["numActiveRequests"] for row in stats) == 2
    assert sum(row["numCompletedRequests"] for row in stats) == 5
    assert {row["engine"] for row in stats} == {"reference"}
    assert llm.get_stats() == []
