"""A server process and its end, with real child processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.errors import NotReady
from launch import guardian, serving
from launch.process import Interrupted, Interrupts, ServerProcess
from tests.launch.conftest import Child, marked_processes
from tests.slurm.service import wait_until

END_S = 60.0
IGNORES_TERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(60)
"""
# Ends when asked, but leaves a worker in another session, as MPI does.
LEAVES_A_WORKER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; print('worker', flush=True); time.sleep(60)"],
                 start_new_session=True)
time.sleep(60)
"""
LEAVES_A_DEAF_WORKER = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {IGNORES_TERM!r}], start_new_session=True)
time.sleep(60)
"""
# Its worker notes which signal it got before the server ended.
ORDER = """
import signal, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-uc", '''
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("worker was asked first"), sys.exit()))
print("worker")
time.sleep(60)
'''])
def end(*_):
    time.sleep(0.3)
    print("server ends")
    worker.kill()
    worker.wait()
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
time.sleep(60)
"""


def wait_for_line(server: ServerProcess, text: str) -> None:
    deadline = time.monotonic() + 60
    while text not in server.last_lines():
        assert time.monotonic() < deadline, server.last_lines()
        time.sleep(0.01)


def test_output_of_both_kinds_goes_to_the_log(child: Child) -> None:
    with child("import sys; print('one'); print('two', file=sys.stderr)") as server:
        assert server.exit_status(60) == 0
    assert server.last_lines() == ["one", "two"]
    assert server.last_lines(1) == ["two"]


def test_empty_lines_and_tables_are_no_last_words(child: Child) -> None:
    with child(r"print('why\n\n+---+\n| a |\n+---+')") as server:
        server.exit_status(60)
    assert server.last_lines() == ["why"]


def test_what_the_log_held_before_stays(child: Child) -> None:
    server = child("print('new')")
    server.log.write_text("old\n")
    with server:
        server.exit_status(60)
    assert server.last_lines() == ["old", "new"]


def test_an_exit_status_is_that_of_a_shell(child: Child) -> None:
    with child("raise SystemExit(3)") as server:
        assert server.exit_status(60) == 3
    with child("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)") as server:
        assert server.exit_status(60) == 128 + signal.SIGSEGV


def test_a_running_server_has_no_exit_status(child: Child) -> None:
    with child("import time; time.sleep(60)") as server:
        assert server.exit_status(0.05) is None
    assert server.exit_status(0) == 128 + signal.SIGTERM
    assert not server.killed


def test_a_server_that_ignores_the_request_to_end_is_killed_after_its_grace(child: Child) -> None:
    with child(IGNORES_TERM, grace_s=0.3) as server:
        wait_for_line(server, "deaf")
        start = time.monotonic()
    assert time.monotonic() - start >= 0.3
    assert server.exit_status(0) == 128 + signal.SIGKILL
    assert server.killed


def test_a_server_that_was_killed_stays_so_when_it_is_stopped_again(child: Child) -> None:
    with child(IGNORES_TERM, grace_s=0.1) as server:
        wait_for_line(server, "deaf")
        server.stop()
    assert server.killed


def test_a_worker_in_another_session_is_ended_too(child: Child) -> None:
    with child(LEAVES_A_WORKER) as server:
        wait_for_line(server, "worker")
        assert len(marked_processes()) == 2
    assert marked_processes() == set()


def test_a_worker_that_ignores_the_request_to_end_is_killed(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guardian, "LEFTOVER_GRACE_S", 0.3)
    with child(LEAVES_A_DEAF_WORKER) as server:
        wait_for_line(server, "deaf")
    assert marked_processes() == set()
    assert not server.killed


def test_a_key_press_in_the_terminal_reaches_the_launcher_only(child: Child) -> None:
    with child("import time; time.sleep(60)") as server:
        assert os.getsid(server.pid) == server.pid


def test_a_program_that_is_not_there_is_named(child: Child, tmp_path: Path) -> None:
    server = child("")
    server._argv = [str(tmp_path / "no-bash")]
    with pytest.raises(NotReady, match="no-bash: cannot be started: no such file"), server:
        pass


def test_the_server_ends_its_own_workers_first(child: Child) -> None:
    with child(ORDER) as server:
        wait_for_line(server, "worker")
    assert server.exit_status(0) == 7
    assert server.last_lines() == ["worker", "server ends"]


def test_the_children_of_a_server_that_died_are_ended(child: Child) -> None:
    with child(LEAVES_A_WORKER) as server:
        wait_for_line(server, "worker")
        os.kill(server.pid, signal.SIGKILL)
        assert server.exit_status(60) == 128 + signal.SIGKILL
    assert marked_processes() == set()


def test_an_exception_in_the_block_ends_the_server(child: Child) -> None:
    server = child("import time; time.sleep(60)")
    with pytest.raises(ZeroDivisionError), server:
        raise ZeroDivisionError
    assert server.exit_status(0) is not None


def test_a_second_signal_skips_the_grace(child: Child, interrupts: Interrupts) -> None:
    start = time.monotonic()
    with pytest.raises(Interrupted), child(IGNORES_TERM, grace_s=60) as server:
        wait_for_line(server, "deaf")
        interrupts.again.set()
        os.kill(os.getpid(), signal.SIGINT)
    assert time.monotonic() - start < 60
    assert server.killed


def test_a_signal_in_a_critical_step_is_raised_after_it(interrupts: Interrupts) -> None:
    finished = False
    with pytest.raises(Interrupted) as raised, interrupts.held():
        os.kill(os.getpid(), signal.SIGTERM)
        finished = True
    assert finished
    assert raised.value.exit_code == 128 + signal.SIGTERM


class Finalizer:
    """Python drops what is raised in it."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_in_a_finalizer_ends_the_wait_all_the_same(
    child: Child, interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    with child("import time; time.sleep(60)") as server, pytest.raises(Interrupted):
        serving.wait_until_ready(
            server, lambda: bool(Finalizer() and False), 30, serving.Progress("server")
        )


def test_signals_behave_as_before_afterwards(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


# Another launcher, which serves a program that leaves a worker, until it is told otherwise.
LAUNCHER = """
import os, sys
from pathlib import Path
from launch.process import Interrupts
from launch.process import ServerProcess
folder, program = Path(sys.argv[1]), sys.argv[2]
with Interrupts() as interrupts, ServerProcess(
    [sys.executable, "-u", "-c", program], cwd=folder, environment=os.environ,
    log=folder / "server.log", grace_s=5.0, interrupts=interrupts,
) as server:
    while server.exit_status(0.1) is None:
        interrupts.check()
"""


@pytest.mark.parametrize("program", [LEAVES_A_WORKER, LEAVES_A_DEAF_WORKER], ids=["plain", "deaf"])
def test_a_killed_launcher_leaves_no_server(tmp_path: Path, program: str) -> None:
    log = tmp_path / "server.log"
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path), program]
    before = set(marked_processes())
    with subprocess.Popen(command, start_new_session=True) as launcher:
        wait_until(lambda: log.exists() and len(log.read_text()) > 3, END_S)
        assert set(marked_processes()) > before
        os.killpg(launcher.pid, signal.SIGKILL)
    wait_until(lambda: set(marked_processes()) <= before, END_S)
    assert "The launcher is gone" in log.read_text()


# Answers what it has until it is asked again, as a server that drains does, and then cleans up.
DRAINS = """
import signal, sys, time
asked = []
def end(*_):
    asked.append(1)
    if len(asked) == 2:
        print("cleaned up", flush=True)
        sys.exit()
signal.signal(signal.SIGTERM, end)
print("serves", flush=True)
while True:
    time.sleep(0.1)
"""


def test_half_a_minute_after_its_launcher_was_killed_a_server_that_drains_is_gone(
    tmp_path: Path,
) -> None:
    log, before = tmp_path / "server.log", set(marked_processes())
    program = LAUNCHER.replace("grace_s=5.0", "grace_s=330.0")
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path), DRAINS]) as launcher:
        wait_until(lambda: log.exists() and "serves" in log.read_text(), END_S)
        launcher.kill()
    wait_until(lambda: set(marked_processes()) <= before, 30.0)
    assert log.read_text().endswith("cleaned up\n")


def test_a_server_that_outlasts_its_grace_is_told_so_before_it_is_killed(child: Child) -> None:
    with child(DRAINS, grace_s=0.3) as server:
        wait_for_line(server, "serves")
    assert server.killed
    assert "cleaned up" in server.last_lines()


def test_a_server_that_its_launcher_ended_has_no_guardian_left(child: Child) -> None:
    with child(LEAVES_A_WORKER) as server:
        guardian = server._guardian
        wait_for_line(server, "worker")
        assert guardian.poll() is None
    assert guardian.returncode == 0
    assert "The launcher is gone" not in server.log.read_text()
    server.stop()  # which may come again


def test_a_server_knows_when_another_one_has_its_port(child: Child) -> None:
    listens = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
    listens += "print(s.getsockname()[1]); time.sleep(60)"
    with child(listens) as server, socket.create_server(("127.0.0.1", 0)) as other:
        wait_until(lambda: bool(server.last_lines()), END_S)
        own = int(server.last_lines()[0])
        assert server.owns("127.0.0.1", [own])
        assert not server.owns("127.0.0.1", [own, other.getsockname()[1]])
