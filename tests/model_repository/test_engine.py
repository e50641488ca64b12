"""What the model asks of an engine, whose releases have more or fewer of it; no server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from trtllm_model.chat import Chat
from trtllm_model.engine import LlmEngine, blames_request
from trtllm_model.inputs import RequestError
from trtllm_model.request import Request

from tests.model_repository.conftest import ENGINE_STUB
from tests.model_repository.in_process import imported_anew

SAMPLING: dict[str, Any] = {"best_of": 1}


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The scripted engine's package, of which a test may change what another release has not."""
    monkeypatch.syspath_prepend(ENGINE_STUB)
    with imported_anew("tensorrt_llm"):
        import tensorrt_llm.llmapi

        yield tensorrt_llm


def request(prompt: Any = "tokens=1", streaming: bool = False, **fields: Any) -> Request:
    sampling = {**SAMPLING, **fields.pop("sampling", {})}
    return Request(prompt, sampling, streaming, (), **fields)


def engine(release: Any, most: int | None = None, **options: Any) -> LlmEngine:
    return LlmEngine({"model": "some/checkpoint", **options}, most)


def refusal(one: LlmEngine, asked: Request) -> str:
    with pytest.raises(RequestError) as refused:
        one.prepare(asked)
    return str(refused.value)


def test_its_version_is_the_packages(release: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine(release).version == "1.2.1+stub"
    monkeypatch.delattr(release, "__version__")
    assert engine(release).version == "unknown"


def test_it_is_given_the_tokens_of_a_text_and_what_was_asked_for(release: Any) -> None:
    prepared = engine(release).prepare(request("input=3", streaming=True, sampling={"top_k": 2}))
    assert prepared["inputs"] == [3, 2, 1]
    assert prepared["streaming"] is True
    assert prepared["sampling_params"].top_k == 2
    assert prepared.keys() == {"inputs", "sampling_params", "streaming"}


def test_a_priority_and_a_trace_go_to_a_release_that_has_them(release: Any) -> None:
    prepared = engine(release).prepare(request(priority=0.0, trace_headers={"traceparent": "x"}))
    assert prepared["priority"] == 0.0
    assert prepared["trace_headers"] == {"traceparent": "x"}


def test_without_them_a_priority_is_refused_and_a_trace_is_not_made(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Older(release.LLM):  # type: ignore[misc]
        def generate_async(self, inputs: Any, sampling_params: Any, streaming: bool = False) -> Any:
            return None

    monkeypatch.setattr(release, "LLM", Older)
    one = engine(release)
    assert refusal(one, request(priority=0.0)) == (
        "priority: this engine's release has no priorities; leave it out"
    )
    prepared = one.prepare(request(trace_headers={"traceparent": "x"}))
    assert prepared.keys() == {"inputs", "sampling_params", "streaming"}


@pytest.mark.parametrize(("asked", "what"), [({}, "is missing"), ({"max_tokens": 9}, "is 9")])
def test_more_tokens_than_allowed_are_refused_and_an_endless_answer_too(
    release: Any, monkeypatch: pytest.MonkeyPatch, asked: dict[str, int], what: str
) -> None:
    @dataclass(kw_only=True)
    class Endless:
        max_tokens: int | None = None
        best_of: int = 1

    monkeypatch.setattr(release, "SamplingParams", Endless)
    allowed = f"sampling_param_max_tokens: {what}; this server allows at most 8"
    assert refusal(engine(release, 8), request(sampling=asked)) == allowed
    assert engine(release, 9).prepare(request(sampling={"max_tokens": 9}))
    assert engine(release).prepare(request(sampling=asked))


def test_token_ids_are_those_of_the_vocabulary(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine(release)
    assert one.prepare(request([0, 999]))["inputs"] == [0, 999]
    allowed = "this model's token ids are 0 to 999"
    assert refusal(one, request([5, 1000, 6])) == f"input_ids: holds 1000; {allowed}"
    for name in ("stop_token_ids", "bad_token_ids"):
        found = refusal(one, request(sampling={name: [1, 1001]}))
        assert found == f"sampling_param_{name}: holds 1001; {allowed}"
        assert one.prepare(request(sampling={name: [999]}))


def test_a_single_token_id_is_checked_as_well(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "SamplingParams", lambda **given: SimpleNamespace(max_tokens=1))
    assert refusal(engine(release), request(sampling={"top_p_reset_ids": 1000})) == (
        "sampling_param_top_p_reset_ids: holds 1000; this model's token ids are 0 to 999"
    )


@pytest.mark.parametrize("wraps", [True, False])
def test_the_vocabulary_is_that_of_the_tokenizer_within_the_engines_own(
    release: Any, monkeypatch: pytest.MonkeyPatch, wraps: bool
) -> None:
    class Wrapping(release.LLM):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.tokenizer = SimpleNamespace(tokenizer=["a", "b"]) if wraps else object()

    monkeypatch.setattr(release, "LLM", Wrapping)
    one = engine(release)
    if wraps:
        assert "token ids are 0 to 1" in refusal(one, request([2]))
    else:
        assert one.prepare(request([10**9]))["inputs"] == [10**9], "the engine judges by itself"


def test_a_parameter_that_the_release_does_not_have_is_named(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = request(sampling={"no_repeat_ngram_size": 2})
    assert refusal(engine(release), asked) == (
        "sampling_param_no_repeat_ngram_size: this engine's release has no such parameter"
    )
    monkeypatch.setattr(release, "SamplingParams", lambda **given: SimpleNamespace(**given))
    monkeypatch.setattr(release.LLM, "input_processor", None)
    taking = release.SamplingParams(max_tokens=1)
    monkeypatch.setattr(release, "SamplingParams", lambda **given: taking)
    assert engine(release).prepare(asked)["sampling_params"] is taking


def test_a_guide_that_the_release_does_not_have_is_named(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release.llmapi, "GuidedDecodingParams", lambda json: None)
    one = engine(release, guided_decoding_backend="xgrammar")
    asked = request(sampling={"guided_decoding": {"regex": "a+"}})
    assert refusal(one, asked) == (
        "sampling_param_guided_decoding_regex: this engine's release has no such guide"
    )


def test_a_conversation_is_written_by_the_engines_tokenizer(release: Any) -> None:
    chat = Chat([{"role": "user", "content": "input=2"}], None, {})
    assert engine(release).prepare(request(chat))["inputs"].text == "<user> input=2"


@pytest.mark.parametrize("more", [None, {"mm": 1}])
def test_a_text_of_which_the_engine_makes_more_than_tokens_stays_one(
    release: Any, monkeypatch: pytest.MonkeyPatch, more: Any
) -> None:
    def process(_: Any, inputs: Any, sampling: Any) -> Any:
        assert sampling.max_tokens == 32
        return [len(inputs["prompt"])], more

    monkeypatch.setattr(release.LLM, "input_processor", process)
    assert engine(release).prepare(request("abc"))["inputs"] == ("abc" if more else [3])


def test_a_release_that_gives_no_tokens_gets_the_text(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(release.LLM, "input_processor")
    assert engine(release).prepare(request("abc"))["inputs"] == "abc"


def test_a_text_that_the_tokenizer_refuses_is_the_clients_fault(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process(*_: Any) -> Any:
        raise ValueError("no such word")

    monkeypatch.setattr(release.LLM, "input_processor", process)
    assert refusal(engine(release), request("abc")) == "no such word"


def test_it_is_alive_as_long_as_it_says_so_or_says_nothing(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = engine(release)
    assert one.is_alive()
    monkeypatch.setattr(one._llm, "is_healthy", False)
    assert not one.is_alive()
    monkeypatch.delattr(release.LLM, "_check_health")
    assert one.is_alive()


@pytest.mark.parametrize(
    ("statistics", "share"),
    [
        ([{"kvCacheStats": {"maxNumBlocks": 8, "usedNumBlocks": 2}}], 0.25),
        ([{"kvCacheStats": {"maxNumBlocks": 8, "usedNumBlocks": n}} for n in (2, 4)], 0.5),
        ([{"kvCacheStats": {"maxNumBlocks": 0, "usedNumBlocks": 0}}], None),
        ([{"other": 1}], None),
        ([], None),
    ],
)
def test_the_use_of_its_kv_cache_is_that_of_its_newest_statistics(
    release: Any, monkeypatch: pytest.MonkeyPatch, statistics: list[Any], share: float | None
) -> None:
    async def get(self: Any, timeout: float = 2.0) -> AsyncIterator[Any]:
        assert timeout < 1, "the event loop waits for it now and then"
        for one in statistics:
            yield one

    monkeypatch.setattr(release.LLM, "get_stats_async", get)
    asked = engine(release, enable_iter_perf_stats=True)
    assert asked.has_statistics
    assert asyncio.run(asked.kv_cache_utilization()) == share
    silent = engine(release)
    assert not silent.has_statistics
    assert asyncio.run(silent.kv_cache_utilization()) is None


def test_it_is_said_whether_it_shut_down_in_time(
    release: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def shutdown(self: Any) -> None:
        may_end.wait(5)
        has_ended.set()

    monkeypatch.setattr(release.LLM, "shutdown", shutdown)
    one = engine(release)
    assert one.shutdown(0.05) is False
    may_end.set()
    assert has_ended.wait(5)
    assert one.shutdown(5) is True


@pytest.mark.parametrize(
    ("fault", "blamed"),
    [
        (RequestError("anything"), True),
        (RuntimeError("longer than max_seq_len (8)"), True),
        (RuntimeError("above max_num_tokens"), True),
        (RuntimeError("above max_input_len"), True),
        (RuntimeError("default_max_tokens is negative"), True),
        (RuntimeError("out of memory"), False),
        (ValueError(""), False),
    ],
)
def test_a_client_is_blamed_for_what_it_can_cure(fault: Exception, blamed: bool) -> None:
    assert blames_request(fault) is blamed
