"""Arguments, code and files of other programs, which are no options of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline

MODEL = "vllmConfig: {maxModelLen: 1024, gpuMemoryUtilization: 0.9}"
CHART = f"""\
servingEngineSpec:
  modelSpec:
    - name: one
      repository: vllm/vllm-openai
      tag: v0.20.0
      modelURL: some/model
      {MODEL}
"""
DOCKER = """\
steps:
- name: gcr.io/cloud-builders/docker
  args: [build, --build-arg, VLLM_VERSION=1, -t, example/vllm-openai:v0.20.0, -f, Dockerfile, .]
- name: gcr.io/cloud-builders/docker
  args: [push, example/vllm-openai:v0.20.0, --quiet]
images: ["vllm/vllm-openai:v0.20.0"]
"""
WORKFLOW = """\
jobs:
  build:
    steps:
      - uses: docker/build-push-action@v6
        with: {tags: "vllm/vllm-openai:v0.20.0", args: [--squash, --no-cache-filter=x]}
      - run: docker build -t vllm/vllm-openai:v0.20.0 --platform linux/amd64 .
      - run: kubectl set image deployment/x one=vllm/vllm-openai:v0.20.0 --record
"""
CODE = """\
#!/bin/bash
python3 -c 'print("trtllm-serve m --bogus 3")'
python3 -uc "import sys; sys.exit('vllm serve m --bogus 3')"
perl -e 'print "trtllm-serve m --bogus 3"'
node --eval 'console.log("vllm serve m --bogus 3")'
srun python3 -c 'print("trtllm-serve m --bogus 3")'
trtllm-serve some/model --tp_size 2
"""
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: one}
spec:
  containers:
    - name: one
      image: vllm/vllm-openai:v0.20.0
      command: [python3, -c, "print('vllm serve m --bogus 3; trtllm-serve m --bogus 3')"]
"""
# Files whose arguments, words and keys are for another program.
OTHERS = {
    "a router's arguments": (
        "values.yaml",
        f"{CHART}routerSpec:\n  extraArgs: [--routing-logic, session, --log-level, info]\n",
    ),
    "arguments of which none is the engine's": (
        "values.yaml",
        f"{CHART}cache:\n  extraArgs: [--prefill-model-labels, a, --l1-size-gb, '4']\n",
    ),
    "arguments of another engine": (
        "values.yaml",
        f"{CHART}other:\n  args: [--model-path, m, --port, '80', --host, x, --trust-remote-code]\n",
    ),
    "a build service": ("cloudbuild.yaml", DOCKER),
    "a workflow": ("workflow.yaml", WORKFLOW),
    "code of other languages": ("run.sh", CODE),
    "code of a pod": ("pod.yaml", POD),
    "options of another engine": (
        "sglang.yaml",
        "tp: 8\ntrust-remote-code: true\ndp-size: 4\nport: 8000\n",
    ),
    "keys that begin like the engine's": (
        "coverage.yaml",
        "profile: cover.out\nlocal-prefix: example.com/x\nexclude: {paths: [x]}\n",
    ),
    "flags of a command": (
        "bench.yaml",
        "tp_size: 4\npp_size: 1\nbackend: pytorch\nkv_cache_free_gpu_mem_fraction: 0.9\n",
    ),
    "a model's configuration in JSON": (
        "model.json",
        '{"name": "m", "max_batch_size": 8, "input": [], "output": [], "platform": "x"}',
    ),
}


def errors(folder: Path, name: str, text: str) -> list[tuple[int, str, str]]:
    (folder / name).write_text(text)
    report = lint.check([folder / name], lint.CheckOptions(), pipeline.deployment_diagnostics)
    rows = (row for row in report.findings if row.severity == "error" or "unknown" in row.rule)
    return [(row.location.line, row.rule, row.path) for row in rows if row.rule != "unknown-kind"]


@pytest.mark.parametrize("case", OTHERS)
def test_nothing_of_another_program_is_taken_for_the_engines(case: str, tmp_path: Path) -> None:
    assert errors(tmp_path, *OTHERS[case]) == []


@pytest.mark.parametrize(
    ("name", "text", "path"),
    [
        ("v.yaml", CHART.replace("0.9}", "0.9, extraArgs: [--unlike-any]}"), "--unlike-any"),
        (
            "v.yaml",
            CHART.replace("0.9}", "0.9}\n      extraArgs: [--max-modl-len, '8']"),
            "--max-modl-len",
        ),
        ("m.yaml", "max-model-len: 8\nmem-fraction-static: 0.9\n", "mem-fraction-static"),
        ("o.yaml", "tp_size: 4\nmax_batch_size: 8\n", "tp_size"),
        ("r.sh", "bash -c 'trtllm-serve some/model --bogus 3'\n", "--bogus"),
        ("r.sh", "docker run vllm/vllm-openai:v0.20.0 --model m --bogus 3\n", "--bogus"),
        (
            "p.yaml",
            POD.replace("python3, -c,", "bash, -c,").replace("print('", "true; ("),
            "--bogus",
        ),
    ],
)
def test_what_is_for_the_engine_is_read_as_before(
    name: str, text: str, path: str, tmp_path: Path
) -> None:
    assert path in {row[2] for row in errors(tmp_path, name, text)}
