"""The names that programs import from `tensorrt_llm.llmapi`."""

from ..guide import GuidedDecodingParams
from ..results import CompletionOutput, RequestError, RequestOutput
from ..sampling import SamplingParams
from .llm import LLM

__all__ = [
    "LLM",
    "CompletionOutput",
    "GuidedDecodingParams",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
]
