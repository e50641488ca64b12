"""The reference engine on the path, and engines that the tests of a session share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT

REFERENCE = ROOT / "launch" / "reference"
sys.path.insert(0, str(REFERENCE))

from tensorrt_llm import LLM, RequestOutput, SamplingParams  # noqa: E402

# Of models this small, more threads wait for each other longer than they compute.
torch.set_num_threads(1)

DEEPSEEK = "nvidia/DeepSeek-V3.2-NVFP4"
QWEN = "nvidia/Qwen3.5-397B-A17B-NVFP4"
LLAMA = "llama-tiny"

EngineOf = Callable[..., LLM]


@pytest.fixture(scope="session")
def engine(make_miniature: Callable[[str], Path]) -> Iterator[EngineOf]:
    """A running engine on the miniature of a checkpoint; one per set of options and session."""
    engines: dict[str, LLM] = {}

    def start(name: str = LLAMA, **options: Any) -> LLM:
        key = json.dumps([name, options], sort_keys=True)
        if key not in engines:
            engines[key] = LLM(make_miniature(name), **options)
        return engines[key]

    yield start
    for running in engines.values():
        running.shutdown()


def generate(llm: LLM, prompts: Iterable[Any], params: SamplingParams) -> list[RequestOutput]:
    """The answers to prompts that run at the same time."""
    requests = [llm.generate_async(prompt, params) for prompt in prompts]
    return [request.result(60) for request in requests]


def mtp(tokens: int) -> dict[str, Any]:
    return {"decoding_type": "MTP", "num_nextn_predict_layers": tokens}
