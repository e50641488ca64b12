"""The running requests without a server: what no client can make happen at the right moment."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

if TYPE_CHECKING:
    from trtllm_model.generation import Generations

REQUEST = SimpleNamespace(
    streaming=True,
    is_unwatched=False,
    outputs=(),
    sampling={},
    cumulative_text=False,
    timeout_s=None,
)
SETTINGS = SimpleNamespace(
    sender_threads=2,
    max_requests=None,
    max_unary_http_requests=None,
    max_unary_http_running=None,
    max_seconds_per_request=None,
)


class Sender:
    """What Triton gives a model to answer with."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.ended = threading.Event()

    def send(self, response: Any, flags: int) -> None:
        assert not self.ended.is_set()
        self.sent.append(response)
        if flags:
            self.ended.set()

    def is_cancelled(self) -> bool:
        assert not self.ended.is_set()
        return False


class Endless:
    """A result of the engine that never comes."""

    def __init__(self) -> None:
        self.aborted = threading.Event()
        self.waited_for = threading.Event()

    def abort(self) -> None:
        self.aborted.set()

    def __aiter__(self) -> Endless:
        return self

    async def __anext__(self) -> Endless:
        self.waited_for.set()
        return await asyncio.Future()


class Engine:
    version = "1.2.1"

    def __init__(self) -> None:
        self.results: list[Endless] = []

    def prepare(self, request: Any) -> dict[str, Any]:
        return {}

    def submit(self, arguments: Any) -> Endless:
        self.results.append(Endless())
        return self.results[-1]

    def is_alive(self) -> bool:
        return True

    async def kv_cache_utilization(self) -> None:
        return None


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triton's own module, with what it only has within Triton added."""
    spec = find_spec("pytriton")
    assert spec is not None
    assert spec.origin is not None
    monkeypatch.syspath_prepend(Path(spec.origin).parent / "tritonserver/backends/python")
    import triton_python_backend_utils as pb_utils

    within = {
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL": 1,
        "InferenceResponse": SimpleNamespace,
        "TritonError": Error,
        "MetricFamily": Family,
    }
    for name, value in within.items():
        monkeypatch.setattr(pb_utils, name, value, raising=False)
    yield
    for name in [name for name in sys.modules if name.startswith("trtllm_model")]:
        del sys.modules[name]


@pytest.fixture
def generations(engine: Engine, triton: None) -> Generations:
    from trtllm_model.generation import Generations

    return Generations(engine, {}, SETTINGS, {})  # type: ignore[arg-type]


class Family:
    """A family of metrics, whose gauges can be read."""

    HISTOGRAM, COUNTER, GAUGE = range(3)
    gauges: ClassVar[dict[str, float]] = {}

    def __init__(self, name: str, description: str, kind: int) -> None:
        self.name = name

    def Metric(self, labels: Any, buckets: Any = None) -> Any:
        ignore = lambda value: None  # noqa: E731
        keep = lambda value: self.gauges.update({self.name: value})  # noqa: E731
        return SimpleNamespace(increment=ignore, observe=ignore, set=keep)


class Error(SimpleNamespace):
    CANCELLED = "cancelled"
    INTERNAL = "internal"
    NOT_FOUND = "not found"
    UNAVAILABLE = "unavailable"

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message=message, code=code)


def start(generations: Generations, request_id: str, request: Any = REQUEST) -> Sender:
    from trtllm_model.response import ResponseSender

    sender = Sender()
    generations.start(request_id, request, ResponseSender(sender))
    return sender


def test_what_outlasts_the_drain_is_aborted_and_told_so(
    generations: Generations, engine: Engine
) -> None:
    senders = [start(generations, "a"), start(generations, "b")]
    assert generations.drain(timeout_s=0.1) == 2
    assert all(result.aborted.is_set() for result in engine.results)
    assert [[one.error.code for one in sender.sent] for sender in senders] == [["cancelled"]] * 2


def test_a_request_that_is_stopped_before_it_began_is_answered(
    generations: Generations, engine: Engine
) -> None:
    from trtllm_model.response import ResponseSender

    stop = Sender()
    sender = start(generations, "a")
    generations.stop("a", ResponseSender(stop))
    assert sender.ended.wait(5)
    assert stop.ended.wait(5)
    assert sender.sent[0].error.code == "cancelled"
    assert generations.drain(timeout_s=5) == 0


def test_nothing_follows_a_final_response(generations: Generations) -> None:
    from trtllm_model.inputs import RequestError
    from trtllm_model.response import ResponseSender

    sender = Sender()
    response_sender = ResponseSender(sender)
    response_sender.send(None, final=True)
    response_sender.fail(RequestError("too late", "INTERNAL", "failed"))
    assert response_sender.is_cancelled() is False
    assert len(sender.sent) == 1
    generations.drain(timeout_s=5)


def test_a_stream_waits_for_its_first_response_and_what_has_one_alone_runs(
    generations: Generations,
) -> None:
    whole = SimpleNamespace(**{**vars(REQUEST), "streaming": False})
    for request in (REQUEST, whole, whole):
        start(generations, "a", request)
    generations.metrics.close()
    assert Family.gauges["trtllm_model_requests_waiting"] == 1
    assert Family.gauges["trtllm_model_requests_running"] == 2
    generations.drain(timeout_s=0.1)


def test_a_stop_waits_for_the_request_that_is_just_beginning(
    generations: Generations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would begin after the drain looked for requests that run."""
    from trtllm_model.termination import Shutdown

    file, ended = tmp_path / "stop", threading.Event()
    monkeypatch.setenv("SERVE_STOP_FILE", str(file))
    shutdown = Shutdown(ended.set)
    with shutdown.gate:
        file.touch()
        assert not ended.wait(1)
        assert not shutdown.is_requested
    assert ended.wait(5)
    assert shutdown.is_requested
    shutdown.unload()
    generations.drain(timeout_s=5)


def test_what_comes_while_a_sender_turns_away_is_sent(generations: Generations) -> None:
    """The sender finds nothing more to send just when the engine has the last of it."""
    from trtllm_model.delivery import Delivery
    from trtllm_model.response import ResponseSender, Stream

    class WatchedStream(Stream):
        """Gets its last output while the sender looks whether there is more."""

        @property
        def output(self) -> Any:
            now = slot.__get__(self)
            if now is None and sender.sent and not late:
                late.append(threading.Thread(target=put, args=["ab", "stop"]))
                late[0].start()
                late[0].join(0.3)
            return now

        @output.setter
        def output(self, value: Any) -> None:
            slot.__set__(self, value)

    def put(text: str, reason: str | None) -> None:
        sequence = SimpleNamespace(text=text, token_ids=[1], finish_reason=reason, stop_reason=None)
        delivery.put(
            stream, SimpleNamespace(outputs=[sequence], finished=bool(reason), prompt_token_ids=[1])
        )

    slot: Any = vars(Stream)["output"]
    late: list[threading.Thread] = []
    sender = Sender()
    delivery = Delivery(generations.metrics, 1, lambda stream: None)
    builder = SimpleNamespace(tensors=lambda output: [output.sequences[0].text])
    stream = WatchedStream("a", REQUEST, ResponseSender(sender), builder)  # type: ignore[arg-type]
    put("a", None)
    assert sender.ended.wait(5)
    assert [response.output_tensors for response in sender.sent] == [["a"], ["ab"]]
    delivery.close()
    generations.drain(timeout_s=5)


def test_nothing_is_left_of_an_idle_model(generations: Generations) -> None:
    before = threading.active_count()
    assert generations.drain(timeout_s=5) == 0
    assert threading.active_count() < before


class SlowSender(Sender):
    """Holds each response until it may leave."""

    def __init__(self) -> None:
        super().__init__()
        self.is_sending = threading.Semaphore(0)
        self.may_leave = threading.Semaphore(0)

    def send(self, response: Any, flags: int) -> None:
        self.is_sending.release()
        assert self.may_leave.acquire(timeout=5)
        super().send(response, flags)


@pytest.fixture
def slow(generations: Generations) -> Iterator[SimpleNamespace]:
    """A stream whose responses are held, with the ways to it; its text counts up."""
    from trtllm_model.delivery import Delivery
    from trtllm_model.response import ResponseSender, Stream

    sender, ended = SlowSender(), list[Stream]()
    builder = SimpleNamespace(tensors=lambda output: output.sequences[0].text)
    stream = Stream("a", REQUEST, ResponseSender(sender), builder)  # type: ignore[arg-type]
    delivery = Delivery(generations.metrics, 2, ended.append)

    def put(text: str) -> None:
        sequence = SimpleNamespace(text=text, token_ids=[1], finish_reason=None, stop_reason=None)
        result = SimpleNamespace(outputs=[sequence], finished=False, prompt_token_ids=[1])
        delivery.put(stream, result)

    yield SimpleNamespace(sender=sender, ended=ended, stream=stream, delivery=delivery, put=put)
    sender.may_leave.release(9)
    delivery.close()
    generations.drain(timeout_s=5)


def test_of_what_comes_while_a_response_is_on_its_way_the_newest_follows(
    slow: SimpleNamespace,
) -> None:
    slow.put("1")
    assert slow.sender.is_sending.acquire(timeout=5)
    slow.put("2")
    slow.put("3")
    slow.sender.may_leave.release(2)
    assert slow.sender.is_sending.acquire(timeout=5)
    slow.delivery.close()
    assert [response.output_tensors for response in slow.sender.sent] == ["1", "3"]


def test_an_error_that_comes_while_a_response_is_on_its_way_is_the_last_to_follow(
    slow: SimpleNamespace,
) -> None:
    from trtllm_model.inputs import RequestError

    slow.put("1")
    assert slow.sender.is_sending.acquire(timeout=5)
    slow.delivery.fail(slow.stream, RequestError("it broke", "INTERNAL", "failed"))
    slow.sender.may_leave.release(9)
    assert slow.sender.ended.wait(5)
    slow.put("2")
    slow.delivery.close()
    [first, last] = slow.sender.sent
    assert first.output_tensors == "1"
    assert last.error.message == "it broke"
    assert slow.ended == [slow.stream]


def test_nobody_is_asked_about_a_unary_request_that_is_answered(
    triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton frees what the question looks at, and an answer may come at any moment."""
    from trtllm_model import unary

    asked, order = threading.Event(), []

    class AskedSender(Sender):
        def is_cancelled(self) -> bool:
            asked.set()
            self.ended.wait(0.5)
            order.append("asked")
            return False

        def send(self, response: Any, flags: int) -> None:
            order.append("answered")
            super().send(response, flags)

    monkeypatch.setattr(unary, "make_shared_memory_private", lambda: None)
    sender = AskedSender()
    model = unary.TritonPythonModel()
    model.initialize({"model_name": "m_unary"})
    model._senders[1] = sender
    assert asked.wait(5)
    model._end(1, ({}, ("over", "unavailable")))
    assert sender.ended.is_set()
    asked.clear()
    assert not asked.wait(3 * unary.CANCELLATION_CHECK_PERIOD_S)
    assert order == ["asked", "answered"]
    model.finalize()
