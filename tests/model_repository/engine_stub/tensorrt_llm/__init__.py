"""A scripted engine with the interface that model.py uses; the prompt is the script.

A prompt is `key=value` words, see `Script`; `name` and words without `=` mean nothing. The text of
sequence `k` is `k:0 k:1 k:2 ...` with one word per token, or the words of `text`. Events are
appended to the file that `ENGINE_LOG` names, one JSON object per line.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def log(event: str, **details: object) -> None:
    if path := os.environ.get("ENGINE_LOG"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **details}) + "\n")


class RequestError(RuntimeError):
    pass


@dataclass(kw_only=True)
class SamplingParams:
    max_tokens: int = 32
    stop: list[str] | None = None
    n: int = 1
    best_of: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    logprobs: int | None = None
    exclude_input_from_output: bool = True
    return_perf_metrics: bool = False

    def __post_init__(self) -> None:
        if self.temperature == 0 and (self.best_of or 1) > 1:
            raise ValueError("greedy decoding allows no best_of above 1")


@dataclass
class Script:
    """`tokens`: where the text ends by itself. `step_ms`: time per step. `per_step`: tokens per
    step. `fail`: the text of a RequestError at step `fail_at`; `crash`: of a RuntimeError.
    `gone=1`: the engine ends without a final output. `text`: the words, joined by `_`. `blind=1`:
    no log probabilities. `silent_at`: a step that adds no text until the next one.
    """

    tokens: int = 1000
    step_ms: float = 0.0
    per_step: int = 1
    fail: str = ""
    crash: str = ""
    fail_at: int = 0
    gone: int = 0
    blind: int = 0
    text: str = ""
    silent_at: int = -1

    @classmethod
    def read(cls, prompt: str) -> Script:
        pairs = dict(word.split("=", 1) for word in prompt.split() if "=" in word)
        types = {"step_ms": float, "fail": str, "crash": str, "text": str}
        pairs.pop("name", None)
        return cls(**{key: types.get(key, int)(value) for key, value in pairs.items()})


@dataclass
class CompletionOutput:
    index: int
    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | None = None
    cumulative_logprob: float | None = None
    request_perf_metrics: Any = None


@dataclass
class RequestOutput:
    prompt: str
    sampling: SamplingParams
    script: Script
    streaming: bool
    outputs: list[CompletionOutput] = field(init=False)
    finished: bool = False

    def __post_init__(self) -> None:
        self.outputs = [CompletionOutput(index) for index in range(self.sampling.n)]
        self._steps = self._run()

    def abort(self) -> None:
        log("abort", prompt=self.prompt)

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        while True:
            try:
                next(self._steps)
            except StopIteration:
                raise StopAsyncIteration from None
            await asyncio.sleep(self.script.step_ms / 1000)
            if self.streaming or self.finished:
                return self

    def _run(self) -> Iterator[None]:
        length = min(self.script.tokens, self.sampling.max_tokens)
        for step, start in enumerate(range(0, length, self.script.per_step)):
            if step == self.script.fail_at and self.script.fail:
                raise RequestError(self.script.fail)
            if step == self.script.fail_at and self.script.crash:
                raise RuntimeError(self.script.crash)
            end = min(start + self.script.per_step, length)
            for output in self.outputs if step != self.script.silent_at else ():
                output.text = " ".join(self._word(output.index, token) for token in range(end))
                if self.sampling.logprobs and not self.script.blind:
                    output.cumulative_logprob = -0.5 * end
            if end == length and not self.script.gone:
                self._finish()
            yield

    def _word(self, index: int, token: int) -> str:
        words = self.script.text.split("_")
        return words[token % len(words)] if self.script.text else f"{index}:{token}"

    def _finish(self) -> None:
        self.finished = True
        for output in self.outputs:
            output.finish_reason = (
                "stop" if len(output.text.split()) < self.sampling.max_tokens else "length"
            )
            for word in self.sampling.stop or []:
                if word in output.text:
                    output.text = output.text.partition(word)[0]
                    output.finish_reason, output.stop_reason = "stop", word
            if self.sampling.return_perf_metrics:
                output.request_perf_metrics = PERF_METRICS
        log("finish", prompt=self.prompt)


PERF_METRICS = SimpleNamespace(
    kv_cache_metrics=SimpleNamespace(
        num_reused_blocks=3,
        num_missed_blocks=1,
        num_new_allocated_blocks=2,
        num_total_allocated_blocks=4,
        kv_cache_hit_rate=0.75,
    ),
    timing_metrics=SimpleNamespace(
        arrival_time=timedelta(seconds=10),
        first_scheduled_time=timedelta(seconds=10, microseconds=5),
        first_token_time=timedelta(seconds=11),
        last_token_time=timedelta(days=1),
    ),
    speculative_decoding=SimpleNamespace(
        acceptance_rate=0.5, total_accepted_draft_tokens=6, total_draft_tokens=12
    ),
)


class LLM:
    def __init__(self, model: str, **options: Any) -> None:
        log("start", model=model, options={key: str(value) for key, value in options.items()})
        if "fail_start" in options:
            raise RuntimeError(options["fail_start"])

    def generate_async(
        self, inputs: str, sampling_params: SamplingParams, *, streaming: bool = False
    ) -> RequestOutput:
        log("submit", prompt=inputs, sampling=vars(sampling_params))
        return RequestOutput(inputs, sampling_params, Script.read(inputs), streaming)

    def shutdown(self) -> None:
        log("shutdown")
