"""The OpenAI APIs for completions and chats, streamed as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady

from ...answers import model_name
from ...endpoint import Endpoint
from ..request import LoadRequest, RequestRecord
from . import http1
from .connection import Connector
from .transcript import Transcript, mapping_of, number, text_of, whole

DONE = b"[DONE]"
# Keys of a chat's delta with output other than `content`.
OUTPUTS = ("reasoning_content", "reasoning")


class OpenAILoadClient:
    def __init__(self, endpoint: Endpoint, chat: bool) -> None:
        self._server = Connector(endpoint.url or "", endpoint.access)
        self._headers = endpoint.access.http_headers
        self._chat = chat
        self._path = "/v1/chat/completions" if chat else "/v1/completions"
        self._model = endpoint.model

    async def prepare(self) -> None:
        """Raises `NotReady` where no model is served."""
        await self._server.prepare()
        if self._model is None:
            found = await http1.document(self._server, "/v1/models", self._headers)
            try:
                self._model = model_name(found["data"][0]["id"])
            except (KeyError, IndexError, TypeError, ValueError):
                where = f"{self._server.url}/v1/models"
                raise NotReady(Diagnostic(where, "has no model")) from None

    async def send(self, request: LoadRequest) -> RequestRecord:
        if self._model is None:
            await self.prepare()
        body = json.dumps(self._body(request)).encode()
        return await http1.send(
            self._server, self._path, self._headers, body, OpenAITranscript(request)
        )

    def _body(self, request: LoadRequest) -> dict[str, Any]:
        values = {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "ignore_eos": request.ignore_eos or None,
        }
        sent = {name: value for name, value in values.items() if value is not None}
        return {
            "model": self._model,
            **self._prompt(request),
            **sent,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _prompt(self, request: LoadRequest) -> dict[str, Any]:
        if not self._chat and request.messages is None:
            return {"prompt": request.prompt}
        if self._chat and request.messages is not None:
            return {"messages": request.messages}
        if self._chat and isinstance(request.prompt, str):
            return {"messages": [{"role": "user", "content": request.prompt}]}
        wanted, other = (
            ("a text or messages", "token ids") if self._chat else ("a prompt", "a chat")
        )
        api = "openai_completions" if self._chat else "openai_chat"
        raise BadInput(Diagnostic(self._path, f"takes {wanted}, not {other}", f"use {api}"))


class OpenAITranscript(Transcript):
    """Complete with a finish reason and `[DONE]`; only the usage may come between them."""

    def __init__(self, request: LoadRequest) -> None:
        super().__init__(request)
        self._done = False
        self._is_counted = False
        self._ids = 0
        # A chunk with a text and nothing else, before the last one.
        self._plain = http1.EventPattern()

    def event(self, arrived_ns: int, data: bytes) -> None:
        if self.finish_reason is None and (text := self._plain.text(data)) is not None:
            self.messages.append((arrived_ns, text, None))
        elif self._done:
            self.fail("overrun", f"after [DONE] came {data[:80]!r}")
        elif data == DONE:
            self._done = True
            self.is_final = self.finish_reason is not None
        elif (chunk := http1.event_object(data, self)) is not None:
            if usage := mapping_of(chunk.get("usage")):
                _count(usage, self)
                self._is_counted = True
            if choices := chunk.get("choices"):
                text = self._choice(arrived_ns, choices[0], usage)
                if text and not (usage or self._ids or self.finish_reason):
                    self._plain.learn(data, text)
            elif not usage:
                self.fail("malformed", f"no completion: {data[:80]!r}")

    def end(self) -> None:
        if self._ids and not self._is_counted:
            self.output_tokens, self.count_source = self._ids, "token_ids"

    def _choice(self, arrived_ns: int, choice: dict[str, Any], usage: Mapping[str, Any]) -> str:
        if self.finish_reason is not None:
            self.fail("overrun", f"after the final chunk came {str(choice)[:80]}")
            return ""
        text = text_of(choice.get("text"))
        if choice.get("text") is None:
            delta = mapping_of(choice.get("delta"))
            text = text_of(delta.get("content")) or _said(delta)
        if ids := choice.get("token_ids"):
            self._ids += len(ids)
        so_far = whole(usage.get("completion_tokens")) if usage else self._ids or None
        self.messages.append((arrived_ns, text, so_far))
        if reason := text_of(choice.get("finish_reason")):
            self.finish_reason = reason
            if (steps := number(choice.get("avg_decoded_tokens_per_iter"))) is not None:
                self.server["tokens_per_step"] = steps
        return text


def _said(delta: Mapping[str, Any]) -> str:
    """The text of a delta; a tool call is output too."""
    text = "".join([delta[name] for name in OUTPUTS if delta.get(name)])
    return text or (json.dumps(delta["tool_calls"]) if delta.get("tool_calls") else "")


def _count(usage: Mapping[str, Any], transcript: Transcript) -> None:
    prompt = mapping_of(usage.get("prompt_tokens_details"))
    output = mapping_of(usage.get("completion_tokens_details"))
    transcript.prompt_tokens = whole(usage.get("prompt_tokens"))
    transcript.output_tokens = whole(usage.get("completion_tokens"))
    transcript.count_source = "usage"
    transcript.cached_tokens = whole(prompt.get("cached_tokens"))
    transcript.reasoning_tokens = whole(output.get("reasoning_tokens"))
