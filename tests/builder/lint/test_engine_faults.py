"""A fault that has nothing to do with an engine is found for every engine, at its line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from builder import lint, pipeline


@dataclass(frozen=True)
class Engine:
    """How a file starts an engine: `serve` with a model, a worker of Dynamo, and its flags."""

    serve: str
    worker: str
    image: str
    options: str
    file_flag: str = "--config"
    size_flag: str = "--tensor-parallel-size"


ENGINES = {
    "tensorrt_llm": Engine(
        "trtllm-serve m/m --host 0.0.0.0",
        "python3 -m dynamo.trtllm --model-path m/m",
        "registry.local/llm:1",
        "max_batch_size: 64",
        size_flag="--tensor_parallel_size",
    ),
    "vllm": Engine(
        "vllm serve m/m --host 0.0.0.0",
        "python3 -m dynamo.vllm --model m/m",
        "registry.local/llm:1",
        "max-num-seqs: 64",
    ),
}

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: llm}
spec:
  containers:
  - name: server
    image: IMAGE
    command: [bash, -c]
    args: ["SERVE CONFIG /etc/llm/options.yaml"]
    ports: [{containerPort: 8000}]
    volumeMounts: [{name: options, mountPath: /etc/llm}]
    resources: {limits: {nvidia.com/gpu: 1}}
  volumes: [{name: options, configMap: {name: options}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: options}
data: {options.yaml: "OPTIONS"}
"""
# Its command says all that the server gets; an option file of vLLM may set ports and sizes.
PLAIN = POD.replace(" CONFIG /etc/llm/options.yaml", "")
COMPOSE = """\
services:
  one:
    image: IMAGE
    entrypoint: []
    command: SERVE CONFIG /etc/llm/options.yaml
    volumes: [./options.yaml:/etc/llm/options.yaml]
    ports: ["8000:8000"]
    deploy: {resources: {reservations: {devices: [{device_ids: ["0"], capabilities: [gpu]}]}}}
  two:
    image: IMAGE
    entrypoint: []
    command: SERVE --port 8001
    ports: ["8001:8001"]
    deploy: {resources: {reservations: {devices: [{device_ids: ["1"], capabilities: [gpu]}]}}}
"""
GRAPH = """\
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: graph}
spec:
  services:
    worker:
      componentType: worker
      resources: {limits: {gpu: "8"}}
      extraPodSpec:
        mainContainer: {image: x/y:1, command: [sh, -c], args: ["WORKER --tensor-parallel-size 8"]}
"""
SCRIPT = """\
#!/bin/bash
export NCCL_DEBUG=INFO
cat > /tmp/options.yaml <<EOF
OPTIONS
EOF
CUDA_VISIBLE_DEVICES=0 SERVE CONFIG /tmp/options.yaml --port 8000 &
CUDA_VISIBLE_DEVICES=1 SERVE --port 8001 &
wait
"""
DOCKER = """\
#!/bin/bash
docker run --gpus all -p 8000:8000 -v /data/llm:/etc/llm IMAGE SERVE CONFIG /etc/llm/options.yaml
"""

ALONE = DOCKER.replace(" CONFIG /etc/llm/options.yaml", "")

# What is put in the place of what, and the rule with the line that finds it.
FAULTS: dict[str, tuple[str, str, str, str, str, int]] = {
    "an option file that is written after the start": (
        "serve.sh", SCRIPT, "#!/bin/bash\n", "#!/bin/bash\nSERVE CONFIG /tmp/options.yaml &\n",
        "file-late", 2,
    ),
    "a path of the host": (
        "serve.sh", DOCKER, "CONFIG /etc/llm", "CONFIG /data/llm", "file-not-mounted", 2,
    ),
    "two servers on one port": (
        "serve.sh", SCRIPT, "--port 8001", "--port 8000", "port-taken", 7,
    ),
    "two servers on one GPU": (
        "serve.sh", SCRIPT,
        "SERVE CONFIG /tmp/options.yaml --port 8000 &\nCUDA_VISIBLE_DEVICES=1",
        "SERVE --port 8000 &\nCUDA_VISIBLE_DEVICES=0",
        "gpu-shared", 7,
    ),
    "another port than the published one": (
        "serve.sh", ALONE, "8000:8000", "8000:9000", "port-unreached", 2,
    ),
    "a misspelt variable of NCCL": (
        "serve.sh", SCRIPT, "NCCL_DEBUG", "NCCL_DEBGU", "misspelt-variable", 2,
    ),
    "a flag behind a lost backslash": (
        "serve.sh", SCRIPT, "SERVE --port 8001 &", "SERVE\n  --port 8001 &", "lost-flag", 8,
    ),
    "a here document without its end": (
        "serve.sh", SCRIPT, "EOF\nCUDA", "EOF \nCUDA", "here-document-end", 5,
    ),
    "two services on one port": (
        "compose.yaml", COMPOSE, "8001:8001", "8000:8001", "port-taken", 13,
    ),
    "two services on one GPU": (
        "compose.yaml", COMPOSE, '["1"]', '["0"]', "gpu-shared", 14,
    ),
    "a file under another path of the service": (
        "compose.yaml", COMPOSE, "CONFIG /etc/llm/options.yaml", "CONFIG /etc/options.yaml",
        "file-not-mounted", 5,
    ),
    "a file that is not in the config map": (
        "pod.yaml", POD, "CONFIG /etc/llm/options.yaml", "CONFIG /etc/llm/option.yaml",
        "missing-option-file", 9,
    ),
    "a config map that does not exist": (
        "pod.yaml", POD, "configMap: {name: options}}]", "configMap: {name: option}}]",
        "unknown-reference", 13,
    ),
    "a volume that does not exist": (
        "pod.yaml", POD, "volumeMounts: [{name: options", "volumeMounts: [{name: option",
        "unknown-reference", 11,
    ),
    "a port that nothing listens at": (
        "pod.yaml", PLAIN, "containerPort: 8000", "containerPort: 8001", "port-unreached", 10,
    ),
    "fewer GPUs than ranks": (
        "pod.yaml", PLAIN, "SERVE", "SERVE SIZE 2", "gpus-below-ranks", 12,
    ),
    "a resource that is misspelt": (
        "pod.yaml", POD, "nvidia.com/gpu: 1", "nvidia.com/gpus: 1", "misspelt-name", 12,
    ),
    "a number that is no port": (
        "serve.sh", SCRIPT, "--port 8001", "--port 80010", "flag-value", 7,
    ),
    "a variable that nothing sets": (
        "serve.sh", SCRIPT, "SERVE --port 8001", "LISTEN_PORT=8001\nSERVE --port $LISTEN_PROT",
        "misspelt-name", 8,
    ),
    "an option file that is overwritten": (
        "serve.sh", SCRIPT, "EOF\nCUDA", "EOF\ncat > /tmp/options.yaml <<EOF\nOPTIONS\nEOF\nCUDA",
        "file-overwritten", 6,
    ),
    "another number of GPUs as request": (
        "pod.yaml", POD, "{limits: {nvidia.com/gpu: 1}}",
        "{limits: {nvidia.com/gpu: 1}, requests: {nvidia.com/gpu: 2}}", "gpu-request", 12,
    ),
    "a probe of a path that the server does not have": (
        "pod.yaml", PLAIN, "    volumeMounts",
        "    livenessProbe: {httpGet: {path: /helth, port: 8000}}\n    volumeMounts",
        "unknown-probe", 11,
    ),
    "a probe of another port": (
        "pod.yaml", PLAIN, "    volumeMounts",
        "    livenessProbe: {httpGet: {path: /health, port: 8001}}\n    volumeMounts",
        "port-unreached", 11,
    ),
    "more GPUs than ranks": (
        "pod.yaml", PLAIN.replace("SERVE", "SERVE SIZE 1"),
        "nvidia.com/gpu: 1", "nvidia.com/gpu: 2", "gpus-idle", 12,
    ),
    "ranks of a worker without GPUs": (
        "graph.yaml", GRAPH, 'gpu: "8"', 'gpu: "4"', "gpus-below-ranks", 8,
    ),
}  # fmt: skip


def written(text: str, engine: Engine) -> str:
    for word, meant in (
        ("SERVE", engine.serve),
        ("WORKER", engine.worker),
        ("IMAGE", engine.image),
        ("OPTIONS", engine.options),
        ("CONFIG", engine.file_flag),
        ("SIZE", engine.size_flag),
    ):
        text = text.replace(word, meant)
    return text


def findings(folder: Path, file: str, text: str, engine: Engine) -> set[tuple[str, int]]:
    (folder / file).write_text(written(text, engine))
    (folder / "options.yaml").write_text(f"{engine.options}\n")
    report = lint.check([folder / file], lint.CheckOptions(), pipeline.deployment_diagnostics)
    ignored = ("unknown-model", "vulnerable-version", "unknown-version")
    return {(row.rule, row.location.line) for row in report.findings if row.rule not in ignored}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_for_each_engine(fault: str, engine: str, tmp_path: Path) -> None:
    file, text, old, new, rule, line = FAULTS[fault]
    assert text.count(old) == 1
    assert (rule, line) in findings(tmp_path, file, text.replace(old, new), ENGINES[engine])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pod.yaml", POD),
        ("compose.yaml", COMPOSE),
        ("graph.yaml", GRAPH),
        ("serve.sh", SCRIPT),
        ("serve.sh", DOCKER),
    ],
)
def test_a_file_without_the_fault_has_no_finding(
    file: str, text: str, engine: str, tmp_path: Path
) -> None:
    assert findings(tmp_path, file, text, ENGINES[engine]) == set()
