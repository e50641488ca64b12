from tensorrt_llm import LLM

__all__ = ["LLM", "GuidedDecodingParams"]


class GuidedDecodingParams:
    """There for its name: no request of the benchmark is guided."""
