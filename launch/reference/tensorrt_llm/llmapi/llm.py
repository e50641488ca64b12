"""The engine as an object: a checkpoint folder in, completions out."""

from __future__ import annotations

import atexit
import itertools
import random
import weakref
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from builder.diagnostics import Diagnostic
from builder.errors import BadFacts
from builder.miniature.sizes import PRODUCER

from .. import guide
from .. import model as models
from .. import options as engine_options
from ..guide import Format, GuidedDecodingParams
from ..logger import announce, logger
from ..results import CompletionOutput, RequestError, RequestOutput
from ..sampling import SamplingParams
from ..scheduler import Scheduler, Sequence

__all__ = ["LLM", "CompletionOutput", "RequestOutput"]

Prompt = str | list[int] | Mapping[str, Any]

_HINTS = {"cache_salt", "kv_cache_retention_config", "scheduling_params"}


class LLM:
    """A loaded model that answers requests until it is shut down.

    `model` is a checkpoint folder, `tokenizer` a folder or a tokenizer object, and `options` are
    the engine's options. Raises `OptionError` for options that the release rejects and `BadFacts`
    for a folder that is not a complete checkpoint.
    """

    def __init__(self, model: str | Path, tokenizer: Any = None, **options: Any) -> None:
        announce()
        given = {"model": str(model), **options}
        if isinstance(tokenizer, str | Path):
            given["tokenizer"] = str(tokenizer)
        self.args = engine_options.read(given)
        folder = Path(model).expanduser()
        if not folder.is_dir():
            what = "is not a folder; the reference engine downloads nothing"
            raise BadFacts(Diagnostic(str(model), what, "give a checkpoint folder"))
        self._model = models.load(folder, self.args.drafting)
        if tokenizer is None or isinstance(tokenizer, str | Path):
            tokenizer = AutoTokenizer.from_pretrained(
                tokenizer or folder, config=self._model.config, trust_remote_code=False
            )
        self.tokenizer = tokenizer
        longest = int(self._model.config.max_position_embeddings)
        wanted = self.args.max_seq_len
        if wanted is not None and wanted > longest:
            logger.warning("max_seq_len %d is cut to the model's %d positions", wanted, longest)
        self.max_seq_len = min(wanted or longest, longest)
        # Random weights end neither texts nor lists, and call no tool: guides see to it.
        self.is_miniature = getattr(self.tokenizer, "init_kwargs", {}).get("producer") == PRODUCER
        more = self._model.checkpoint.generation_config.get("eos_token_id")
        ends = [tokenizer.eos_token_id, *(more if isinstance(more, list) else [more])]
        self._end_ids = frozenset(token for token in ends if token is not None)
        self._ids = itertools.count(1)
        self._scheduler = Scheduler(self._model, self.args)
        atexit.register(_shutdown, weakref.ref(self._scheduler))
        logger.info("ready: %s", self._model.checkpoint.source)

    def generate_async(
        self,
        inputs: Prompt,
        sampling_params: SamplingParams | None = None,
        streaming: bool = False,
        priority: float = 0.5,
        trace_headers: Mapping[str, str] | None = None,
        disaggregated_params: Any = None,
        forced: Format | None = None,
        **more: Any,
    ) -> RequestOutput:
        """Start a request and return at once; its results come through the returned object.

        Raises `RequestError` for a prompt that the engine never takes and `ValueError` for
        parameters that the reference engine does not support. Hints for scheduling, caching and
        tracing are accepted and have no effect.

        The server of a miniature gives `forced`, what random weights would not write by themselves:
        a guide that needs no backend.

        With `disaggregated_params` the request is one side of disaggregated serving. A decode
        engine gets the prompt's KV cache from elsewhere, so that `max_num_tokens` does not bound
        the prompt; as a stand-in it computes the prompt all the same.
        """
        if asked := [name for name, value in more.items() if value and name not in _HINTS]:
            raise ValueError(f"{', '.join(asked)}: not supported by the reference engine")
        params = sampling_params or SamplingParams()
        if params.unsupported:
            what = "not supported by the reference engine"
            raise ValueError(f"{', '.join(params.unsupported)}: {what}")
        side = disaggregated_params.request_type if disaggregated_params else None
        if side == "context_only":
            params = replace(params, max_tokens=1)
        grammar = self._grammar(params.guided_decoding, forced)
        prompt, tokens = self._tokenize(inputs, params)
        self._check_prompt(tokens, is_computed=side == "generation_only")
        request = RequestOutput(next(self._ids), prompt, tokens, params, streaming)
        room = self.max_seq_len - len(tokens)
        if room < 1:
            # The engine meets this limit only when it schedules the request.
            what = f"a prompt of {len(tokens)} tokens leaves no room in max_seq_len"
            request.put(RequestError(f"{what} ({self.max_seq_len})"))
        else:
            fitting = _fitting(params.max_tokens, room)
            self._scheduler.submit(self._sequences(request, fitting, grammar))
        return request

    @cached_property
    def _tokens(self) -> Any:
        return guide.tokens_of(self.tokenizer, self._model.config.vocab_size, self._end_ids)

    def _grammar(self, params: GuidedDecodingParams | None, forced: Format | None) -> str | None:
        """What the answer must follow. Raises `ValueError` for a guide that is refused.

        Without a backend, releases with a known defect drop the guide; of the others it is known
        that the C++ executor refuses the request (TensorRT-LLM#2624), and assumed that all do.
        """
        if forced is None and params is not None:
            backend = self.args.guided_decoding_backend
            if backend:
                forced = guide.format_of(params, backend)
            elif engine_options.has_defect("response-format-ignored"):
                logger.warning(
                    "guided decoding is dropped: without guided_decoding_backend, release %s "
                    "answers as if the request had asked for none (NVIDIA/TensorRT#4855)",
                    engine_options.release().name,
                )
            else:
                what = "the request has a guide, but the server has no guided_decoding_backend"
                raise ValueError(f"{what}; set it to xgrammar")
        if forced is None:
            return None
        grammar = guide.grammar_of(forced, self.is_miniature)
        guide.Guide(self._tokens, grammar, self.is_miniature)
        return grammar

    def _sequences(
        self, request: RequestOutput, max_tokens: int, grammar: str | None
    ) -> list[Sequence]:
        params = request.sampling_params
        seed = random.getrandbits(62) if params.seed is None else params.seed
        bad_words = [  # each by itself, as the engine does
            self.tokenizer.encode(word, add_special_tokens=False) for word in params.bad_words
        ]
        return [
            Sequence(
                request,
                index,
                self._model,
                self.args,
                self.tokenizer,
                self._ends(params),
                max_tokens,
                (seed + index) % 2**63,
                bad_words,
                guide.Guide(self._tokens, grammar, self.is_miniature) if grammar else None,
            )
            for index in range(params.n)
        ]

    def _ends(self, params: SamplingParams) -> frozenset[int]:
        """The tokens that end a text; an end_id of -1 means none, as in the engine."""
        if params.ignore_eos or params.end_id == -1:
            return frozenset()
        return self._end_ids if params.end_id is None else frozenset({params.end_id})

    def input_processor(
        self, inputs: Mapping[str, Any], sampling_params: SamplingParams
    ) -> tuple[list[int], None]:
        """A prompt's token ids, and nothing more: what servers call before `generate_async`."""
        return self._tokenize(inputs, sampling_params)[1], None

    def _tokenize(self, inputs: Prompt, params: SamplingParams) -> tuple[str | None, list[int]]:
        if isinstance(inputs, Mapping):
            if unknown := sorted(set(inputs) - {"prompt", "prompt_token_ids"}):
                what = f"prompt with {', '.join(unknown)}"
                raise ValueError(f"{what}: not supported by the reference engine")
            given = inputs.get("prompt_token_ids")
            inputs = inputs["prompt"] if given is None else list(given)
        prompt = None
        if isinstance(inputs, str):
            prompt = inputs
            inputs = self.tokenizer.encode(inputs, add_special_tokens=params.add_special_tokens)
        tokens = [int(token) for token in inputs]
        return prompt, tokens[-(params.truncate_prompt_tokens or 0) :]

    def _check_prompt(self, tokens: list[int], is_computed: bool) -> None:
        if not tokens:
            raise RequestError("the prompt has no tokens")
        vocab_size = int(self._model.config.vocab_size)
        if not all(0 <= token < vocab_size for token in tokens):
            raise RequestError(f"the prompt has token ids outside 0..{vocab_size - 1}")
        limit = self.args.max_num_tokens
        if len(tokens) > limit and not (is_computed or self.args.enable_chunked_prefill):
            what = f"a prompt of {len(tokens)} tokens is longer than max_num_tokens ({limit})"
            raise RequestError(f"{what}; enable_chunked_prefill lifts this limit")

    def get_stats(self, timeout: float | None = None) -> list[dict[str, Any]]:
        """Statistics of the iterations since the last call; none unless enable_iter_perf_stats."""
        return self._scheduler.take_stats()

    async def get_stats_async(self, timeout: float | None = None) -> AsyncIterator[dict[str, Any]]:
        for stats in self.get_stats(timeout):
            yield stats

    def _check_health(self) -> bool:
        return self._scheduler.healthy

    def shutdown(self) -> None:
        """End the engine; may be called again."""
        self._scheduler.shutdown()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


def _fitting(wanted: int | None, room: int) -> int:
    """The tokens that a request may have: more than fit are cut to what fits, with a warning.

    Source: NVIDIA/TensorRT-LLM@000bd1a6 (1.3), `_deduce_max_tokens` in
    tensorrt_llm/executor/base_worker.py; the same before 1.2.1. No answer tells of the cut.
    """
    if wanted is None or wanted <= room:
        return wanted or room
    logger.warning("max_tokens %d is cut to the %d that fit into max_seq_len", wanted, room)
    return room


def _shutdown(reference: weakref.ref[Scheduler]) -> None:
    """A thread that computes while the interpreter goes down would crash it."""
    if scheduler := reference():
        scheduler.shutdown()
