"""What a model writes for one tool call, by its chat template, and what parsers of answers read.

The chat template of a folder is rendered in a process with limits; for models without a folder the
rows of `builder/data/parsers/turns.yaml` say what they write.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ..diagnostics import Diagnostic
from ..errors import BadInput
from ..files import is_there, load_json_mapping, read_text
from ..schema import Day, Expression, Text
from . import data_file

REASONING = "A forecast is wanted."
NAME, ARGUMENTS = "get_weather", {"city": "Paris", "days": 3}
TEMPLATE_FILE, TOKENIZER_FILE = "chat_template.jinja", "tokenizer_config.json"
TIMEOUT_S = 10.0
_TYPES = {"city": {"type": "string"}, "days": {"type": "integer"}}
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True)
class ToolParser:
    """Reads calls from texts that hold `marker`.

    `call` matches one, with groups `object` (JSON with name and arguments), or `name` and
    `arguments`: JSON, or pairs that `argument` matches with groups `key` and `value`.

    `written` is what a model writes for a call, with `{name}` and `{arguments}`: JSON, or for each
    argument `written_argument`, with `{key}`, `{value}` and, as true or false, `{is_text}`.
    """

    names: tuple[Text, ...]
    call: Expression
    source: Text
    read: Day
    argument: Expression | None = None
    marker: str = ""
    written: str = ""
    written_argument: str = ""

    def inconsistencies(self) -> Iterator[tuple[str, str]]:
        """Groups that the reader needs, and gaps that the writer fills."""
        for gap in ("{name}", "{arguments}"):
            if self.written and gap not in self.written:
                yield "written", f"lacks {gap}"
        groups = set(re.compile(self.call).groupindex)
        if groups not in ({"object"}, {"name", "arguments"}):
            yield "call", f"has the groups {sorted(groups)}; give object, or name and arguments"
        if self.argument and set(re.compile(self.argument).groupindex) != {"key", "value"}:
            yield "argument", "lacks the groups key and value; give both"


@dataclass(frozen=True, slots=True)
class ReasoningParser:
    """Separates the reasoning, up to `end`, from an answer.

    `begins`: an answer begins `inside` the reasoning, `before` its start token, or in `either`.
    With `asked_by`, only requests that set one of these in `chat_template_kwargs` have reasoning.
    """

    names: tuple[Text, ...]
    start: Text
    end: Text
    begins: Literal["inside", "before", "either"]
    source: Text
    read: Day
    asked_by: tuple[Text, ...] = ()


@dataclass(frozen=True, slots=True)
class Parsers:
    """The parsers of an engine; `options` are its options that select one."""

    options: dict[Literal["tools", "reasoning"], str]
    tools: tuple[ToolParser, ...]
    reasoning: tuple[ReasoningParser, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a model writes for a call of `NAME` after `REASONING`, and how its prompt ends.

    `text` has no reasoning if the model does not reason, or if how it does is `unknown_reasoning`:
    some templates leave it out of earlier turns. `models` are patterns of names on the hub.
    """

    text: Text
    source: Text
    prompt_end: str = ""
    unknown_reasoning: bool = False
    models: tuple[Text, ...] = ()


SCHEMAS: dict[str, Any] = {"parsers/turns.yaml": tuple[Turn, ...], "parsers/*.yaml": Parsers}


def turn_of(name: str, folder: Path | None) -> Turn | str:
    """The turn of a model by its folder or, without one, its name on the hub; else why not."""
    if folder is not None:
        try:
            return _rendered(folder)
        except BadInput as error:
            return f"{error.diagnostics[0].where} {error.diagnostics[0].message}"
    for row in data_file.shipped("parsers/turns.yaml", tuple[Turn, ...]):
        if any(fnmatchcase(f"/{name.lower()}", model.lower()) for model in row.models):
            return row  # type: ignore[no-any-return]
    return f"the chat template of {name} is not known here"


def _rendered(folder: Path) -> Turn | str:
    """The turn that the template of a folder writes. Raises `BadInput` for files without one."""
    config_file, template_file = folder / TOKENIZER_FILE, folder / TEMPLATE_FILE
    config = load_json_mapping(config_file, BadInput) if is_there(config_file) else {}
    if is_there(template_file):
        template: Any = read_text(template_file)
    else:
        template, template_file = config.get("chat_template"), config_file
    if isinstance(template, list):  # several, by name
        named = {row.get("name"): row.get("template") for row in template if isinstance(row, dict)}
        template = named.get("tool_use", named.get("default"))
    if not isinstance(template, str):
        raise BadInput(Diagnostic(str(folder), f"has no chat template in {TEMPLATE_FILE}"))
    tokens = {}
    for key in _TOKENS:
        row = config.get(key)
        tokens[key] = (row.get("content") if isinstance(row, dict) else row) or ""
    found = _run(template, json.dumps(tokens))
    if fault := found.get("fault"):
        return f"{template_file} cannot be rendered: {fault}"
    prompt_end, turn = str(found["prompt_end"]), str(found["turn"])
    same = 0
    while turn[same : same + 1] == prompt_end[same : same + 1] != "":
        same += 1
    opening = prompt_end.rfind("<", 0, same)
    if opening > prompt_end.rfind(">", 0, same):  # of two tags that begin alike
        same = opening
    text = turn[same:]
    is_dropped = REASONING not in text and re.search("reasoning|think", template) is not None
    return Turn(text, f"{template_file}, rendered", prompt_end, is_dropped)


@lru_cache(maxsize=64)
def _run(template: str, tokens: str) -> dict[str, Any]:
    """What the renderer prints, or a `fault`."""
    parameters = {"type": "object", "properties": _TYPES, "required": list(_TYPES)}
    tool = {"name": NAME, "description": "A forecast.", "parameters": parameters}
    request = {
        "template": template,
        "variables": {**json.loads(tokens), "tools": [{"type": "function", "function": tool}]},
        "user": {"role": "user", "content": "How will the weather be?"},
        "answers": [_answer(ARGUMENTS, ""), _answer(json.dumps(ARGUMENTS), None)],
        "called": NAME,
    }
    program = [sys.executable, "-I", str(Path(__file__).with_name("chat_render.py"))]
    try:
        done = subprocess.run(
            program,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return dict(json.loads(done.stdout))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return {"fault": "it takes too much time or memory, or no process can be started here"}


def _answer(arguments: Any, content: str | None) -> dict[str, Any]:
    """The assistant's message: engines pass arguments as a mapping, some templates want a text."""
    call = {"id": "call_0", "type": "function", "function": {"name": NAME, "arguments": arguments}}
    message = {"role": "assistant", "content": content, "reasoning_content": REASONING}
    return {**message, "reasoning": REASONING, "tool_calls": [call]}
