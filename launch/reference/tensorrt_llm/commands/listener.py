"""The socket of a command, and its application served there until a signal stops it."""

from __future__ import annotations

import signal
import socket
from types import FrameType
from typing import TYPE_CHECKING

from ..logger import logger

if TYPE_CHECKING:
    from fastapi import FastAPI

# How long requests under way may take to end once the server is told to stop.
GRACE_S = 30
KEEP_ALIVE_S = 5


def bind(host: str, port: int) -> socket.socket:
    """A socket that is taken, but does not listen before the application is served."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as fault:
        listener.close()
        raise OSError(f"port {port} of {host}: {fault.strerror}") from None
    return listener


def run(app: FastAPI, listener: socket.socket) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level=logger.level,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    # The server raises a signal that stopped it once more when it is done.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stay)
    uvicorn.Server(config).run(sockets=[listener])


def _stay(number: int, frame: FrameType | None) -> None:
    logger.info("stopped by %s", signal.Signals(number).name)
