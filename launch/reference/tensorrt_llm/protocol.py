"""The OpenAI-style requests and responses of the server.

Request fields are those of the engine's own server; a field that it does not know is refused.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, Field, model_validator

from . import options
from .answer import AnswerReader, Function
from .guide import GuidedDecodingParams
from .logger import logger
from .results import CompletionOutput, RequestOutput
from .sampling import Logprob, SamplingParams

_UNSUPPORTED = (
    *("use_beam_search", "best_of", "logit_bias", "lora_request", "suffix", "echo"),
    *("return_context_logits", "documents"),
)
# Types of `response_format` with a field: the field, and the guide that it is.
_GUIDES = {
    "json": ("schema", "json"),
    "json_schema": ("json_schema", "json"),
    "regex": ("regex", "regex"),
    "ebnf": ("ebnf", "grammar"),
}

_FUNCTION = ("name", "description", "parameters", "strict")
# What to send where a release refuses a field or a value of a chat.
_INSTEAD = {
    "tool_choice.auto": "leave it out where there are no tools",
    "tool_choice.required": 'send "auto", or the schema as response_format of type "json"',
    "tool_choice.function.name": "name a function of tools",
    "tools.function.strict": "leave it out and check the arguments",
    "parallel_tool_calls": "leave it out: the model decides how many functions it calls",
}


def guide_of(form: Mapping[str, Any] | None) -> GuidedDecodingParams | None:
    """The guide of a `response_format`. Raises `ValueError` for a type without its field.

    Source: TensorRT-LLM tensorrt_llm/serve/openai_protocol.py@0076e93,
    _response_format_to_guided_decoding_params.
    """
    kind = (form or {}).get("type", "text")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return GuidedDecodingParams(json_object=True)
    if kind == "structural_tag":
        return GuidedDecodingParams(structural_tag=json.dumps(form))
    if kind not in _GUIDES:
        raise ValueError(f"response_format.type: {kind!r} is not a type of this server")
    field, guide = _GUIDES[kind]
    value = form.get(field)
    if value is None:
        raise ValueError(f"response_format.{field} is required for the type {kind!r}")
    if kind == "json_schema" and "schema" in value:
        value = value["schema"]
        if options.has_defect("json-schema-dropped"):
            logger.warning(
                "response_format json_schema: release %s follows no schema in it, and answers with "
                "any object (NVIDIA/TensorRT#4855); type json is followed",
                options.release().name,
            )
            return GuidedDecodingParams(json_object=True)
    return GuidedDecodingParams(**{guide: value})


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
        return self

    @property
    def is_prefill(self) -> bool:
        """Whether only the prompt is to be computed, and the first token."""
        params = self.disaggregated_params
        return params is not None and params.request_type == "context_only"

    def sampling(self, **own: Any) -> SamplingParams:
        """The engine's parameters; the server samples at temperature 1 unless told otherwise."""
        names = {field.name for field in fields(SamplingParams)} & set(type(self).model_fields)
        given = {name: getattr(self, name) for name in names}
        for name in ("temperature", "top_p"):
            given[name] = 1.0 if given[name] is None else given[name]
        given["guided_decoding"] = guide_of(self.response_format)
        return SamplingParams(**{**given, **own})


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
        return self.sampling(logprobs=self.logprobs or None)  # 0 asks for none


class FunctionTool(BaseModel, extra="forbid"):
    type: Literal["function"] = "function"
    function: dict[str, Any]

    @model_validator(mode="after")
    def _check(self) -> FunctionTool:
        if unknown := sorted(set(self.function) - set(_FUNCTION)):
            raise ValueError(f"function.{unknown[0]}: Extra inputs are not permitted")
        if not isinstance(self.function.get("name"), str):
            raise ValueError("function.name: Field required")
        return self


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
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionTool | None = None
    parallel_tool_calls: bool | None = None
    documents: list[Any] | None = None
    reasoning_effort: Any = None
    cache_salt: str | None = None

    @model_validator(mode="after")
    def _check_chat(self) -> ChatCompletionRequest:
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise ValueError("tool_choice needs tools")
        # TensorRT-LLM tensorrt_llm/serve/openai_protocol.py near 1.2: 0 needs them too.
        top = self.top_logprobs if "top_logprobs" in self.model_fields_set else None
        if top is not None and (top < 0 or not self.logprobs):
            raise ValueError("top_logprobs must be at least 0, and needs logprobs: true")
        is_open = "tool_choice" in self.model_fields_set and self.tool_choice in (None, "auto")
        asked = {
            "tool_choice.auto": is_open and self.tools is None,
            "tool_choice.required": self.tool_choice == "required",
            "tool_choice.function.name": self.named and not self.named_functions,
            "tools.function.strict": any("strict" in one for one in self.functions),
            "parallel_tool_calls": self.parallel_tool_calls is not None,
        }
        release = options.release()
        lacks = [name for name in release.requests_lack if asked[name]]
        if lacks:
            refuses = f"release {release.name} refuses it"
            raise ValueError("; ".join(f"{name}: {refuses}; {_INSTEAD[name]}" for name in lacks))
        return self

    @property
    def functions(self) -> list[Function]:
        return [tool.function for tool in self.tools or ()]

    @property
    def named(self) -> str | None:
        """The function that the answer must call."""
        choice = self.tool_choice
        return str(choice.function["name"]) if isinstance(choice, FunctionTool) else None

    @property
    def named_functions(self) -> list[Function]:
        return [one for one in self.functions if one["name"] == self.named]

    def to_sampling_params(self) -> SamplingParams:
        logprobs = (self.top_logprobs or 1) if self.logprobs else None
        return self.sampling(max_tokens=self.max_completion_tokens, logprobs=logprobs)

    @property
    def conversation(self) -> list[dict[str, Any]]:
        return [{**message, "content": _text(message.get("content"))} for message in self.messages]


# Fields of the Responses API that the reference engine does not do: it keeps no responses.
_NOT_IN_RESPONSES = (
    *("background", "stream", "previous_response_id", "include", "prompt", "top_logprobs"),
    "max_tool_calls",
)
# Why an answer ended, as the status of a response.
_STATUS = {"length": "incomplete", "timeout": "failed", "cancelled": "cancelled"}


class ResponsesRequest(BaseModel, extra="allow"):
    """A request of `/v1/responses`, answered like a chat (TensorRT-LLM responses_utils.py@02238b6).

    The fields of `_NOT_IN_RESPONSES` are known, but refused, as are tools other than functions.
    """

    model: str
    input: str | list[dict[str, Any]]
    store: bool | None = True
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = False
    reasoning: dict[str, Any] | None = None
    service_tier: str = "auto"
    temperature: float | None = None
    text: dict[str, Any] | None = None
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = Field(default_factory=list)
    top_p: float | None = None
    truncation: str | None = "disabled"
    user: str | None = None

    @model_validator(mode="after")
    def _check(self) -> ResponsesRequest:
        more = self.model_extra or {}
        if unknown := sorted(set(more) - set(_NOT_IN_RESPONSES)):
            raise ValueError(f"{', '.join(unknown)}: Extra inputs are not permitted")
        asked = [name for name in _NOT_IN_RESPONSES if more.get(name)]
        asked += [f"tools.{one.get('type')}" for one in self.tools if one.get("type") != "function"]
        if asked:
            raise ValueError(f"{', '.join(asked)}: not supported by the reference engine")
        return self

    def chat(self) -> ChatCompletionRequest:
        """The same as a chat. Raises `ValueError` for an item that has no place in one."""
        items = self.input
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        if self.instructions:
            items = [{"role": "system", "content": self.instructions}, *items]
        known = set(_FUNCTION) - {"strict"}
        tools = [{"function": {key: tool[key] for key in known & set(tool)}} for tool in self.tools]
        choice, form = self.tool_choice, (self.text or {}).get("format")
        if isinstance(choice, dict):
            choice = {"function": {"name": choice.get("name")}}
        if form and form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": form.get("schema")}
        return ChatCompletionRequest(
            model=self.model,
            messages=[_message(item) for item in items],
            max_completion_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            response_format=form,
            **({"tools": tools, "tool_choice": choice} if tools else {}),
        )

    def response(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The response, from the same answer as that of a chat."""
        [choice] = answer["choices"]
        message, usage = choice["message"], answer["usage"]
        output: list[dict[str, Any]] = []
        if text := message["reasoning_content"]:
            content = [{"type": "reasoning_text", "text": text}]
            output.append({"type": "reasoning", "summary": [], "content": content})
        if text := message["content"]:
            content = [{"type": "output_text", "text": text, "annotations": []}]
            output.append({"type": "message", "role": "assistant", "content": content})
        for call in message["tool_calls"]:
            output.append({"type": "function_call", "call_id": call["id"], **call["function"]})
        for item in output:
            item |= {"id": f"{item['type']}_{uuid.uuid4().hex}", "status": "completed"}
        return {
            **self.model_dump(exclude={"input", "store", *_NOT_IN_RESPONSES}),
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response",
            "created_at": answer["created"],
            "status": _STATUS.get(choice["finish_reason"], "completed"),
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "output": output,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        }


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    """An input item as a message of a chat; a call and its result keep their id."""
    kind = item.get("type", "message")
    try:
        if kind == "message":
            return {"role": item["role"], "content": _text(item.get("content"))}
        if kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        if kind == "function_call_output":
            return {"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]}
    except KeyError as fault:
        raise ValueError(f"input: an item lacks {fault}") from None
    if kind == "reasoning":
        return {"role": "assistant", "content": ""}
    raise ValueError(f"input: an item of type {kind} is not supported by the reference engine")


def _text(content: Any) -> str:
    if not isinstance(content, list):
        return content or ""
    if any(part.get("type") not in ("text", "input_text", "output_text") for part in content):
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
        reader: Callable[[], AnswerReader],
    ) -> None:
        outputs = range(len(requests) * body.n)
        self._readers = [reader() for _ in outputs]
        self._body, self._requests, self._tokenizer = body, requests, tokenizer
        self._chat = isinstance(body, ChatCompletionRequest)
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        stream = body.stream_options
        self._has_usage = bool(stream and stream.include_usage)
        self._is_continuous = bool(
            stream and stream.include_usage and stream.continuous_usage_stats
        )
        self._opened: set[int] = set()
        self._closed: set[int] = set()

    def whole(self) -> dict[str, Any]:
        choices = []
        for number, request in enumerate(self._requests):
            choices += [self._choice(number, request, one, False) for one in request.outputs]
        whole = {**self._envelope(choices, streamed=False), "usage": self._usage()}
        if self._body.is_prefill:
            whole["prompt_token_ids"] = self._requests[0].prompt_token_ids
        return whole

    def chunks(self, number: int) -> Iterator[dict[str, Any]]:
        """What the last step of request `number` added."""
        request = self._requests[number]
        for output in request.outputs:
            index = self._index(number, output)
            if self._chat and index not in self._opened:
                self._opened.add(index)
                delta = {"role": "assistant", "content": ""}
                choice = {"index": index, "delta": delta, "finish_reason": None}
                yield self._envelope([choice])
            if index in self._closed or not (output.token_ids_diff or output.finish_reason):
                continue
            chunk = self._envelope([self._choice(number, request, output, streamed=True)])
            if self._is_continuous:
                chunk["usage"] = self._usage()
            if output.finish_reason:
                self._closed.add(index)
            yield chunk

    def last_chunk(self) -> dict[str, Any] | None:
        """The usage, where it is asked for."""
        return {**self._envelope([]), "usage": self._usage()} if self._has_usage else None

    def _index(self, number: int, output: CompletionOutput) -> int:
        return number * self._body.n + output.index

    def _envelope(self, choices: list[dict[str, Any]], streamed: bool = True) -> dict[str, Any]:
        chat = "chat.completion.chunk" if streamed else "chat.completion"
        return {
            "id": self._id,
            "object": chat if self._chat else "text_completion",
            "created": self._created,
            "model": self._body.model,
            "choices": choices,
        }

    def _usage(self) -> dict[str, Any]:
        prompt = sum(len(request.prompt_token_ids) for request in self._requests)
        completion = sum(request.output_length for request in self._requests)
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
        reader = self._readers[choice["index"]]
        message = reader.push(text, not streamed or output.finish_reason is not None)
        if reader.calls and output.finish_reason == "stop":
            choice["finish_reason"] = "tool_calls"
        if streamed:
            return {**choice, "delta": message}
        return {**choice, "message": {"role": "assistant", **whole_calls(message)}}

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
        wanted = getattr(self._body, "top_logprobs", 0) or 0
        top = sorted(entries, key=lambda t: entries[t].logprob, reverse=True)[:wanted]
        rows = []
        for one in (token, *top):
            text, logprob = self._decode(one), entries[one].logprob
            rows.append({"token": text, "logprob": logprob, "bytes": list(text.encode())})
        return {**rows[0], "top_logprobs": rows[1:]}

    def _decode(self, token: int) -> str:
        return str(self._tokenizer.decode([token]))


def whole_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with each of its calls in one piece."""
    calls: dict[int, dict[str, Any]] = {}
    for part in message.get("tool_calls", ()):
        head = {"id": f"chatcmpl-tool-{uuid.uuid4().hex}", "type": "function", "function": {}}
        call = calls.setdefault(part["index"], {**head, "id": part.get("id", head["id"])})
        call["function"] = {**call["function"], **part["function"]}
    return {"content": "", **message, "tool_calls": list(calls.values())}


def error_body(message: str, kind: str = "BadRequestError", code: int = 400) -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
