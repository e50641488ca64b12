"""An answer of a chat, split by the release's parsers into reasoning, text and tool calls.

What the parsers read are rows of `builder/data/parsers`. The release streams the name of a call and
then its arguments in pieces, which differ by parser; here the arguments follow whole, as the parser
of DeepSeek-V3.2 sends them (TensorRT-LLM, serve/tool_parser/deepseekv32_parser.py@0c8de69).
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from builder.facts.chat_turns import ReasoningParser, ToolParser
from builder.rules.answer_parsers import read_calls

from .guide import SHORT_TEXT, Format

# A function of `tools`: `name`, `description` and, as a JSON schema, `parameters`.
Function = Mapping[str, Any]


def reasoned(row: ReasoningParser | None, form: Format) -> Format:
    """A guided answer after the model's reasoning, where a parser takes this out.

    Source: NVIDIA/TensorRT-LLM#10890 (2026-01-22), openai_protocol.py. A prompt that begins the
    reasoning by itself has its start already.
    """
    if row is None:
        return form
    begin = row.start if row.begins == "before" else ""
    think = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": row.end}
    return {"type": "sequence", "elements": [think, form]}


def call_of(row: ToolParser, functions: Sequence[Function]) -> Format:
    """One call of one of the functions, as a model writes it for the parser of the row."""
    return {"type": "or", "elements": [_written(row, function) for function in functions]}


def schema_of(function: Function) -> dict[str, Any]:
    return dict(function.get("parameters") or {"type": "object", "properties": {}})


def _written(row: ToolParser, function: Function) -> Format:
    schema = schema_of(function)
    arguments: list[Format] = [{"type": "json_schema", "json_schema": schema}]
    if row.written_argument:
        arguments = list(_arguments(row.written_argument, schema))
    return _around(row.written.replace("{name}", function["name"]), "{arguments}", arguments)


def _arguments(written: str, schema: Mapping[str, Any]) -> Iterator[Format]:
    """The required arguments, or all of them where none is required."""
    properties = schema.get("properties", {})
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    for key in schema.get("required") or properties:
        value = properties.get(key, {})
        text = written.replace("{key}", key).replace("{is_text}", str(_is_text(value)).lower())
        form: Format = {"type": "json_schema", "json_schema": {**value, **definitions}}
        if _is_text(value):
            words = [re.escape(str(word)) for word in value.get("enum", ())]
            form = {"type": "regex", "pattern": "|".join(words) or SHORT_TEXT}
        yield _around(text, "{value}", [form])


def _around(text: str, place: str, inner: Sequence[Format]) -> Format:
    """A text with parts at a place in it."""
    before, after = ({"type": "const_string", "value": part} for part in text.split(place))
    return {"type": "sequence", "elements": [before, *inner, after]}


def _is_text(value: Mapping[str, Any]) -> bool:
    return value.get("type", "string") == "string" and not {"$ref", "anyOf", "oneOf"} & set(value)


def _constant(text: str) -> Format:
    return {"type": "const_string", "value": text}


def _sequence(elements: Sequence[Format]) -> Format:
    return {"type": "sequence", "elements": elements}


class AnswerReader:
    """Splits the growing text of one answer.

    Without a parser of the kind, everything is content. `named` is the function of a `tool_choice`
    that names one: the release takes the whole text for its arguments, whatever the model wrote,
    and gives neither an id nor another finish reason in a stream (postprocess_handlers.py@01bf192).
    """

    def __init__(
        self,
        reasoning: ReasoningParser | None,
        tools: ToolParser | None,
        functions: Sequence[Function] = (),
        named: str | None = None,
    ) -> None:
        self._reasoning, self._named = reasoning, named
        self._tools = tools if functions and named is None else None
        self._functions = {function["name"]: function for function in functions}
        self._text = ""
        self._sent = {"content": "", "reasoning_content": ""}
        self.calls = 0

    def push(self, text: str, is_last: bool) -> dict[str, Any]:
        """What new text adds: `content`, `reasoning_content` and, where there are some,
        `tool_calls`."""
        self._text += text
        content, thought, marks = self._text, "", []
        if row := self._reasoning:
            before, start, rest = content.partition(row.start)
            if row.begins != "before":
                before, start, rest = "", row.start, content
            if not start:
                marks = [row.start]
            else:
                thought, end, rest = rest.partition(row.end)
                thought = thought if end or is_last else _certain(thought, [row.end])
                content = before + rest
        calls: list[dict[str, Any]] = []
        if self._tools:
            mark = self._tools.marker or self._tools.written.partition("{")[0].strip()
            before, mark_found, rest = content.partition(mark)
            calls = list(self._new_calls(mark_found + rest))
            marks.append(mark)
            if mark_found and (self.calls or not is_last):
                content, marks = before, []
        if not is_last:
            content = _certain(content, marks)
        found: dict[str, Any] = {
            "content": content[len(self._sent["content"]) :],
            "reasoning_content": thought[len(self._sent["reasoning_content"]) :],
        }
        self._sent = {"content": content, "reasoning_content": thought}
        if self._named is not None:
            function = {"name": self._named, "arguments": found.pop("content")}
            calls = [{"index": 0, "type": "function", "function": function}]
        return {**found, "tool_calls": calls} if calls else found

    def _new_calls(self, text: str) -> Iterator[dict[str, Any]]:
        """The calls that are complete since the last time: each its name, then its arguments."""
        assert self._tools
        for index, call in enumerate(read_calls(self._tools, text)):
            if index < self.calls or call is None:
                continue
            self.calls = index + 1
            name, arguments = call
            head = {"index": index, "id": f"chatcmpl-tool-{uuid.uuid4().hex}", "type": "function"}
            yield {**head, "function": {"name": name, "arguments": ""}}
            text = json.dumps(self._typed(name, arguments), ensure_ascii=False)
            yield {"index": index, "type": "function", "function": {"arguments": text}}

    def _typed(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that are read as text, as values of the type that the function gives them."""
        properties = schema_of(self._functions.get(name, {})).get("properties", {})
        return {key: _value(value, properties.get(key, {})) for key, value in arguments.items()}


def _certain(text: str, marks: Iterable[str]) -> str:
    """A text without an end that may be the start of a mark."""
    held = 0
    for mark in marks:
        sizes = range(len(mark) - 1, held, -1)
        held = next((size for size in sizes if text.endswith(mark[:size])), held)
    return text[: len(text) - held]


def _value(value: Any, schema: Mapping[str, Any]) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return value.strip() if _is_text(schema) else json.loads(value)
    except ValueError:
        return value.strip()
