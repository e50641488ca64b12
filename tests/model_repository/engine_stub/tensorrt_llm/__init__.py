"""A scripted engine with the interface that model.py uses; the prompt is the script.

A prompt is `key=value` words, see `Script`; `name` and words without `=` mean nothing. The text of
sequence `k` is `k:0 k:1 k:2 ...` with one word per token, or the words of `text`. Events are
appended to the file that `ENGINE_LOG` names, one JSON object per line.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "1.2.1+stub"


def log(path: str | None, event: str, **details: object) -> None:
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **details}) + "\n")


MAX_NUM_TOKENS = 131072


class RequestError(RuntimeError):
    pass


@dataclass(kw_only=True)
class SamplingParams:
    max_tokens: int = 32
    min_tokens: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad: list[str] | None = None
    bad_token_ids: list[int] | None = None
    n: int = 1
    best_of: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    add_special_tokens: bool = True
    skip_special_tokens: bool = True
    exclude_input_from_output: bool = True
    return_perf_metrics: bool = False
    guided_decoding: Any = None

    def __post_init__(self) -> None:
        if self.temperature == 0 and (self.best_of or 1) > 1:
            raise ValueError("greedy decoding allows no best_of above 1")


@dataclass
class Script:
    """`tokens`: where the text ends by itself. `step_ms`: time per step. `per_step`: tokens per
    step. `fail`: the text of a RequestError at step `fail_at`, where -1 is the submission; `crash`:
    of a RuntimeError; `die`: of one after which the engine is not healthy. `hang`: at step
    `fail_at` this request stops (`request`), with the event loop (`loop`), or is not healthy for
    anyone from its end on (`sick`). `gone=1`: the engine ends without a final output. `text`: the
    words, joined by `_`. `split=1`: a token is a byte of `text`, and half a character
    reads U+FFFD. `blind=1`: no log probabilities. `silent_at`: a step that adds no text until the
    next one. `input`: number of prompt tokens. `tokenize_ms`: the time that it takes to get them.
    """

    tokens: int = 1000
    step_ms: float = 0.0
    per_step: int = 1
    fail: str = ""
    crash: str = ""
    die: str = ""
    hang: str = ""
    fail_at: int = 0
    gone: int = 0
    blind: int = 0
    text: str = ""
    split: int = 0
    silent_at: int = -1
    input: int = 8
    tokenize_ms: float = 0.0

    @classmethod
    def read(cls, prompt: str) -> Script:
        pairs = dict(word.split("=", 1) for word in prompt.split() if "=" in word)
        types = {name: type(default) for name, default in vars(cls()).items()}
        return cls(**{key: types[key](value) for key, value in pairs.items() if key in types})


@dataclass
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | None = None
    cumulative_logprob: float | None = None
    logprobs: list[Any] = field(default_factory=list)
    prompt_logprobs: list[Any] = field(default_factory=list)
    request_perf_metrics: Any = None
    words: int = 0

    @property
    def length(self) -> int:
        return len(self.token_ids)


@dataclass
class RequestOutput:
    llm: LLM
    prompt: Any
    sampling: SamplingParams
    script: Script
    streaming: bool
    outputs: list[CompletionOutput] = field(init=False)
    finished: bool = False

    def __post_init__(self) -> None:
        self.prompt_token_ids = list(range(self.script.input, 0, -1))
        self.outputs = [CompletionOutput(index) for index in range(self.sampling.n)]
        self._steps = self._run()

    def abort(self) -> None:
        self.llm.log("abort", prompt=self.prompt, at_s=time.monotonic())

    def __aiter__(self) -> RequestOutput:
        return self

    async def __anext__(self) -> RequestOutput:
        while True:
            try:
                hangs = next(self._steps)
            except StopIteration:
                raise StopAsyncIteration from None
            if hangs == "loop":
                threading.Event().wait()
            if hangs == "request":
                await asyncio.Future()
            await asyncio.sleep(self.script.step_ms / 1000)
            if self.streaming or self.finished:
                return self

    def _run(self) -> Iterator[str]:
        script = self.script
        length = min(script.tokens, self.sampling.max_tokens)
        for step, start in enumerate(range(0, length, script.per_step)):
            if step == script.fail_at:
                self.llm.fault(script)
                yield from [script.hang] if script.hang in ("loop", "request") else ()
            end = min(start + script.per_step, length)
            for output in self.outputs:
                self._extend(output, end, is_silent=step == script.silent_at)
            if end == length and not script.gone:
                self._finish()
            yield ""

    def _extend(self, output: CompletionOutput, end: int, is_silent: bool) -> None:
        output.token_ids.extend(range(output.length, end))
        if self.sampling.logprobs and not self.script.blind:
            output.cumulative_logprob = -0.5 * end
            output.logprobs.extend(
                {token: SimpleNamespace(logprob=-0.5, rank=1)}
                for token in range(len(output.logprobs), end)
            )
        if self.script.split:
            output.text = self.script.text.encode()[:end].decode(errors="replace")
        elif not is_silent:
            new = [self._word(output.index, token) for token in range(output.words, end)]
            output.text += (" " if output.words else "") + " ".join(new)
            output.words = end

    def _word(self, index: int, token: int) -> str:
        words = self.script.text.split("_")
        return words[token % len(words)] if self.script.text else f"{index}:{token}"

    def _finish(self) -> None:
        self.finished = True
        self.llm.is_healthy &= self.script.hang != "sick"
        for output in self.outputs:
            output.finish_reason = "stop" if output.length < self.sampling.max_tokens else "length"
            for word in self.sampling.stop or []:
                if word in output.text:
                    output.text = output.text.partition(word)[0]
                    output.finish_reason, output.stop_reason = "stop", word
            if self.sampling.return_perf_metrics:
                output.request_perf_metrics = PERF_METRICS
        self.llm.log("finish", prompt=self.prompt)


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


class Tokens(list[int]):
    """The tokens of a script, which is kept with them."""

    text: str


class Tokenizer:
    """A vocabulary of a thousand, and a template that names each role before its words."""

    def __len__(self) -> int:
        return 1000

    def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
        if any(message["role"] == "nobody" for message in messages):
            raise ValueError("nobody has no part in this template")
        return "\n".join(f"<{message['role']}> {message['content']}" for message in messages)


class LLM:
    def __init__(self, model: str, **options: Any) -> None:
        self.log = functools.partial(log, os.environ.get("ENGINE_LOG"))
        self.log("start", model=model, options={key: str(value) for key, value in options.items()})
        if "fail_start" in options:
            raise RuntimeError(options["fail_start"])
        self.args = SimpleNamespace(guided_decoding_backend=options.get("guided_decoding_backend"))
        self.tokenizer = Tokenizer()
        self.is_healthy = True
        self.kv_blocks = options.get("kv_blocks_used", 25)

    def generate_async(
        self,
        inputs: Any,
        sampling_params: SamplingParams,
        *,
        streaming: bool = False,
        priority: float | None = None,
        trace_headers: dict[str, str] | None = None,
    ) -> RequestOutput:
        given = {"priority": priority, "trace_headers": trace_headers}
        sampling = {
            key: str(value) if key == "guided_decoding" and value else value
            for key, value in vars(sampling_params).items()
        }
        if isinstance(inputs, str):
            inputs, _ = self.input_processor({"prompt": inputs}, sampling_params)
        prompt = getattr(inputs, "text", inputs)
        self.log("submit", prompt=prompt, sampling=sampling, **given)
        script = Script.read(prompt if isinstance(prompt, str) else "")
        script.input = len(inputs)
        if script.input > MAX_NUM_TOKENS:
            what = f"The sum of prompt length ({script.input}), query length (0)"
            raise ValueError(f"{what} should not exceed max_num_tokens ({MAX_NUM_TOKENS})")
        if script.fail_at < 0:
            self.fault(script)
        return RequestOutput(self, prompt, sampling_params, script, streaming)

    def input_processor(
        self, inputs: dict[str, str], sampling_params: SamplingParams
    ) -> tuple[Tokens, None]:
        """Takes the time of the calling thread without holding up others, as tokenizers do."""
        script = Script.read(inputs["prompt"])
        time.sleep(script.tokenize_ms / 1000)
        tokens = Tokens(range(script.input, 0, -1))
        tokens.text = inputs["prompt"]
        return tokens, None

    def fault(self, script: Script) -> None:
        if script.fail:
            raise RequestError(script.fail)
        if script.crash:
            raise RuntimeError(script.crash)
        if script.die:
            self.is_healthy = False
            raise RuntimeError(script.die)

    async def get_stats_async(self, timeout: float = 2.0) -> AsyncIterator[dict[str, Any]]:
        yield {"kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": self.kv_blocks}}

    def _check_health(self) -> bool:
        return self.is_healthy

    def shutdown(self) -> None:
        self.log("shutdown")
