"""The TensorRT-LLM engine behind this model: its start on one or many ranks, requests, its end.

`tensorrt_llm` is imported when the engine starts and not before: its import initialises CUDA and
MPI, which must not happen in the process that Triton uses to complete the configuration. What an
engine can do is asked of the engine itself: names of parameters are those of its classes and
methods, so that a release may have more or fewer.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from .chat import Chat
from .inputs import RequestError
from .request import Request
from .sampling import PREFIX

# Words in the engine's exception for a prompt that is too long; its type is that of any failure.
LENGTH_LIMITS = ("max_num_tokens", "max_seq_len", "max_input_len", "default_max_tokens")
STATISTICS_TIMEOUT_S = 0.5
# Sampling parameters that hold token ids.
TOKEN_LISTS = ("stop_token_ids", "bad_token_ids", "top_p_reset_ids")


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


class LlmEngine:
    """A started engine. Raises whatever the engine raises when it cannot start."""

    def __init__(self, options: Mapping[str, Any], max_tokens: int | None = None) -> None:
        import tensorrt_llm
        from tensorrt_llm import LLM, SamplingParams
        from tensorrt_llm._utils import global_mpi_size
        from tensorrt_llm.llmapi import GuidedDecodingParams
        from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict

        arguments = update_llm_args_with_extra_dict({}, dict(options))
        if global_mpi_size() > 1:
            from mpi4py.MPI import COMM_WORLD

            from tensorrt_llm.llmapi import MpiCommSession  # type: ignore[attr-defined]

            session = MpiCommSession(comm=COMM_WORLD, n_workers=COMM_WORLD.Get_size())
            arguments["_mpi_session"] = session
        self._max_tokens = max_tokens
        self.version = str(getattr(tensorrt_llm, "__version__", "unknown"))
        self.has_statistics = bool(options.get("enable_iter_perf_stats"))
        self._llm = LLM(**arguments)
        self._tokenizer = getattr(self._llm, "tokenizer", None)
        self._num_token_ids = _num_token_ids(self._tokenizer)
        self._sampling_params: Any = SamplingParams
        self._sampling_names = _names(SamplingParams)
        self._guided_decoding_params: Any = GuidedDecodingParams
        self._accepted = inspect.signature(self._llm.generate_async).parameters

    def prepare(self, request: Request) -> dict[str, Any]:
        """What to submit for the request. Raises `RequestError` if the engine cannot serve it."""
        sampling = self._sampling(request)
        wanted, most = sampling.max_tokens, self._max_tokens
        if most is not None and (wanted is None or wanted > most):
            what = "is missing" if wanted is None else f"is {wanted}"
            raise RequestError(
                f"sampling_param_max_tokens: {what}; this server allows at most {most}"
            )
        # Not every release has these: tracing goes without, a priority is refused.
        if request.priority is not None and "priority" not in self._accepted:
            raise RequestError("priority: this engine's release has no priorities; leave it out")
        given = {"priority": request.priority, "trace_headers": request.trace_headers}
        return {
            "inputs": self._tokenized(self._prompt(request), sampling),
            "sampling_params": sampling,
            "streaming": request.streaming,
            **{
                name: value
                for name, value in given.items()
                if value is not None and name in self._accepted
            },
        }

    def submit(self, arguments: Mapping[str, Any]) -> Any:
        """The engine's result: iterated asynchronously it gives cumulative outputs; it can abort.

        To be called on the thread of the event loop that iterates it. Raises `RequestError`
        where the engine refuses what was prepared.
        """
        try:
            return self._llm.generate_async(**arguments)
        except ValueError as fault:
            raise RequestError(str(fault)) from fault

    def is_alive(self) -> bool:
        """Whether the engine says that it can serve. It is asked in the way of trtllm-serve."""
        check = getattr(self._llm, "_check_health", None)
        return check is None or bool(check())

    async def kv_cache_utilization(self) -> float | None:
        """Used share of the KV cache's blocks, 0 to 1, in the newest statistics there are."""
        newest = None
        if self.has_statistics:
            async for statistics in self._llm.get_stats_async(timeout=STATISTICS_TIMEOUT_S):
                newest = statistics
        blocks = (newest or {}).get("kvCacheStats")
        if not blocks or not blocks["maxNumBlocks"]:
            return None
        return float(blocks["usedNumBlocks"] / blocks["maxNumBlocks"])

    def shutdown(self, timeout_s: float) -> bool:
        thread = threading.Thread(target=self._llm.shutdown, name="engine shutdown", daemon=True)
        thread.start()
        thread.join(timeout_s)
        return not thread.is_alive()

    def _prompt(self, request: Request) -> str | list[int]:
        """What the engine reads. Raises `RequestError` for what it cannot."""
        if isinstance(request.prompt, Chat):
            return request.prompt.render(self._tokenizer)
        if not isinstance(request.prompt, str):
            self._check_tokens("input_ids", request.prompt)
        return request.prompt

    def _sampling(self, request: Request) -> Any:
        """The engine's SamplingParams. Raises `RequestError` for what it does not know or allow."""
        given = request.sampling
        for name, value in given.items():
            if not _has(self._sampling_names, name):
                raise RequestError(f"{PREFIX}{name}: this engine's release has no such parameter")
            if name in TOKEN_LISTS:
                self._check_tokens(PREFIX + name, value if isinstance(value, list) else [value])
        guide = given.get("guided_decoding")
        try:
            if guide is None:
                return self._sampling_params(**given)
            guided = self._guided(guide)
            return self._sampling_params(**{**given, "guided_decoding": guided})
        except ValueError as fault:
            raise RequestError(str(fault)) from fault

    def _guided(self, guide: Mapping[str, Any]) -> Any:
        [name] = guide
        where = f"{PREFIX}guided_decoding_{name}"
        options = getattr(self._llm, "args", None)
        if getattr(options, "guided_decoding_backend", None) is None:
            what = "this engine was started without guided decoding"
            raise RequestError(f"{where}: {what}; set guided_decoding_backend in model.yaml")
        if not _has(_names(self._guided_decoding_params), name):
            raise RequestError(f"{where}: this engine's release has no such guide")
        return self._guided_decoding_params(**guide)

    def _check_tokens(self, name: str, ids: Iterable[int]) -> None:
        """An id that the model has no row for is a fault of the GPU, which ends the engine."""
        highest = max(ids)
        if self._num_token_ids is not None and highest >= self._num_token_ids:
            most = self._num_token_ids - 1
            raise RequestError(f"{name}: holds {highest}; this model's token ids are 0 to {most}")

    def _tokenized(self, prompt: str | list[int], sampling: Any) -> str | list[int]:
        """The token ids of a text, by the engine's own way, which trtllm-serve takes in a thread.

        Left to `submit`, 100,000 tokens would hold up the streams of all requests for 0.2 s.
        """
        process: Any = getattr(self._llm, "input_processor", None)
        if process is None or not isinstance(prompt, str):
            return prompt
        try:
            ids, more = process({"prompt": prompt}, sampling)
        except ValueError as fault:
            raise RequestError(str(fault)) from fault
        tokens: list[int] = ids
        return prompt if more else tokens


def blames_request(fault: BaseException) -> bool:
    """Whether the client can cure this fault by sending something else."""
    return isinstance(fault, RequestError) or any(limit in str(fault) for limit in LENGTH_LIMITS)


def _names(callee: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(callee).parameters


def _has(names: Mapping[str, inspect.Parameter], name: str) -> bool:
    return name in names or any(one.kind is one.VAR_KEYWORD for one in names.values())


def _num_token_ids(tokenizer: Any) -> int | None:
    """The size of the vocabulary with its added tokens; the engine wraps the tokenizer.

    `None` where the tokenizer does not tell: the engine then checks the ids itself.
    """
    inner = getattr(tokenizer, "tokenizer", tokenizer)
    return len(inner) if hasattr(inner, "__len__") else None
