"""A `trtllm-serve` with planted speeds and failures, in the place of the engine's.

`PLANTED` names a JSON file: for an option's path, `=` and a value, what the server does with it.
`tpot_ms` is the time per token, and `fail` a failure; the last option that matches decides.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from tests.launch.faulty_server import Handler, Server

# What a start prints before it fails, in the words of TensorRT-LLM.
LOADING = "Loading safetensors weights in parallel: 10%\n"
GRAPHS = "Creating CUDA graph instances for 4 batch sizes.\n"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
LOGS = {
    "memory_at_load": LOADING + MEMORY,
    "memory_at_graphs": LOADING + GRAPHS + MEMORY,
    "refused_option": (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for TorchLlmArgs\n"
        "tensor_parallel_size\n"
        "  Input should be a valid integer [type=int_type, input_value='x', input_type=str]\n"
    ),
    "unknown": "something went wrong\n",
}
SLOW_S = 600.0
OSL = 8  # of the deployment; smoke checks stream more tokens


class Planted(Handler):
    disable_nagle_algorithm = True  # each token is sent when it is there
    tpot_ms = 4.0

    def _stream(self, tokens: list[str], reason: str) -> None:
        if self.server.fault == "died_under_load" and len(tokens) == OSL:
            os._exit(9)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for index, token in enumerate(tokens):
            time.sleep(self.tpot_ms / 1000)
            choice = {"text": token, "finish_reason": None if token is not tokens[-1] else reason}
            usage = {
                "prompt_tokens": 64,
                "completion_tokens": index + 1,
                "total_tokens": 65 + index,
            }
            chunk = {"choices": [choice], "usage": usage}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")


def effects(options: dict[str, Any], planted: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for condition, effect in planted.items():
        path, _, wanted = condition.partition("=")
        value: Any = options
        for name in path.split("."):
            value = (value or {}).get(name)
        if json.dumps(value) == wanted:
            found |= effect
    return found


def main() -> None:
    words = sys.argv[1:]
    named = dict(pairwise(words))
    options = yaml.safe_load(Path(named["--extra_llm_api_options"]).read_text())
    found = effects(options, json.loads(Path(os.environ["PLANTED"]).read_text()))
    fault = found.get("fail", "")
    if fault in LOGS:
        print(LOGS[fault], end="", flush=True)
        sys.exit(1)
    if fault == "timeout":
        time.sleep(SLOW_S)
    Planted.tpot_ms = found.get("tpot_ms", Planted.tpot_ms)
    fault = {"wrong_answer": "wavers"}.get(fault, fault)
    Server(fault, int(named["--port"]), Planted).serve_forever()


if __name__ == "__main__":
    main()
