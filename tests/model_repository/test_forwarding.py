"""The second model hands its requests to the first and brings their answers back; no server."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.model_repository.conftest import MODEL, MODEL_YAML, Serve, ServedInProcess
from tests.model_repository.in_process import InProcessResponse, Sender, unary_module

LONG = "tokens=100000 step_ms=10 name={}"
ANSWER_S = 60.0


@pytest.fixture(scope="module")
def both(here: Serve) -> Any:
    """Two models over one engine."""
    return here(MODEL_YAML + "enable_iter_perf_stats: true\n", unary=True)


def begin(both: ServedInProcess, prompt: str, id: str = "", **inputs: Any) -> Sender:
    request = both.client.request(prompt, id, **inputs)
    request.model_name = f"{MODEL.name}_unary"
    return both.model.ask(request)


def answer(sender: Sender) -> InProcessResponse:
    return sender.responses.get(timeout=ANSWER_S)


def ask(both: ServedInProcess, prompt: str, **inputs: Any) -> InProcessResponse:
    return answer(begin(both, prompt, **inputs))


def test_the_second_model_answers_once_and_takes_no_batches(both: ServedInProcess) -> None:
    assert both.model.policies["_unary"] == {"decoupled": False, "max_batch_size": 0}


def test_all_that_a_request_holds_goes_with_it(both: ServedInProcess) -> None:
    prompt = "tokens=9 input=4 name=all"
    parameters = {"temperature": "0.5", "top_k": 3}
    response = ask(both, prompt, id="seven", parameters=parameters, max_tokens=2, n=2)
    assert response.text == ["0:0 0:1", "1:0 1:1"]
    assert (response.id, response.final, response.error) == ("seven", True, "")
    sampling = both.wait_for("submit", prompt)["sampling"]
    found = {name: sampling[name] for name in ("temperature", "top_k", "max_tokens", "n")}
    assert found == {"temperature": 0.5, "top_k": 3, "max_tokens": 2, "n": 2}


def test_numbers_and_texts_come_back_as_they_are(both: ServedInProcess) -> None:
    response = ask(
        both,
        "tokens=2 input=4",
        return_output_ids=True,
        return_num_input_tokens=True,
        return_cumulative_logprob=True,
        return_finish_reason=True,
    )
    assert response.outputs == {
        "text_output": ["0:0 0:1"],
        "finish_reason": ["stop"],
        "cumulative_logprob": [-1.0],
        "output_ids": [0, 1],
        "output_lengths": [2],
        "num_input_tokens": [4],
    }
    assert response.datatypes["cumulative_logprob"] == "FP32"


def test_only_the_outputs_come_that_the_client_names(both: ServedInProcess) -> None:
    request = both.client.request("tokens=2")
    request.model_name = f"{MODEL.name}_unary"
    request.outputs.add(name="finish_reason")
    assert answer(both.model.ask(request)).outputs == {"finish_reason": ["stop"]}


def test_its_time_limit_goes_with_it(both: ServedInProcess) -> None:
    prompt = LONG.format("limit")
    response = ask(both, prompt, parameters={"timeout": 200_000}, max_tokens=100_000)
    assert response.error == "the request took longer than its limit of 0.2 s"
    assert response.code == "CANCELLED"
    both.wait_for("abort", prompt)


def test_many_at_a_time_are_answered_each_with_its_own(both: ServedInProcess) -> None:
    senders = [begin(both, f"tokens={n + 1} step_ms=2 text=w{n}", max_tokens=99) for n in range(30)]
    for n, sender in enumerate(senders):
        assert answer(sender).text == [" ".join([f"w{n}"] * (n + 1))]


def test_a_client_that_leaves_ends_its_request_and_no_other(both: ServedInProcess) -> None:
    gone, stays = LONG.format("gone"), "tokens=60 step_ms=10 name=stays"
    leaving, staying = begin(both, gone, max_tokens=100_000), begin(both, stays, max_tokens=60)
    both.wait_for("submit", stays)
    leaving.is_given_up = True
    both.wait_for("abort", gone)
    assert answer(leaving).code == "CANCELLED"
    assert len(answer(staying).text[0].split()) == 60
    also_gone = LONG.format("gone-too")
    sender = begin(both, also_gone, max_tokens=100_000)
    sender.is_given_up = True
    both.wait_for("abort", also_gone)


def test_a_stop_request_of_either_model_ends_it(both: ServedInProcess) -> None:
    sender = begin(both, LONG.format("stop"), id="nine", max_tokens=100_000)
    both.wait_for("submit", LONG.format("stop"))
    assert ask(both, "", id="nine", stop=True).error == "request nine is cancelled"
    assert answer(sender).error == "the request was cancelled"


@pytest.mark.parametrize(
    ("inputs", "code", "message"),
    [
        ({"max_tokens": 0}, "INVALID_ARG", "sampling_param_max_tokens: is 0; it must be at least"),
        ({"parameters": {"sequence_id": 3}}, "INVALID_ARG", "sequence_id: leave it out"),
        ({"stop": True, "id": "nobody"}, "NOT_FOUND", "no request nobody is running"),
        ({"streaming": True}, "INVALID_ARG", "streaming: is true, but this model answers once"),
    ],
)
def test_a_refusal_has_its_words_and_its_code(
    both: ServedInProcess, inputs: dict[str, Any], code: str, message: str
) -> None:
    response = ask(both, "tokens=1", **inputs)
    assert response.error.startswith(message)
    assert response.code == code


def test_a_fault_of_the_engine_has_its_code(both: ServedInProcess) -> None:
    response = ask(both, "crash=broken")
    assert (response.error, response.code) == ("RuntimeError: broken", "INTERNAL")


class Request:
    """One that Triton cannot read, or whose answer nobody takes."""

    def __init__(self, reads: bool, takes: bool) -> None:
        self._reads, self._takes = reads, takes
        self.sent = threading.Event()
        self.errors: list[Any] = []

    def inputs(self) -> list[Any]:
        if not self._reads:
            raise ValueError("no strings")
        text = np.array([b"tokens=1"], dtype=np.object_)
        return [SimpleNamespace(name=lambda: "text_input", as_numpy=lambda: text)]

    def get_response_sender(self) -> Request:
        return self

    def is_cancelled(self) -> bool:
        return False

    def send(self, response: Any, flags: int) -> None:
        self.sent.set()
        self.errors.append(response.error())
        if not self._takes:
            raise RuntimeError("shared memory ran out")

    def request_id(self) -> str:
        return ""

    parameters = request_id

    def timeout(self) -> int:
        return 0

    correlation_id = flags = timeout

    def requested_output_names(self) -> list[str]:
        return ["text_output"]


def test_a_request_that_cannot_be_read_is_answered_with_why(both: ServedInProcess) -> None:
    request = Request(reads=False, takes=True)
    both.model.unary.execute([request])
    assert request.sent.wait(ANSWER_S)
    assert (str(request.errors[0]), request.errors[0].code()) == ("no strings", "INTERNAL")


def test_an_answer_that_nobody_takes_is_logged_and_the_next_one_given(
    both: ServedInProcess,
) -> None:
    request = Request(reads=True, takes=False)
    both.model.unary.execute([request])
    assert request.sent.wait(ANSWER_S)
    assert ask(both, "tokens=1").text == ["0:0"]
    assert "shared memory ran out" in both.log


def listening(both: ServedInProcess) -> str:
    """The abstract address at which the model with the engine waits for the other one."""
    [name] = {
        line.rpartition(" ")[2]
        for line in Path("/proc/net/unix").read_text().splitlines()
        if line.endswith(f"/{both.model.name}")
    }
    return "\0" + name.removeprefix("@")


def test_a_process_of_another_parent_is_turned_away(both: ServedInProcess) -> None:
    """Whoever shares the machine can find the address."""
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(10)\n"
        "s.connect('\\0' + sys.argv[1]); sys.exit(len(s.recv(1)))"
    )
    address = listening(both).removeprefix("\0")
    assert subprocess.run([sys.executable, "-c", program, address], timeout=30).returncode == 0
    assert ask(both, "tokens=1").text == ["0:0"]


@contextmanager
def without_an_engine(name: str) -> Iterator[tuple[Any, str]]:
    """The second model alone, and the address where it looks for the first."""
    unary = unary_module()
    model = unary.TritonPythonModel()
    model.initialize({"model_name": f"{name}_unary"})
    yield model, unary.address(name)
    model.finalize()


def listener_at(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.settimeout(ANSWER_S)
    listener.bind(address)
    listener.listen()
    return listener


def test_what_runs_when_the_engines_model_ends_is_told_so_and_what_comes_then_waits_for_none() -> (
    None
):
    with without_an_engine("ends") as (model, address):
        with closing(listener_at(address)) as listener:
            running = Request(reads=True, takes=True)
            asking = threading.Thread(target=model.execute, args=[[running]])
            asking.start()
            engine = Connection(listener.accept()[0].detach())
            key, *_ = engine.recv()
        asking.join()
        engine.close()
        assert running.sent.wait(ANSWER_S)
        assert str(running.errors[0]) == "the model ends has ended; retry elsewhere or later"
        assert running.errors[0].code() == "UNAVAILABLE"
        late, before_s = Request(reads=True, takes=True), time.monotonic()
        model.execute([late])
        assert str(late.errors[0]) == "the model ends is not there; retry later"
        assert late.errors[0].code() == "UNAVAILABLE"
        assert time.monotonic() - before_s < ANSWER_S
        with closing(listener_at(address)) as listener:
            engine = Connection(listener.accept()[0].detach())
            deadline_s = time.monotonic() + ANSWER_S
            while not engine.poll(0.05):
                assert time.monotonic() < deadline_s
                model.execute([again := Request(reads=True, takes=True)])
            next_key, *_ = engine.recv()
            assert next_key > key
            engine.send((next_key, ({"text_output": np.array([b"a"], dtype=np.object_)}, None)))
            assert again.sent.wait(ANSWER_S)
            assert again.errors == [None]
            engine.close()


def test_a_request_that_is_never_answered_keeps_the_second_model_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unary = unary_module()
    monkeypatch.setattr(unary, "DRAIN_TIMEOUT_S", 0.05)
    model = unary.TritonPythonModel()
    model.initialize({"model_name": "silent_unary"})
    with closing(listener_at(unary.address("silent"))) as listener:
        model.execute([Request(reads=True, takes=True)])
        with closing(Connection(listener.accept()[0].detach())) as engine:
            engine.recv()
            ending = threading.Thread(target=model.finalize, daemon=True)
            ending.start()
            ending.join(ANSWER_S)
            assert not ending.is_alive()


def test_a_process_of_another_parent_cannot_play_the_engine() -> None:
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(10)\n"
        "s.bind('\\0' + sys.argv[1]); s.listen(); print('ready', flush=True)\n"
        "sys.exit(len(s.accept()[0].recv(1)))"
    )
    with without_an_engine("played") as (_, address):
        command = [sys.executable, "-c", program, address.removeprefix("\0")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.wait(30) == 0
