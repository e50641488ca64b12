"""How the model's process ends its server and itself, without either."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.model_repository.in_process import TERMINATION, UNARY, backend, loaded
from tests.watcher import unique


@pytest.fixture
def ended() -> SimpleNamespace:
    """The module, with what it does to the server written down."""
    kills: list[tuple[int, int]] = []
    log: list[str] = []
    with loaded(backend(log, {}), {}) as modules:
        module = modules[TERMINATION]
        module.unary = modules[UNARY]
    module.end_server = module.terminate_server
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
    timers = [one for one in threading.enumerate() if isinstance(one, threading.Timer)]
    assert timers
    assert all(timer.daemon for timer in timers), "none may keep the process from its end"
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


def test_a_stop_lets_a_request_begin_that_has_passed_the_gate(
    ended: Any, stop_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended.module, "CONNECTIONS_TIMEOUT_S", 0.1)
    monkeypatch.setattr(ended.module, "STOP_FILE_POLL_S", 0.01)
    has_stopped = threading.Event()
    shutdown = ended.module.Shutdown(has_stopped.set)
    with shutdown.gate:
        stop_file.touch()
        assert not has_stopped.wait(0.3)
        assert not shutdown.is_requested
    assert has_stopped.wait(5)


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


def test_a_stop_after_the_unloading_ends_nothing_again(ended: Any, stop_file: Path) -> None:
    ends: list[int] = []
    shutdown = ended.module.Shutdown(lambda: ends.append(1))
    shutdown.unload()
    stop_file.touch()
    assert not ended.has_ended.wait(0.3)
    assert ends == [1]


# --- The end of both ------------------------------------------------------------------------------


class Exit(Exception):
    """Of this process."""


class Stream(io.StringIO):
    """The server's log, which may be full, and tells what has left it."""

    def __init__(self, is_full: bool) -> None:
        super().__init__()
        self._is_full = is_full
        self.left = ""

    def write(self, text: str) -> int:
        if self._is_full:
            raise OSError(28, "No space left on device")
        return super().write(text)

    def flush(self) -> None:
        self.left = self.getvalue()


@pytest.fixture
def memory(ended: Any, tmp_path: Path) -> Iterator[Path]:
    """What Triton shares with its Python process, whose second argument names it."""
    path, command = Path("/dev/shm") / unique("terminated"), tmp_path / "cmdline"
    path.touch(mode=0o644)
    command.write_text(f"stub\0model.py\0/{path.name}\0other\0")
    there = {"/proc/self/cmdline": command}
    ended.module.unary.Path = lambda name: there.get(name, Path(name))
    yield path
    path.unlink(missing_ok=True)


def test_what_triton_shares_is_closed_to_other_users(ended: Any, memory: Path) -> None:
    ended.module.unary.make_shared_memory_private()
    assert memory.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("is_there", "obeys", "is_full"),
    [(True, True, False), (True, False, False), (False, False, False), (True, True, True)],
)
def test_the_server_is_ended_by_a_signal_and_this_process_after_it(
    ended: Any,
    memory: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_there: bool,
    obeys: bool,
    is_full: bool,
) -> None:
    """Also where no signal reaches the server, or it is gone, or its log is full."""
    module, codes = ended.module, list[int]()

    def parent() -> int:
        return module.SERVER if is_there and not (obeys and ended.kills) else 1

    def leave(code: int) -> None:
        codes.append(code)
        raise Exit

    vars(module.os).update(getppid=parent, _exit=leave)
    ignored = is_there and not obeys
    timeout_s = 0.3 if ignored else 60.0
    monkeypatch.setattr(module, "SIGNAL_TIMEOUT_S", timeout_s)
    stream = Stream(is_full)
    monkeypatch.setattr(sys, "stderr", stream)
    before_s = time.monotonic()
    with pytest.raises(Exit):
        module.end_server("it is over", signal.SIGUSR1)
    waited_s = time.monotonic() - before_s
    assert codes == [1]
    assert not memory.exists()
    assert ended.kills == ([(module.SERVER, signal.SIGUSR1)] if is_there else [])
    assert stream.left == ("" if is_full else "the server exits because it is over\n")
    assert (waited_s >= timeout_s) == ignored


def test_memory_that_is_gone_already_is_no_hindrance(
    ended: Any, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.unlink()
    vars(ended.module.os).update(getppid=lambda: 1, _exit=lambda code: None)
    ended.module.end_server("it is over", signal.SIGALRM)
    assert ended.kills == []
