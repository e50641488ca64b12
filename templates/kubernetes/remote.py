"""Runs a command on another pod of the same server, as `mpirun` does to start ranks there.

    remote.py listen PORT           takes commands until the pod ends
    remote.py run PORT HOST WORD... runs the words there in a shell; ends with their exit status

Both ends show the certificate in GROUP_TLS_FOLDER and trust no other. A command has the variables
of the pod that it runs on, and ends with its connection. Standard library only.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

# For the handshake and the command; what a command takes has no limit.
PATIENCE_S = 10
MAX_COMMAND = 1 << 20
CHUNK = 1 << 16
FAILED = 255


def tls(protocol: int) -> ssl.SSLContext:
    """Trusts the own certificate alone, whoever has signed it; its names do not matter."""
    folder = Path(os.environ["GROUP_TLS_FOLDER"])
    found = ssl.SSLContext(protocol)
    found.minimum_version = ssl.TLSVersion.TLSv1_3
    found.check_hostname = False
    found.verify_mode = ssl.CERT_REQUIRED
    found.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    found.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    found.load_verify_locations(folder / "tls.crt")
    return found


def run(port: int, host: str, command: str) -> int:
    """The output of the command goes to the own one. The last byte of the answer is its status."""
    context = tls(ssl.PROTOCOL_TLS_CLIENT)
    with socket.create_connection((host, port), PATIENCE_S) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with context.wrap_socket(connection, suppress_ragged_eofs=False) as peer:
            peer.sendall(json.dumps(command).encode() + b"\n")
            peer.settimeout(None)
            held = b""
            while data := peer.recv(CHUNK):
                output, held = (held + data)[:-1], data[-1:]
                os.write(sys.stdout.fileno(), output)
    return held[0] if held else FAILED


def listen(port: int) -> None:
    """After the signal to end, the commands that run may still end, and no other begins."""
    context, sessions = tls(ssl.PROTOCOL_TLS_SERVER), list[threading.Thread]()
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    dual = family == socket.AF_INET6
    listener = socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=100)
    stopping = threading.Event()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            thread = threading.Thread(target=session, args=(context, connection), daemon=True)
            thread.start()
            sessions[:] = [*filter(threading.Thread.is_alive, sessions), thread]

    threading.Thread(target=accept, daemon=True).start()
    stopping.wait()
    for thread in list(sessions):
        thread.join()


def session(context: ssl.SSLContext, connection: socket.socket) -> None:
    """One command. Who only connects, as a probe does, or has another certificate, gets nothing."""
    try:
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.settimeout(PATIENCE_S)
            with context.wrap_socket(connection, server_side=True) as peer:
                answer(peer)
    except (OSError, ValueError) as error:
        if not isinstance(error, (ssl.SSLEOFError, ConnectionError)):
            print(f"kubernetes/remote.py: {error}", file=sys.stderr, flush=True)


def answer(peer: ssl.SSLSocket) -> None:
    received = b""
    while not received.endswith(b"\n"):
        data = peer.recv(CHUNK)
        if not data or len(received) > MAX_COMMAND:
            raise ValueError("a connection without a command")
        received += data
    peer.settimeout(None)
    with subprocess.Popen(
        ["bash", "-c", json.loads(received)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        output = process.stdout.fileno()
        while True:
            ready, _, _ = select.select([peer.fileno(), output], [], [])
            if peer.fileno() in ready:  # the other end says nothing more: it is gone
                os.killpg(process.pid, signal.SIGTERM)
                return
            if not (data := os.read(output, CHUNK)):
                break
            peer.sendall(data)
        status = process.wait()
    peer.sendall(bytes([status if status >= 0 else 128 - status]))
    peer.unwrap()


def main(words: list[str]) -> int:
    match words:
        case ["listen", port]:
            listen(int(port))
            return 0
        case ["run", port, host, *command]:
            try:
                return run(int(port), host, " ".join(command))
            except OSError as error:
                print(f"kubernetes/remote.py: {host}: {error}", file=sys.stderr)
                return FAILED
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
