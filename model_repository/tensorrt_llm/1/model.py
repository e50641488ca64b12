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

import model_engine
import model_memory
import model_settings
import triton_python_backend_utils as pb_utils
from model_generation import Generations, Refused
from model_inputs import Invalid, scalar
from model_metrics import Outcome
from model_reply import Reply
from model_request import parameters, parse
from model_response import Tensors
from model_stop import Stop
from model_watch import Watch

SHUTDOWN_TIMEOUT_S = 30.0
DEAD_SHUTDOWN_TIMEOUT_S = 5.0


class TritonPythonModel:
    """One engine, any number of concurrent requests; `execute` never waits for one."""

    _engine: model_engine.Engine | None = None
    _generations: Generations
    _watch: Watch
    _stop: Stop

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Batch size and transaction policy have one home: model.yaml."""
        settings = _settings()
        config.set_model_transaction_policy({"decoupled": settings.decoupled})
        config.set_max_batch_size(settings.max_batch_size)
        return config

    def initialize(self, args: dict[str, str]) -> None:
        model_memory.close_to_others()
        self._settings = settings = _settings()
        try:
            if not model_engine.is_leader():
                pb_utils.Logger.log_info("this rank works for the leader's engine")
                model_engine.work_for_leader()
                return
            pb_utils.Logger.log_info(f"engine options: {dict(settings.engine_options)}")
            limit = settings.max_tokens_per_request
            self._engine = model_engine.Engine(settings.engine_options, limit)
        except Exception as fault:
            pb_utils.Logger.log_error(traceback.format_exc())
            raise pb_utils.TritonModelException(
                f"the engine did not start: {type(fault).__name__}: {fault}"
            ) from fault
        tensors = Tensors(json.loads(args["model_config"]))
        labels = (args["model_name"], args["model_version"])
        self._generations = Generations(self._engine, tensors, settings, labels)
        self._watch = Watch(self._engine, self._generations, settings)
        self._stop = Stop(self._end)

    def execute(self, requests: list[Any]) -> None:
        """Start every request; each answers through its own response sender."""
        codes = pb_utils.TritonError
        for request in requests:
            reply = Reply(request.get_response_sender())
            try:
                with self._stop.gate:
                    self._start(request, reply)
            except Invalid as fault:
                self._refuse(reply, codes.INVALID_ARG, str(fault), "invalid")
            except Refused as fault:
                self._refuse(reply, codes.UNAVAILABLE, str(fault), "refused")
            except Exception as fault:
                pb_utils.Logger.log_error(traceback.format_exc())
                self._refuse(reply, codes.INTERNAL, f"{type(fault).__name__}: {fault}", "failed")

    def is_ready(self) -> bool:
        """Asked by Triton for the model's readiness, by releases newer than 26.02."""
        return self._engine is None or self._generations.death.reason is None

    def finalize(self) -> None:
        if self._engine is not None:
            self._stop.unload()
            self._engine = None
            gc.collect()  # engines over several GPUs keep their processes while references are left

    def _end(self) -> None:
        """Let running requests end, then the engine."""
        assert self._engine is not None
        late = self._generations.drain(self._settings.drain_timeout_s)
        if late:
            pb_utils.Logger.log_warn(f"{late} requests were cancelled to unload the model")
        self._watch.close()
        death = self._generations.death
        if death.reason is not None:
            self._engine.shutdown(DEAD_SHUTDOWN_TIMEOUT_S)
            death.strike()
        if not self._engine.shutdown(SHUTDOWN_TIMEOUT_S):
            pb_utils.Logger.log_warn("the engine did not shut down in time")

    def _start(self, request: Any, reply: Reply) -> None:
        if self._stop.is_asked:
            raise Refused("the server is about to end; retry elsewhere or later")
        inputs = _inputs(request)
        request_id = request.request_id()
        if not scalar(inputs, "stop", False):
            parsed = parse(inputs, parameters(request), self._settings.decoupled)
            self._generations.start(request_id, parsed, reply)
        elif request_id:
            self._generations.stop(request_id, reply)
        else:
            raise Invalid(
                "stop: is true, but the request has no id; send that of the request to stop"
            )

    def _refuse(self, reply: Reply, code: int, message: str, outcome: Outcome) -> None:
        self._generations.meter.ended(outcome)
        reply.fail(code, message)


def _inputs(request: Any) -> dict[str, Any]:
    inputs = {}
    for tensor in request.inputs():
        try:
            inputs[tensor.name()] = tensor.as_numpy()
        except Exception as fault:  # of Triton's own, without a class: bytes that are no strings
            raise Invalid(f"{tensor.name()}: cannot be read: {fault}") from fault
    return inputs


def _settings() -> model_settings.Settings:
    try:
        return model_settings.read()
    except ValueError as fault:
        raise pb_utils.TritonModelException(str(fault)) from fault
