"""Whether the parsers of an engine read what a model writes: its tool calls and its reasoning.

One reader applies the patterns of a parser's row to the turn of a chat template. It answers for
complete answers; how parsers follow a stream is not checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from ..diagnostics import Diagnostic, either
from ..documents import DATA
from ..facts import data_file
from ..facts.chat_turns import (
    ARGUMENTS,
    NAME,
    REASONING,
    Parsers,
    ReasoningParser,
    ToolParser,
    Turn,
    turn_of,
)
from ..facts.release import Release
from ..general_rules import PARSER_MISMATCH

Kind = Literal["tools", "reasoning"]
Finding = tuple[bool, str]  # whether a parser was checked, and what is wrong or why it was not
GOOD: Finding = (True, "")
SHOWN = 120  # characters of what a model writes
BEFORE_NAME = 30  # of these, before the name of the tool
UNKNOWN = "what this parser reads is not known here"


def check(
    release: Release, options: Mapping[str, Any], model: str, folder: Path | None
) -> Iterator[tuple[str, Diagnostic | str]]:
    """The options that select a parser of the model's answers: each with a warning if it reads them
    wrongly, or a text if it cannot be checked.

    `folder` is that of the checkpoint, `None` if only its name is known.
    """
    for kind, option in _parsers(release).options.items():
        if not isinstance(name := options.get(option), str):
            continue
        turn = turn_of(model, folder)
        if isinstance(turn, str):
            yield option, turn
            continue
        is_known, what = finding(release, kind, name, turn)
        if not is_known:
            yield option, what
        elif what:
            fix, message = _remedy(release, kind, turn), f"{name} {what} ({turn.source})"
            yield option, Diagnostic(option, message, fix, PARSER_MISMATCH, severity="warning")


def _parsers(release: Release) -> Parsers:
    path = DATA / "parsers" / f"{release.engine.name}.yaml"
    return data_file.load(path, Parsers) if path.is_file() else Parsers({}, (), ())


def tool_parser(release: Release, name: str | None) -> ToolParser | None:
    """What a parser of tool calls reads; `None` if that is not known."""
    return next((row for row in _parsers(release).tools if name in row.names), None)


def reasoning_parser(release: Release, name: str | None) -> ReasoningParser | None:
    return next((row for row in _parsers(release).reasoning if name in row.names), None)


def finding(release: Release, kind: Kind, name: str, turn: Turn) -> Finding:
    """Whether a parser by its name reads a turn; it is unknown without a row."""
    if kind == "tools":
        tools = tool_parser(release, name)
        return _tool_finding(tools, turn) if tools else (False, UNKNOWN)
    reasoning = reasoning_parser(release, name)
    return _reasoning_finding(reasoning, turn) if reasoning else (False, UNKNOWN)


def _tool_finding(row: ToolParser, turn: Turn) -> Finding:
    if _read_call(row, turn.text) == (NAME, {key: str(value) for key, value in ARGUMENTS.items()}):
        return GOOD
    start = max(0, turn.text.find(NAME) - BEFORE_NAME)
    return True, f"finds no tool call in what the model writes, {_shown(turn.text[start:])}"


def _read_call(row: ToolParser, text: str) -> tuple[str, dict[str, str]] | None:
    """The name and the arguments of the first call that a parser reads, values as text."""
    found = read_calls(row, text)
    if not found or found[0] is None:
        return None
    name, arguments = found[0]
    return name, {key: str(value).strip() for key, value in arguments.items()}


def read_calls(row: ToolParser, text: str) -> list[tuple[str, dict[str, Any]] | None]:
    """The calls of a text, with `None` for one that cannot be read: name and arguments.

    Arguments are values of JSON, or text where the parser reads them one by one.
    """
    found = re.finditer(row.call, text) if row.marker in text else ()
    return [_call(row, match.groupdict()) for match in found]


def _call(row: ToolParser, groups: dict[str, str]) -> tuple[str, dict[str, Any]] | None:
    arguments: Any = groups.get("arguments")
    try:
        if "object" in groups:
            call = json.loads(groups["object"])
            name, arguments = call["name"], call.get("parameters") or call["arguments"]
        elif row.argument:
            name, arguments = groups["name"], dict(re.findall(row.argument, arguments))
        else:
            name, arguments = groups["name"], json.loads(arguments)
        return name.strip(), {key.strip(): value for key, value in arguments.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def _reasoning_finding(row: ReasoningParser, turn: Turn) -> Finding:
    if row.asked_by:
        return False, f"it reads reasoning only if a request sets {either(row.asked_by)}"
    text, prompt = turn.text, turn.prompt_end.rstrip()
    is_closed, is_open = prompt.endswith(row.end), prompt.endswith(row.start)
    if REASONING not in text and is_open:
        text = f"{REASONING}{row.end}{text}"
    elif REASONING not in text and turn.unknown_reasoning and not is_closed:
        return False, f"whether the model reasons is not known ({turn.source})"
    if is_closed or REASONING not in text:
        if row.begins == "before":
            return GOOD
        why = f"the prompt ends with {row.end}" if is_closed else "the model writes none"
        return True, f"takes every answer for reasoning: {why}"
    _, start, rest = text.partition(row.start)
    if row.begins == "before" and not start:
        return True, f"waits for {row.start}, which the model does not write: {_shown(text)}"
    inside = text if row.begins == "inside" or not start else rest
    reasoning, _, answer = inside.partition(row.end)
    if REASONING in reasoning and answer.strip():
        return GOOD
    return True, f"finds no reasoning in what the model writes, {_shown(text)}"


def _shown(text: str) -> str:
    shown = json.dumps(text.strip(), ensure_ascii=False)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."


def _remedy(release: Release, kind: Kind, turn: Turn) -> str:
    """The parsers of the release that read the turn."""
    option = _parsers(release).options[kind]
    if kind == "reasoning" and REASONING not in turn.text and not turn.unknown_reasoning:
        return f"leave {option} out"
    flags = {row.name: row.values for row in release.serve_flags}
    fields = [release.server_options.get(option, {}), *release.paths.get(option, ())]
    parsers = flags.get(option) or next((row["values"] for row in fields if "values" in row), ())
    if fitting := [name for name in parsers if finding(release, kind, name, turn) == GOOD]:
        return f"set {option} to {either(fitting)}"
    return f"leave {option} out: no parser of release {release.name} is known to read it"
