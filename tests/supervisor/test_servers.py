"""Servers as the supervisor sees them: dripping, endless, odd, and others on their ports."""

from __future__ import annotations

import errno
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from supervisor import checks
from supervisor.spec import CanaryRequest
from tests.supervisor.conftest import Answer

Connection = socket.socket
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def drip(connection: Connection) -> None:
    """A byte each 50 ms, which no limit between two bytes ever notices."""
    for byte in OK * 1000:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def drip_body(connection: Connection) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    drip(connection)


def continue_forever(connection: Connection) -> None:
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.01)


def flood(connection: Connection) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        connection.sendall(b"x" * 65536)


def flood_header(connection: Connection) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        connection.sendall(b"x" * 65536)


def say(data: bytes) -> Answer:
    return lambda connection: connection.sendall(data)


def mute(connection: Connection) -> None:
    connection.recv(1)


@pytest.mark.parametrize("answer", [drip, drip_body, continue_forever, mute, flood_header])
def test_a_probe_ends_in_its_time_however_the_answer_comes(
    serve: Callable[[Answer], int], answer: Answer
) -> None:
    port, limit_s, alarm_s = serve(answer), 0.5, []
    began = time.monotonic()
    alarm = threading.Timer(limit_s, lambda: alarm_s.append(time.monotonic() - began))
    alarm.start()
    assert checks.health_error("127.0.0.1", port, "/health", limit_s) is not None
    took_s = time.monotonic() - began
    alarm.join()
    # A busy machine is as late with an alarm, several times in one probe.
    assert took_s < 2 + 5 * (alarm_s[0] - limit_s)


@pytest.mark.parametrize("answer", [drip, drip_body])
def test_a_dripping_answer_is_a_timeout(serve: Callable[[Answer], int], answer: Answer) -> None:
    fault = checks.health_error("127.0.0.1", serve(answer), "/health", 0.3)
    assert fault == "/health: timed out"


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (flood, f"a response of {checks.RESPONSE_BYTES} bytes and more"),
        (say(b""), "closed connection without response"),
        (say(b"SSH-2.0-OpenSSH_9.6\r\n"), "BadStatusLine"),
        (say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"), "cut off 7 bytes before its end"),
        (say(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200), "got more than"),
        (say(CHUNKED + b"-5\r\nzz\r\n"), "ValueError"),
        (say(CHUNKED + b"zz\r\n"), "IncompleteRead"),
        (say(OK.replace(b"200", b"503")), "HTTP 503"),
        (say(OK.replace(b"200", b"302")), "HTTP 302"),
    ],
)
def test_an_odd_answer_is_not_health(
    serve: Callable[[Answer], int], answer: Answer, fault: str
) -> None:
    found = checks.health_error("127.0.0.1", serve(answer), "/health", 5)
    assert found and fault in found


def test_a_plain_answer_is_health(serve: Callable[[Answer], int]) -> None:
    assert checks.health_error("127.0.0.1", serve(say(OK)), "/health", 5) is None


def test_a_probe_needs_no_thread_that_its_user_cannot_have(
    serve: Callable[[Answer], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    port, mute_port = serve(say(OK)), serve(mute)
    monkeypatch.setattr(threading.Timer, "start", refuse)
    assert checks.health_error("127.0.0.1", port, "/health", 5) is None
    assert checks.health_error("127.0.0.1", mute_port, "/health", 0.3) == "/health: timed out"


@pytest.mark.parametrize(
    ("fault", "misses"),
    [
        (OSError(errno.EMFILE, "too many open files"), 0),
        (OSError(errno.EADDRNOTAVAIL, "no port is left"), 0),
        (socket.gaierror(socket.EAI_AGAIN, "no name server"), 0),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), 1),
        (OSError(errno.EHOSTUNREACH, "no route"), 1),
    ],
)
@pytest.mark.parametrize("path", ["/health", "/v1/completions"])
def test_what_this_host_lacks_is_no_miss_of_the_server(
    monkeypatch: pytest.MonkeyPatch, path: str, fault: OSError, misses: int
) -> None:
    def refuse(_: object) -> None:
        raise fault

    def ask() -> str | None:
        probe.stop()  # after this look
        if path == "/health":
            return checks.health_error("127.0.0.1", 1, path, 1)
        return checks.canary_error("127.0.0.1", 1, CanaryRequest(path, {}))

    monkeypatch.setattr(http.client.HTTPConnection, "connect", refuse)
    probe = checks.Probe(ask, 60, 3, is_ready=True)
    probe.run()
    assert (probe.failures, probe.error) == (misses, None)
    assert fault.args[1] in (probe.last or "")


@pytest.mark.parametrize(
    "body",
    [
        *(b"[]", b"7", b"null", b'"text"', b"[" * 100_000),
        *(b'{"choices": 7}', b'{"choices": ["a"]}', b'{"choices": {"0": {"text": "four"}}}'),
        *(
            b'{"choices": [{"message": []}]}',
            b'{"choices": [{"text": 7}]}',
            b'{"text_output": [4]}',
        ),
    ],
    ids=lambda body: body[:40].decode(),
)
def test_a_canary_that_answers_another_shape_generates_no_text(
    serve: Callable[[Answer], int], body: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    request = CanaryRequest("/v1/completions", {}, timeout_s=5)
    found = checks.canary_error("127.0.0.1", serve(say(head + body)), request)
    assert found and "no text in" in found


# --- Whose port it is -----------------------------------------------------------------------------

LISTEN = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as one:
    print(one.getsockname()[1], flush=True)
    sys.stdin.read()
"""
OWN = "SERVICE_STEP=7/server0"


@pytest.fixture
def listen() -> Iterator[Callable[..., tuple[int, int]]]:
    """Port and process of a program that listens, with these variables."""
    with ExitStack() as stack:

        def start(*before: str, **variables: str) -> tuple[int, int]:
            argv = [*before, sys.executable, "-c", LISTEN]
            options: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = subprocess.Popen(argv, env={**os.environ, **variables}, **options)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout
            return int(process.stdout.readline()), process.pid

        yield start


def test_a_server_is_known_by_its_mark(listen: Callable[..., tuple[int, int]]) -> None:
    port, _ = listen(SERVICE_STEP="7/server0")
    assert checks.foreign_listener(port, OWN) is None


def test_a_server_whose_parent_has_the_mark_is_its_own(
    listen: Callable[..., tuple[int, int]],
) -> None:
    """Programs write over their environment, as for a title in the list of processes."""
    drop = ("sh", "-c", 'env -u SERVICE_STEP "$@"; exit', "sh")
    port, _ = listen(*drop, SERVICE_STEP="7/server0")
    assert checks.foreign_listener(port, OWN) is None


@pytest.mark.parametrize("variables", [{}, {"SERVICE_STEP": "8/server0"}], ids=["none", "another"])
def test_a_stranger_on_the_port_is_named(
    listen: Callable[..., tuple[int, int]], variables: dict[str, str]
) -> None:
    port, pid = listen(**variables)
    found = checks.foreign_listener(port, OWN)
    assert found and found.startswith(f"process {pid} (")


def test_nothing_is_said_of_a_port_that_nobody_is_seen_to_have() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    assert checks.foreign_listener(port, OWN) is None


@pytest.mark.parametrize(
    ("host", "is_foreign"),
    [("127.0.0.1", False), ("127.0.0.2", True), ("127.0.0.3", False), (None, True)],
)
def test_a_port_of_another_address_is_another_port(
    listen: Callable[..., tuple[int, int]], host: str | None, is_foreign: bool
) -> None:
    port, _ = listen(SERVICE_STEP="7/server0")
    with socket.create_server(("127.0.0.2", port)):
        assert (checks.foreign_listener(port, OWN, host) is not None) == is_foreign


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_whoever_listens_on_all_addresses_listens_on_each(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as other:
        found = checks.foreign_listener(other.getsockname()[1], OWN, "127.0.0.1")
    assert found and found.startswith(f"process {os.getpid()} (")


def test_a_server_of_the_old_internet_protocol_on_a_socket_of_the_new_one_is_found() -> None:
    """As servers open it that take both: the kernel lists it with mapped addresses."""
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        other.bind(("::ffff:127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        found = checks.foreign_listener(port, OWN, "127.0.0.1")
        assert found and found.startswith(f"process {os.getpid()} (")
        assert checks.foreign_listener(port, OWN, "127.0.0.2") is None


def test_a_listener_of_this_user_whose_process_is_gone_is_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checks, "_sockets", lambda *_: [("0100007F", "1", 1000)])
    monkeypatch.setattr(checks, "_holders", lambda _: [])
    for user, found in ((1000, None), (1001, "a process of user 1000"), (0, None)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert checks.foreign_listener(1, OWN) == found


@pytest.mark.parametrize("look", ["iterdir", "read_bytes", "read_text"])
def test_what_this_host_lacks_for_a_look_says_nothing_of_who_listens(
    monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    def refused(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with socket.create_server(("127.0.0.1", 0)) as one:
        sockets = list(checks._sockets(one.getsockname()[1], checks.LISTENING))
        monkeypatch.setattr(checks, "_sockets", lambda *_: sockets)
        monkeypatch.setattr(Path, look, refused)
        with pytest.raises(OSError, match="open files"):
            checks.foreign_listener(1, OWN)


def test_a_parent_is_found_behind_a_name_with_brackets(
    listen: Callable[..., tuple[int, int]], tmp_path: Path
) -> None:
    odd = tmp_path / "a) b (c"
    odd.symlink_to("/bin/sh")
    drop = ("sh", "-c", 'env -u SERVICE_STEP "$@"; exit', "sh")
    port, _ = listen(*drop, str(odd), "-c", '"$@"; exit', "sh", SERVICE_STEP="7/server0")
    assert checks.foreign_listener(port, OWN) is None


# --- What is said of an answer --------------------------------------------------------------------

REQUEST = CanaryRequest("/v1/completions", {"prompt": "two and two"}, timeout_s=5)
TEXT = b'{"choices": [{"text": "four"}]}'


def response(status: int, body: bytes) -> Answer:
    return say(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, TEXT, None),
        (429, b"busy", None),
        (430, TEXT, "/v1/completions: HTTP 430 " + TEXT.decode()),
        (500, b"", "/v1/completions: HTTP 500 "),
        (200, b"{}", "/v1/completions: no text in {}"),
        (503, b"x" * 999, "/v1/completions: HTTP 503 " + "x" * 200),
        (500, b"\xff", "/v1/completions: HTTP 500 \ufffd"),
    ],
)
def test_a_canary_says_what_came_instead_of_text(
    serve: Callable[[Answer], int], status: int, body: bytes, error: str | None
) -> None:
    port = serve(response(status, body))
    assert checks.canary_error("127.0.0.1", port, REQUEST) == error


@pytest.mark.parametrize(
    ("status", "error"), [(200, None), (204, "/health: HTTP 204"), (503, "/health: HTTP 503")]
)
def test_a_server_is_healthy_by_its_status_alone(
    serve: Callable[[Answer], int], status: int, error: str | None
) -> None:
    port = serve(response(status, b""))
    assert checks.health_error("127.0.0.1", port, "/health", 5) == error


def test_a_server_that_is_not_there_is_told_with_the_path() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    refused = "[Errno 111] Connection refused"
    assert checks.health_error("127.0.0.1", port, "/health", 5) == f"/health: {refused}"
    assert checks.canary_error("127.0.0.1", port, REQUEST) == f"/v1/completions: {refused}"


@pytest.mark.parametrize(
    ("body", "first", "last"),
    [(None, "GET /a?b=1 HTTP/1.1", ""), ({"a": 1}, "POST /a?b=1 HTTP/1.1", '{"a": 1}')],
)
def test_a_request_is_what_a_server_of_http_expects(
    body: dict[str, int] | None, first: str, last: str
) -> None:
    """Whose server may close the connection after it."""
    asked: list[bytes] = []

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            with listener.accept()[0] as connection:
                text = connection.recv(65536)
                while not text.endswith(last.encode() or b"\r\n\r\n"):
                    text += connection.recv(65536)
                asked.append(text)
                response(200, b"ok")(connection)

        thread = threading.Thread(target=run)
        thread.start()
        port = listener.getsockname()[1]
        found = checks.http_request("127.0.0.1", port, "/a?b=1", 5, body, {"X-Own": "1"})
        thread.join()
    assert found == (200, b"ok")
    lines = asked[0].decode().split("\r\n")
    assert {"Content-Type: application/json", "Connection: close", "X-Own: 1"} <= set(lines)
    assert (lines[0], lines[-1]) == (first, last)
