"""Waiting for a server: ready, died or out of time, with what the log said last."""

from __future__ import annotations

import io
import socket
from dataclasses import replace

import pytest

from builder.bundle import Bundle
from launch import target
from launch.process import ServerProcess
from launch.serving import Progress, is_ready, wait_until_ready
from launch.target import Target
from tests.launch.conftest import Child

QUIET = Progress("test", io.StringIO())
# Ready at the second time of asking; answers GET /v2 with its name.
HTTP = """
import http.server, itertools
asked = itertools.count()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ready = self.path == "/v2" or next(asked) > 0
        self.send_response(200 if ready else 503)
        self.end_headers()
        self.wfile.write(b'{"name": "NAME"}')
    def log_message(self, *_):
        pass
print("listens")
http.server.HTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
"""


@pytest.fixture
def triton(bundle: Bundle) -> Target:
    return target.read(bundle, "triton").on_free_ports().with_environment(SERVE_ID="ours")


def serving(child: Child, one: Target, name: str) -> ServerProcess:
    return child(HTTP.replace("NAME", name).replace("PORT", str(one.ports["http"])))


def test_a_server_is_ready_when_it_says_so(child: Child, triton: Target) -> None:
    with serving(child, triton, "ours") as server:
        state, _ = wait_until_ready(server, lambda: is_ready(triton), 20, QUIET)
        assert server.exit_status(0) is None
    assert state == "ready"


def test_another_triton_on_the_port_is_not_taken_for_ours(child: Child, triton: Target) -> None:
    with serving(child, triton, "theirs") as server:
        state, elapsed_s = wait_until_ready(server, lambda: is_ready(triton), 1.5, QUIET)
    assert state == "timed_out"
    assert elapsed_s >= 1.5
    assert server.last_lines() == ["listens"]


def test_a_server_that_dies_is_noticed_at_once(child: Child) -> None:
    with child("print('no such checkpoint'); raise SystemExit(9)") as server:
        state, elapsed_s = wait_until_ready(server, lambda: False, 60, QUIET)
        assert server.exit_status(0) == 9
    assert state == "died"
    assert server.last_lines() == ["no such checkpoint"]
    assert elapsed_s < 60


def test_a_server_that_is_never_ready_runs_out_of_time(child: Child) -> None:
    with child("import time; print('loading'); time.sleep(60)") as server:
        state, _ = wait_until_ready(server, lambda: False, 0.5, QUIET)
        assert server.exit_status(0) is None
    assert state == "timed_out"
    assert server.last_lines() == ["loading"]


def test_nothing_on_the_port_is_not_ready(triton: Target) -> None:
    assert not is_ready(triton)


def test_something_else_than_http_on_the_port_is_not_ready(triton: Target) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        odd = replace(triton, ports={**triton.ports, "http": listener.getsockname()[1]})
        assert not is_ready(odd)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_sees_one_live_line(child: Child) -> None:
    terminal = Terminal()
    with child("import time; print('shard 1 of 9\\t\\x1b[31m'); time.sleep(60)") as server:
        wait_until_ready(server, lambda: False, 0.9, Progress("triton", terminal))
    text = terminal.getvalue()
    assert "triton: waiting 0 s, log: shard 1 of 9" in text
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")
    assert "\x1b[31m" not in text


def test_a_file_gets_a_plain_line_now_and_then(child: Child) -> None:
    stream = io.StringIO()
    progress = Progress("triton", stream)
    with child("import time; print('shard 1 of 9'); time.sleep(60)") as server:
        while server.last_lines() == []:
            server.exit_status(0.05)
        for elapsed_s in (0.2, 9.9, 10.1, 15.0, 20.3):
            progress.show(elapsed_s, server)
    assert stream.getvalue().splitlines() == [
        "triton: waiting 10 s, log: shard 1 of 9",
        "triton: waiting 20 s, log: shard 1 of 9",
    ]
