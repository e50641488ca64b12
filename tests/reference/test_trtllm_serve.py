"""The server speaks HTTP as the engine's own does, from its first log line to its last."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from supervisor.ports import free_ports
from tensorrt_llm import SamplingParams
from tensorrt_llm.commands import serve
from tensorrt_llm.server import OpenAIServer
from tests.reference.conftest import DEEPSEEK, REFERENCE, EngineOf

START_S = 300
OPTIONS = """
tensor_parallel_size: 4
max_batch_size: 1
return_perf_metrics: true
perf_metrics_max_requests: 10
enable_iter_perf_stats: true
max_num_tokens: 30000
max_seq_len: 20000
speculative_config: {decoding_type: MTP, num_nextn_predict_layers: 2}
"""
PROMPT = "Once upon a time"
GREEDY = {"model": "m", "temperature": 0, "ignore_eos": True}


class Running:
    """A server process and its log."""

    def __init__(self, model: Path, options: Path) -> None:
        [self.port] = free_ports(1)
        arguments = [model, "--host", "127.0.0.1", "--port", self.port]
        arguments += ["--extra_llm_api_options", options, "--tool_parser", "deepseek_v32"]
        command = [sys.executable, REFERENCE / "bin" / "trtllm-serve", *arguments]
        self.process = subprocess.Popen(
            list(map(str, command)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        self.log: list[str] = []
        self._ready = Event()
        self._reader = Thread(target=self._read)
        self._reader.start()
        if not self._ready.wait(START_S) or self.process.poll() is not None:
            raise AssertionError("".join(self.log))
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    def _read(self) -> None:
        assert self.process.stderr
        with self.process.stderr as lines:
            for line in lines:
                self.log.append(line)
                if "Application startup complete" in line:
                    self._ready.set()
        self._ready.set()

    def stop(self) -> int:
        self.http.close()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(START_S)
        self._reader.join()
        return code

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The data of all server-sent events; the last one must be the mark of the end."""
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.fixture(scope="module")
def server(
    make_miniature: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    options = tmp_path_factory.mktemp("options") / "config.yaml"
    options.write_text(OPTIONS)
    running = Running(make_miniature(DEEPSEEK), options)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def greedy_text(engine: EngineOf) -> str:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    return engine(DEEPSEEK).generate_async(PROMPT, params).result(60).outputs[0].text


def test_the_first_log_line_says_what_this_is(server: Running) -> None:
    assert (
        "this is the reference engine of the deployment toolkit, not TensorRT-LLM" in server.log[0]
    )
    idle = [line for line in server.log if "not applicable on this machine" in line]
    assert "tensor_parallel_size" in "".join(idle)
    assert "tool_parser" not in "".join(idle)


def test_health_version_and_model_name(server: Running) -> None:
    assert server.http.get("/health").status_code == 200
    assert server.http.get("/health_generate").status_code == 200
    assert server.http.get("/version").json() == {"version": "1.2.1+reference"}
    (model,) = server.http.get("/v1/models").json()["data"]
    assert (model["id"], model["owned_by"]) == ("nvidia--DeepSeek-V3.2-NVFP4", "tensorrt_llm")


def test_a_completion_of_a_text_or_of_its_tokens(
    server: Running, engine: EngineOf, greedy_text: str
) -> None:
    for prompt in (PROMPT, engine(DEEPSEEK).tokenizer.encode(PROMPT)):
        answer = server.post("/v1/completions", **GREEDY, prompt=prompt, max_tokens=12).json()
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == (greedy_text, "length")
        assert answer["object"] == "text_completion"
        assert answer["usage"]["completion_tokens"] == 12
        assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 12


def test_a_streamed_completion_adds_up(server: Running, greedy_text: str) -> None:
    usage = {"include_usage": True}
    events = server.events(
        "/v1/completions", **GREEDY, prompt=PROMPT, max_tokens=12, stream_options=usage
    )
    *chunks, last = events
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == greedy_text
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "length"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12


def test_completions_of_several_prompts_have_their_own_index(server: Running) -> None:
    body = {**GREEDY, "prompt": ["a", "the river", PROMPT], "max_tokens": 5}
    whole = {
        c["index"]: c["text"] for c in server.post("/v1/completions", **body).json()["choices"]
    }
    parts = {0: "", 1: "", 2: ""}
    for chunk in server.events("/v1/completions", **body):
        for choice in chunk["choices"]:
            parts[choice["index"]] += choice["text"]
    assert parts == whole


def test_log_probabilities_of_a_completion(server: Running) -> None:
    body = {**GREEDY, "prompt": PROMPT, "max_tokens": 4, "logprobs": 2}
    choice = server.post("/v1/completions", **body).json()["choices"][0]
    scored = choice["logprobs"]
    assert "".join(scored["tokens"]) == choice["text"]
    assert scored["text_offset"] == [choice["text"].index(t) for t in scored["tokens"]]
    assert all(value <= 0 for value in scored["token_logprobs"])
    assert {len(row) for row in scored["top_logprobs"]} == {2}


CHAT = {"messages": [{"role": "user", "content": "hello there"}]}


def test_a_chat_answer_streamed_and_whole(server: Running) -> None:
    whole = server.post("/v1/chat/completions", **GREEDY, **CHAT, max_tokens=8).json()
    message = whole["choices"][0]["message"]
    assert (message["role"], len(message["content"].split())) == ("assistant", 8)
    first, *rest = server.events("/v1/chat/completions", **GREEDY, **CHAT, max_completion_tokens=8)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in rest)
    assert text == message["content"]
    assert first["object"] == "chat.completion.chunk"


def test_a_chat_prompt_is_made_by_the_template(server: Running) -> None:
    parts = [{"type": "text", "text": "hello"}, {"type": "text", "text": "there"}]
    counts = [
        server.post(
            "/v1/chat/completions",
            **GREEDY,
            messages=[{"role": "user", "content": content}],
            chat_template=template,
            max_tokens=1,
        ).json()["usage"]["prompt_tokens"]
        for content, template in (("x", None), ("x", "{{ messages[0]['content'] }}"), (parts, None))
    ]
    assert counts[0] == counts[1] + 3  # begin of text, user, assistant
    assert counts[2] > counts[0]


def test_log_probabilities_of_a_chat_answer(server: Running) -> None:
    body = {**GREEDY, **CHAT, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    choice = server.post("/v1/chat/completions", **body).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert "".join(row["token"] for row in content) == choice["message"]["content"]
    for row in content:
        assert bytes(row["bytes"]).decode() == row["token"]
        assert row["logprob"] == row["top_logprobs"][0]["logprob"] <= 0


def test_several_choices_and_a_seed(server: Running) -> None:
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 6, "n": 2, "seed": 7, "top_p": 0.9}
    first, again = (server.post("/v1/completions", **body).json()["choices"] for _ in range(2))
    assert [choice["text"] for choice in first] == [choice["text"] for choice in again]
    assert first[0]["text"] != first[1]["text"]


def test_a_stop_string_ends_the_answer(server: Running, greedy_text: str) -> None:
    stop = greedy_text.split()[3]
    body = {**GREEDY, "prompt": PROMPT, "max_tokens": 12, "stop": [stop]}
    chunks = server.events("/v1/completions", **body)
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    whole = server.post("/v1/completions", **body).json()["choices"][0]
    assert text == whole["text"] == greedy_text[: greedy_text.index(stop)]
    for last in (whole, chunks[-1]["choices"][0]):
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, "max_tokens must be at least 1"),
        ("/v1/completions", {"prompt": "a", "top_p": 2}, "top_p must be from 0 to 1"),
        ("/v1/completions", {"prompt": "a", "n": 2}, "greedy decoding gives one text only"),
        ("/v1/completions", {"prompt": "a", "max_token": 3}, "max_token: "),
        ("/v1/completions", {}, "prompt: Field required"),
        ("/v1/completions", {"prompt": [5] * 30_001}, "longer than max_num_tokens (30000)"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"1": 2.0}}, "logit_bias: not supported"),
        ("/v1/completions", {"prompt": "a", "echo": True}, "echo: not supported"),
        ("/v1/completions", {"prompt": "a", "stream_options": {}}, "stream_options need stream"),
        ("/v1/completions", {"prompt": [5] * 20_000}, "no room in max_seq_len (20000)"),
        ("/v1/chat/completions", {"messages": []}, "messages: "),
        (
            "/v1/chat/completions",
            {**CHAT, "response_format": {"type": "xml"}},
            "'xml' is not a type",
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "response_format": {"type": "regex"}},
            "regex is required",
        ),
        ("/v1/chat/completions", {**CHAT, "tools": [{}]}, "tools.0.function: Field required"),
        (
            "/v1/chat/completions",
            {**CHAT, "tool_choice": "auto", "top_logprobs": 0},
            "top_logprobs must be at least 0, and needs logprobs: true",
        ),
        (
            "/v1/chat/completions",
            {**CHAT, "tool_choice": "auto"},
            "tool_choice.auto: release 1.2.1 refuses it; leave it out where there are no tools",
        ),
        ("/v1/responses", {"input": "a"}, "ignore_eos: Extra inputs"),
        ("/v1/chat/completions", {**CHAT, "chat_template": "{{ nope() }}"}, "chat template: "),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "only text is supported",
        ),
    ],
)
def test_a_bad_request_is_answered_with_an_error(
    server: Running, path: str, body: dict[str, Any], message: str
) -> None:
    response = server.post(path, **{**GREEDY, **body})
    error = response.json()
    assert message in error["message"]
    assert not error.pop("message").startswith(":"), "without a field there is none in front"
    assert response.status_code == 400
    assert error == {"object": "error", "type": "BadRequestError", "param": None, "code": 400}


def test_a_body_that_is_no_json_is_answered_with_an_error(server: Running) -> None:
    for headers, message in (
        ({}, "Input should be a valid dictionary"),
        ({"Content-Type": "application/json"}, "at byte 1: JSON decode error"),
    ):
        response = server.http.post("/v1/completions", content="{nope", headers=headers)
        assert (response.status_code, response.json()["object"]) == (400, "error")
        assert response.json()["message"].startswith(message)


def test_a_server_that_waits_no_longer_says_so(engine: EngineOf) -> None:
    """To whoever still waits for a whole answer when the time for a stop is over."""
    llm, sent = engine(DEEPSEEK), list[Any]()
    body = json.dumps({**GREEDY, "prompt": PROMPT, "max_tokens": 100_000}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }

    async def ask() -> None:
        waits = asyncio.Event()

        async def receive() -> Any:
            if messages:
                return messages.pop()
            waits.set()  # for the client to leave
            return await asyncio.Future()

        async def send(message: Any) -> None:
            sent.append(message)

        task = asyncio.create_task(OpenAIServer(llm, "m").app(scope, receive, send))
        await waits.wait()
        task.cancel("as uvicorn does")
        await task

    asyncio.run(ask())
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["message"] == "the server was stopped before the end"
    quick = SamplingParams(max_tokens=2, ignore_eos=True)
    assert llm.generate_async("a", quick).result(20).outputs[0].length == 2


def test_endpoints_of_the_engine_that_are_not_here_say_so(server: Running) -> None:
    assert server.post("/kv_cache_events").status_code == 501


def test_a_fault_ends_a_stream_without_the_mark_of_the_end(server: Running) -> None:
    body = {**GREEDY, "prompt": [5] * 20_000, "stream": True}
    lines = [line for line in server.post("/v1/completions", **body).text.splitlines() if line]
    (error,) = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert (error["object"], error["code"]) == ("error", 400)


def assert_idle(server: Running) -> None:
    """One request runs at a time: a quick answer proves that no other one does."""
    body = {**GREEDY, "prompt": "a", "max_tokens": 2}
    assert server.http.post("/v1/completions", json=body, timeout=20).status_code == 200


def test_a_client_that_leaves_a_stream_ends_its_request(server: Running) -> None:
    endless = {**GREEDY, "prompt": PROMPT, "max_tokens": 100_000, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=endless) as response:
        next(response.iter_lines())
    assert_idle(server)


def test_a_client_that_does_not_wait_ends_its_request(server: Running) -> None:
    endless = {**GREEDY, "prompt": PROMPT, "max_tokens": 100_000}
    with pytest.raises(httpx.ReadTimeout):
        server.http.post("/v1/completions", json=endless, timeout=0.3)
    assert_idle(server)


def test_metrics_of_iterations_requests_and_prometheus(server: Running) -> None:
    server.http.get("/metrics")
    server.http.get("/perf_metrics")
    server.post("/v1/completions", **GREEDY, prompt=PROMPT, max_tokens=8)
    completed, deadline = 0, time.monotonic() + 10
    while completed == 0 and time.monotonic() < deadline:  # counted after the answer has left
        rows = server.http.get("/metrics").json()
        completed += sum(row["numCompletedRequests"] for row in rows)
    assert completed == 1
    assert server.http.get("/metrics").json() == []
    (request,) = server.http.get("/perf_metrics").json()
    assert request["perf_metrics"]["speculative_decoding"]["total_draft_tokens"] > 0
    text = server.http.get("/prometheus/metrics").text
    engine, model = 'engine_type="reference"', 'model_name="nvidia--DeepSeek-V3.2-NVFP4"'
    assert f'request_success_total{{{engine},finished_reason="length",{model}}} ' in text
    for name in ("e2e_request_latency", "time_to_first_token", "time_per_output_token"):
        assert f"{name}_seconds_count{{{engine},{model}}} " in text
        assert f'{name}_seconds_bucket{{{engine},le="+Inf",{model}}} ' in text
    assert "request_queue_time_seconds_sum" in text


def test_sigterm_lets_the_running_request_end(server: Running) -> None:
    """The last test with this server."""
    body = {**GREEDY, "prompt": PROMPT, "max_tokens": 120, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        first = next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert first.startswith("data: {")
    assert rest[-1] == "data: [DONE]"
    assert server.process.wait(START_S) == 0


def test_a_wrong_flag_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        serve.main(["serve", "model", "--tp-size", "4"])
    assert caught.value.code == 2
    assert "--tp-size" in capsys.readouterr().err


def test_other_subcommands_are_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(["disaggregated_mpi_worker", "-c", "x.yaml"]) == 2
    assert "the reference engine has only serve and disaggregated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_batch_sizes: 3", "max_batch_sizes: unknown option"),
        ("[1, 2]", "is not a mapping of options"),
        ("a: b: c", "is not YAML"),
    ],
)
def test_a_wrong_option_file_ends_the_server_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "o.yaml").write_text(text)
    assert serve.main(["model", "--config", str(tmp_path / "o.yaml")]) == 1
    assert message in capsys.readouterr().err


def test_a_port_that_is_taken_ends_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve.main(["model", "--host", "127.0.0.1", "--port", str(port)]) == 1
    assert f"port {port} of 127.0.0.1: Address already in use" in capsys.readouterr().err
