from tensorrt_llm import LLM

__all__ = ["LLM"]
