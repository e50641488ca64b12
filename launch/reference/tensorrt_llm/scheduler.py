"""Runs the step loop: one thread that computes a step of all running sequences at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from math import ceil
from threading import Condition, Thread
from typing import Any

import torch

from . import results
from .guide import Guide
from .logger import logger
from .model import Model
from .options import EngineOptions
from .sampling import Detokenizer, Sampler, StopStrings, top_logprobs

# The models that run here are small: their matrices are too small to share between threads.
NUM_THREADS = 1


class Sequence:
    """One completion under way. Only the engine thread touches it once it is submitted."""

    def __init__(
        self,
        request: results.RequestOutput,
        index: int,
        model: Model,
        options: EngineOptions,
        tokenizer: Any,
        end_ids: frozenset[int],
        max_tokens: int,
        seed: int,
        bad_words: list[list[int]],
        guide: Guide | None,
    ) -> None:
        params = request.sampling_params
        self.request, self.index = request, index
        self._params, self._options, self._max_tokens = params, options, max_tokens
        self._stop_ids = frozenset(params.stop_token_ids or ())
        self._end_ids = end_ids
        self._model = model
        self.decoding = model.begin(request.prompt_token_ids)
        ends = end_ids | self._stop_ids
        self._sampler = Sampler(params, request.prompt_token_ids, ends, seed, bad_words, guide)
        self._detokenizer = Detokenizer(tokenizer, params.skip_special_tokens)
        self._stops = StopStrings(params.stop_strings, params.include_stop_str_in_output)
        self._output: list[int] = []
        self._cumulative_logprob = 0.0
        self._iterations = self._sent_iterations = 0
        self._update = results.CompletionOutput(index)  # what was not sent yet
        self.drafted = self.accepted = 0  # in the last step
        self._metrics = results.RequestPerfMetrics(
            results.TimingMetrics(arrival_time=results.steady_time())
        )

    @property
    def length(self) -> int:
        """Tokens of prompt and output."""
        return len(self.request.prompt_token_ids) + len(self._output)

    @property
    def is_new(self) -> bool:
        """Whether the last step was that of its prompt."""
        return self._iterations == 1

    def begin(self, iteration: int) -> None:
        if not self._iterations:
            self._metrics.timing_metrics.first_scheduled_time = results.steady_time()
            self._metrics.first_iter = iteration
        self._iterations += 1

    def end(self, iteration: int) -> bool:
        """Choose the tokens of a computed step and send what is due. True after the last one."""
        timing = self._metrics.timing_metrics
        has_prompt = not (self._params.exclude_input_from_output or self.request.streaming)
        if self._iterations == 1 and has_prompt:
            self._update.token_ids += self.request.prompt_token_ids
            pieces = map(self._detokenizer.push, self.request.prompt_token_ids)
            self._update.text += "".join(pieces)
        reason, stop = self._choose()
        timing.last_token_time = results.steady_time()
        if self._iterations == 1:
            timing.first_token_time = timing.last_token_time
        if reason:
            self.finish(reason, stop, iteration)
        elif self.request.streaming and (
            self._iterations == 1 or self._iterations % self._options.stream_interval == 0
        ):
            self._give()
        return reason is not None

    def _choose(self) -> tuple[results.FinishReason | None, int | str | None]:
        """Take the tokens after the last input and its drafts; the drafts that were right count."""
        drafts = self.decoding.drafts
        whole_prompt = self._iterations == 1 and self._params.prompt_logprobs is not None
        rows = len(self.request.prompt_token_ids) if whole_prompt else len(drafts) + 1
        logits = self._model.logits(self.decoding, rows)
        if whole_prompt:
            self._score_prompt(logits)
        agreed = 0
        while True:
            row = logits[len(logits) - len(drafts) - 1 + agreed]
            token, logprobs = self._sampler.choose(row, self._output)
            reason, stop = self._append(token, logprobs)
            if reason or agreed == len(drafts) or token != drafts[agreed]:
                break
            agreed += 1
        self.drafted, self.accepted = len(drafts), agreed
        self._metrics.speculative_decoding.total_draft_tokens += len(drafts)
        self._metrics.speculative_decoding.total_accepted_draft_tokens += agreed
        left = self._max_tokens - len(self._output)
        self.decoding.accept(agreed, token, min(self._options.draft_tokens, left - 1))
        return reason, stop

    def _append(
        self, token: int, logprobs: torch.Tensor
    ) -> tuple[results.FinishReason | None, int | str | None]:
        """Take one token into the output; why it ends the sequence, if it does.

        A stop token is left out of the output unless stop strings are to be included; the end token
        counts as output.
        """
        self._cumulative_logprob += float(logprobs[token])
        stops = token in self._stop_ids and len(self._output) >= (self._params.min_tokens or 0)
        self._output.append(token)
        if stops and not self._params.include_stop_str_in_output:
            return "stop", token
        self._update.token_ids.append(token)
        if self._params.logprobs is not None:
            self._update.logprobs.append(top_logprobs(logprobs, self._params.logprobs, token))
        text, stop = self._detokenizer.push(token), None
        if len(self._output) >= (self._params.min_tokens or 0):
            text, stop = self._stops.push(text)
        self._update.text += text
        if stop is not None or stops:
            return "stop", token if stop is None else stop
        if token in self._end_ids:
            return "stop", None
        return ("length", None) if len(self._output) >= self._max_tokens else (None, None)

    def _score_prompt(self, logits: torch.Tensor) -> None:
        following = [*self.request.prompt_token_ids[1:], None]
        values = torch.log_softmax(logits.float().cpu(), dim=-1)
        count = self._params.prompt_logprobs or 0
        self._update.prompt_logprobs = [
            top_logprobs(row, count, token) for row, token in zip(values, following, strict=True)
        ]

    def finish(self, reason: results.FinishReason, stop: int | str | None, iteration: int) -> None:
        if not isinstance(stop, str) and reason != "cancelled":
            text, late_stop = self._stops.push(self._detokenizer.flush())
            self._update.text += text + self._stops.flush()
            if late_stop is not None:
                reason, stop = "stop", late_stop
        self._metrics.last_iter = iteration
        tokens = len(self.request.prompt_token_ids) + len(self._output)
        blocks, size = self._metrics.kv_cache_metrics, self._options.tokens_per_block
        blocks.num_total_allocated_blocks = blocks.num_new_allocated_blocks = ceil(tokens / size)
        blocks.num_missed_blocks = ceil(len(self.request.prompt_token_ids) / size)
        self._give(reason, stop)

    def _give(
        self, reason: results.FinishReason | None = None, stop: int | str | None = None
    ) -> None:
        params, update = self._params, self._update
        self._update = results.CompletionOutput(self.index)
        if not params.detokenize:
            update.text = ""
        if params.logprobs is not None:
            update.cumulative_logprob = self._cumulative_logprob
        update.finish_reason, update.stop_reason = reason, stop
        if reason and (params.return_perf_metrics or self._options.return_perf_metrics):
            update.request_perf_metrics = self._metrics
        self.request.put((update, self._iterations - self._sent_iterations))
        self._sent_iterations = self._iterations


class Scheduler:
    """Admits sequences up to `max_batch_size` and runs them until they end."""

    def __init__(self, model: Model, options: EngineOptions) -> None:
        self._model, self._options = model, options
        self._changed = Condition()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._stats: deque[dict[str, Any]] = deque(maxlen=max(1, options.max_stats_len))
        self._iteration = self._counted = 0  # begun; ended, with its statistics
        self._stopping = False
        self._crash: BaseException | None = None
        self._thread = Thread(target=self._run, name="reference-engine", daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Raises `RequestError` if the engine does not run."""
        with self._changed:
            if self._crash or self._stopping:
                raise results.RequestError(self._reason_of_end())
            self._waiting += sequences
            self._changed.notify_all()

    def take_stats(self) -> list[dict[str, Any]]:
        """Statistics of the iterations since they were last taken, that under way included."""
        with self._changed:
            begun = self._iteration
            self._changed.wait_for(lambda: self._counted >= begun)
            stats = list(self._stats)
            self._stats.clear()
        return stats

    def shutdown(self) -> None:
        """End the thread; requests under way fail."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    def _reason_of_end(self) -> str:
        crash = self._crash
        return f"the engine loop has crashed: {crash!r}" if crash else "the engine was shut down"

    def _run(self) -> None:
        torch.set_num_threads(NUM_THREADS)
        try:
            with torch.inference_mode():
                while self._admit():
                    self._iterate()
        except BaseException as crash:
            self._crash = crash
            logger.exception("the engine loop has crashed")
        with self._changed:
            self._stopping = True
            left = [*self._running, *self._waiting]
            self._running, self._waiting = [], deque()
            self._counted = self._iteration
            self._changed.notify_all()
        for request in {id(sequence.request): sequence.request for sequence in left}.values():
            request.put(results.RequestError(self._reason_of_end()))

    def _admit(self) -> bool:
        """Wait for work and admit what fits; whether the loop goes on."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._running or self._waiting)
            while self._waiting and len(self._running) < self._options.max_batch_size:
                self._running.append(self._waiting.popleft())
            return not self._stopping

    def _iterate(self) -> None:
        started = time.monotonic()
        self._iteration += 1
        self._drop_aborted()
        stepped = self._running
        ended = self._step(stepped)
        with self._changed:
            queued = len(self._waiting)
            self._running = [sequence for sequence in self._running if sequence not in ended]
            if self._options.enable_iter_perf_stats:
                self._stats.append(self._statistics(started, stepped, queued, len(ended)))
            self._counted = self._iteration
            self._changed.notify_all()

    def _drop_aborted(self) -> None:
        with self._changed:
            aborted = [s for s in (*self._running, *self._waiting) if s.request.aborted()]
            self._running = [s for s in self._running if s not in aborted]
            self._waiting = deque(s for s in self._waiting if s not in aborted)
        for sequence in aborted:
            sequence.finish("cancelled", None, self._iteration)

    def _step(self, sequences: list[Sequence]) -> list[Sequence]:
        """The sequences that ended in this step. A fault of the model ends all of them."""
        for sequence in sequences:
            sequence.begin(self._iteration)
        try:
            self._model.forward([sequence.decoding for sequence in sequences])
            ended = [sequence for sequence in sequences if self._end_step(sequence)]
            going_on = [sequence.decoding for sequence in sequences if sequence not in ended]
            self._model.advance(going_on)
        except Exception as fault:
            for sequence in sequences:
                self._fail(sequence, fault)
            return sequences
        return ended

    def _end_step(self, sequence: Sequence) -> bool:
        """A fault in one sequence ends its request, not the others."""
        try:
            return sequence.end(self._iteration)
        except Exception as fault:
            self._fail(sequence, fault)
            return True

    def _fail(self, sequence: Sequence, fault: Exception) -> None:
        logger.error("request %d failed", sequence.request.request_id, exc_info=fault)
        sequence.request.put(results.RequestError(f"the reference engine failed: {fault!r}"))
        sequence.request.abort()

    def _statistics(
        self, started: float, stepped: list[Sequence], queued: int, ended: int
    ) -> dict[str, Any]:
        """An iteration in the fields of the release's statistics.

        Source: NVIDIA/TensorRT-LLM@050f80de, tensorrt_llm/metrics/collector.py, which reads them.
        The cache has room for the longest sequences; memory of a GPU is left out.
        """
        size = self._options.max_batch_size
        return {
            "engine": "reference",
            "iter": self._iteration,
            "iterLatencyMS": (time.monotonic() - started) * 1000,
            "timestamp": datetime.now(UTC).isoformat(),
            "numActiveRequests": len(stepped),
            "numQueuedRequests": queued,
            "numCompletedRequests": ended,
            "maxNumActiveRequests": size,
            "maxBatchSizeStatic": size,
            "maxBatchSizeRuntime": size,
            "maxNumTokensRuntime": self._options.max_num_tokens,
            "kvCacheStats": self._cache_statistics(stepped),
            "inflightBatchingStats": _batch_statistics(stepped),
            **_draft_statistics(stepped, self._options.draft_tokens),
        }

    def _cache_statistics(self, stepped: list[Sequence]) -> dict[str, Any]:
        size = self._options.tokens_per_block
        longest = self._options.max_seq_len or int(self._model.config.max_position_embeddings)
        most = self._options.max_batch_size * ceil(longest / size)
        used = sum(ceil(sequence.length / size) for sequence in stepped)
        blocks = {"maxNumBlocks": most, "usedNumBlocks": used, "freeNumBlocks": most - used}
        return {**blocks, "tokensPerBlock": size, "reusedBlocks": 0, "cacheHitRate": 0.0}


def _batch_statistics(stepped: list[Sequence]) -> dict[str, Any]:
    new = [sequence for sequence in stepped if sequence.is_new]
    given = sum(1 + sequence.accepted for sequence in stepped)
    return {
        "numScheduledRequests": len(stepped),
        "numContextRequests": len(new),
        "numGenRequests": len(stepped) - len(new),
        "numPausedRequests": 0,
        "numCtxTokens": sum(len(sequence.request.prompt_token_ids) for sequence in new),
        "avgNumDecodedTokensPerIter": given / len(stepped) if stepped else 0.0,
    }


def _draft_statistics(stepped: list[Sequence], draft_tokens: int) -> dict[str, Any]:
    """Nothing of a server without drafts."""
    if not draft_tokens:
        return {}
    drafting = [sequence for sequence in stepped if sequence.drafted]
    accepted = sum(sequence.accepted for sequence in drafting)
    found = {
        "numDraftTokens": sum(sequence.drafted for sequence in drafting),
        "numAcceptedTokens": accepted,
        "numRequestsWithDraftTokens": len(drafting),
        "acceptanceLength": 1 + accepted / len(drafting) if drafting else 0.0,
    }
    return {"specDecodingStats": found}
