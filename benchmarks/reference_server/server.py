"""The reference server: one thread, one poll, sends at their deadlines."""

from __future__ import annotations

import heapq
import itertools
import json
import re
import select
import socket
import time
from dataclasses import dataclass
from typing import IO

from launch.bench.clients.connection import STAMP_SPACE, arrival_ns, ask_for_stamps, read_clocks
from launch.bench.clients.kserve_grpc import PREFACE, greeting

from . import grpc
from .log import LogEntry
from .responses import MODEL, ScriptedResponse, script
from .schedule import HEADER, Schedule

PATHS = {
    b"/v1/chat/completions": "openai_chat",
    b"/v1/completions": "openai_completions",
    b"generate_stream": "generate_stream",
}
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
ASKED = re.compile(HEADER.encode() + rb": *([^\r\n]*)", re.IGNORECASE)
COUNTS = ("max_tokens", "max_completion_tokens", "sampling_param_max_tokens")
# Inputs that the model declares, as Triton's metadata has them.
DECLARED = {
    "text_input": "BYTES",
    "streaming": "BOOL",
    "return_finish_reason": "BOOL",
    "return_num_input_tokens": "BOOL",
    "return_num_output_tokens": "BOOL",
    "sampling_param_exclude_input_from_output": "BOOL",
    "sampling_param_ignore_eos": "BOOL",
    "sampling_param_max_tokens": "INT32",
    "sampling_param_temperature": "FP32",
    "sampling_param_seed": "UINT64",
    "input_ids": "INT32",
    "messages": "BYTES",
}
READ_BYTES = 1 << 20
BACKLOG = 1024
SENDS = 8  # at most, before new requests are looked at
RETRY_NS = 1_000_000  # for a client that takes nothing


@dataclass(slots=True)
class ServerConnection:
    socket: socket.socket
    received: bytes = b""
    script: ScriptedResponse | None = None
    entry: LogEntry | None = None
    step: int = 0
    left: bytes = b""  # what the client has not taken yet
    greeted: bool = False  # with the settings of HTTP/2


class StreamingServer:
    def __init__(self, schedule: Schedule, log: IO[str], parent: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self._listener.setblocking(False)
        ask_for_stamps(self._listener)
        self.port = self._listener.getsockname()[1]
        self._schedule = schedule
        self._log = log
        self._parent = parent  # a pipe that ends with the process that wanted this server
        self._poll = select.epoll()
        self._connections: dict[int, ServerConnection] = {}
        # Deadline in ns, a number that keeps the order, connection.
        self._due: list[tuple[int, int, ServerConnection]] = []
        self._order = itertools.count()

    def run(self) -> None:
        """Until the parent has ended."""
        for file in (self._listener.fileno(), self._parent):
            self._poll.register(file, select.EPOLLIN)
        while self._receive(self._wait()):
            for _ in range(SENDS):
                if not (self._due and self._due[0][0] <= time.monotonic_ns()):
                    break
                _, _, connection = heapq.heappop(self._due)
                self._send(connection)

    def _wait(self) -> list[tuple[int, int]]:
        """What can be read, once something can be or a deadline is there."""
        if not self._due:
            return self._poll.poll()
        left_ns = self._due[0][0] - time.monotonic_ns()
        if left_ns > 0:  # the wait of a poll is whole milliseconds, that of select is not
            select.select([self._poll], (), (), left_ns / 1e9)
        return self._poll.poll(0)

    def _receive(self, ready: list[tuple[int, int]]) -> bool:
        for file, _ in ready:
            if file == self._parent:
                return False
            if file == self._listener.fileno():
                self._accept()
            elif (connection := self._connections.get(file)) is not None:
                self._read(connection)
        return True

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = ServerConnection(accepted)
            self._connections[accepted.fileno()] = connection
            self._poll.register(accepted, select.EPOLLIN)
            self._read(connection)

    def _read(self, connection: ServerConnection) -> None:
        try:
            data, control, _, _ = connection.socket.recvmsg(READ_BYTES, STAMP_SPACE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        connection.received += data
        if connection.entry is None:
            self._look(connection, arrival_ns(control, *read_clocks()))

    def _look(self, connection: ServerConnection, arrived_ns: int) -> None:
        """Whether a request is whole."""
        if connection.received.startswith(PREFACE):
            self._look_for_rpc(connection, arrived_ns)
            return
        head, found, body = connection.received.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        if found and len(body) >= (int(length[1]) if length else 0):
            self._answer(connection, head, body, arrived_ns)

    def _answer(
        self, connection: ServerConnection, head: bytes, body: bytes, arrived_ns: int
    ) -> None:
        path = head.split(b" ", 2)[1]
        api = next((api for end, api in PATHS.items() if path.endswith(end)), None)
        if api is None:
            connection.socket.send(_document(path))
            self._close(connection)
            return
        request = json.loads(body)
        tokens = next((request[name] for name in COUNTS if name in request), None)
        header = ASKED.search(head)
        self._begin(connection, api, header[1].decode() if header else "", tokens, arrived_ns)

    def _look_for_rpc(self, connection: ServerConnection, arrived_ns: int) -> None:
        if not connection.greeted:
            connection.socket.send(greeting())
            connection.greeted = True
        if (request := grpc.read_request(connection.received)) is None:
            return
        if request.fields[":path"].endswith(grpc.METADATA):
            connection.socket.send(grpc.metadata(DECLARED, MODEL))
        else:
            header = request.fields.get(HEADER, "")
            self._begin(connection, "grpc", header, request.tokens, arrived_ns)

    def _begin(
        self,
        connection: ServerConnection,
        api: str,
        header: str,
        tokens: int | None,
        arrived_ns: int,
    ) -> None:
        schedule = self._schedule.for_request(header, tokens or self._schedule.tokens)
        answer = script(schedule, api)
        connection.script = answer
        connection.entry = LogEntry(schedule.id, schedule.trap, answer.tokens, arrived_ns)
        self._plan(connection)

    def _plan(self, connection: ServerConnection) -> None:
        """The next step, or the end where there is none."""
        assert connection.script is not None
        assert connection.entry is not None
        steps = connection.script.steps
        if connection.step < len(steps):
            due_ns = connection.entry.arrived_ns + steps[connection.step].due_ns
        elif connection.left:
            due_ns = time.monotonic_ns() + RETRY_NS
        else:
            connection.entry.write(self._log)
            if not connection.script.kept:
                self._close(connection)
            return
        heapq.heappush(self._due, (due_ns, next(self._order), connection))

    def _send(self, connection: ServerConnection) -> None:
        answer, entry, step = connection.script, connection.entry, connection.step
        assert answer is not None
        assert entry is not None
        data = connection.left
        if step < len(answer.steps):
            data += answer.steps[step].data
            connection.step += 1
        now_ns = time.monotonic_ns()
        try:
            connection.left = data[connection.socket.send(data) :]
        except BlockingIOError:
            connection.left = data
        except OSError:
            self._close(connection)
            return
        if step == answer.first:
            entry.first_ns = now_ns
        if step == answer.last:
            entry.last_ns = now_ns
        self._plan(connection)

    def _close(self, connection: ServerConnection) -> None:
        if self._connections.pop(connection.socket.fileno(), None) is not None:
            self._poll.unregister(connection.socket)
            connection.socket.close()


def _document(path: bytes) -> bytes:
    """What a server tells of itself, whatever it is asked."""
    inputs = [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in DECLARED.items()]
    about = {"data": [{"id": MODEL}], "name": MODEL, "versions": ["1"], "inputs": inputs}
    body = json.dumps(about).encode()
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )
