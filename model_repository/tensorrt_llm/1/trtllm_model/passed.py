"""Requests that the second model over this engine, `unary`, passes on to this one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any, NamedTuple

from .unary import Answer, address, is_of_this_server


class PassedRequest(NamedTuple):
    """What Triton knows of a request, with the methods by which Triton tells it."""

    key: int
    id: str
    sent_parameters: str
    timeout_us: int
    sequence: Any
    outputs: set[str]
    arrays: Mapping[str, Any]

    def request_id(self) -> str:
        return self.id

    def parameters(self) -> str:
        return self.sent_parameters

    def timeout(self) -> int:
        return self.timeout_us

    def correlation_id(self) -> Any:
        return self.sequence

    def requested_output_names(self) -> set[str]:
        return self.outputs

    def inputs(self) -> list[Any]:
        return [
            SimpleNamespace(name=lambda name=name: name, as_numpy=lambda array=array: array)
            for name, array in self.arrays.items()
        ]


class PassedSender:
    """Answers a passed request, in the place of Triton's own response sender."""

    def __init__(self, send: Callable[[Answer], None]) -> None:
        self._send = send
        self.has_gone = False

    def send(self, response: Any, flags: int) -> None:
        error = response.error() if response.has_error() else None
        tensors = {} if error else {t.name(): t.as_numpy() for t in response.output_tensors()}
        self._send((tensors, (error.message(), error.code()) if error else None))

    def is_cancelled(self) -> bool:
        return self.has_gone


class Door:
    """Listens for the second model of `model_name`; `answer` gets every request and its sender."""

    def __init__(self, model_name: str, answer: Callable[[Any, Any], None]) -> None:
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address(model_name))
        self._listener.listen()
        threading.Thread(target=self._accept, name="door", daemon=True).start()

    def close(self) -> None:
        # Closing alone does not wake the thread that accepts.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            if is_of_this_server(peer):
                guest = Connection(peer.detach())
                threading.Thread(
                    target=self._serve, args=[guest], name="passed requests", daemon=True
                ).start()
            else:
                peer.close()

    def _serve(self, guest: Connection) -> None:
        lock, senders = threading.Lock(), dict[int, PassedSender]()

        def reply(key: int, answer: Answer) -> None:
            senders.pop(key, None)
            with lock, suppress(OSError):  # who has gone needs no answer
                guest.send((key, answer))

        try:
            while True:
                message = guest.recv()
                if isinstance(message, tuple):
                    request = PassedRequest(*message)
                    senders[request.key] = sender = PassedSender(partial(reply, request.key))
                    self._answer(request, sender)
                elif given_up := senders.get(message):
                    given_up.has_gone = True
        except (EOFError, OSError):
            for sender in list(senders.values()):
                sender.has_gone = True
