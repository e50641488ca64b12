"""Offers a second model over the same engine, for clients that want each answer in one response.

Triton's unary calls need a model that is not decoupled, and streams need one that is. So a bundle
has a second model that takes and gives the same and has no engine: this file is its `model.py`. It
forwards every request to the process of the model that has the engine, which receives it by the
same file, and where it counts as one of that model's: the same queue, limits and metrics. They talk
over a socket and not through Triton, whose requests between models block a thread each, and whose
release 2.51 neither cancels them nor forwards a number with a fraction.

The socket's name is that of the server process, and each side talks only to a child of that
process, so that no other process on the machine can ask or answer.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton_python_backend_utils as pb_utils

# Its name is that of the model with the engine, and this.
SUFFIX = "_unary"
CONNECT_PERIOD_S = 0.1
# The server may be ready before the models have found each other.
FIRST_CONNECTION_TIMEOUT_S = 5.0
CANCELLATION_CHECK_PERIOD_S = 0.15
DRAIN_TIMEOUT_S = 300.0
# Tensors by name, or the message and code of an error.
Answer = tuple[dict[str, Any], tuple[str, Any] | None]
# Methods of Triton's requests whose results are forwarded.
METHODS = ("request_id", "parameters", "timeout", "correlation_id", "flags")
OUTPUTS = "requested_output_names"


def forwarded_request(results: Mapping[str, Any], arrays: Mapping[str, Any]) -> SimpleNamespace:
    """A request as the other process got it, with the methods of Triton's own requests."""
    methods = {name: lambda result=result: result for name, result in results.items()}
    tensors = [
        SimpleNamespace(name=lambda name=name: name, as_numpy=lambda array=array: array)
        for name, array in arrays.items()
    ]
    return SimpleNamespace(inputs=lambda: tensors, **methods)


def is_forwarded(request: Any) -> bool:
    return isinstance(request, SimpleNamespace)


class TritonPythonModel:
    """Forwards requests and answers them, one response each."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        config.set_model_transaction_policy({"decoupled": False})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args: dict[str, str]) -> None:
        make_shared_memory_private()
        self._engine_model = args["model_name"].removesuffix(SUFFIX)
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._senders: dict[int, Any] = {}
        self._last_key = 0
        self._engine: Connection | None = None
        self._has_connected = threading.Event()
        self._closed = threading.Event()
        for run in (self._connect, self._ask_clients):
            threading.Thread(target=run, name=run.__name__, daemon=True).start()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            with self._changed:
                self._last_key += 1
                key = self._last_key
                self._senders[key] = request.get_response_sender()
            try:
                arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
                results = {name: getattr(request, name)() for name in METHODS}
                results[OUTPUTS] = set(request.requested_output_names())
                self._forward((key, results, arrays))
            except OSError:
                what = f"the model {self._engine_model} is not there; retry later"
                self._end(key, ({}, (what, pb_utils.TritonError.UNAVAILABLE)))
            except UnicodeDecodeError as fault:
                what = "the id, or a name or value of a parameter or header, is not UTF-8"
                text = f"{what}: {fault.reason}"
                self._end(key, ({}, (text, pb_utils.TritonError.INVALID_ARG)))
            except Exception as fault:
                self._end(key, ({}, (str(fault), pb_utils.TritonError.INTERNAL)))

    def finalize(self) -> None:
        """Requests that run end with the engine's model, which ends at the same time."""
        with self._changed:
            self._changed.wait_for(lambda: not self._senders, DRAIN_TIMEOUT_S)
        self._closed.set()
        if self._engine is not None:
            self._engine.close()

    def _forward(self, message: tuple[Any, ...] | int) -> None:
        self._has_connected.wait(FIRST_CONNECTION_TIMEOUT_S)
        engine = self._engine
        if engine is None:
            raise ConnectionError
        with self._lock:
            engine.send(message)

    def _connect(self) -> None:
        while not self._closed.wait(CONNECT_PERIOD_S):
            peer = socket.socket(socket.AF_UNIX)
            if peer.connect_ex(address(self._engine_model)) or not is_of_this_server(peer):
                peer.close()
                continue
            self._engine = engine = Connection(peer.detach())
            self._has_connected.set()
            try:
                while True:
                    self._end(*engine.recv())
            except (EOFError, OSError):
                self._engine = None
            what = f"the model {self._engine_model} has ended; retry elsewhere or later"
            for key in list(self._senders):
                self._end(key, ({}, (what, pb_utils.TritonError.UNAVAILABLE)))

    def _ask_clients(self) -> None:
        """Find out whether clients gave up, which neither process is told.

        Under the lock: once a request is answered Triton has freed what this question looks at.
        """
        cancelled: set[int] = set()
        while not self._closed.wait(CANCELLATION_CHECK_PERIOD_S):
            with self._changed:
                running = set(self._senders)
            cancelled &= running
            for key in running - cancelled:
                try:
                    with self._changed:
                        sender = self._senders.get(key)
                        if sender is None or not sender.is_cancelled():
                            continue
                except Exception:  # about one request; the others are asked as well
                    pb_utils.Logger.log_error(traceback.format_exc())
                    continue
                cancelled.add(key)
                with suppress(OSError):
                    self._forward(key)

    def _end(self, key: int, answer: Answer) -> None:
        with self._changed:
            sender = self._senders.pop(key, None)
            self._changed.notify_all()
        if sender is None:
            return
        arrays, error = answer
        try:
            if error is None:
                tensors = [pb_utils.Tensor(name, array) for name, array in arrays.items()]
                response = pb_utils.InferenceResponse(tensors)
            else:
                response = pb_utils.InferenceResponse(error=pb_utils.TritonError(*error))
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except Exception:
            pb_utils.Logger.log_error(traceback.format_exc())


class ForwardedSender:
    """Answers a forwarded request, as Triton's response sender would."""

    def __init__(self, send: Callable[[Answer], None]) -> None:
        self._send = send
        self.has_gone = False

    def send(self, response: Any, flags: int) -> None:
        error = response.error() if response.has_error() else None
        tensors = {} if error else {t.name(): t.as_numpy() for t in response.output_tensors()}
        self._send((tensors, (error.message(), error.code()) if error else None))

    def is_cancelled(self) -> bool:
        return self.has_gone


class RequestListener:
    """The engine's side: `answer` gets each request of the second model, and its sender.

    Requests wait until it is started.
    """

    def __init__(self, model_name: str, answer: Callable[[Any, Any], None]) -> None:
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address(model_name))
        self._listener.listen()

    def start(self) -> None:
        threading.Thread(target=self._accept, name="unary listener", daemon=True).start()

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
                model = Connection(peer.detach())
                threading.Thread(
                    target=self._serve, args=[model], name="unary requests", daemon=True
                ).start()
            else:
                peer.close()

    def _serve(self, model: Connection) -> None:
        lock, senders = threading.Lock(), dict[int, ForwardedSender]()

        def reply(key: int, answer: Answer) -> None:
            senders.pop(key, None)
            with lock, suppress(OSError):  # who has gone needs no answer
                model.send((key, answer))

        try:
            while True:
                message = model.recv()
                if isinstance(message, tuple):
                    key, results, arrays = message
                    senders[key] = sender = ForwardedSender(partial(reply, key))
                    self._answer(forwarded_request(results, arrays), sender)
                elif given_up := senders.get(message):
                    given_up.has_gone = True
        except (EOFError, OSError):
            for sender in list(senders.values()):
                sender.has_gone = True


def make_shared_memory_private() -> None:
    """Prompts and answers pass through it, and Triton makes it readable for every user.

    To be called before the first request: who has opened it by then goes on reading.
    """
    shared_memory().chmod(0o600)


def shared_memory() -> Path:
    """The region that Triton names in the second argument of its Python process."""
    name = Path("/proc/self/cmdline").read_text().split("\0")[2]
    return Path("/dev/shm") / Path(name).name


def address(model_name: str) -> str:
    """An abstract address of this server's alone, also where containers share a network."""
    processes = Path("/proc/self/ns/pid").readlink()
    return f"\0trtllm_model/{processes}/{os.getppid()}/{model_name}"


def is_of_this_server(peer: socket.socket) -> bool:
    """Whether the process at the other end is a child of the same server, of the same user."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return uid == os.getuid() and f"\nPPid:\t{os.getppid()}\n" in status
