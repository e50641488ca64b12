"""Target `vllm_serve`: vLLM's own OpenAI-compatible server on one node."""

from __future__ import annotations

from . import RenderContext, RenderedServer
from .openai import Options, rendered

__all__ = ["NAME", "Options", "render"]

NAME = "vllm_serve"


def render(context: RenderContext, options: Options) -> RenderedServer:
    return rendered(NAME, context, options)
