"""A small OpenAI server that is right, or wrong in one way, to see what the smoke suite finds."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ("river", "bread", "winter", "music", "horse", "ship", "star", "letter", "stone", "tree")
# Some of the words for a prompt with letters beyond ASCII.
FOREIGN = ("水", "é", "🙂")
LIMIT = 300
FIELDS = {"model", "prompt", "messages", "max_tokens", "temperature", "top_p", "seed", "stop"}
FIELDS |= {
    "ignore_eos",
    "logprobs",
    "response_format",
    "stream",
    "stream_options",
    "top_k",
    "tools",
}
# An answer to a request with tools.
CALLS: dict[str, dict[str, Any]] = {
    fault: {"content": None, "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}
    for fault, name, arguments in (
        ("", "get_weather", '{"city": "Paris"}'),
        ("other_tool", "get_time", '{"city": "Paris"}'),
        ("bad_arguments", "get_weather", "city=Paris"),
    )
}
CALLS["call_in_text"] = {"content": '<tool_call>{"name": "get_weather"}</tool_call>'}
# How many requests run at once, where that is limited; the rest waits.
AT_ONCE = {"serial": 1, "four_at_once": 4}
# What is wrong with a request, and what a server does that does not notice.
HARMLESS: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "a"},
    "too_long": {"prompt": "a"},
    "temperature": {"temperature": 0},
    "top_p": {"top_p": 1},
    "top_k": {"top_k": 1},
    "max_tokens": {"max_tokens": 4},
    "field": {},
    "stream_options": {},
    "image": {"prompt": "a"},
}


def version(fault: str) -> str:
    """Of the engine; one stands in for it, which is not a fault."""
    return "1.2.1+reference" if fault == "reference" else "1.2.1"


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, fault: str, port: int = 0, handler: type | None = None) -> None:
        super().__init__(("127.0.0.1", port), handler or Handler)
        self.fault = fault
        self.broken = False
        self.running = 0
        self.long_streams = itertools.count()
        self.served = itertools.count(1)
        self.succeeded = 0
        self.generated = 0
        self.cancelled = 0
        self.lock = threading.Condition()
        at_once = AT_ONCE.get(fault)
        self.one_by_one = threading.Semaphore(at_once) if at_once else nullcontext()

    def handle_error(self, *_: object) -> None:
        """A client that leaves is not an error."""

    def is_ahead(self, tokens: int) -> bool:
        """Whether a stream is finished before anyone can have left it: the first long one is."""
        return self.fault == "runs_ahead" and tokens > 128 and next(self.long_streams) == 0

    def settled(self) -> int:
        """The requests that succeeded, once those whose answer is out are counted too."""
        with self.lock:
            self.lock.wait_for(lambda: not self.running)
            return self.succeeded


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        fault = self.server.fault
        if self.server.broken or (fault == "health" and self.path == "/health"):
            self._json(500, {})
        elif self.path == "/v1/models":
            self._json(200, {"data": [{"id": "model"}]})
        elif self.path == "/prometheus/metrics":
            name = "checkpoint" if fault == "other_name" else "model"
            labels = f'{{model_name="{name}",finished_reason="stop"}}'
            counts = {
                "request_success_total": self.server.settled(),
                "generation_tokens_total": self.server.generated,
                "num_requests_running": int(fault == "stuck"),
            }
            rows = [f"x_{metric}{labels} {count}\n" for metric, count in counts.items()]
            self._text(200, "".join(rows))
        elif self.path in ("/health", "/version") or fault == "any_url":
            self._json(200, {"version": version(fault)})
        else:
            self._json(405 if self.path == "/v1/completions" else 404, {"detail": "no"})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        fault = self.server.fault
        try:
            body = json.loads(data)
        except ValueError:
            body = {"prompt": "a", "max_tokens": 4} if fault == "any_json" else None
        problem = "JSON" if body is None else _problem(body)
        if self.server.broken:
            self._json(500, {"error": "broken"})
        elif problem and fault == f"accepts_{problem}":
            self._answer({**(body or {}), **HARMLESS[problem]})
        elif problem:
            self.server.broken = fault == "breaks_on_bad_value" and problem == "temperature"
            shown = "Traceback (most recent call last)" if fault == "internals" else problem
            self._json(400, {"object": "error", "message": shown})
        elif "response_format" in body and fault == "refuses_format":
            self._json(400, {"object": "error", "message": "no guided decoding"})
        elif fault == "weak" and "Number 12" in str(body):  # in the middle of a crowd
            self._json(503, {"error": "too many"})
        else:
            self._answer(body or {})

    def _answer(self, body: dict[str, Any]) -> None:
        with self.server.one_by_one:
            with self.server.lock:
                self.server.running += 1
            time.sleep(0.004)  # the time of a generation, so that concurrent ones meet
            together = self.server.running > 1
            tokens, reason = self._tokens(body, together)
            if self.server.fault == "never_generates":
                self.rfile.read(1)  # until the client leaves
            elif self.server.fault == "slow":
                time.sleep(0.1 * len(tokens))
            try:
                if body.get("stream"):
                    self._stream(tokens, reason)
                else:
                    self._json(200, self._whole(body, tokens, reason))
            finally:
                with self.server.lock:
                    self.server.running -= 1
                    self.server.succeeded += 2 if self.server.fault == "counts" else 1
                    self.server.lock.notify_all()

    def _tokens(self, body: dict[str, Any], together: bool) -> tuple[list[str], str]:
        fault = self.server.fault
        limit = body.get("max_tokens") or (20_000 if fault in AT_ONCE else 32)
        prompt = str(body.get("prompt") or body.get("messages"))
        if "response_format" in body and fault != "ignores_format":
            if fault == "blank_json":
                return ["{", *["\t"] * (limit - 1)], "length"
            return ["{}" if fault == "guided" else '{"name": "a", "age": 1}'], "stop"
        if together and fault == "mixes_requests":
            prompt = "A short text about rivers:"
        number = next(self.server.served)
        words = WORDS + FOREIGN if not prompt.isascii() else WORDS
        first = zlib.crc32(prompt.encode())
        if fault == "wavers" or (fault == "unseeded" and body.get("temperature")):
            first += number
        if fault == "max_tokens":
            limit = 16
        tokens = [f" {words[(first + index) % len(words)]}" for index in range(limit)]
        if together and fault == "batching":
            tokens[-1] = " other"
        if fault == "empty":
            tokens = []
        for index, token in enumerate(tokens):
            if fault != "stop_word" and token in body.get("stop", []):
                return tokens[:index], "stop"
        return tokens, "length"

    def _whole(self, body: dict[str, Any], tokens: list[str], reason: str) -> dict[str, Any]:
        prompt, fault = body.get("prompt") or "a chat", self.server.fault
        sent = len(prompt if isinstance(prompt, list) else prompt.split())
        usage = {"prompt_tokens": sent, "completion_tokens": len(tokens)}
        usage["total_tokens"] = sum(usage.values()) + (fault == "usage")
        usage["completion_tokens"] += fault == "miscounts"
        cached = {"cached_tokens": 0 if fault == "forgets" else sent}
        chunk = _chunk("".join(tokens), reason)
        [choice] = chunk["choices"]
        if "messages" in body:
            text = choice.pop("text")
            choice["message"] = {"content": None if fault == "null_content" else text}
            if body.get("tools"):
                choice["message"] = CALLS.get(fault, CALLS[""])
        if body.get("logprobs"):
            value = 0.5 if fault == "logprobs" else -0.5
            choice["logprobs"] = {"token_logprobs": [value] * len(tokens)}
        choice["avg_decoded_tokens_per_iter"] = 0.5 if fault == "steps" else 2.0
        return {**chunk, "usage": {**usage, "prompt_tokens_details": cached}}

    def _stream(self, tokens: list[str], reason: str) -> None:
        fault = self.server.fault
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if fault == "loses_text":
            del tokens[5]
        last = len(tokens) - 1
        ahead = fault == "generates_for_nobody" or self.server.is_ahead(len(tokens))
        if ahead:
            self.server.generated += len(tokens)
        for index, token in enumerate(self._streamed(tokens)):
            final = index == last or (fault == "two_finals" and index == 1)
            self._event(json.dumps(_chunk(token, reason if final else None)))
            self.server.generated += not ahead
        if fault != "no_done":
            self._event("[DONE]")
        if fault == "more_after_done":
            self._event("{}")

    def _streamed(self, tokens: list[str]) -> list[str]:
        """The tokens, or all so far at each step."""
        fault = self.server.fault
        if fault == "splits_characters":
            return [token.replace("é", "�") for token in tokens]
        if fault in ("cumulative", "shrinks"):
            texts = ["".join(tokens[: index + 1]) for index in range(len(tokens))]
            if fault == "shrinks" and len(texts) > 8:
                texts[8] = texts[8][4:]
            return texts
        return tokens

    def _event(self, data: str) -> None:
        try:
            self.wfile.write(f"data: {data}\n\n".encode())
            time.sleep(0.001)  # leaves room for a client to go
        except OSError:
            self.server.broken = self.server.fault == "breaks_on_cancel"
            raise

    def _json(self, status: int, document: dict[str, Any]) -> None:
        self._text(status, json.dumps(document))

    def _text(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _problem(body: dict[str, Any]) -> str | None:
    """The first thing that is wrong with a request."""
    prompt = body.get("prompt")
    length = len(prompt.split() if isinstance(prompt, str) else prompt or ())
    limit = body.get("max_tokens", 1)
    problems = {
        "image": "image_url" in str(body.get("messages")),
        "prompt": not prompt and "messages" not in body,
        "field": not set(body) <= FIELDS,
        "stream_options": "stream_options" in body and not body.get("stream"),
        "temperature": body.get("temperature", 0) < 0,
        "top_p": body.get("top_p", 1) > 1,
        "top_k": body.get("top_k", 0) < 0,
        "max_tokens": not isinstance(limit, int) or limit < 1,
        "too_long": length >= LIMIT,
    }
    return next((name for name, holds in problems.items() if holds), None)


def _chunk(text: str, reason: str | None) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": reason}]}


@contextmanager
def running(fault: str = "", handler: type | None = None) -> Iterator[str]:
    """The URL of a server with this fault, or with none."""
    with Server(fault, handler=handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    Server(sys.argv[1], int(sys.argv[2])).serve_forever()
