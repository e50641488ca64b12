"""The names that programs import from `tensorrt_llm.llmapi`."""

from ..results import CompletionOutput, RequestError, RequestOutput
from ..sampling import GuidedDecodingParams, SamplingParams
from .llm import LLM

__all__ = [
    "LLM",
    "CompletionOutput",
    "GuidedDecodingParams",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
]
