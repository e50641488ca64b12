"""The life of the Triton model: configuration, start of the engine, drain and end."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import httpx

from launch import triton
from tests.model_repository.conftest import MODEL_YAML, Serve, Served


def test_model_yaml_sets_batch_size_and_transaction_policy(served: Served) -> None:
    url = f"{served.client.http_url}/v2/models/tensorrt_llm/config"
    config = httpx.get(url, trust_env=False, verify=False, timeout=60).json()
    assert config["max_batch_size"] == 0
    assert config["model_transaction_policy"] == {"decoupled": True}


def test_the_engine_gets_the_options_of_model_yaml_and_nothing_of_triton(served: Served) -> None:
    [start] = served.events("start")
    assert start["model"] == "some/checkpoint"
    assert start["options"] == {"backend": "pytorch", "tensor_parallel_size": "4"}


def test_the_leader_of_several_ranks_gives_the_engine_a_session_over_all(start: Serve) -> None:
    served = start(ENGINE_RANK="0", ENGINE_WORLD="8")
    [started] = served.events("start")
    assert started["options"]["_mpi_session"] == "session of 8"
    [response] = served.client.ask("tokens=1")
    assert response.text == ["0:0"]


def test_every_other_rank_works_for_the_leader_and_has_no_engine(start: Serve) -> None:
    served = start(ENGINE_RANK="3", ENGINE_WORLD="8")
    assert served.events("work") == [{"event": "work", "rank": 3}]
    assert served.events("start") == []
    os.kill(served.server.pid, signal.SIGTERM)
    assert served.server.exit_status(120) == 0


def test_an_engine_that_does_not_start_ends_the_server_with_its_own_words(start: Serve) -> None:
    served = start(MODEL_YAML + "fail_start: no GPU has 400 GiB\n", dies=True)
    assert "the engine did not start: RuntimeError: no GPU has 400 GiB" in served.log
    assert served.regions == []


def test_a_killed_server_takes_its_model_process_with_it(start: Serve) -> None:
    served = start()
    os.kill(served.server.pid, signal.SIGKILL)
    assert served.server.exit_status(60) == 128 + signal.SIGKILL
    deadline = time.monotonic() + 60
    while left := model_processes(served):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    triton.sweep_shared_memory(served.shm_prefix)
    assert served.regions == []


def model_processes(served: Served) -> list[str]:
    """Triton gives its Python process the name of its shared memory as an argument."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            commands.append(path.read_text())
    return [command for command in commands if served.shm_prefix in command]
