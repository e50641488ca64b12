"""How the model's process ends its server and itself, without Triton: its parent stands for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.model_repository.in_process import TERMINATION, backend, loaded
from tests.watcher import unique

# As Triton starts it: the second argument names the memory that both share.
CHILD = """
import sys, types
sys.path[:] = {path!r}
sys.modules["triton_python_backend_utils"] = types.ModuleType("triton_python_backend_utils")
from trtllm_model import termination, unary
"""
ENDS = "termination.terminate_server('it is over', {number})\n"
# A server that starts its child, waits for it, and says how it ended.
SERVER = """
import signal, subprocess, sys
for number in {ignored!r}:
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen(sys.argv[1:], restore_signals=False)
print(child.wait(), flush=True)
"""


@pytest.fixture
def memory() -> Iterator[Path]:
    path = Path("/dev/shm") / unique("terminated")
    path.touch(mode=0o644)
    yield path
    path.unlink(missing_ok=True)


def run(tmp_path: Path, memory: Path, program: str, ignored: list[int]) -> Any:
    """A server whose child runs the program, until both have ended."""
    script = tmp_path / "child.py"
    script.write_text(CHILD.format(path=sys.path) + program)
    server = SERVER.format(ignored=ignored)
    command = [sys.executable, "-c", server, sys.executable, str(script), memory.name]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_the_server_is_ended_by_the_signal_and_leaves_nothing(tmp_path: Path, memory: Path) -> None:
    ended = run(tmp_path, memory, ENDS.format(number=int(signal.SIGUSR1)), [])
    assert ended.returncode == -signal.SIGUSR1
    assert ended.stderr == "the server exits because it is over\n"
    assert not memory.exists()


def test_where_no_signal_reaches_the_server_the_process_ends_unanswered(
    tmp_path: Path, memory: Path
) -> None:
    before_s = time.monotonic()
    number = int(signal.SIGUSR1)
    ended = run(tmp_path, memory, ENDS.format(number=number), [number])
    assert (ended.returncode, ended.stdout) == (0, "1\n")
    assert time.monotonic() - before_s > 1.5, "the signal may take a moment"


def test_the_shared_memory_is_closed_to_other_users(tmp_path: Path, memory: Path) -> None:
    assert run(tmp_path, memory, "unary.make_shared_memory_private()\n", []).returncode == 0
    assert memory.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def ended() -> SimpleNamespace:
    """The module, with what it does to the server written down."""
    kills: list[tuple[int, int]] = []
    log: list[str] = []
    with loaded(backend(log, {}), {}) as modules:
        module = modules[TERMINATION]
    ends: list[tuple[str, int]] = []
    has_ended = threading.Event()

    def end(reason: str, number: signal.Signals) -> None:
        ends.append((reason, number))
        has_ended.set()

    module.terminate_server = end
    module.os = SimpleNamespace(kill=lambda *sent: kills.append(sent), environ=os.environ)
    return SimpleNamespace(module=module, kills=kills, log=log, ends=ends, has_ended=has_ended)


def test_a_failure_is_told_to_the_requests_the_log_and_the_server(ended: Any) -> None:
    told: list[str] = []
    failure = ended.module.EngineFailure(told.append)
    assert failure.reason is None
    failure.declare("worker 3 is gone")
    assert failure.reason == "worker 3 is gone"
    assert told == ["worker 3 is gone"]
    assert ended.log == ["E the engine is dead: worker 3 is gone; the server ends"]
    assert ended.kills == [(ended.module.SERVER, signal.SIGTERM)]
    failure.terminate()
    assert ended.ends == [("the engine is dead: worker 3 is gone", signal.SIGUSR1)]


def test_only_the_first_failure_counts(ended: Any) -> None:
    told: list[str] = []
    failure = ended.module.EngineFailure(told.append)
    for reason in ("first", "second"):
        failure.declare(reason)
    assert failure.reason == "first"
    assert told == ["first"]
    assert len(ended.kills) == 1


def test_a_server_that_does_not_unload_in_time_is_ended_all_the_same(
    ended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended.module, "UNLOAD_TIMEOUT_S", 0.1)
    ended.module.EngineFailure(lambda reason: None).declare("it hangs")
    assert ended.has_ended.wait(5)
    assert ended.ends == [("the engine is dead: it hangs", signal.SIGUSR1)]


@pytest.fixture
def stop_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SERVE_STOP_FILE", str(tmp_path / "stop"))
    return tmp_path / "stop"


def test_unloading_ends_once_whoever_asks_for_it(ended: Any) -> None:
    ends: list[int] = []
    shutdown = ended.module.Shutdown(lambda: ends.append(1))
    shutdown.unload()
    shutdown.unload()
    assert ends == [1]
    assert not shutdown.is_requested


def test_a_stop_ends_everything_and_then_the_server_that_does_not_come_to_unload(
    ended: Any, stop_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended.module, "CONNECTIONS_TIMEOUT_S", 0.1)
    ends: list[int] = []
    shutdown = ended.module.Shutdown(lambda: ends.append(1))
    assert not shutdown.is_requested
    stop_file.touch()
    assert ended.has_ended.wait(5)
    assert shutdown.is_requested
    assert ended.ends == [("it was asked to, and all requests have ended", signal.SIGALRM)]
    shutdown.unload()
    assert ends == [1]


def test_a_server_that_unloads_in_time_after_a_stop_is_left_alone(
    ended: Any, stop_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended.module, "CONNECTIONS_TIMEOUT_S", 0.5)
    has_stopped = threading.Event()
    shutdown = ended.module.Shutdown(has_stopped.set)
    stop_file.touch()
    assert has_stopped.wait(5)
    shutdown.unload()
    assert not ended.has_ended.wait(1)


def test_a_stop_that_fails_is_logged_and_ends_the_server(
    ended: Any, stop_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("the drain broke")

    monkeypatch.setattr(ended.module, "CONNECTIONS_TIMEOUT_S", 0.1)
    stop_file.touch()
    ended.module.Shutdown(fail)
    assert ended.has_ended.wait(5)
    assert "RuntimeError: the drain broke" in ended.log[0]


def test_unloading_ends_the_watch_for_a_stop(ended: Any, stop_file: Path) -> None:
    ends: list[int] = []
    shutdown = ended.module.Shutdown(lambda: ends.append(1))
    shutdown.unload()
    stop_file.touch()
    assert not ended.has_ended.wait(0.5)
    assert not shutdown.is_requested
    assert ends == [1]
