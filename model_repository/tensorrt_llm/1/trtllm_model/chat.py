"""A conversation as the prompt of a request: checked here, written by the tokenizer's template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .inputs import Inputs, RequestError, document, shown

# Arguments of the tokenizer that are no words for the template: they change what it returns, and
# with a template of the client's own a client would run it on this machine.
RESERVED = frozenset(
    {
        "conversation",
        "messages",
        "chat_template",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
    }
)


@dataclass(frozen=True, slots=True)
class Chat:
    """Messages `{role, content, ...}` with text contents, tools, and words for the template."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    template_kwargs: Mapping[str, Any]

    def render(self, tokenizer: Any) -> str:
        """The prompt with all its special tokens. Raises `RequestError` if the template does."""
        template = getattr(tokenizer, "apply_chat_template", None)
        if template is None:
            raise RequestError(
                "messages: this model's tokenizer has no chat template; send text_input"
            )
        arguments = {"add_generation_prompt": True, **self.template_kwargs}
        try:
            prompt = str(template(self.messages, tools=self.tools, tokenize=False, **arguments))
            prompt.encode("utf-8")
        except Exception as fault:
            # A template is a program of the checkpoint that runs on what the client sent: it may
            # raise anything, and says by that what it does not take.
            what = "messages: the tokenizer's chat template does not take them"
            raise RequestError(f"{what}: {type(fault).__name__}: {fault}") from fault
        if not prompt:
            raise RequestError("messages: the tokenizer's chat template makes no text of them")
        return prompt


def read(inputs: Inputs) -> Chat | None:
    """The conversation that a request holds, if it does. Raises `RequestError` naming the place."""
    messages = document(inputs, "messages", list)
    tools = document(inputs, "tools", list)
    kwargs = document(inputs, "chat_template_kwargs", dict)
    if messages is None:
        for name in ("tools", "chat_template_kwargs"):
            if name in inputs:
                raise RequestError(f"{name}: has a meaning beside messages only; send messages too")
        return None
    if not messages:
        raise RequestError("messages: is an empty list; send at least one message")
    for index, tool in enumerate(tools or ()):
        if not isinstance(tool, dict):
            raise RequestError(f"tools[{index}]: is {shown(tool)}; an object is expected")
    for name in kwargs or ():
        if name in RESERVED:
            raise RequestError(
                f"chat_template_kwargs.{name}: is not for the template; leave it out"
            )
    checked = [_message(f"messages[{i}]", message) for i, message in enumerate(messages)]
    return Chat(checked, tools, kwargs or {})


def _message(where: str, message: Any) -> dict[str, Any]:
    """A message with its content as one text, which is what templates of language models take."""
    if not isinstance(message, dict):
        raise RequestError(
            f"{where}: is {shown(message)}; an object with role and content is expected"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        found = f"is {shown(role)}" if "role" in message else "is missing"
        raise RequestError(
            f"{where}.role: {found}; a role such as user, system or assistant is expected"
        )
    content = message.get("content")
    if content is None and "tool_calls" not in message:
        raise RequestError(f"{where}.content: is missing; send a string")
    return {
        **message,
        "content": _content(f"{where}.content", content),
        **_calls(f"{where}.tool_calls", message),
    }


def _content(where: str, content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise RequestError(f"{where}: is {shown(content)}; a string or a list of parts is expected")
    for index, part in enumerate(content):
        fits = isinstance(part, dict) and part.get("type") == "text"
        if not fits or not isinstance(part.get("text"), str):
            what = f"{where}[{index}]: is {shown(part)}"
            raise RequestError(f'{what}; {{"type": "text", "text": ...}} is expected')
    return "\n".join(part["text"] for part in content)


def _calls(where: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """Earlier tool calls with their arguments as an object: clients send them as JSON text."""
    if "tool_calls" not in message:
        return {}
    calls = message["tool_calls"]
    if not isinstance(calls, list) or not all(
        isinstance(call, dict) and isinstance(call.get("function"), dict) for call in calls
    ):
        raise RequestError(
            f"{where}: is {shown(calls)}; a list of objects with a function is expected"
        )
    read = []
    for index, call in enumerate(calls):
        function = dict(call["function"])
        if isinstance(function.get("arguments"), str):
            place = f"{where}[{index}].function.arguments"
            try:
                function["arguments"] = json.loads(function["arguments"] or "{}")
            except (ValueError, RecursionError) as fault:
                raise RequestError(f"{place}: is no JSON: {fault}") from fault
        read.append({**call, "function": function})
    return {"tool_calls": read}
