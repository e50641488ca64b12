"""The Triton model that serves a TensorRT-LLM engine: Triton's side of the contract.

It takes the inputs and gives the outputs of the `llmapi` model that NVIDIA publishes, so that its
clients work unchanged, with these differences: streams carry new text instead of all text so far,
and outputs have their declared data types.
"""

from __future__ import annotations

import gc
import json
import traceback
from typing import Any

import triton_python_backend_utils as pb_utils
from trtllm_model import engine, parameters, settings
from trtllm_model.generation import Generations, refused
from trtllm_model.inputs import RequestError, check_size, scalar
from trtllm_model.request import parse
from trtllm_model.response import ResponseSender
from trtllm_model.termination import Shutdown
from trtllm_model.unary import RequestListener, is_forwarded, make_shared_memory_private
from trtllm_model.watchdog import Watchdog, has_clients

SHUTDOWN_TIMEOUT_S = 30.0
FAILED_SHUTDOWN_TIMEOUT_S = 5.0


class TritonPythonModel:
    """One engine, any number of concurrent requests; `execute` never waits for one."""

    _engine: engine.LlmEngine | None = None
    _listener: RequestListener
    _generations: Generations
    _watchdog: Watchdog
    _shutdown: Shutdown

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Batch size and transaction policy have one home: model.yaml."""
        settings = _settings()
        config.set_model_transaction_policy({"decoupled": settings.decoupled})
        config.set_max_batch_size(settings.max_batch_size)
        return config

    def initialize(self, args: dict[str, str]) -> None:
        make_shared_memory_private()
        self._settings = settings = _settings()
        try:
            if not engine.is_leader():
                pb_utils.Logger.log_info("this rank works for the leader's engine")
                engine.work_for_leader()
                return
            pb_utils.Logger.log_info(f"engine options: {dict(settings.engine_options)}")
            limit = settings.max_tokens_per_request
            self._engine = engine.LlmEngine(settings.engine_options, limit)
        except Exception as fault:
            pb_utils.Logger.log_error(traceback.format_exc())
            raise pb_utils.TritonModelException(
                f"the engine did not start: {type(fault).__name__}: {fault}"
            ) from fault
        config = json.loads(args["model_config"])
        self._inputs, dtypes = _dtypes(config["input"]), _dtypes(config["output"])
        self._outputs = dtypes.keys()
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self._generations = Generations(self._engine, dtypes, settings, labels)
        self._watchdog = Watchdog(self._engine, self._generations, settings)
        self._listener = RequestListener(args["model_name"], self._answer)
        self._shutdown = Shutdown(self._end)  # which may end all of the above from now on
        self._listener.start()

    def execute(self, requests: list[Any]) -> None:
        """Start every request; each answers through its own response sender."""
        for request in requests:
            self._answer(request, request.get_response_sender())

    def _answer(self, request: Any, triton_sender: Any) -> None:
        sender = ResponseSender(triton_sender)
        try:
            with self._shutdown.gate:
                self._start(request, sender)
        except RequestError as error:
            self._refuse(sender, error)
        except Exception as fault:
            pb_utils.Logger.log_error(traceback.format_exc())
            message = f"{type(fault).__name__}: {fault}"
            self._refuse(sender, RequestError(message, "INTERNAL", "failed"))

    def is_ready(self) -> bool:
        """Asked by Triton for the model's readiness, by releases newer than 26.02."""
        return self._engine is None or self._generations.failure.reason is None

    def finalize(self) -> None:
        if self._engine is not None:
            self._shutdown.unload()
            self._engine = None
            gc.collect()  # engines over several GPUs keep their processes while references are left

    def _end(self) -> None:
        """Let running requests end, then the engine."""
        assert self._engine is not None
        late = self._generations.drain(self._settings.drain_timeout_s, has_clients)
        if late:
            pb_utils.Logger.log_warn(f"{late} requests were cancelled to unload the model")
        self._watchdog.close()
        self._listener.close()
        failure = self._generations.failure
        if failure.reason is not None:
            self._engine.shutdown(FAILED_SHUTDOWN_TIMEOUT_S)
            failure.terminate()
        if not self._engine.shutdown(SHUTDOWN_TIMEOUT_S):
            pb_utils.Logger.log_warn("the engine did not shut down in time")

    def _start(self, request: Any, sender: ResponseSender) -> None:
        if self._shutdown.is_requested:
            raise refused("the server is about to end; retry elsewhere or later")
        sent = parameters.read(request)
        inputs, own = parameters.as_inputs(sent, _arrays(request), self._inputs)
        check_size(inputs, self._settings.max_prompt_bytes)
        request_id = request.request_id()
        if not scalar(inputs, "stop", False):
            decoupled = self._settings.decoupled and not is_forwarded(request)
            named = set(request.requested_output_names())
            named = named if named < self._outputs else set()  # all are named by nobody
            parsed = parse(inputs, own, decoupled, named)
            self._generations.start(request_id, parsed, sender)
        elif request_id:
            self._generations.stop(request_id, sender)
        else:
            raise RequestError(
                "stop: is true, but the request has no id; send that of the request to stop"
            )

    def _refuse(self, sender: ResponseSender, error: RequestError) -> None:
        self._generations.metrics.record_end(error.outcome)
        sender.fail(error)


def _dtypes(tensors: list[dict[str, Any]]) -> dict[str, Any]:
    return {row["name"]: pb_utils.triton_string_to_numpy(row["data_type"]) for row in tensors}


def _arrays(request: Any) -> dict[str, Any]:
    arrays = {}
    for tensor in request.inputs():
        try:
            arrays[tensor.name()] = tensor.as_numpy()
        except Exception as fault:  # of Triton's own, without a class: bytes that are no strings
            raise RequestError(f"{tensor.name()}: cannot be read: {fault}") from fault
    return arrays


def _settings() -> settings.Settings:
    try:
        return settings.read()
    except ValueError as fault:
        raise pb_utils.TritonModelException(str(fault)) from fault
