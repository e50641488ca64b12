"""The supervisor's small commands, as its steps and a preflight job run them."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import supervisor.__main__ as commands
from supervisor import state
from tests.supervisor.one_node import NODE, Job

Call = Callable[..., int]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Call:
    """The exit code of the command line with these words."""
    monkeypatch.setattr(commands, "TICK_S", 0.005)

    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["supervisor", *map(str, words)])
        return commands.main()

    return run


@pytest.fixture
def listening() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield one


def test_the_service_is_served_until_its_end(job: Job, call: Call) -> None:
    job.once("published", job.stop)
    assert job.run(lambda folder: call("serve", folder)) == 0
    assert job.record["outcome"] == "stopped"


def test_a_script_serves_the_folder_that_holds_the_package(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = []
    monkeypatch.setitem(
        commands.COMMANDS, "serve", (lambda folder: served.append(folder), ["[folder]"])
    )
    call("serve")
    assert served == [Path(commands.__file__).parent.parent]


def test_a_step_drains_a_job_by_its_folder(tmp_path: Path, call: Call) -> None:
    assert call("drain", tmp_path) == 0
    assert (tmp_path / "drain").is_file()


def test_ports_of_a_node_are_told_as_a_line(
    call: Call,
    listening: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", NODE)
    taken = listening.getsockname()[1]
    assert call("ports", json.dumps({NODE: [taken, 0], "node2": [1]})) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["node"], told["taken"]) == (NODE, [taken])
    [free] = told["free"]
    assert free not in (0, taken)


@pytest.mark.parametrize(("mark", "is_foreign"), [("A=mine", True), (None, False)])
def test_a_listener_that_is_not_the_marks_is_told(
    call: Call,
    listening: socket.socket,
    capsys: pytest.CaptureFixture[str],
    mark: str | None,
    is_foreign: bool,
) -> None:
    own = next(iter(Path("/proc/self/environ").read_bytes().split(b"\0"))).decode()
    assert call("listener", listening.getsockname()[1], mark or own) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"foreign"}
    if is_foreign:
        assert told["foreign"].startswith(f"process {os.getpid()} (")
    else:
        assert told["foreign"] is None


def test_a_port_without_clients_is_idle(call: Call, listening: socket.socket) -> None:
    assert call("idle", listening.getsockname()[1], "0") == 0


def test_a_port_with_a_client_is_not_idle_after_the_time(
    call: Call, listening: socket.socket
) -> None:
    with socket.create_connection(listening.getsockname()):
        assert call("idle", listening.getsockname()[1], "0.05") == 1


@pytest.mark.parametrize(
    ("status", "code", "line"),
    [("200", 0, "it generates"), ("500", 1, "/v1/completions: HTTP 500 ")],
)
def test_the_canary_request_is_sent_once(
    job: Job,
    call: Call,
    serve: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    status: str,
    code: int,
    line: str,
) -> None:
    body = b'{"choices": [{"text": "four"}]}' if status == "200" else b""
    head = f"HTTP/1.1 {status} OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    def answer(connection: socket.socket) -> None:
        connection.sendall(head + body)

    job.write()
    assert call("smoke", job.bundle / "slurm", "127.0.0.1", serve(answer)) == code
    assert capsys.readouterr().out == f"{line}\n"


@pytest.mark.parametrize(("program", "code"), [("sh", 0), ("no-such-program", 6)])
def test_a_preflight_leaves_all_that_it_checked(
    job: Job, call: Call, capsys: pytest.CaptureFixture[str], program: str, code: int
) -> None:
    (job.bundle / "manifest.json").write_text(json.dumps({"files": {}}))
    job.document["preflight"] = {"programs": [program], "mpi": "none", "timeout_s": 10}
    job.write()
    ended = call("preflight", job.bundle / "slurm")
    result = state.read_json(job.path / state.PREFLIGHT) or {}
    rows = {row["check"]: row for row in result["checks"]}
    assert rows["program"]["ok"] is (code == 0)
    assert rows["program"]["what"].startswith(f"{program}: ")
    assert (result["format"], result["node"]) == (state.FORMAT, NODE)
    assert result["ok"] is all(row["ok"] for row in rows.values())
    assert ended == (0 if result["ok"] else 6)
    told = capsys.readouterr().err
    assert f"{'ok    ' if code == 0 else 'FAILED'} program: {program}: " in told


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 6)])
def test_a_preflight_ends_by_whether_all_passed(
    job: Job, call: Call, monkeypatch: pytest.MonkeyPatch, passed: bool, code: int
) -> None:
    rows = [("gpus", True, "8 of 8"), ("ports", passed, "8000")]
    monkeypatch.setattr(commands, "preflight_checks", lambda *_: rows)
    job.write()
    assert call("preflight", job.bundle / "slurm") == code
    assert (state.read_json(job.path / state.PREFLIGHT) or {})["ok"] is passed


def test_a_fault_is_a_line_and_no_traceback(
    tmp_path: Path, call: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("preflight", tmp_path) == 1
    told = capsys.readouterr().err
    assert "error: FileNotFoundError: " in told
    assert "Traceback" not in told
