"""Readiness of a server: waits until it is ready, dead or out of time, and shows progress."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import Literal, TextIO

from builder.files import parse_json
from supervisor.checks import http_request

from .process import ServerProcess
from .target import Target

POLL_S = 0.2
PROBE_TIMEOUT_S = 2.0
PLAIN_PERIOD_S = 10.0

State = Literal["ready", "died", "timed_out"]


def wait(
    server: ServerProcess, ready: Callable[[], bool], timeout_s: float, progress: Progress
) -> tuple[State, float]:
    """Ask `ready` until it is true, the server is dead, or `timeout_s` are over; the time taken."""
    start = time.monotonic()
    while True:
        status = server.exit_status(POLL_S)
        server.interrupts.check()
        elapsed_s = time.monotonic() - start
        if status is not None:
            state: State = "died"
        elif ready():
            state = "ready"
        elif elapsed_s >= timeout_s:
            state = "timed_out"
        else:
            progress.show(elapsed_s, server)
            continue
        progress.clear()
        return state, time.monotonic() - start


class Progress:
    """What a waiting user sees: one live line on a terminal, else a plain line now and then."""

    def __init__(self, label: str, stream: TextIO = sys.stderr) -> None:
        self._label = label
        self._stream = stream
        self._live = stream.isatty()
        self._next_s = 0.0 if self._live else PLAIN_PERIOD_S

    def show(self, elapsed_s: float, server: ServerProcess) -> None:
        if elapsed_s < self._next_s:
            return
        self._next_s = elapsed_s + (POLL_S if self._live else PLAIN_PERIOD_S)
        last = "".join(server.last_lines(1))
        text = f"{self._label}: waiting {elapsed_s:.0f} s" + (f", log: {last}" if last else "")
        if self._live:
            self._write(
                "\r\x1b[K"
                + "".join(filter(str.isprintable, text))[: shutil.get_terminal_size().columns - 1]
            )
        else:
            self._write(text + "\n")

    def clear(self) -> None:
        if self._live:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def probe(target: Target) -> bool:
    """Whether the target's server says that it is ready.

    Triton tells its id, so that another Triton on the same port cannot pass for it.
    """
    if target.ready_path is None:
        return _grpc_name(target) == target.environment["SERVE_ID"]
    if _get(target, target.ready_path) is None:
        return False
    if "SERVE_ID" not in target.environment:
        return True
    try:
        document = parse_json(_get(target, "/v2") or "null")
    except ValueError:
        return False
    return isinstance(document, dict) and document.get("name") == target.environment["SERVE_ID"]


def _grpc_name(target: Target) -> str | None:
    """The name of a Triton that is ready, asked over gRPC, where that is all that it listens on."""
    import grpc  # type: ignore[import-untyped]
    from tritonclient.grpc import service_pb2
    from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

    access = target.access()
    with access.channel(target.urls["grpc"], grpc) as channel:
        server = GRPCInferenceServiceStub(channel)
        options = {"timeout": PROBE_TIMEOUT_S, "metadata": access.grpc_metadata}
        try:
            if not server.ServerReady(service_pb2.ServerReadyRequest(), **options).ready:
                return None
            return str(server.ServerMetadata(service_pb2.ServerMetadataRequest(), **options).name)
        except grpc.RpcError:
            return None


def _get(target: Target, path: str) -> bytes | None:
    """The body of a 200 answer."""
    port, headers = target.ports[target.ready_port], target.access().http_headers
    try:
        status, body = http_request(target.host, port, path, PROBE_TIMEOUT_S, headers=headers)
    except OSError:
        return None
    return body if status == 200 else None
