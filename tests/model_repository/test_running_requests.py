"""The running requests without a server: what no client can make happen at the right moment."""

from __future__ import annotations

import asyncio
import math
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
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


def test_idle_time_does_not_count_as_a_stall(generations: Generations) -> None:
    """The clock starts anew with the first of the running requests, and not with further ones."""
    generations.progress_s -= 1000  # so long idle
    start(generations, "a")
    [stream] = generations.running()
    assert generations.progress_s == stream.arrival_s
    start(generations, "b")
    assert generations.progress_s == stream.arrival_s
    assert generations.drain(timeout_s=0) == 2


def test_a_drain_waits_for_nobody_where_no_client_is_left(
    generations: Generations, engine: Engine
) -> None:
    """Of a unary request over HTTP Triton does not say that its client left."""
    start(generations, "a")
    looks = iter([True, True, False])
    assert generations.drain(60, lambda: next(looks)) == 1
    assert engine.results[0].aborted.is_set()


def test_a_client_that_left_is_told_from_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Triton keeps the connection of the former, over either protocol and family."""
    from trtllm_model.watchdog import has_clients

    with (
        socket.create_server(("127.0.0.1", 0)) as http,
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as grpc,
    ):
        assert has_clients(), "nothing is known without the ports"
        monkeypatch.setenv("SERVE_HTTP_PORT", str(http.getsockname()[1]))
        assert not has_clients(), "nobody is connected to a server that only listens"
        monkeypatch.setenv("SERVE_GRPC_PORT", str(grpc.getsockname()[1]))
        for server in (http, grpc):
            client = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
            held, _ = server.accept()
            with held:
                assert has_clients()
                client.close()
                assert held.recv(1) == b""
                assert not has_clients()


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
        assert self.may_leave.acquire(timeout=60)
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
    assert slow.sender.is_sending.acquire(timeout=60)
    slow.put("2")
    slow.put("3")
    slow.sender.may_leave.release(2)
    assert slow.sender.is_sending.acquire(timeout=60)
    slow.delivery.close()
    assert [response.output_tensors for response in slow.sender.sent] == ["1", "3"]


def test_an_error_that_comes_while_a_response_is_on_its_way_is_the_last_to_follow(
    slow: SimpleNamespace,
) -> None:
    from trtllm_model.inputs import RequestError

    slow.put("1")
    assert slow.sender.is_sending.acquire(timeout=60)
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


@pytest.fixture
def deferring(generations: Generations) -> Iterator[SimpleNamespace]:
    """Two senders that are told of what is put when `turns` are called."""
    from trtllm_model.delivery import Delivery
    from trtllm_model.response import ResponseSender, Stream

    turns = list[Callable[[], None]]()
    delivery = Delivery(generations.metrics, 2, lambda stream: None, turns.append)
    builder = SimpleNamespace(tensors=lambda output: output.sequences[0].text)

    def stream(sender: Sender) -> Stream:
        return Stream("a", REQUEST, ResponseSender(sender), builder)  # type: ignore[arg-type]

    def put(stream: Stream, text: str, final: bool = True) -> None:
        reason = "stop" if final else None
        sequence = SimpleNamespace(text=text, token_ids=[1], finish_reason=reason, stop_reason=None)
        result = SimpleNamespace(outputs=[sequence], finished=final, prompt_token_ids=[1])
        delivery.put(stream, result)

    yield SimpleNamespace(turns=turns, delivery=delivery, stream=stream, put=put)
    delivery.close()
    generations.drain(timeout_s=5)


def test_senders_are_told_once_of_all_that_the_engine_gives_at_a_time(
    deferring: SimpleNamespace,
) -> None:
    for step in range(3):
        senders = [Sender() for _ in range(100)]
        for sender in senders:
            deferring.put(deferring.stream(sender), "1")
        assert len(deferring.turns) == step + 1
        assert not any(sender.sent for sender in senders)
        deferring.turns[-1]()
        assert all(sender.ended.wait(5) for sender in senders)


def test_an_error_takes_with_it_what_an_event_loop_that_hangs_still_holds(
    deferring: SimpleNamespace,
) -> None:
    from trtllm_model.inputs import RequestError

    waiting, failed = Sender(), Sender()
    stream = deferring.stream(waiting)
    deferring.put(stream, "1")
    deferring.delivery.fail(stream, RequestError("it hangs", "UNAVAILABLE", "failed"))
    assert waiting.ended.wait(5)
    other = Sender()
    deferring.put(deferring.stream(other), "2")
    deferring.delivery.fail(
        deferring.stream(failed), RequestError("it hangs", "UNAVAILABLE", "failed")
    )
    assert other.ended.wait(5)
    assert failed.ended.wait(5)
    assert [one.sent[0].output_tensors for one in (waiting, other)] == ["1", "2"]


def test_what_the_event_loop_still_holds_at_the_end_is_sent(deferring: SimpleNamespace) -> None:
    sender = Sender()
    deferring.put(deferring.stream(sender), "1")
    deferring.delivery.close()
    assert sender.ended.is_set()


def test_a_held_response_holds_up_no_other_stream_while_a_sender_is_free(
    deferring: SimpleNamespace,
) -> None:
    """Both of one sender have more to say as soon as it is through with them."""
    held, others = SlowSender(), [Sender() for _ in range(4)]
    streams = [deferring.stream(sender) for sender in (held, *others)]
    first, second, *_, last = streams
    for stream in streams[:-1]:
        deferring.put(stream, "1", final=stream not in (first, second))
    deferring.turns[-1]()
    assert held.is_sending.acquire(timeout=60)
    assert others[2].ended.wait(5)
    deferring.put(first, "12", final=False)
    deferring.put(second, "12")
    deferring.put(last, "1")
    deferring.turns[-1]()
    assert others[3].ended.wait(5)
    held.may_leave.release()
    assert held.is_sending.acquire(timeout=60)
    assert others[0].ended.wait(2)
    held.may_leave.release(9)


def test_many_clients_are_asked_less_often_each(triton: None) -> None:
    """Whether they gave up: as often as few, these questions would cost as much as tokens do."""
    from trtllm_model import watchdog

    class AskedSender(Sender):
        count = 0

        def is_cancelled(self) -> bool:
            self.count += 1
            return False

    senders = [AskedSender() for _ in range(3 * watchdog.MOST_QUESTIONS_PER_S // 2)]
    start_s = time.monotonic()
    with asking(senders):
        wait_until(lambda: all(sender.count >= 3 for sender in senders))
    period_s = 1.5 * 0.98  # of the first question, and of those that may have been asked by now
    most = math.ceil((time.monotonic() - start_s) / period_s) + 1
    assert max(sender.count for sender in senders) <= most


def test_a_question_that_fails_keeps_none_from_being_asked(
    triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton_python_backend_utils as pb_utils

    class FailingSender(Sender):
        def is_cancelled(self) -> bool:
            raise RuntimeError("no such request")

    class GoneSender(Sender):
        def is_cancelled(self) -> bool:
            return True

    logger = SimpleNamespace(log_error=lambda text: None)
    monkeypatch.setattr(pb_utils, "Logger", logger, raising=False)
    gone = [GoneSender() for _ in range(20)]
    with asking([FailingSender(), *gone, FailingSender()]) as cancelled:
        wait_until(lambda: len(cancelled) == len(gone))


@contextmanager
def asking(senders: Sequence[Sender]) -> Iterator[set[Any]]:
    """A watchdog over streams that are answered by these; gives those that it cancels."""
    from trtllm_model.response import ResponseSender
    from trtllm_model.watchdog import Watchdog

    streams = [SimpleNamespace(asked_s=0.0, sender=ResponseSender(one)) for one in senders]
    cancelled = set[Any]()
    generations: Any = SimpleNamespace(
        running=lambda: streams, cancel=lambda some: cancelled.update(map(id, some))
    )
    settings: Any = SimpleNamespace(cancellation_check_period_ms=150, engine_stall_timeout_s=None)
    engine: Any = Engine()
    watchdog = Watchdog(engine, generations, settings)
    yield cancelled
    watchdog.close()


def wait_until(holds: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s
        threading.Event().wait(0.01)


def test_a_question_about_a_unary_request_that_fails_is_not_the_last(
    triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton_python_backend_utils as pb_utils
    from trtllm_model import unary

    asked, forwarded = threading.Event(), threading.Event()

    class FailingSender(Sender):
        def is_cancelled(self) -> bool:
            asked.set()
            raise RuntimeError("no such request")

    class GoneSender(Sender):
        def is_cancelled(self) -> bool:
            return True

    logger = SimpleNamespace(log_error=lambda text: None)
    monkeypatch.setattr(pb_utils, "Logger", logger, raising=False)
    monkeypatch.setattr(unary, "make_shared_memory_private", lambda: None)
    model = unary.TritonPythonModel()
    monkeypatch.setattr(model, "_forward", lambda key: {2: forwarded.set}[key]())
    model.initialize({"model_name": "m_unary"})
    model._senders[1] = FailingSender()
    assert asked.wait(5)
    model._senders[2] = GoneSender()
    assert forwarded.wait(5)
    model._senders.clear()
    model.finalize()


def test_a_unary_request_waits_for_the_first_connection_to_the_engine(
    triton: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is ready as soon as both models are, whether or not they have met."""
    from trtllm_model import unary

    monkeypatch.setattr(unary, "make_shared_memory_private", lambda: None)
    answered, sender = threading.Event(), Sender()
    model = unary.TritonPythonModel()
    model.initialize({"model_name": "m_unary"})
    asking = threading.Thread(target=model.execute, args=[[forwarded_request(sender)]])
    asking.start()
    assert not sender.ended.wait(3 * unary.CONNECT_PERIOD_S)
    listener = unary.RequestListener("m", lambda request, sender: answered.set())
    listener.start()
    assert answered.wait(5)
    assert sender.sent == []
    model._senders.clear()
    model.finalize()
    listener.close()
    asking.join()


def forwarded_request(sender: Sender) -> Any:
    """What Triton gives the second model to answer."""
    return SimpleNamespace(
        get_response_sender=lambda: sender,
        inputs=list,
        request_id=str,
        parameters=str,
        timeout=int,
        correlation_id=int,
        flags=int,
        requested_output_names=list,
    )


def test_a_stop_while_the_model_starts_ends_all_of_it(
    triton: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import triton_python_backend_utils as pb_utils

    class EndingEngine(Engine):
        has_statistics = False
        has_ended = threading.Event()

        def shutdown(self, timeout_s: float) -> bool:
            self.has_ended.set()
            return True

    engine, errors = EndingEngine(), list[str]()
    logger = SimpleNamespace(log_info=lambda text: None, log_error=errors.append)
    monkeypatch.setattr(pb_utils, "Logger", logger, raising=False)
    monkeypatch.setenv("SERVE_STOP_FILE", str(tmp_path / "stop"))
    (tmp_path / "stop").touch()
    module: Any = import_module("model")
    listeners = []

    class SlowListener(module.RequestListener):  # type: ignore[misc]
        def __init__(self, *arguments: Any) -> None:
            wait_until(lambda: not thread_named("shutdown"))
            super().__init__(*arguments)
            listeners.append(self)

    settings = module.settings.Settings(0, True, {})
    for name, value in {
        "make_shared_memory_private": lambda: None,
        "_settings": lambda: settings,
        "engine": SimpleNamespace(is_leader=lambda: True, LlmEngine=lambda *_: engine),
        "RequestListener": SlowListener,
    }.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(import_module("trtllm_model.termination"), "terminate_server", print)
    model = module.TritonPythonModel()
    arguments = {"model_name": "m", "model_version": "1"}
    try:
        model.initialize({**arguments, "model_config": '{"input": [], "output": []}'})
        assert engine.has_ended.wait(5)
    finally:
        model.finalize()
        del sys.modules["model"]
    assert errors == []
    assert listeners[0]._listener.fileno() == -1


def thread_named(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())
