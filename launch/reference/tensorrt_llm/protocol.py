"""The OpenAI-style requests and responses of the server.

Request fields are those of the engine's own server; a field that it does not know is refused.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, Field, model_validator

from .results import CompletionOutput, RequestOutput
from .sampling import Logprob, SamplingParams

_UNSUPPORTED = (
    *("use_beam_search", "best_of", "logit_bias", "lora_request", "suffix", "echo"),
    *("return_context_logits", "tools", "documents"),
)


class StreamOptions(BaseModel, extra="forbid", populate_by_name=True):
    include_usage: bool = True
    continuous_usage_stats: bool = False


class DisaggregatedParams(BaseModel, extra="forbid", populate_by_name=True):
    """What a prefill server tells the decode server, through the router of both.

    The stand-in transfers no KV cache: its decode server computes the prompt once more.
    Source: TensorRT-LLM tensorrt_llm/serve/openai_protocol.py, DisaggregatedParams.
    """

    request_type: Literal["context_only", "generation_only", "context_and_generation"]
    first_gen_tokens: list[int] | None = None
    ctx_request_id: int | None = None
    encoded_opaque_state: str | None = None
    draft_tokens: list[int] | None = None

    @model_validator(mode="after")
    def _check(self) -> DisaggregatedParams:
        known = None not in (self.first_gen_tokens, self.ctx_request_id)
        if self.request_type == "generation_only" and not known:
            raise ValueError("generation_only needs first_gen_tokens and ctx_request_id")
        return self


class GenerationRequest(BaseModel, extra="forbid", populate_by_name=True):
    """What both kinds of requests share. The fields of `_UNSUPPORTED` are known, but refused."""

    model: str
    n: int = 1
    best_of: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    prompt_ignore_length: int | None = 0
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = Field(default=None, ge=1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    echo: bool | None = False
    user: str | None = None

    use_beam_search: bool = False
    length_penalty: float | None = None
    early_stopping: Any = None
    top_p_min: float = 0.0
    logit_bias: dict[str, float] | None = None
    lora_request: Any = None
    response_format: dict[str, Any] | None = None
    disaggregated_params: DisaggregatedParams | None = None

    @model_validator(mode="after")
    def _check(self) -> GenerationRequest:
        if self.stream_options and not self.stream:
            raise ValueError("stream_options need stream: true")
        if asked := [name for name in _UNSUPPORTED if getattr(self, name, None)]:
            raise ValueError(f"{', '.join(asked)}: not supported by the reference engine")
        if self.response_format and self.response_format.get("type") != "text":
            raise ValueError("response_format: only text is supported by the reference engine")
        return self

    @property
    def is_prefill(self) -> bool:
        """Whether only the prompt is to be computed, and the first token."""
        params = self.disaggregated_params
        return params is not None and params.request_type == "context_only"

    def sampling(self, **own: Any) -> SamplingParams:
        """The engine's parameters; the server samples at temperature 1 unless told otherwise."""
        own |= {
            field.name: getattr(self, field.name)
            for field in fields(SamplingParams)
            if field.name in GenerationRequest.model_fields
        }
        own["temperature"] = 1.0 if self.temperature is None else self.temperature
        own["top_p"] = 1.0 if self.top_p is None else self.top_p
        return SamplingParams(**own)


class CompletionRequest(GenerationRequest):
    prompt: list[int] | list[list[int]] | str | list[str]
    max_tokens: int | None = None
    logprobs: int | None = None
    suffix: str | None = None
    add_special_tokens: bool = True
    detokenize: bool = True
    return_context_logits: bool = False

    @property
    def prompts(self) -> list[Any]:
        one = isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int))
        return [self.prompt] if one else list(self.prompt)

    def to_sampling_params(self) -> SamplingParams:
        return self.sampling(
            max_tokens=self.max_tokens,
            logprobs=self.logprobs,
            add_special_tokens=self.add_special_tokens,
            detokenize=self.detokenize,
        )


class ChatCompletionRequest(GenerationRequest):
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(
        default=None, validation_alias=AliasChoices("max_completion_tokens", "max_tokens")
    )
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prompt_token_ids: list[int] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    documents: list[Any] | None = None
    reasoning_effort: Any = None
    cache_salt: str | None = None

    def to_sampling_params(self) -> SamplingParams:
        return self.sampling(
            max_tokens=self.max_completion_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            add_special_tokens=self.add_special_tokens,
        )

    @property
    def conversation(self) -> list[dict[str, Any]]:
        return [{**message, "content": _text(message.get("content"))} for message in self.messages]


def _text(content: Any) -> str:
    if not isinstance(content, list):
        return content or ""
    if any(part.get("type") != "text" for part in content):
        raise ValueError("message content: only text is supported by the reference engine")
    return "\n".join(part["text"] for part in content)


class OpenAIResponse:
    """The response to one HTTP request, whole or in chunks.

    `requests` holds one engine request per prompt. `chat` chooses between the two shapes.
    """

    def __init__(
        self,
        body: CompletionRequest | ChatCompletionRequest,
        requests: Sequence[RequestOutput],
        tokenizer: Any,
    ) -> None:
        self._body, self._requests, self._tokenizer = body, requests, tokenizer
        self._chat = isinstance(body, ChatCompletionRequest)
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._opened: set[int] = set()
        self._closed: set[int] = set()

    def whole(self) -> dict[str, Any]:
        choices = []
        for number, request in enumerate(self._requests):
            for output in request.outputs:
                choices.append(self._choice(number, request, output, streamed=False))
        kind = "chat.completion" if self._chat else "text_completion"
        whole = {**self._envelope(kind, choices), "usage": self._usage()}
        if self._body.is_prefill:
            whole["prompt_token_ids"] = self._requests[0].prompt_token_ids
        return whole

    def chunks(self, number: int) -> Iterator[dict[str, Any]]:
        """What the last step of request `number` added."""
        request = self._requests[number]
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        for output in request.outputs:
            index = self._index(number, output)
            if self._chat and index not in self._opened:
                self._opened.add(index)
                delta = {"role": "assistant", "content": ""}
                choice = {"index": index, "delta": delta, "finish_reason": None}
                yield self._envelope(kind, [choice])
            if index in self._closed or not (output.token_ids_diff or output.finish_reason):
                continue
            chunk = self._envelope(kind, [self._choice(number, request, output, streamed=True)])
            options = self._body.stream_options
            if options and options.include_usage and options.continuous_usage_stats:
                chunk["usage"] = self._usage()
            if output.finish_reason:
                self._closed.add(index)
            yield chunk

    def last_chunk(self) -> dict[str, Any] | None:
        """The usage, where it is asked for."""
        options = self._body.stream_options
        if not options or not options.include_usage:
            return None
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._envelope(kind, []), "usage": self._usage()}

    def _index(self, number: int, output: CompletionOutput) -> int:
        return number * self._body.n + output.index

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._body.model,
            "choices": choices,
        }

    def _usage(self) -> dict[str, Any]:
        prompt = completion = 0
        for request in self._requests:
            prompt += len(request.prompt_token_ids)
            completion += sum(output.length for output in request.outputs)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def _choice(
        self, number: int, request: RequestOutput, output: CompletionOutput, streamed: bool
    ) -> dict[str, Any]:
        text = output.text_diff if streamed else output.text
        choice: dict[str, Any] = {
            "index": self._index(number, output),
            "logprobs": self._logprobs(output, streamed),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
            "avg_decoded_tokens_per_iter": request.avg_decoded_tokens_per_iter,
        }
        if self._body.is_prefill:
            choice["disaggregated_params"] = {
                "request_type": "context_only",
                "first_gen_tokens": output.token_ids,
                "ctx_request_id": request.request_id,
            }
        if isinstance(self._body, CompletionRequest):
            tokens = output.token_ids_diff if streamed else output.token_ids
            return {
                **choice,
                "text": text if self._body.detokenize else "",
                "token_ids": None if self._body.detokenize else tokens,
            }
        if streamed:
            return {**choice, "delta": {"content": text}}
        message = {"role": "assistant", "content": text, "tool_calls": []}
        return {**choice, "message": message}

    def _logprobs(self, output: CompletionOutput, streamed: bool) -> dict[str, Any] | None:
        if self._body.logprobs is None or self._body.logprobs is False:
            return None
        scored = output.logprobs_diff if streamed else output.logprobs
        tokens = (output.token_ids_diff if streamed else output.token_ids)[-len(scored) :]
        pairs = list(zip(tokens, scored, strict=True)) if scored else []
        if self._chat:
            return {"content": [self._scored(token, entries) for token, entries in pairs]}
        texts = [self._decode(token) for token, _ in pairs]
        start = len(output.text) - len(output.text_diff) if streamed else 0
        return {
            "text_offset": [start + len("".join(texts[:i])) for i in range(len(texts))],
            "token_logprobs": [entries[token].logprob for token, entries in pairs],
            "tokens": texts,
            "top_logprobs": [
                {self._decode(token): entry.logprob for token, entry in entries.items()}
                for _, entries in pairs
            ],
        }

    def _scored(self, token: int, entries: dict[int, Logprob]) -> dict[str, Any]:
        def one(token: int) -> dict[str, Any]:
            text = self._decode(token)
            return {"token": text, "logprob": entries[token].logprob, "bytes": list(text.encode())}

        wanted = getattr(self._body, "top_logprobs", 0) or 0
        top = sorted(entries, key=lambda t: entries[t].logprob, reverse=True)[:wanted]
        return {**one(token), "top_logprobs": [one(other) for other in top]}

    def _decode(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))


def error_body(message: str, kind: str = "BadRequestError", code: int = 400) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
