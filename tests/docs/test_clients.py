"""What clients get instead of an answer is in the table of `docs/clients.md`, from real servers."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from builder import pipeline
from builder.facts.advisories import fatal_requests
from builder.targets.handoff import document
from supervisor.ports import free_ports
from tests.conftest import ROOT
from tests.docs.pages import Block, Machine, blocks

PAGE = ROOT / "docs" / "clients.md"
MODEL = "/v2/models/tensorrt_llm"
ENDING = "## Requests that end Triton"
LONG = {"text_input": "Hello", "max_tokens": 7600, "ignore_eos": True}
PATIENCE_S = 60


@dataclass(frozen=True)
class Address:
    http: str
    grpc: str


def serving(folder: Path, target: str, options: str) -> Iterator[None]:
    """A server of a rendered bundle, with the reference engine."""
    machine = Machine(folder, stand_ins=False)
    own = [f"targets.{target}={options}", "workload.osl=7600"]
    pipeline.render("llama-tiny", folder / "tiny", own)
    machine.run("python -m builder miniature llama-tiny -o weights")
    command = f"CHECKPOINT={folder}/weights python -m launch up tiny --target {target}"
    with machine.serving(command):
        yield


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """A Triton that takes one request at a time."""
    http, grpc_port, metrics = free_ports(3)
    ports = f"http_port: {http}, grpc_port: {grpc_port}, metrics_port: {metrics}"
    for _ in serving(tmp_path_factory.mktemp("t"), "triton", f"{{{ports}, max_requests: 1}}"):
        yield Address(f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc_port}")


@pytest.fixture(scope="module")
def trtllm_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    [port] = free_ports(1)
    for _ in serving(tmp_path_factory.mktemp("s"), "trtllm_serve", f"{{port: {port}}}"):
        yield f"http://127.0.0.1:{port}"


def again(status: str, text: str) -> str:
    """What the table says of an error to somebody who reads it from above."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| HTTP")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    fitting = [row for row in rows if re.search(rf"\b{status}\b", row[0])]
    quoted = [row for row in fitting if (said := re.search('"(.+)"', row[0])) and said[1] in text]
    unquoted = [row for row in fitting if '"' not in row[0]]
    assert quoted or unquoted, f"{status} is not in the table: {text}"
    return (quoted or unquoted)[0][2]


def ask(address: Address, path: str, body: Any) -> tuple[str, str]:
    content = body if isinstance(body, str) else json.dumps(body)
    answer = httpx.post(address.http + path, content=content, timeout=PATIENCE_S)
    return str(answer.status_code), answer.text


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (f"{MODEL}/generate", {"text_input": "Hello", "max_tokens": -1}, "no, correct it"),
        (f"{MODEL}/generate", {"text_input": "Hello", "max_tokns": 8}, "no, correct it"),
        (f"{MODEL}/generate", {**LONG, "timeout": 1}, "yes, with more time or fewer tokens"),
        ("/v2/models/misspelt/generate", {"text_input": "Hello"}, "no, correct it"),
        (f"{MODEL}/generate", '{"text_input": ', "yes, once; then tell who runs the server"),
        (f"{MODEL}/infer", {"inputs": []}, "no, ask for a stream, or the model that answers once"),
        ("/v2/repository/index", {}, "no, send the key"),
    ],
)
def test_an_error_over_http_is_in_the_table(
    path: str, body: Any, expected: str, triton: Address
) -> None:
    status, text = ask(triton, path, body)
    assert again(status, text) == expected, (status, text)


def inputs() -> list[InferInput]:
    text = InferInput("text_input", [1], "BYTES")
    return [text.set_data_from_numpy(np.array(["Hello"], object))]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            lambda client: client.infer(
                "tensorrt_llm_unary", inputs(), parameters={"max_tokens": -1}
            ),
            "no, correct it",
        ),
        (
            lambda client: client.infer(
                "tensorrt_llm_unary",
                inputs(),
                timeout=1,
                parameters={"max_tokens": 4000, "ignore_eos": True},
            ),
            "yes, with more time or fewer tokens",
        ),
        (lambda client: client.infer("misspelt", inputs()), "no, correct it"),
        (
            lambda client: client.infer("tensorrt_llm", inputs()),
            "no, ask for a stream, or the model that answers once",
        ),
        (lambda client: client.get_model_repository_index(), "no, send the key"),
    ],
    ids=["wrong", "late", "misspelt", "unary", "closed"],
)
def test_an_error_over_grpc_is_in_the_table(
    call: Callable[[InferenceServerClient], object], expected: str, triton: Address
) -> None:
    client = InferenceServerClient(triton.grpc)
    with client, pytest.raises(InferenceServerException) as raised:
        call(client)
    status = str(raised.value.status()).removeprefix("StatusCode.")
    assert again(status, raised.value.message()) == expected, raised.value


@pytest.fixture
def client(triton: Address) -> Iterator[InferenceServerClient]:
    """One that is connected, so that nothing is left to do but to ask."""
    with InferenceServerClient(triton.grpc) as connected:
        assert connected.is_server_live()
        yield connected


@pytest.fixture
def full(triton: Address, client: InferenceServerClient) -> Iterator[Address]:
    """The server while somebody else has its only place."""
    url = f"{triton.http}{MODEL}/generate_stream"
    with httpx.stream("POST", url, json={**LONG, "stream": True}, timeout=PATIENCE_S) as other:
        lines = other.iter_lines()  # which closes the stream when nobody holds it any more
        next(lines)
        yield triton
    ends = time.monotonic() + PATIENCE_S
    while ask(triton, f"{MODEL}/generate", {"text_input": "Hello", "max_tokens": 1})[0] != "200":
        assert time.monotonic() < ends, "the place of the client that left is never free again"
        time.sleep(0.1)


def test_a_full_server_is_asked_again_later_over_http(full: Address) -> None:
    status, text = ask(full, f"{MODEL}/generate", {"text_input": "Hello"})
    assert again(status, text).startswith("yes, after a second"), text


@pytest.mark.usefixtures("full")
def test_a_full_server_is_asked_again_later_over_grpc(client: InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as raised:
        client.infer("tensorrt_llm_unary", inputs())
    assert again("UNAVAILABLE", raised.value.message()).startswith("yes, after a second")


def test_an_error_within_a_stream_stands_beside_the_status_of_its_begin(triton: Address) -> None:
    body = {"text_input": "Hello", "max_tokens": 8, "stream": True}
    status, text = ask(triton, f"{MODEL}/generate", body)
    assert status == "200" and "error" in json.loads(text)
    assert '`{"error": ...}` in a stream, or beside HTTP 200' in PAGE.read_text()


def test_an_error_of_the_openai_api_is_in_the_table(trtllm_serve: str) -> None:
    import openai  # by the one worker that needs it: it takes most of a second

    client = openai.OpenAI(base_url=f"{trtllm_serve}/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model="weights", prompt="Hello", max_tokens=-1)
    assert again("400", str(wrong.value)) == "no, correct it"
    lost = openai.OpenAI(base_url=f"{trtllm_serve}/v2", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError) as misspelt:
        lost.completions.create(model="weights", prompt="Hello")
    assert again("404", str(misspelt.value)) == "no, correct it"


def test_the_page_has_the_table_of_every_runbook() -> None:
    assert document.errors().partition("\n\n")[2] in PAGE.read_text()


def streams() -> list[Block]:
    pages = (PAGE, ROOT / "model_repository" / "README.md")
    found = [block for page in pages for block in blocks(page, "python")]
    return [block for block in found if "iter(answers.get" in block.text]


def test_a_stream_takes_fifteen_lines_and_is_the_same_on_both_pages() -> None:
    one, two = streams()
    assert one.text == two.text
    assert len([line for line in one.text.splitlines() if line]) <= 15


def test_the_page_has_every_request_that_ends_triton() -> None:
    """Its table and its numbers are those of the data, which the start script reads too."""
    known = fatal_requests("triton")
    assert known
    section = PAGE.read_text().partition(ENDING)[2]
    for row in known.requests:
        status = 128 + signal.Signals[f"SIG{row['signal']}"]
        cells = ["{request}: {detail}".format(**row), f"SIG{row['signal']} (exit status {status})"]
        assert f"| {' | '.join(cells)} | {row['fixed_in']} |" in section
    assert section.count("(exit status ") == len(known.requests)
    assert f"above {known.safe_body_bytes:,} bytes" in section
    assert f"deeper than {known.most_nesting} " in section.replace("\n", " ")
    assert f"filter lua.json_depth {known.most_nesting}\n" in PAGE.read_text()
