"""Ports of this machine, for servers that are started later."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

# From where on the kernel gives ports to clients.
CLIENTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 10_000


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports that nothing listens on.

    They are below the range of clients' ports, since a client could take one before its server
    starts. Raises `OSError` if nothing can listen on that host.
    """
    found: list[int] = []
    with ExitStack() as held:  # until the last is found, so that none comes twice
        for port in _candidates():
            if len(found) == count:
                break
            try:
                one = held.enter_context(listen(host, port))
            except OSError as error:
                if port == 0 or error.errno != errno.EADDRINUSE:
                    raise
            else:
                found.append(one.getsockname()[1])
    return found


def _candidates() -> Iterator[int]:
    """Where clients may have all of them, whichever the kernel gives."""
    below_clients = range(LOWEST, int(CLIENTS.read_text().split()[0]))
    yield from random.sample(below_clients, len(below_clients))
    while True:
        yield 0


def listen(host: str, port: int) -> socket.socket:
    """Raises `OSError` if that port cannot be had there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, port))
        one.listen()
    except OSError:
        one.close()
        raise
    return one
