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
import model_request
import model_settings
import triton_python_backend_utils as pb_utils
from model_generation import Generations
from model_request import Invalid
from model_response import Reply, Tensors

# Triton 2.51 finalizes a model when its last stream has ended; others may do it with streams open.
DRAIN_TIMEOUT_S = 240.0


class TritonPythonModel:
    """One engine, any number of concurrent requests; `execute` never waits for one."""

    _engine: model_engine.Engine | None = None
    _generations: Generations

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Batch size and transaction policy have one home: model.yaml."""
        settings = _settings()
        config.set_model_transaction_policy({"decoupled": settings.decoupled})
        config.set_max_batch_size(settings.max_batch_size)
        return config

    def initialize(self, args: dict[str, str]) -> None:
        self._settings = _settings()
        model_config = json.loads(args["model_config"])
        try:
            if not model_engine.is_leader():
                pb_utils.Logger.log_info("this rank works for the leader's engine")
                model_engine.work_for_leader()
                return
            pb_utils.Logger.log_info(f"engine options: {dict(self._settings.engine_options)}")
            self._engine = model_engine.Engine(self._settings.engine_options)
        except Exception as fault:
            pb_utils.Logger.log_error(traceback.format_exc())
            raise pb_utils.TritonModelException(
                f"the engine did not start: {type(fault).__name__}: {fault}"
            ) from fault
        self._generations = Generations(
            self._engine, Tensors(model_config), self._settings.cancellation_check_period_s
        )

    def execute(self, requests: list[Any]) -> None:
        """Start every request; each answers through its own response sender."""
        for request in requests:
            reply = Reply(request.get_response_sender())
            try:
                self._start(request, reply)
            except Invalid as fault:
                reply.fail(pb_utils.TritonError.INVALID_ARG, str(fault))
            except Exception as fault:
                pb_utils.Logger.log_error(traceback.format_exc())
                reply.fail(pb_utils.TritonError.INTERNAL, f"{type(fault).__name__}: {fault}")

    def finalize(self) -> None:
        if self._engine is None:
            return
        late = self._generations.drain(DRAIN_TIMEOUT_S)
        if late:
            pb_utils.Logger.log_warn(f"{late} requests were cancelled to unload the model")
        if not self._engine.shutdown():
            pb_utils.Logger.log_warn("the engine did not shut down in time")
        self._engine = None
        gc.collect()  # engines over several GPUs keep their processes while references are left

    def _start(self, request: Any, reply: Reply) -> None:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        request_id = request.request_id()
        if not model_request.scalar(inputs, "stop", False):
            parsed = model_request.parse(inputs, self._settings.decoupled)
            self._generations.start(request_id, parsed, reply)
        elif request_id:
            self._generations.stop(request_id, reply)
        else:
            raise Invalid(
                "stop: is true, but the request has no id; send that of the request to stop"
            )


def _settings() -> model_settings.Settings:
    try:
        return model_settings.read()
    except ValueError as fault:
        raise pb_utils.TritonModelException(str(fault)) from fault
