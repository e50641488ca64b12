"""A server whose every byte, and the time between two of them, is written here."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n"
DRIP_S = 0.05  # between two pieces: far below any limit of a read

Answer = Callable[[Any, bytes], None]


def drip(begin: bytes, piece: bytes, wait_s: float = DRIP_S) -> Answer:
    def answer(connection: Any, _: bytes) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(piece)
            time.sleep(wait_s)

    return answer


def say(body: bytes, head: bytes = HEAD) -> Answer:
    def answer(connection: Any, _: bytes) -> None:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    return answer


def by_path(**pages: Answer) -> Answer:
    """The answer of the page whose name is in the path, or an empty object."""

    def answer(connection: Any, question: bytes) -> None:
        path = question.split(b" ", 2)[1].decode()
        found = (page for name, page in pages.items() if name in path)
        next(found, say(b"{}"))(connection, question)

    return answer


ENDLESS: dict[str, Answer] = {
    "mute": lambda connection, _: connection.recv(1),
    "a head in drips": drip(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    "a line in drips": drip(b"HTTP/1.1 200 OK\r\nX: ", b"y"),
    "103 for ever": drip(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
    "103 at full speed": drip(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100, 0),
    "100 for ever": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body in drips": drip(HEAD + b"Content-Length: 100000\r\n\r\n", b" "),
    "a body without a length": drip(HEAD + b"\r\n", b" "),
    "chunks in drips": drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "a chunk's size in drips": drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
}


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """HOST:PORT of a server that answers so."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                answer(self.request, self.request.recv(65536))

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
