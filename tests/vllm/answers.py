"""What is asked of vLLM, launched or supervised, and what must be true of its answers.

Its greedy tokens are those of the reference engine up to arithmetic: where both first choose
differently, vLLM itself gives both choices nearly the same probability.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.conftest import ROOT
from tests.vllm.conftest import Served

PROMPTS = [f"A short text about {topic}:" for topic in ("rivers", "bread", "winter", "music")]
TOKENS = 24
# How far apart in log probability two choices are that BF16 may swap.
NEAR = 0.05
WARNED = {
    *("N3.input", "N3.name"),  # it passes over fields that it does not know
    "P21",  # random weights write blanks for ever
    "P7.batch",
}


def passed(document: Any) -> None:
    """What a run of the smoke suite says of vLLM."""
    found = {one["id"]: one for one in document["results"]}
    assert found["P3"]["evidence"].startswith("vllm serve 0.32.0, model")
    assert "the engine ended after" in found["N10"]["evidence"]  # the cancellation reached it
    assert {one["id"] for one in found.values() if one["outcome"] == "failed"} == set()
    assert {one["id"] for one in found.values() if one["outcome"] == "warned"} <= WARNED


def greedy_tokens_are_the_reference_engines(served: Served) -> None:
    """The same for the same prompt again, too."""
    for prompt, expected in zip(PROMPTS, reference(served), strict=True):
        found, again = (completion(served, prompt) for _ in range(2))
        assert found["token_ids"] == again["token_ids"]
        different = [i for i in range(TOKENS) if found["token_ids"][i] != expected[i]]
        if different:
            first = different[0]
            likely = sorted(found["logprobs"]["top_logprobs"][first].values(), reverse=True)
            assert likely[0] - likely[1] < NEAR, (prompt, first, likely)


def completion(served: Served, prompt: str) -> dict[str, Any]:
    asked = {"max_tokens": TOKENS, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    body = {"model": served.model, "prompt": prompt, "return_token_ids": True, **asked}
    [choice] = served.post("/v1/completions", **body)["choices"]
    return dict(choice)


def reference(served: Served) -> list[list[int]]:
    """What the reference engine chooses with the same weights, in a process of its own."""
    folder = str(ROOT / "launch" / "reference")
    words = [folder, str(served.miniature), str(TOKENS), json.dumps(PROMPTS)]
    command = [sys.executable, "-c", REFERENCE, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return found


REFERENCE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tensorrt_llm import LLM, SamplingParams
params = SamplingParams(max_tokens=int(sys.argv[3]), temperature=0.0, ignore_eos=True)
with LLM(sys.argv[2]) as llm:
    answers = [llm.generate_async(one, params).result() for one in json.loads(sys.argv[4])]
    print(json.dumps([list(one.outputs[0].token_ids) for one in answers]))
"""


@contextmanager
def a_stream(served: Served) -> Iterator[Iterator[str]]:
    """The lines of a long answer after its first one."""
    body = {"model": served.model, "prompt": "Once", "max_tokens": 256, "ignore_eos": True}
    address = f"{served.url}/v1/completions"
    with httpx.stream("POST", address, json={**body, "stream": True}, timeout=120) as answer:
        lines = (line for line in answer.iter_lines() if line)
        assert next(lines).startswith("data: ")
        yield lines


def nothing_is_left(found: Callable[[], set[int]]) -> None:
    deadline_s = time.monotonic() + 30
    while found() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert found() == set()
