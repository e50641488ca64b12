"""A small server for the supervisor's tests: it answers, and fails as it is told to.

`server.py PORT [--start-s S] [--answer-s S] [--fail]`. GET /health; POST /v1/completions;
GET /status; POST /fault {"health": 503 | "exit": code | "mute": true | "drip": true}:
one that drips answers a byte at a time. On SIGTERM it answers what is in flight and exits with 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from typing import Any

DRIP_S = 0.1


class Server:
    def __init__(self, answer_s: float) -> None:
        self._answer_s = answer_s
        self._health = 200
        self._is_mute = False
        self._drips = False
        self.in_flight = self.generating = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.in_flight += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split()[1].decode()
            fields = dict(row.lower().split(b": ", 1) for row in head.split(b"\r\n")[1:] if row)
            body = await reader.readexactly(int(fields.get(b"content-length", 0)))
            status, answer = await self._answer(path, json.loads(body or b"{}"))
            content = json.dumps(answer).encode()
            lines = f"HTTP/1.1 {status} -\r\nContent-Length: {len(content)}\r\nConnection: close"
            for part in self._parts(lines.encode() + b"\r\n\r\n" + content):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(DRIP_S if self._drips else 0)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client is gone
        finally:
            self.in_flight -= 1
            writer.close()

    def _parts(self, content: bytes) -> list[bytes]:
        return [bytes([one]) for one in content] if self._drips else [content]

    async def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/health":
            return self._health, {}
        if path == "/status":
            gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
            return 200, {"pid": os.getpid(), "gpus": gpus, "generating": self.generating}
        if path == "/fault":
            if "exit" in body:
                os._exit(body["exit"])
            self._health = body.get("health", self._health)
            self._is_mute = body.get("mute", self._is_mute)
            self._drips = body.get("drip", self._drips)
            return 200, {}
        self.generating += 1
        while self._is_mute:
            await asyncio.sleep(0.1)
        await asyncio.sleep(self._answer_s)
        self.generating -= 1
        return 200, {"choices": [{"text": " four"}], "job": os.environ.get("SLURM_JOB_ID")}


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--start-s", type=float, default=0.0)
    parser.add_argument("--answer-s", type=float, default=0.02)
    parser.add_argument("--fail", action="store_true")
    chosen = parser.parse_args()
    if chosen.fail:
        return 7
    await asyncio.sleep(chosen.start_s)
    server = Server(chosen.answer_s)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    listener = await asyncio.start_server(server.handle, "0.0.0.0", chosen.port, backlog=1024)
    await stop.wait()
    listener.close()
    while server.in_flight:
        await asyncio.sleep(0.01)
    return 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
