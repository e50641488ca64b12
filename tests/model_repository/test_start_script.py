"""Triton's start script: it stops its server as asked, says how it ended, and leaves nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from builder import pipeline
from builder.bundle import Bundle
from builder.facts.advisories import fatal_requests
from launch import triton
from launch.process import Interrupts, ServerProcess
from supervisor.ports import free_ports
from tests.model_repository.conftest import wait_until_ready
from tests.model_repository.test_drain import DEAD, LONG, end
from tests.model_repository.triton_client import Response, Triton

NAME = f"script-test-{os.getpid()}"
HANG_S = 120.0
STAND_IN_WITHOUT_END = """#!/bin/sh
[ "$1" = --help ] && exit
trap "" TERM
echo started
sleep 600 &
wait
"""
STAND_IN_THAT_SIGNALS_BACK = f"""#!{sys.executable}
import os, signal, sys, time
if sys.argv[1] == "--help":
    sys.exit()
signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGTERM))
print("started", flush=True)
while True:
    time.sleep(600)
"""
IN_A_CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc")


@dataclass(frozen=True)
class Script:
    """The running start script, and a client of its server."""

    process: ServerProcess
    client: Triton

    @property
    def processes(self) -> dict[int, list[str]]:
        """The commands of all live processes in its session, itself among them."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                words = (folder / "cmdline").read_text().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == self.process.pid and fields[0] not in "ZX":
                found[int(folder.name)] = words
        return found

    @property
    def server_pid(self) -> int:
        commands = self.processes.items()
        [pid] = [pid for pid, words in commands if words[0].endswith("/tritonserver")]
        return pid

    @property
    def log(self) -> str:
        return self.process.log.read_text()

    @property
    def regions(self) -> list[Path]:
        return triton.shared_memory(NAME)

    def stream(self, prompt: str) -> Generator[Response, None, None]:
        """The rest of a stream whose first response is there."""
        responses = self.client.stream(prompt, streaming=True, max_tokens=100000)
        next(responses)
        return responses

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def model_pid(self, model: str) -> int:
        part = f"/{model}/1/model.py"
        [pid] = [pid for pid, words in self.processes.items() if part in "".join(words[1:2])]
        return pid

    def assert_ended(self, status: int, timeout_s: float = HANG_S) -> None:
        assert self.process.exit_status(timeout_s) == status, self.log
        deadline_s = time.monotonic() + HANG_S
        while left := self.processes:  # what was killed is gone when the kernel is done with it
            assert time.monotonic() < deadline_s, left
            threading.Event().wait(0.02)
        assert self.regions == []


def wait_for_log(script: Script, text: str) -> None:
    deadline_s = time.monotonic() + HANG_S
    while text not in script.log:
        assert time.monotonic() < deadline_s, script.log
        threading.Event().wait(0.01)


Begin = Callable[..., Script]
TO_A_FULL_DISK = ("bash", "-c", 'exec "$@" >/dev/full 2>&1', "--")


@pytest.fixture(scope="module")
def ports() -> list[int]:
    return free_ports(3)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, ports: list[int]) -> Bundle:
    names = ("http", "grpc", "metrics")
    given = [f"targets.triton.{name}_port={port}" for name, port in zip(names, ports, strict=True)]
    folder = tmp_path_factory.mktemp("bundle") / "b"
    return pipeline.render("llama-tiny", folder, [f"name={NAME}", *given])


@pytest.fixture
def begin(
    bundle: Bundle, ports: list[int], programs: list[Path], tmp_path: Path
) -> Iterator[Begin]:
    """Starts the script, with `before` it on its command line and `first` on its path."""
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())

        def start(
            *before: str, first: Path | None = None, script: Path | None = None, wait: bool = True
        ) -> Script:
            entries = [*([first] if first else []), *programs, os.environ["PATH"]]
            path = os.pathsep.join(map(str, entries))
            process = stack.enter_context(
                ServerProcess(
                    [*before, "bash", str(script or bundle.folder / "triton/serve.sh")],
                    cwd=tmp_path,
                    environment={**os.environ, "PATH": path},
                    log=tmp_path / "server.log",
                    grace_s=10,
                    interrupts=interrupts,
                )
            )
            client = Triton(f"http://127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}")
            if wait:
                wait_until_ready(process, client)
            return Script(process, client)

        yield start


def test_a_stop_lets_streams_end_whole_and_exits_0(begin: Begin) -> None:
    script = begin()
    streams = [script.stream(f"tokens=100 step_ms=10 name={index}") for index in range(8)]
    script.signal(signal.SIGTERM)
    with ThreadPoolExecutor(8) as pool:
        wholes: list[list[Response]] = list(pool.map(list, streams))
    ends = [responses[-1] for responses in wholes]
    assert all(last.final and last.text[0].endswith(" 0:99") for last in ends)
    script.assert_ended(0)


@pytest.mark.parametrize("is_there", [True, False], ids=["waits", "has left"])
def test_a_stop_waits_for_a_unary_request_as_long_as_its_client_does(
    begin: Begin, is_there: bool
) -> None:
    """Triton does not say when that of HTTP has left; the limit of the drain is 240 s."""
    script = begin()
    url = f"{script.client.http_url}/v2/models/tensorrt_llm_unary/generate"
    tokens = 300 if is_there else 100000
    body = {"text_input": f"tokens={tokens} step_ms=20 name=unary", "max_tokens": tokens}
    with httpx.Client(trust_env=False, verify=False, timeout=60 if is_there else 1) as client:
        if not is_there:
            with pytest.raises(httpx.ReadTimeout):
                client.post(url, json=body)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.post, url, json=body) if is_there else None
            threading.Event().wait(1)
            begun_s = time.monotonic()
            script.signal(signal.SIGTERM)
            script.assert_ended(0)
    assert time.monotonic() - begun_s < 60
    assert ("1 requests were cancelled to unload the model" in script.log) is not is_there
    if answer:
        assert answer.result().json()["text_output"].endswith(" 0:299")


def test_a_request_on_an_old_connection_is_refused_after_a_stop(begin: Begin) -> None:
    script = begin()
    generate = "/v2/models/tensorrt_llm/generate"
    with httpx.Client(
        base_url=script.client.http_url, trust_env=False, verify=False, timeout=60
    ) as client:
        assert client.post(generate, json={"text_input": "tokens=1"}).is_success
        running = script.stream("tokens=100 step_ms=20")
        script.signal(signal.SIGTERM)
        wait_for_log(script, "Found 1 HTTP service connections")
        deadline_s = time.monotonic() + HANG_S
        while (refused := client.post(generate, json={"text_input": "tokens=1"})).is_success:
            assert time.monotonic() < deadline_s
        assert "the server is about to end; retry elsewhere or later" in refused.text
        assert list(running)[-1].final
        script.assert_ended(0)


def test_a_second_signal_ends_it_at_once(begin: Begin) -> None:
    script = begin()
    running = script.stream(LONG.format("long"))
    script.signal(signal.SIGTERM)
    next(running)
    wait_for_log(script, "Signal (15) received")
    script.signal(signal.SIGTERM)
    script.assert_ended(128 + signal.SIGKILL)
    assert "the server is killed after a second signal" in script.log


def test_a_killed_server_leaves_nothing_and_starts_again_on_its_ports(begin: Begin) -> None:
    script = begin()
    streams = [script.stream(LONG.format(index)) for index in range(8)]
    os.kill(script.server_pid, signal.SIGKILL)
    script.assert_ended(128 + signal.SIGKILL)
    for responses in streams:
        end(responses)
    again = begin()
    assert again.client.ask("tokens=1")[0].text == ["0:0"]
    again.signal(signal.SIGTERM)
    again.assert_ended(0)


def test_a_dead_engine_ends_it_with_an_error_also_as_the_first_process(begin: Begin) -> None:
    script = begin(*IN_A_CONTAINER)
    assert "gone" in end(script.client.stream("die=gone fail_at=3", streaming=True))
    script.assert_ended(DEAD)
    assert "the server exits because the engine is dead: RuntimeError: gone" in script.log


def test_as_the_first_process_of_a_container_it_stops_in_order(begin: Begin) -> None:
    script = begin(*IN_A_CONTAINER)
    running = script.stream("tokens=50 step_ms=20")
    first = min(pid for pid, words in script.processes.items() if words[0] == "bash")
    os.kill(first, signal.SIGTERM)
    assert list(running)[-1].final
    script.assert_ended(0)


def test_a_killed_model_ends_the_server_at_once(begin: Begin) -> None:
    """Triton itself stays ready, and takes 300 s to end when asked."""
    script = begin()
    running = script.stream(LONG.format("orphan"))
    os.kill(script.model_pid("tensorrt_llm"), signal.SIGKILL)
    script.assert_ended(1, timeout_s=60)
    end(running)
    assert "which runs a model, is gone" in script.log


def test_a_killed_unary_model_ends_the_server_after_its_streams(begin: Begin) -> None:
    script = begin()
    running = script.stream("tokens=100 step_ms=50")
    os.kill(script.model_pid("tensorrt_llm_unary"), signal.SIGKILL)
    assert list(running)[-1].final
    script.assert_ended(1, timeout_s=60)
    assert "which runs a model, is gone" in script.log


BACKEND = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_output({"name": "text_output", "data_type": "TYPE_STRING", "dims": [1]})
        return config

    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for request in requests]
"""


def test_the_vllm_backend_is_watched_too(tmp_path: Path, ports: list[int]) -> None:
    """Its script, on a real Triton with another backend of that name."""
    names = ("http", "grpc", "metrics")
    given = {f"{name}_port": port for name, port in zip(names, ports, strict=True)}
    deployment = {
        "name": NAME,
        "checkpoint": "meta-llama/Llama-3.2-1B-Instruct",
        "hardware": {"gpu": "h100", "num_gpus": 1},
        "engine": {"name": "vllm", "release": "0.32.0"},
        "workload": {"isl": 100, "osl": 100, "concurrency": 4},
        "targets": {"triton_vllm": given},
    }
    file = tmp_path / "deployment.yaml"
    file.write_text(json.dumps(deployment))
    bundle = pipeline.render(str(file), tmp_path / "bundle")
    folder = triton.prepare(tmp_path / "tritonserver")
    if folder is None:
        pytest.skip("an installed Triton takes no backend of a test")
    backend = folder.parent / "backends" / "vllm"
    backend.mkdir()
    (backend / "model.py").write_text(BACKEND)
    library = backend.parent / "python" / "libtriton_python.so"
    original = library.resolve()
    library.unlink()
    shutil.copy(original, library)  # such a backend's library may be no link
    with (
        Interrupts() as interrupts,
        ServerProcess(
            ["bash", str(bundle.folder / "triton_vllm/serve.sh")],
            cwd=tmp_path,
            environment={**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
            log=tmp_path / "server.log",
            grace_s=10,
            interrupts=interrupts,
        ) as process,
    ):
        client = Triton(f"http://127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}")
        script = Script(process, client)
        wait_until_ready(process, client)
        os.kill(script.model_pid("vllm_model"), signal.SIGKILL)
        assert process.exit_status(60) == 1, script.log
        assert "which runs a model, is gone" in script.log


CLASSIFIED = {
    "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["tokens=1"]}],
    "outputs": [{"name": "text_output", "parameters": {"classification": 1}}],
}
FATAL = {
    "SEGV": ("tensorrt_llm/generate", b"[" * 150_000),
    "FPE": ("tensorrt_llm_unary/infer", json.dumps(CLASSIFIED).encode()),
}


KNOWN = fatal_requests("triton")


@pytest.mark.parametrize("row", KNOWN.requests if KNOWN else [], ids=lambda row: row["signal"])
def test_a_request_that_ends_triton_is_named(begin: Begin, row: dict[str, str]) -> None:
    """The log says more than the signal: which request is known to do that, and what helps."""
    script = begin()
    path, body = FATAL[row["signal"]]
    with pytest.raises(httpx.TransportError):
        post(script, path, body)
    script.assert_ended(128 + signal.Signals[f"SIG{row['signal']}"])
    last = [line for line in script.log.splitlines() if "triton/serve.sh: Triton was" in line]
    assert len(last) == 1 and row["cve"] in last[0] and row["remedy"] in last[0]


def test_no_nesting_ends_triton_in_a_body_of_the_safe_size(begin: Begin) -> None:
    """Where it is parsed and where the value of an input is read, by arrays and by objects."""
    assert KNOWN is not None
    script, most = begin(), KNOWN.safe_body_bytes
    head = b'{"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": '
    whole = (most - len(head) - 6) // 2
    bodies = {
        "tensorrt_llm/generate": [
            b"[" * most,
            b'{"":' * (most // 4),
            b'{"text_input":' + b"[" * whole + b'"a"' + b"]" * whole + b"}",
            b'{"input_ids":' + b"[" * whole + b"1" + b"]" * whole + b"}",
        ],
        "tensorrt_llm_unary/infer": [head + b"[" * whole + b'"a"' + b"]" * whole + b"}]}"],
    }
    for path, sent in bodies.items():
        for body in sent:
            assert len(body) <= most
            assert post(script, path, body).status_code in (200, 400, 500)
    assert script.client.ask("tokens=1")[0].text == ["0:0"]
    modes = [stat.S_IMODE(region.stat().st_mode) for region in script.regions]
    assert modes == [0o600] * 2, "of each model's process, which nobody else can read"


def post(script: Script, path: str, body: bytes) -> httpx.Response:
    with httpx.Client(base_url=script.client.http_url, trust_env=False, timeout=60) as client:
        return client.post(f"/v2/models/{path}", content=body)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_server_that_does_not_end_is_killed_with_all_it_started(
    begin: Begin, bundle: Bundle, tmp_path: Path, number: signal.Signals
) -> None:
    stand_in = tmp_path / "bin" / "tritonserver"
    stand_in.parent.mkdir()
    stand_in.write_text(STAND_IN_WITHOUT_END)
    stand_in.chmod(0o755)
    text = (bundle.folder / "triton/serve.sh").read_text()
    hasty = tmp_path / "serve.sh"
    words, count = re.subn(r"\b310\b", "1", text)
    assert count == 2
    hasty.write_text(words)
    script = begin(first=stand_in.parent, script=hasty, wait=False)
    wait_for_log(script, "started")
    script.signal(number)
    script.assert_ended(128 + signal.SIGKILL)
    assert "the server is killed as it has not ended in 1 s" in script.log


def test_a_second_signal_counts_while_the_first_is_passed_on(begin: Begin, tmp_path: Path) -> None:
    stand_in = tmp_path / "bin/tritonserver"
    stand_in.parent.mkdir()
    stand_in.write_text(STAND_IN_THAT_SIGNALS_BACK)
    stand_in.chmod(0o755)
    script = begin(first=stand_in.parent, wait=False)
    wait_for_log(script, "started")
    script.signal(signal.SIGTERM)
    script.assert_ended(128 + signal.SIGKILL)
    assert "the server is killed after a second signal" in script.log


def test_a_full_disk_of_the_log_stops_nothing(begin: Begin) -> None:
    script = begin(*TO_A_FULL_DISK)
    assert script.client.ask("tokens=3")[0].text == ["0:0 0:1 0:2"]
    assert "no_such_fault" in end(script.client.stream("crash=no_such_fault fail_at=1"))
    running = script.stream("tokens=50 step_ms=20")
    script.signal(signal.SIGTERM)
    assert list(running)[-1].final
    script.assert_ended(0)


def test_a_full_disk_of_the_log_keeps_no_dead_engine_alive(begin: Begin) -> None:
    script = begin(*TO_A_FULL_DISK)
    assert "gone" in end(script.client.stream("die=gone fail_at=3", streaming=True))
    script.assert_ended(DEAD)
