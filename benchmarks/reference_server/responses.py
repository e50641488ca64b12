"""The script of an answer: the bytes of its messages and when they are due.

A script depends on nothing but the schedule, so that it is written once and used by every request
that asks for the same.
"""

from __future__ import annotations

import functools
import itertools
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from launch.bench.clients import kserve_grpc

from . import grpc
from .schedule import MS, TRAPS, Schedule, Trap

MODEL = "reference"
TOKEN = " tok"
INPUT_TOKENS = 8
ERROR = "the engine failed"
DONE = "[DONE]"
LAST_CHUNK = b"0\r\n\r\n"
HEAD = "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n{framing}\r\n\r\n"


class TimedBytes(NamedTuple):
    due_ns: int  # after the arrival
    data: bytes


@dataclass(frozen=True, slots=True)
class ScriptedResponse:
    """`first` and `last` are the steps with the first and last token, -1 where there is none.

    Afterwards the connection is closed, or `kept` until the client closes it.
    """

    steps: tuple[TimedBytes, ...]
    first: int
    last: int
    tokens: int
    kept: bool


class TokenEvent(NamedTuple):
    """`text` is new text, and `said` all of it so far. `so_far` are the tokens until then."""

    kind: str
    text: str = ""
    said: str = ""
    so_far: int = 0


def script(schedule: Schedule, api: str) -> ScriptedResponse:
    return _script(replace(schedule, id=-1), api)


@functools.lru_cache(maxsize=64)
def _script(schedule: Schedule, api: str) -> ScriptedResponse:
    trap = TRAPS[schedule.trap]
    groups = [
        (due_ns, [event for _, event in rows])
        for due_ns, rows in itertools.groupby(_events(schedule, trap), key=lambda row: row[0])
    ]
    with_tokens = [n for n, (_, events) in enumerate(groups) if any(one.text for one in events)]
    messages = [_messages(events, trap, api) for _, events in groups]
    framed = grpc.framed if api == "grpc" else _framed
    due = [due_ns for due_ns, _ in groups]
    return ScriptedResponse(
        tuple(map(TimedBytes, due, framed(messages, trap))),
        with_tokens[0] if with_tokens else -1,
        with_tokens[-1] if with_tokens else -1,
        sum(tokens for _, tokens in schedule.due()),
        trap.ending == "stalled" or (api == "grpc" and trap.ending != "cut"),
    )


def _events(schedule: Schedule, trap: Trap) -> Iterator[tuple[int, TokenEvent]]:
    if trap.role_ms is not None:
        yield int(trap.role_ms * MS), TokenEvent("role")
    count, due_ns = 0, int(schedule.ttft_ms * MS)
    for due_ns, tokens in schedule.due():
        kind = "reasoning" if count < trap.reasoning * schedule.tokens else "text"
        count += tokens
        yield due_ns, TokenEvent(kind, TOKEN * tokens, TOKEN * count, count)
    said = TOKEN * count
    if trap.ending in ("refused", "error_event", "error_body"):
        yield due_ns, TokenEvent("error")
    if trap.ending in ("whole", "duplicate"):
        for _ in range(2 if trap.ending == "duplicate" else 1):
            yield due_ns, TokenEvent("finish", "", said, count)
        yield due_ns, TokenEvent("usage", "", said, count)
        yield due_ns, TokenEvent("done", "", said, count)


def _messages(events: Sequence[TokenEvent], trap: Trap, api: str) -> tuple[bytes, ...]:
    if api == "grpc":
        return tuple(_grpc(event, trap) for event in events if event.kind not in ("usage", "done"))
    documents = (
        _openai(one, trap, api) if "openai" in api else _triton(one, trap) for one in events
    )
    texts = (one if isinstance(one, str) else json.dumps(one) for one in documents if one)
    return tuple(f"data: {text}\n\n".encode() for text in texts)


def _framed(messages: Sequence[tuple[bytes, ...]], trap: Trap) -> Iterator[bytes]:
    """As HTTP: the head before the first, a chunk for each, and the last chunk at the end."""
    if trap.ending in ("refused", "error_body"):
        status = "200 OK" if trap.ending == "error_body" else "429 Too Many Requests"
        body = json.dumps({"error": {"message": ERROR}}).encode()
        framing = f"Content-Length: {len(body)}"
        yield _head(status, "application/json", framing) + body
        return
    head = _head("200 OK", "text/event-stream", "Transfer-Encoding: chunked")
    for number, events in enumerate(messages):
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)
        is_last = number == len(messages) - 1 and trap.ending not in ("cut", "stalled")
        yield (b"" if number else head) + chunks + (LAST_CHUNK if is_last else b"")


def _head(status: str, kind: str, framing: str) -> bytes:
    return HEAD.format(status=status, kind=kind, framing=framing).encode()


def _openai(event: TokenEvent, trap: Trap, api: str) -> Mapping[str, Any] | str | None:
    chat = api == "openai_chat"
    chunk = {
        "id": "chatcmpl-0123456789abcdef0123456789abcdef",
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 1700000000,
        "model": MODEL,
    }
    match event.kind:
        case "done":
            return DONE
        case "error":
            return {"error": {"message": ERROR, "code": 500}}
        case "usage":
            counts = {"prompt_tokens": INPUT_TOKENS, "completion_tokens": event.so_far}
            total = {"total_tokens": INPUT_TOKENS + event.so_far}
            return {**chunk, "choices": [], "usage": counts | total} if trap.usage else None
    name = "reasoning_content" if event.kind == "reasoning" else "content"
    text = event.said if trap.cumulative else event.text
    said = {"delta": {name: text}} if chat else {"text": text}
    if chat and event.kind == "role":
        said = {"delta": {"role": "assistant", "content": ""}}
    reason = "length" if event.kind == "finish" else None
    return {**chunk, "choices": [{"index": 0, **said, "finish_reason": reason}]}


def _triton(event: TokenEvent, trap: Trap) -> Mapping[str, Any] | None:
    if event.kind == "error":
        return {"error": ERROR}
    if event.kind in ("usage", "done"):
        return None
    head = {"model_name": MODEL, "model_version": "1"}
    return {**head, **_outputs(event, trap)}


def _outputs(event: TokenEvent, trap: Trap) -> dict[str, str | int]:
    """The last event has no text of its own."""
    outputs: dict[str, str | int] = {"text_output": event.said if trap.cumulative else event.text}
    outputs["finish_reason"] = "length" if event.kind == "finish" else "None"
    if trap.usage:
        outputs["num_output_tokens"] = event.so_far
        if event.kind == "finish":
            outputs["num_input_tokens"] = INPUT_TOKENS
    return outputs


def _grpc(event: TokenEvent, trap: Trap) -> bytes:
    answer = kserve_grpc.protobuf("ModelStreamInferResponse")()
    if event.kind == "error":
        answer.error_message = ERROR
    else:
        response = answer.infer_response
        response.model_name, response.model_version = MODEL, "1"
        final = {"bool_param": event.kind == "finish"}
        response.parameters.add(key="triton_final_response", value=final)
        for name, value in _outputs(event, trap).items():
            is_text = isinstance(value, str)
            response.outputs.add(name=name, datatype="BYTES" if is_text else "INT32", shape=[1])
            raw = value.encode() if isinstance(value, str) else struct.pack("<i", value)
            length = struct.pack("<I", len(raw)) if is_text else b""
            response.raw_output_contents.append(length + raw)
    return bytes(answer.SerializeToString())
