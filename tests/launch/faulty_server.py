"""A small OpenAI server that is right, or wrong in one way, to see what the smoke suite finds."""

from __future__ import annotations

import json
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ("river", "bread", "winter", "music", "horse", "ship", "star", "letter", "stone", "tree")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, fault: str, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.fault = fault
        self.broken = False
        self.running = 0
        self.lock = threading.Lock()

    def handle_error(self, *_: object) -> None:
        """A client that leaves is no error."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.broken or (self.server.fault == "health" and self.path == "/health"):
            self._json(500, {})
        elif self.path == "/v1/models":
            self._json(200, {"data": [{"id": "model"}]})
        else:
            self._json(200, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.server.fault
        if self.server.broken:
            self._json(500, {"error": "broken"})
        elif problem := _problem(body):
            if fault == "accepts" and problem == "temperature":
                body["temperature"] = 0
                self._answer(body)
                return
            if fault == "breaks_on_bad_value" and problem == "temperature":
                self.server.broken = True
            self._json(400, {"object": "error", "message": problem})
        else:
            self._answer(body)

    def _answer(self, body: dict[str, Any]) -> None:
        with self.server.lock:
            self.server.running += 1
        time.sleep(0.01)  # the time of a generation, so that concurrent ones meet
        together = self.server.running > 1
        tokens, reason = self._tokens(body, together)
        with self.server.lock:
            self.server.running -= 1
        if body.get("stream"):
            self._stream(tokens, reason)
        else:
            self._json(200, _chunk("".join(tokens), reason))

    def _tokens(self, body: dict[str, Any], together: bool) -> tuple[list[str], str]:
        fault, prompt, limit = self.server.fault, body["prompt"], body["max_tokens"]
        if together and fault == "mixes_requests":
            prompt = "A short text about rivers:"
        first = zlib.crc32(prompt.encode())
        if fault == "max_tokens":
            limit = 16
        tokens = [f" {WORDS[(first + index) % len(WORDS)]}" for index in range(limit)]
        if together and fault == "batching":
            tokens[-1] = " other"
        if fault == "empty":
            tokens = []
        for index, token in enumerate(tokens):
            if fault != "stop_word" and token in body.get("stop", []):
                return tokens[:index], "stop"
        return tokens, "length"

    def _stream(self, tokens: list[str], reason: str) -> None:
        fault = self.server.fault
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if fault == "loses_text":
            del tokens[5]
        last = len(tokens) - 1
        for index, token in enumerate(tokens):
            final = index == last or (fault == "two_finals" and index == 1)
            self._event(json.dumps(_chunk(token, reason if final else None)))
        if fault != "no_done":
            self._event("[DONE]")
        if fault == "more_after_done":
            self._event("{}")

    def _event(self, data: str) -> None:
        try:
            self.wfile.write(f"data: {data}\n\n".encode())
            time.sleep(0.001)  # leaves room for a client to go
        except OSError:
            self.server.broken = self.server.fault == "breaks_on_cancel"
            raise

    def _json(self, status: int, document: dict[str, Any]) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _problem(body: dict[str, Any]) -> str | None:
    if not body.get("prompt"):
        return "prompt"
    if body["temperature"] < 0:
        return "temperature"
    return None if isinstance(body["max_tokens"], int) and body["max_tokens"] > 0 else "max_tokens"


def _chunk(text: str, reason: str | None) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": reason}]}


@contextmanager
def running(fault: str = "") -> Iterator[str]:
    """The URL of a server with this fault, or with none."""
    with Server(fault) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    Server(sys.argv[1], int(sys.argv[2])).serve_forever()
