"""The workload that the stand-in engine is asked for, which is its prompt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PromptWorkload:
    """`streams` requests of a batch get `tokens` each, one every `step_ms`."""

    batch: str
    streams: int
    tokens: int
    step_ms: float

    @classmethod
    def read(cls, prompt: str) -> PromptWorkload:
        words = dict(word.split("=", 1) for word in prompt.split())
        streams, tokens = int(words["streams"]), int(words["tokens"])
        return cls(words["batch"], streams, tokens, float(words["step_ms"]))
