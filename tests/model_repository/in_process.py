"""The production model in the process of the tests, with what Triton gives a Python model.

`--model-in-process` runs the tests of this folder so where they need no more of Triton than that;
the others are skipped. It is for tools that change the code in this process, such as
`maintenance.mutations`, and starts in milliseconds. It proves nothing of Triton.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import grpc  # type: ignore[import-untyped]
import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, triton_to_np_dtype

from tests.model_repository.python_backend import (
    FINAL,
    InferenceResponse,
    Metric,
    Tensor,
    TritonError,
)
from tests.model_repository.triton_client import CONFIG, DATATYPES, Response, Triton

ENGINE_STUB = Path(__file__).parent / "engine_stub"
UNARY_SUFFIX = "_unary"
MODEL, UNARY, TERMINATION = "model", "trtllm_model.unary", "trtllm_model.termination"
PREFIX = "trtllm_model_"  # of the metrics
STATUS = {"INVALID_ARG": "INVALID_ARGUMENT"}
COUNT = itertools.count()  # of servers: their sockets need names of their own


def beyond() -> NoReturn:
    pytest.skip("needs a server process")


class Refused(grpc.RpcError):  # type: ignore[misc]
    """What a client of gRPC gets."""

    def __init__(self, details: str, code: str) -> None:
        super().__init__(f"{code}: {details}")
        self._details, self._code = details, STATUS.get(code, code)

    def details(self) -> str:
        return self._details

    def code(self) -> Any:
        return grpc.StatusCode[self._code]


class InProcessResponse(Response):
    code: str


class Sender:
    """Triton's response sender of one request."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._named = [output.name for output in request.outputs]
        self.responses: SimpleQueue[InProcessResponse] = SimpleQueue()
        self.is_given_up = False
        self._has_ended = False

    def is_cancelled(self) -> bool:
        assert not self._has_ended, "Triton has freed what the question looks at"
        return self.is_given_up

    def send(self, response: InferenceResponse | None, flags: int = 0) -> None:
        assert not self._has_ended, "nothing may follow a final response"
        self._has_ended = bool(flags & FINAL)
        error = response.error() if response else None
        arrays = {
            tensor.name(): tensor.as_numpy()
            for tensor in (response.output_tensors() if response and not error else ())
            if not self._named or tensor.name() in self._named
        }
        outputs = {
            name: [one.decode() if isinstance(one, bytes) else one for one in array.tolist()]
            for name, array in arrays.items()
        }
        datatypes = {name: np_to_triton_dtype(array.dtype) for name, array in arrays.items()}
        words = error.message() if error else ""
        sent = InProcessResponse(outputs, datatypes, self._has_ended, words, self._request.id)
        object.__setattr__(sent, "code", error.code() if error else "")
        self.responses.put(sent)


# Parameters of gRPC that Triton itself takes, and gives to a model in another way or not at all.
OWN = (
    *("triton_enable_empty_final_response", "timeout"),
    *("sequence_id", "sequence_start", "sequence_end"),
)


class Request:
    """What a Python model is given of a message of gRPC."""

    def __init__(self, message: Any, outputs: Sequence[str]) -> None:
        self._message = message
        self._sender = Sender(message)
        named = [output.name for output in message.outputs]
        self._outputs = named or list(outputs)
        sent = {name: _value(value) for name, value in message.parameters.items()}
        self._own = {name: sent.pop(name) for name in OWN if name in sent}
        self._parameters = json.dumps(sent) if sent else ""

    def inputs(self) -> list[Tensor]:
        rows = zip(self._message.inputs, self._message.raw_input_contents, strict=True)
        return [Tensor(row.name, _array(row.datatype, row.shape, raw)) for row, raw in rows]

    def request_id(self) -> str:
        return str(self._message.id)

    def parameters(self) -> str:
        return self._parameters

    def timeout(self) -> int:
        return int(self._own.get("timeout", 0)) % 2**64

    def correlation_id(self) -> Any:
        return self._own.get("sequence_id", 0)

    def flags(self) -> int:
        bits = {"sequence_start": 1, "sequence_end": 2}
        return sum(bit for name, bit in bits.items() if self._own.get(name))

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def get_response_sender(self) -> Sender:
        return self._sender


def _value(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))


def _array(datatype: str, shape: Sequence[int], raw: bytes) -> Any:
    if datatype == "BYTES":
        return deserialize_bytes_tensor(raw).reshape(shape)
    return np.frombuffer(raw, dtype=triton_to_np_dtype(datatype)).reshape(shape)


def _config() -> dict[str, Any]:
    config = text_format.Parse(CONFIG.read_text(), model_config_pb2.ModelConfig())
    name = model_config_pb2.DataType.Name
    sides = {"input": config.input, "output": config.output}
    return {
        side: [{"name": row.name, "data_type": name(row.data_type)} for row in rows]
        for side, rows in sides.items()
    }


class Server:
    """One model, or two over one engine; `signals` are those that would reach the server."""

    def __init__(
        self, folder: Path, model_yaml: str, unary: bool, variables: Mapping[str, str]
    ) -> None:
        self.engine_log = folder / "engine.log"
        self.lines: list[str] = []
        self.families: dict[str, list[Metric]] = {}
        self.signals: list[int] = []
        self._has_ended = threading.Event()
        self.policies: dict[str, dict[str, Any]] = {}  # by the suffix of the model's name
        self._config = _config()
        self._outputs = [row["name"] for row in self._config["output"]]
        self.name = f"in_process_{os.getpid()}_{next(COUNT)}"
        (folder / "model.yaml").write_text(model_yaml)
        self.fault: Exception | None = None
        self.model: Any = None
        self.unary: Any = None
        own = {"ENGINE_LOG": str(self.engine_log), "LLM_CONFIG_PATH": str(folder / "model.yaml")}
        with loaded(backend(self.lines, self.families), {**own, **variables}) as modules:
            for name in (MODEL, UNARY):
                modules[name].make_shared_memory_private = lambda: None
            modules[TERMINATION].terminate_server = self._end
            modules[TERMINATION].os = SimpleNamespace(kill=self._signal, environ=os.environ)
            try:
                self.model = self._model(modules[MODEL], self.name)
                if unary:
                    self.unary = self._model(modules[UNARY], self.name + UNARY_SUFFIX)
            except RuntimeError as fault:  # Triton's own, see below
                self.fault = fault
                self.lines.append(f"E {fault}")

    def _model(self, module: Any, name: str) -> Any:
        policy: dict[str, Any] = {}

        def set_model_transaction_policy(given: Mapping[str, Any]) -> None:
            if given.keys() - {"decoupled"}:
                raise ValueError("contains property other than 'decoupled'")  # as Triton's own
            policy.update(given)

        asked = SimpleNamespace(
            set_model_transaction_policy=set_model_transaction_policy,
            set_max_batch_size=lambda size: policy.update(max_batch_size=size),
        )
        assert module.TritonPythonModel.auto_complete_config(asked) is asked
        self.policies[name.removeprefix(self.name)] = policy
        model = module.TritonPythonModel()
        config = json.dumps(self._config)
        model.initialize({"model_name": name, "model_version": "1", "model_config": config})
        return model

    def _end(self, reason: str, number: signal.Signals) -> None:
        self.lines.append(f"the server exits because {reason}")
        self._signal(0, number)

    def _signal(self, _: int, number: int) -> None:
        """Asked to end, Triton unloads its models."""
        self.signals.append(number)
        if number == signal.SIGTERM:
            threading.Thread(target=self.finalize).start()

    def finalize(self) -> None:
        """Triton unloads its models side by side."""
        models = [one for one in (self.model, self.unary) if one is not None]
        self.model = self.unary = None
        ends = [threading.Thread(target=one.finalize) for one in models]
        for end in ends:
            end.start()
        for end in ends:
            end.join()
        self._has_ended.set()

    @property
    def pid(self) -> int:
        beyond()

    def stop(self) -> None:
        self._signal(0, signal.SIGTERM)
        assert self._has_ended.wait(60)

    def exit_status(self, timeout_s: float) -> int | None:
        """As a shell has it, and `None` where it does not end in time."""
        if not self._has_ended.wait(timeout_s):
            return None
        last = self.signals[-1]
        return 0 if last == signal.SIGTERM else 128 + last

    def ask(self, message: Any) -> Sender:
        """As the server does: what the configuration does not have is refused by it."""
        request = Request(message, self._outputs)
        sender = request.get_response_sender()
        wrong = [
            *(row.name for row in message.inputs if DATATYPES.get(row.name) != row.datatype),
            *(row.name for row in message.outputs if row.name not in self._outputs),
        ]
        if wrong:
            error = TritonError(f"unexpected '{wrong[0]}'", TritonError.INVALID_ARG)
            sender.send(InferenceResponse(error=error), FINAL)
        else:
            is_unary = message.model_name.endswith(UNARY_SUFFIX)
            model = self.unary if is_unary else self.model
            assert model is not None, "the server has ended"
            model.execute([request])
        return sender


@contextmanager
def loaded(backend: ModuleType, variables: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The model's modules, which are the caller's alone, and what the engine's start reads."""
    name = "triton_python_backend_utils"
    outer = {variable: os.environ.get(variable) for variable in variables}
    own = ("model", "trtllm_model", "tensorrt_llm", "mpi4py")
    with imported_anew(*own):
        sys.modules[name] = backend
        sys.path.insert(0, str(ENGINE_STUB))
        os.environ.update(variables)
        try:
            yield {one: importlib.import_module(one) for one in (MODEL, UNARY, TERMINATION)}
        finally:
            sys.path.remove(str(ENGINE_STUB))
            sys.modules.pop(name)
            for variable, value in outer.items():
                os.environ.pop(variable)
                if value is not None:
                    os.environ[variable] = value


def unary_module() -> Any:
    """The second model's module, for a model that has no first one beside it."""
    with loaded(backend([], {}), {}) as modules:
        unary = modules[UNARY]
    unary.make_shared_memory_private = lambda: None
    return unary


def backend(lines: list[str], families: dict[str, list[Metric]]) -> ModuleType:
    """`triton_python_backend_utils`, which writes its log and its metrics there."""

    def log(level: str, text: str) -> None:
        assert isinstance(text, str)
        lines.append(f"{level} {text}")

    class MetricFamily:
        COUNTER, GAUGE, HISTOGRAM = range(3)

        def __init__(self, name: str, description: str, kind: int) -> None:
            assert description
            assert name.startswith(PREFIX)
            self._kind = kind
            self._metrics = families.setdefault(name.removeprefix(PREFIX), [])

        def Metric(self, labels: Mapping[str, str], buckets: Any = None) -> Metric:
            assert (buckets is not None) is (self._kind == self.HISTOGRAM)
            self._metrics.append(Metric(labels, buckets))
            return self._metrics[-1]

    contents = {
        "Logger": SimpleNamespace(
            log_info=partial(log, "I"), log_warn=partial(log, "W"), log_error=partial(log, "E")
        ),
        "MetricFamily": MetricFamily,
        "TritonModelException": RuntimeError,
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL": FINAL,
        "triton_string_to_numpy": lambda name: triton_to_np_dtype(
            name.removeprefix("TYPE_").replace("STRING", "BYTES")
        ),
    }
    module = ModuleType("triton_python_backend_utils")
    vars(module).update(contents)
    for kind in (Tensor, TritonError, InferenceResponse):
        setattr(module, kind.__name__, kind)
    return module


@contextmanager
def imported_anew(*packages: str) -> Iterator[None]:
    """What other tests of this process imported of them before comes back at the end."""
    before = _forget(packages)
    try:
        yield
    finally:
        _forget(packages)
        sys.modules.update(before)


def _forget(packages: tuple[str, ...]) -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.split(".")[0] in packages]
    return {name: sys.modules.pop(name) for name in names}


class InProcessTriton(Triton):
    """The client of such a server; it has no addresses."""

    def __init__(self, server: Server) -> None:
        object.__setattr__(self, "server", server)

    server: Server

    @property
    def http_url(self) -> str:
        beyond()

    @property
    def grpc_url(self) -> str:
        beyond()

    def responses(
        self, request: Any, timeout_s: float = 60.0
    ) -> Generator[InProcessResponse, None, None]:
        sender, end_s = self.server.ask(request), time.monotonic() + timeout_s
        try:
            final = False
            while not final:
                response = sender.responses.get(timeout=max(0, end_s - time.monotonic()))
                final = response.final
                yield response
        except Empty:
            raise Refused("Deadline Exceeded", "DEADLINE_EXCEEDED") from None
        finally:
            sender.is_given_up = True

    def call(self, request: Any) -> Response:
        [response] = self.responses(request)
        if response.error:
            raise Refused(response.error, response.code)
        return response

    def post(self, verb: str, body: Mapping[str, Any]) -> Any:
        beyond()
