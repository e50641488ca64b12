import os
from types import TracebackType

import tensorrt_llm

from .MPI import Communicator


class MPICommExecutor:
    """On every rank but the first, entering it works for the leader and gives nothing."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def __enter__(self) -> "MPICommExecutor | None":
        tensorrt_llm.log(os.environ.get("ENGINE_LOG"), "work", rank=self._comm.Get_rank())
        return self if self._comm.Get_rank() == 0 else None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None
