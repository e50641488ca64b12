"""A deployment with three layouts to tune, and an engine whose speeds and failures are planted."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

DEPLOYMENT = """\
name: {name}
checkpoint: nvidia/Llama-3.3-70B-Instruct-FP8
hardware: {{gpu: h100, num_gpus: 4}}
engine: {{release: 1.2.1}}
workload: {{isl: 64, osl: 8, concurrency: 4}}
targets: [trtllm_serve]
engine_config:
  max_batch_size: 4
  max_num_tokens: 8192
  disable_overlap_scheduler: false
  enable_chunked_prefill: false
  cuda_graph_config: {{batch_sizes: [1, 2, 4]}}
  kv_cache_config: {{free_gpu_memory_fraction: 0.8}}
"""
PROGRAM = f"""\
#!/bin/sh
PYTHONPATH={ROOT} exec {sys.executable} -m tests.launch.tune.planted_server "$@"
"""


class Planted:
    """A deployment file next to the program that serves it; `arguments` tune it in seconds."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.output = folder, folder / "out"
        self.deployment = folder / "deployment.yaml"
        self.deployment.write_text(DEPLOYMENT.format(name=name))
        program = folder / "bin" / "trtllm-serve"
        program.parent.mkdir()
        program.write_text(PROGRAM)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self.environment = {
            "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            "PLANTED": str(folder / "planted.json"),
        }

    def plant(self, effects: Mapping[str, Mapping[str, Any]]) -> None:
        (self.folder / "planted.json").write_text(json.dumps(effects))

    def arguments(self, *more: str) -> list[str]:
        return [
            *("tune", str(self.deployment), "--gpu-hours", "9", "--engine", "tensorrt_llm"),
            *("--requests", "8", "--gain", "0", "--output", str(self.output), *more),
        ]

    def lines(self, event: str = "") -> list[dict[str, Any]]:
        """The whole lines of the ledger, of one event or of all."""
        file = self.output / "tune.jsonl"
        text = file.read_text() if file.exists() else ""
        rows = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [row for row in rows if event in ("", row["event"])]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    made = Planted(tmp_path, "planted")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made
