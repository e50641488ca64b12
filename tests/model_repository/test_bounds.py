"""What a request may cost: bytes, requests at a time, seconds; and what is counted. No server."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trtllm_model.inputs import RequestError, check_size, document, scalar, shown, texts, token_ids

from tests.model_repository.conftest import MODEL_YAML, Serve, ServedInProcess
from tests.model_repository.in_process import Request, Sender

LONG = "tokens=100000 step_ms=10 name={}"
BOUND = MODEL_YAML.replace(
    "true}",
    "true, max_prompt_bytes: 400, max_unary_http_requests: 3, max_unary_http_running: 2,"
    " max_requests: 5, drain_timeout_s: 0.5}",
)


@pytest.fixture(scope="module")
def bound(here: Serve) -> Any:
    return here(BOUND)


def begin(served: ServedInProcess, prompt: str, agent: str = "", **inputs: Any) -> Sender:
    """Where no agent is named, as from a client of HTTP."""
    parameters = {"user-agent": agent} if agent else {}
    request = served.client.request(prompt, parameters=parameters, max_tokens=100_000, **inputs)
    return served.model.ask(request)


def answer(sender: Sender) -> Any:
    return sender.responses.get(timeout=60)


def words(*items: bytes) -> Any:
    return np.array(items, dtype=np.object_)


def test_a_request_may_hold_as_many_bytes_as_allowed_and_no_more() -> None:
    held = {"text_input": words(b"12345"), "bad": words(b"1", b"23"), "seed": np.zeros(1, "u8")}
    check_size(held, 16)
    check_size(held, None)
    with pytest.raises(RequestError) as refused:
        check_size(held, 15)
    assert str(refused.value) == "seed: has 8 bytes; this server takes at most 15 in a request"


def test_the_input_that_holds_most_is_the_one_named(bound: ServedInProcess) -> None:
    error = answer(begin(bound, "x" * 401)).error
    assert error == "text_input: has 401 bytes; this server takes at most 400 in a request"
    many = answer(begin(bound, "tokens=1", sampling_param_bad=["y" * 99] * 4))
    assert many.error.startswith("sampling_param_bad: has 396 bytes")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.25, "0.25"),
        ("it's", '"it\'s"'),
        (None, "null"),
        ([1, "a"], '[1, "a"]'),
        ("a" * 78, repr("a" * 78)),
        ("a" * 79, "'" + "a" * 76 + "..."),
        (b"ab", "\"b'ab'\""),
    ],
)
def test_a_value_is_shown_short(value: Any, text: str) -> None:
    assert shown(value) == text
    assert len(text) <= 80


def test_one_element_has_any_shape_and_several_are_refused() -> None:
    assert scalar({"n": np.array([[3]])}, "n") == 3
    assert scalar({}, "n", 7) == 7
    for sent in (np.array([1, 2]), np.array([])):
        with pytest.raises(RequestError, match=r"n: has shape \[[02]\]; one element is expected"):
            scalar({"n": sent}, "n")


def test_lists_have_any_shape_up_to_a_number_of_elements() -> None:
    assert texts({"stop": words(b"a", b"b").reshape(2, 1)}, "stop", 2) == ["a", "b"]
    assert token_ids({"ids": np.array([[0, 5]])}, "ids", 2) == [0, 5]
    assert token_ids({"ids": np.arange(9)}, "ids") == list(range(9))
    assert token_ids({"ids": np.array([], dtype=int)}, "ids") == []
    assert texts({}, "stop", 2) is None
    assert token_ids({}, "ids") is None
    for read, sent in ((texts, words(b"a", b"b")), (token_ids, np.array([1, 2]))):
        with pytest.raises(RequestError, match=r"x: has 2 elements; at most 1 are allowed"):
            read({"x": sent}, "x", 1)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (np.array([1.0]), "ids: has the type float64; token ids are whole numbers"),
        (np.array([3, -2, -1]), "ids: holds -2; token ids are at least 0"),
    ],
)
def test_what_is_no_token_id_is_named(sent: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        token_ids({"ids": sent}, "ids")
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("sent", "kind", "message"),
    [
        (b"{", dict, "json: is no JSON: Expecting property name"),
        (b"[" * 100_000, list, "json: is nested too deeply to be read as JSON"),
        (b"[1]", dict, "json: is [1]; an object in JSON is expected"),
        (b"{}", list, "json: is {}; a list in JSON is expected"),
        (b"", list, "json: is empty; leave it out, or send at least one character"),
        (b"a\xff", list, "json: is not UTF-8: invalid start byte at byte 1"),
    ],
)
def test_what_is_no_document_is_named(sent: bytes, kind: Any, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        document({"json": words(sent)}, "json", kind)
    assert str(refused.value).startswith(message)
    assert (refused.value.code, refused.value.outcome) == ("INVALID_ARG", "invalid")


def test_requests_over_http_without_a_stream_take_a_part_of_the_places(
    bound: ServedInProcess,
) -> None:
    prompts = [LONG.format(f"http-{index}") for index in range(3)]
    senders = [begin(bound, prompt) for prompt in prompts]
    refused = answer(begin(bound, LONG.format("fourth")))
    assert refused.error == (
        "3 requests over HTTP that are not streamed are running or waiting, no more may; "
        "stream the answer, use gRPC, or retry later"
    )
    assert refused.code == "UNAVAILABLE"
    for prompt in prompts[:2]:
        bound.wait_for("submit", prompt)
    others = [
        begin(bound, LONG.format("grpc"), agent="grpc-python/1.60.0"),
        begin(bound, LONG.format("stream"), streaming=True),
    ]
    assert answer(others[1]).text == ["0:0"]
    bound.wait_for("submit", LONG.format("grpc"))
    submitted = [event["prompt"] for event in bound.events("submit")]
    assert prompts[2] not in submitted, "the engine has two of them already"
    refused = answer(begin(bound, "tokens=1", agent="grpc-python/1.60.0"))
    assert refused.error == "5 requests are running or waiting, no more may; retry later"
    assert refused.code == "UNAVAILABLE"
    senders[0].is_given_up = True
    bound.wait_for("abort", prompts[0])
    bound.wait_for("submit", prompts[2])
    for sender in (*senders, *others):
        sender.is_given_up = True
    for prompt in (*prompts, LONG.format("grpc"), LONG.format("stream")):
        bound.wait_for("abort", prompt)
    bound.wait_for_metrics({"requests_running": 0, "requests_waiting": 0})


def test_a_request_that_waits_for_its_place_is_ended_by_its_time_limit(here: Serve) -> None:
    served: Any = here(BOUND.replace("_running: 2", "_running: 1"))
    first = begin(served, LONG.format("first"))
    served.wait_for("submit", LONG.format("first"))
    request = served.client.request(LONG.format("late"), parameters={"timeout": 200_000})
    late = answer(served.model.ask(request))
    assert late.error == "the request took longer than its limit of 0.2 s"
    assert LONG.format("late") not in [event["prompt"] for event in served.events("submit")]
    first.is_given_up = True
    served.wait_for("abort", LONG.format("first"))


@pytest.mark.parametrize(
    ("client_us", "server_s", "limit"), [(300_000, 5, "0.3"), (5_000_000, 0.3, "0.3")]
)
def test_of_two_time_limits_the_shorter_one_counts(
    here: Serve, client_us: int, server_s: float, limit: str
) -> None:
    served: Any = here(MODEL_YAML.replace("true}", f"true, max_seconds_per_request: {server_s}}}"))
    request = served.client.request(LONG.format("both"), parameters={"timeout": client_us})
    late = answer(served.model.ask(request))
    assert late.error == f"the request took longer than its limit of {limit} s"
    assert late.code == "CANCELLED"


def test_what_is_counted_adds_up_over_requests(here: Serve) -> None:
    served: Any = here(MODEL_YAML)
    began_s = time.monotonic()
    for prompt in ("tokens=4 input=5", "tokens=6 input=7"):
        served.client.ask(prompt, return_perf_metrics=True)
    streamed = list(
        served.client.stream(
            "tokens=3 input=9 step_ms=20", streaming=True, return_perf_metrics=True
        )
    )
    found = {
        'requests_total{outcome="finished"}': 3,
        "prompt_tokens_total": 5 + 7 + 9,
        "generated_tokens_total": 4 + 6 + 3,
        "responses_total": 2 + len(streamed),
        "draft_tokens_total": 3 * 12,
        "accepted_draft_tokens_total": 3 * 6,
        "queue_time_seconds_count": 3,
        "request_latency_seconds_count": 3,
        "time_to_first_token_seconds_count": 1,
        "inter_token_latency_seconds_count": 1,
        "longest_gap_seconds_count": 1,
    }
    served.wait_for_metrics(found)
    metrics = served.metrics()
    assert metrics["queue_time_seconds_sum"] == pytest.approx(3 * 5e-6)
    mean_s, gap_s = (
        metrics[f"{name}_sum"] for name in ("inter_token_latency_seconds", "longest_gap_seconds")
    )
    assert 0.005 < mean_s <= gap_s <= metrics["request_latency_seconds_sum"]
    assert (
        mean_s * 2 + metrics["time_to_first_token_seconds_sum"]
        <= (metrics["request_latency_seconds_sum"])
        <= 3 * (time.monotonic() - began_s)
    )
    assert metrics['engine_info{release="1.2.1+stub"}'] == 1
    assert "kv_cache_utilization" not in metrics or metrics["kv_cache_utilization"] == 0


def test_the_use_of_the_kv_cache_is_that_of_an_engine_with_statistics(here: Serve) -> None:
    here(f"{MODEL_YAML}enable_iter_perf_stats: true\n").wait_for_metrics(
        {"kv_cache_utilization": 0.25}
    )


def test_senders_sleep_while_no_stream_has_anything_to_say(here: Serve) -> None:
    def used_s() -> float:
        threads = [one for one in threading.enumerate() if one.name.startswith("sender ")]
        assert threads
        times = (Path(f"/proc/self/task/{one.native_id}/schedstat") for one in threads)
        return sum(int(path.read_text().split()[0]) for path in times) / 1e9

    served: Any = here(MODEL_YAML)
    prompt = "tokens=9 fail_at=1 hang=request name=silent"
    with closing(served.client.stream(prompt, streaming=True)) as responses:
        next(responses)
        before_s = used_s()
        time.sleep(0.3)
        assert used_s() - before_s < 0.01


@pytest.mark.parametrize("tokens", [1, 2])
def test_times_between_tokens_are_those_of_two_responses_at_least(here: Serve, tokens: int) -> None:
    served: Any = here(MODEL_YAML)
    responses = served.client.ask(f"tokens={tokens} step_ms=50", streaming=True)
    assert len(responses) == tokens
    served.wait_for_metrics({'requests_total{outcome="finished"}': 1})
    metrics = served.metrics()
    assert metrics["inter_token_latency_seconds_count"] == tokens - 1
    assert metrics["longest_gap_seconds_count"] == tokens - 1
    assert metrics["time_to_first_token_seconds_count"] == 1


def test_what_outlasts_the_drain_is_cancelled_and_counted_in_the_log(here: Serve) -> None:
    served: Any = here(BOUND)
    with closing(
        served.client.stream(LONG.format("late"), streaming=True, max_tokens=9999)
    ) as responses:
        next(responses)
        served.server.stop()
        assert list(responses)[-1].error == "the request was cancelled"
    assert "W 1 requests were cancelled to unload the model" in served.log
    assert served.events("shutdown") == [{"event": "shutdown"}]


def test_a_prompt_that_the_tokenizer_is_at_does_not_hold_up_the_end(here: Serve) -> None:
    served: Any = here(BOUND)
    sender = begin(served, "tokens=1 tokenize_ms=6000 name=long")
    served.wait_for_metrics({"requests_running": 1})
    before_s = time.monotonic()
    served.server.stop()
    assert answer(sender).error == "the request was cancelled"
    assert time.monotonic() - before_s < 5


def test_no_thread_of_the_model_keeps_its_process_from_ending(here: Serve) -> None:
    before = {*threading.enumerate()}
    served: Any = here(MODEL_YAML, unary=True)
    request = served.client.request("tokens=1")
    request.model_name += "_unary"
    assert answer(served.model.ask(request)).text == ["0:0"]
    threads = [thread for thread in threading.enumerate() if thread not in before]
    kept = [thread.name for thread in threads if not thread.daemon]
    assert len(threads) > 5
    assert all(name.startswith("tokenizer") for name in kept), "which Python ends by itself"


def test_the_model_is_ready_until_its_engine_fails(here: Serve) -> None:
    served: Any = here(MODEL_YAML)
    model = served.model.model
    assert model.is_ready() is True
    assert "it-broke" in served.client.refusal("die=it-broke")
    assert model.is_ready() is False


def test_an_engine_that_ends_late_is_told(here: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served: Any = here(MODEL_YAML)
    monkeypatch.setattr(served.model.model._engine, "shutdown", lambda timeout_s: False)
    served.server.stop()
    assert "W the engine did not shut down in time" in served.log


class Gate:
    """Stands before a sender of Triton's: its responses wait until they may pass, or fail."""

    def __init__(self, served: ServedInProcess, prompt: str, **inputs: Any) -> None:
        message = served.client.request(prompt, streaming=True, max_tokens=100_000, **inputs)
        self.sender = Sender(message)
        self._send, self.sender.send = self.sender.send, self._pass  # type: ignore[method-assign]
        self.has_come = threading.Semaphore(0)
        self.may_pass = threading.Semaphore(0)
        self.failures = 0
        request = Request(message, ["text_output"])
        request._sender = self.sender
        served.model.model.execute([request])

    def _pass(self, response: Any, flags: int = 0) -> None:
        self.has_come.release()
        assert self.may_pass.acquire(timeout=60)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("shared memory ran out")
        self._send(response, flags)


def test_as_many_slow_clients_as_senders_are_served_at_the_same_time(here: Serve) -> None:
    """And those that come later by whoever is free again."""
    served: Any = here(MODEL_YAML)
    for round_ in range(3):
        gates = [Gate(served, f"tokens=1 name=slow-{round_}-{index}") for index in range(2)]
        assert all(gate.has_come.acquire(timeout=60) for gate in gates)
        third = Gate(served, f"tokens=1 name=third-{round_}")
        third.may_pass.release()
        gates[round_ % 2].may_pass.release()
        assert answer(third.sender).text == ["0:0"]
        gates[1 - round_ % 2].may_pass.release()
        assert [answer(gate.sender).final for gate in gates] == [True, True]
    served.wait_for_metrics({"requests_running": 0, "requests_waiting": 0})


@pytest.mark.parametrize("failures", [1, 2])
def test_a_response_that_cannot_be_sent_ends_its_request_and_no_other(
    here: Serve, failures: int
) -> None:
    """The second time it is the error itself."""
    served: Any = here(MODEL_YAML)
    gate = Gate(served, LONG.format("failing"))
    gate.failures = failures
    gate.may_pass.release(9)
    served.wait_for_metrics({'requests_total{outcome="failed"}': 1, "requests_running": 0})
    if failures == 1:
        last = answer(gate.sender)
        assert last.error == "the response could not be sent: shared memory ran out"
        assert (last.code, last.final) == ("INTERNAL", True)
    assert "RuntimeError: shared memory ran out" in served.log
    assert served.client.ask("tokens=1")[0].text == ["0:0"]


class UnreadableRequest:
    """One whose strings Triton cannot read."""

    def __init__(self, message: Any) -> None:
        self._sender = Sender(message)

    def get_response_sender(self) -> Sender:
        return self._sender

    def inputs(self) -> list[Any]:
        class Unreadable:
            def name(self) -> str:
                return "text_input"

            def as_numpy(self) -> Any:
                raise RuntimeError("no strings")

        return [Unreadable()]

    def request_id(self) -> str:
        return ""

    parameters = request_id

    def timeout(self) -> int:
        return 0

    correlation_id = flags = timeout


def test_an_input_that_triton_cannot_read_is_named(bound: ServedInProcess) -> None:
    request = UnreadableRequest(bound.client.request("a"))
    bound.model.model.execute([request])
    response = answer(request.get_response_sender())
    assert response.error == "text_input: cannot be read: no strings"
    assert response.code == "INVALID_ARG"


def test_a_fault_of_the_model_answers_its_request_and_is_logged(
    bound: ServedInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    request: Any = UnreadableRequest(bound.client.request("a"))
    request.timeout = lambda: 1 // 0
    bound.model.model.execute([request])
    response = answer(request.get_response_sender())
    assert response.error.startswith("ZeroDivisionError: ")
    assert response.code == "INTERNAL"
    assert "ZeroDivisionError" in bound.log
