"""The TensorRT-LLM engine behind this model: its start on one or many ranks, and its end.

`tensorrt_llm` is imported when the engine starts and not before: its import initialises CUDA and
MPI, which must not happen in the process that Triton uses to complete the configuration.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from model_request import Invalid, Request

# Where the engine finds a prompt too long it says so with one of these words, but in an exception
# of the same type as for faults of its own.
LENGTH_LIMITS = ("max_num_tokens", "max_seq_len", "max_input_len", "default_max_tokens")
SHUTDOWN_TIMEOUT_S = 30.0


def is_leader() -> bool:
    from tensorrt_llm._utils import global_mpi_rank

    return bool(global_mpi_rank() == 0)


def work_for_leader() -> None:
    """Lend this rank to the leader's engine until the leader shuts it down."""
    from mpi4py.futures import MPICommExecutor
    from mpi4py.MPI import COMM_WORLD

    with MPICommExecutor(COMM_WORLD) as executor:
        if executor is not None:
            raise RuntimeError(f"rank {COMM_WORLD.Get_rank()} was made leader of the MPI workers")


class Engine:
    """A started engine. Raises whatever the engine raises when it cannot start."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from tensorrt_llm import LLM, SamplingParams
        from tensorrt_llm._utils import global_mpi_size
        from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict

        arguments = update_llm_args_with_extra_dict({}, dict(options))
        if global_mpi_size() > 1:
            arguments["_mpi_session"] = _mpi_session()
        self._sampling_params = SamplingParams
        self._llm = LLM(**arguments)

    def submit(self, request: Request) -> Any:
        """The engine's result: iterated asynchronously it gives cumulative outputs; it can abort.

        Raises `Invalid` where the engine refuses the request's values.
        """
        try:
            sampling = self._sampling_params(**request.sampling)
            return self._llm.generate_async(request.prompt, sampling, streaming=request.streaming)
        except ValueError as fault:
            raise Invalid(str(fault)) from fault

    def shutdown(self) -> bool:
        """Whether the engine shut down in time."""
        thread = threading.Thread(target=self._llm.shutdown, name="engine shutdown", daemon=True)
        thread.start()
        thread.join(SHUTDOWN_TIMEOUT_S)
        return not thread.is_alive()


def blames_request(fault: BaseException) -> bool:
    """Whether the client can cure this fault by sending something else."""
    return isinstance(fault, Invalid) or any(limit in str(fault) for limit in LENGTH_LIMITS)


def _mpi_session() -> Any:
    from mpi4py.MPI import COMM_WORLD

    from tensorrt_llm.llmapi import MpiCommSession

    return MpiCommSession(comm=COMM_WORLD, n_workers=COMM_WORLD.Get_size())
