"""The router asks a prefill server, then a decode server; its file is read as the release does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from supervisor.ports import free_ports
from tensorrt_llm.commands import serve
from tests.reference.conftest import REFERENCE

GREEDY = {"model": "m", "temperature": 0, "ignore_eos": True, "max_tokens": 8}
PROMPT = "Once upon a time"
# max_num_tokens: that of a decode server has no room for prompts, which it never computes.
SIDES = {"prefill": 2048, "decode": 2}
CHAT = [{"role": "user", "content": PROMPT}]


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A command until it is told to stop, which it does in order."""
    command = [sys.executable, REFERENCE / "bin" / "trtllm-serve", *arguments]
    with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        log = []
        for line in process.stderr:
            log.append(line)
            if "Application startup complete" in line:
                break
        else:
            raise AssertionError("".join(log))
        yield process
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert process.returncode == 0


class Servers:
    """A prefill and a decode server, and their router."""

    def __init__(self, ports: list[int]) -> None:
        clients = [httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) for port in ports]
        self.prefill, self.decode, self.router = clients

    def requests(self) -> list[int]:
        """How many requests each side has finished since it was last asked."""
        return [len(side.get("/perf_metrics").json()) for side in (self.prefill, self.decode)]


@pytest.fixture(scope="module")
def servers(one_layer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("disaggregated")
    options = "{return_perf_metrics: true, perf_metrics_max_requests: 9, max_num_tokens: %d}"
    for side, tokens in SIDES.items():
        (folder / f"{side}.yaml").write_text(options % tokens)
    ports = free_ports(3)
    router = {
        "hostname": "127.0.0.1",
        "port": ports[2],
        "context_servers": {"num_instances": 1, "urls": [f"127.0.0.1:{ports[0]}"]},
        "generation_servers": {"num_instances": 1, "urls": [f"127.0.0.1:{ports[1]}"]},
    }
    (folder / "router.yaml").write_text(json.dumps(router))
    with ExitStack() as stack:
        for port, side in zip(ports, SIDES, strict=False):
            flags = ["--host", "127.0.0.1", "--port", port, "--config", folder / f"{side}.yaml"]
            stack.enter_context(running(one_layer, *flags))
        stack.enter_context(running("disaggregated", "-c", folder / "router.yaml"))
        found = Servers(ports)
        yield found
        for client in (found.prefill, found.decode, found.router):
            client.close()


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", {"messages": CHAT})],
)
def test_both_sides_answer_as_one_server(servers: Servers, path: str, asked: Any) -> None:
    servers.requests()
    whole = servers.prefill.post(path, json={**GREEDY, **asked}).json()
    assert servers.requests() == [1, 0]
    answer = servers.router.post(path, json={**GREEDY, **asked}).json()
    assert servers.requests() == [1, 1]
    assert answer["choices"] == whole["choices"]
    assert answer["usage"] == whole["usage"]


def test_a_stream_comes_from_the_decode_server(servers: Servers) -> None:
    body = {**GREEDY, "prompt": PROMPT}
    whole = servers.router.post("/v1/completions", json=body).json()["choices"][0]["text"]
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    with servers.router.stream("POST", "/v1/completions", json=body) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    texts = [choice["text"] for chunk in chunks for choice in chunk["choices"]]
    assert len(texts) > 1
    assert "".join(texts) == whole
    assert chunks[-1]["usage"]["completion_tokens"] == GREEDY["max_tokens"]


def test_what_ends_with_its_first_token_needs_no_decode_server(servers: Servers) -> None:
    first = servers.prefill.post("/v1/completions", json={**GREEDY, "prompt": PROMPT}).json()
    servers.requests()
    body = {**GREEDY, "prompt": PROMPT, "stop": [first["choices"][0]["text"][:1]]}
    answer = servers.router.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "disaggregated_params" not in answer["choices"][0]
    assert servers.requests() == [1, 0]


def test_a_fault_of_a_server_is_one_of_the_router(servers: Servers) -> None:
    answer = servers.router.post("/v1/completions", json={**GREEDY, "prompt": PROMPT, "n": 0})
    assert answer.status_code == 500
    assert "Internal server error 127.0.0.1:" in answer.json()["detail"]
    answer = servers.router.post("/v1/completions", json={**GREEDY, "prompt": PROMPT, "nothing": 1})
    assert answer.status_code == 400


def test_the_router_does_not_tell_its_model(servers: Servers) -> None:
    """Nor does that of release 1.2.1: NVIDIA/TensorRT-LLM#12213."""
    assert servers.decode.get("/v1/models").status_code == 200
    assert servers.router.get("/v1/models").status_code == 404


def test_a_decode_server_needs_what_the_prefill_server_says(servers: Servers) -> None:
    told = {"request_type": "generation_only"}
    body = {**GREEDY, "prompt": PROMPT, "disaggregated_params": told}
    answer = servers.decode.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "first_gen_tokens" in answer.json()["message"]


FILE = "context_servers: {urls: ['a:1']}\ngeneration_servers: {urls: ['b:1']}\n"


@pytest.mark.parametrize(
    "text, said",
    [
        ("context_servers: {num_instances: 2, urls: ['a:1']}\ngeneration_servers: {}", "num_inst"),
        (FILE.replace("b:1", "http://b:1"), "is not host:port"),
        (FILE + "port: many", "port"),
        (FILE + "schedule_style: generation_first", "only context_first"),
        ("context_servers: {urls: ['a:1']}\ngeneration_servers: {}", "are missing"),
        ("a: b: c", "router.yaml"),
        ("tensor_parallel_size: 4", "names no context and generation servers"),
    ],
)
def test_a_wrong_file_ends_the_router(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    (tmp_path / "router.yaml").write_text(text)
    assert serve.main(["disaggregated", "-c", str(tmp_path / "router.yaml"), "-t", "0"]) == 1
    assert said in capsys.readouterr().err


def test_servers_that_do_not_come_end_the_router(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ports = free_ports(3)
    text = FILE.replace("a:1", f"127.0.0.1:{ports[0]}").replace("b:1", f"127.0.0.1:{ports[1]}")
    (tmp_path / "router.yaml").write_text(f"{text}port: {ports[2]}\n")
    assert serve.main(["disaggregated", "-c", str(tmp_path / "router.yaml"), "-t", "1"]) == 1
    assert f"127.0.0.1:{ports[0]}: not ready after 1 s" in capsys.readouterr().err
