"""Options and commands inside files of other formats, each read for what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builder.lint.test_check_files import checked
from tests.builder.lint.test_public_forms import errors
from tests.conftest import Run

COMPOSE = """\
services:
  engine:
    image: nvcr.io/nvidia/tensorrt-llm/release:1.2.1
    entrypoint: trtllm-serve
    command: meta-llama/Llama-3.3-70B-Instruct --tp_sise 8 --config /opt/options.yaml
    configs: [{source: options, target: /opt/options.yaml}]
  other:
    image: nvcr.io/nvidia/tensorrt-llm/release:1.2.1
    command: >
      bash -c "trtllm-serve serve model
      --max_bach_size 8"
  third:
    command: ["trtllm-serve", "model", "--tp_size", "${TP}", "--max_bach_size", "8"]
configs:
  options:
    content: |
      tensor_parallel_size: ${TP:-8}
      kv_cache_config:
        dtyp: fp8
"""

CHART = """\
{{- if .Values.engine.enabled }}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "chart.fullname" . }}
  labels:
    {{- include "chart.labels" . | nindent 4 }}
data:
  options.yaml: |
    tensor_parallel_size: {{ .Values.tp }}
    kv_cache_config:
      dtyp: fp8
    {{- with .Values.extra }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: x}
spec:
  template:
    spec:
      containers:
        - name: engine
          image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
          args:
            - trtllm-serve
            - {{ .Values.model }}
            - --max_bach_size
            - "{{ .Values.batch }}"
{{- end }}
"""

LAUNCHER = """\
job:
  model: nvidia/DeepSeek-R1-0528-FP4-v2
  tp_size: 8
  ep_size: 4
  llm_api_args:
    max_bach_size: 8
    tensor_parallel_size: 4
    kv_cache_config: {dtype: fp8}
"""

GRAPH = """\
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: graph}
spec:
  services:
    decode:
      extraPodSpec:
        mainContainer:
          command: [python3, -m, dynamo.trtllm]
          args:
          - --model-path
          - Qwen/Qwen3-0.6B
          - --override-engine-args
          - '{"kv_cache_config": {"dtyp": "fp8"}, "max_batch_size": 8}'
"""

VALUES = """\
replicas: 2
engine:
  extraLlmApiOptions: |
    max_num_token: 64
    kv_cache_config: {dtype: fp8}
"""

WORKERS = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: workers}
spec:
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
        - name: leader
          command:
          - bash
          - -c
          - |
            cat > /tmp/c.yaml <<EOF
            max_bach_size: 8
            tensor_parallel_size: $LWS_GROUP_SIZE
            EOF
            trtllm-serve model --config /tmp/c.yaml
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: one}
  data:
    config: |
      max_num_token: 64
      max_batch_size: 8
"""

# The kind that a file is taken for, its text, and the line and path of each error.
FORMATS: dict[str, tuple[str, list[tuple[int, str]]]] = {
    "Compose file": (
        COMPOSE,
        [
            (5, "--tp_sise"),
            (11, "--max_bach_size"),
            (13, "--max_bach_size"),
            (19, "kv_cache_config.dtyp"),
        ],
    ),
    "Kubernetes manifest, a template": (
        CHART,
        [(12, "kv_cache_config.dtyp"), (29, "--max_bach_size")],
    ),
    "file with engine options": (
        LAUNCHER,
        [(3, "job.tp_size"), (6, "job.llm_api_args.max_bach_size")],
    ),
    "Kubernetes manifest": (GRAPH, [(14, "kv_cache_config.dtyp")]),
    "values of a chart: file with engine options": (VALUES, [(4, "max_num_token")]),
    "workers and a list: Kubernetes manifest": (
        WORKERS,
        [(16, "max_bach_size"), (29, "max_num_token")],
    ),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_wrong_in_another_format_is_found_at_its_line(
    kind: str, builder: Run, tmp_path: Path
) -> None:
    text, places = FORMATS[kind]
    report = of_file(builder, tmp_path, text)
    assert kind.endswith(report["files"][0]["kind"])
    assert [(row["line"], row["path"]) for row in errors(report["findings"])] == places
    assert report["checked"] == 1


def test_flags_of_a_launcher_are_judged_with_its_options(builder: Run, tmp_path: Path) -> None:
    """Its `tp_size` is the engine's tensor_parallel_size, wherever the rest stands."""
    text = "tp_size: 8\nllm_api_args:\n  moe_expert_parallel_size: 3\n  max_num_tokens: 64\n"
    (row,) = errors(of_file(builder, tmp_path, text)["findings"])
    assert row["path"] == "llm_api_args.moe_expert_parallel_size"


@pytest.mark.parametrize(
    "text",
    [
        "engine_args: {context_length: 4096, tp_size: 8, mem_fraction_static: 0.8}\n",
        "services:\n  web: {image: nginx, command: nginx -g daemon}\n",
        "cases:\n- {id: a, tp: 8, isl: 1024, max_num_tokens: 64, enable_attention_dp: true}\n",
        "chat: 'use trtllm-serve serve model --tp_sise 8'\n",
        "a: {b: {speculative_config: {num_speculative_tokens: 3}, tensor_parallel_size: 8}}\n",
    ],
)
def test_options_of_other_engines_and_plain_text_are_not_judged(
    text: str, builder: Run, tmp_path: Path
) -> None:
    report = of_file(builder, tmp_path, text)
    assert (report["checked"], errors(report["findings"])) == (0, [])


def test_braces_in_one_value_leave_the_others_judged(builder: Run, tmp_path: Path) -> None:
    text = "max_batch_size: 8\ntokenizer: '{{ messages }}'\nmax_num_token: 8\n"
    (row,) = errors(of_file(builder, tmp_path, text)["findings"])
    assert (row["line"], row["path"]) == (3, "max_num_token")


def test_variables_of_a_template_are_listed(builder: Run, tmp_path: Path) -> None:
    (file,) = of_file(builder, tmp_path, CHART)["files"]
    assert file["variables"] == ["tensor_parallel_size"]
    assert json.dumps(file)


def of_file(builder: Run, folder: Path, text: str) -> dict[str, Any]:
    (folder / "f.yaml").write_text(text)
    return checked(builder("check", "f.yaml", "--release", "1.2.1", "--json"))


SERVER = "command: [bash, -c, trtllm-serve {model} --tp_size {size}]"
BESIDE = {
    "a service whose name begins like another's": "services:\n"
    f"  serve: {{{SERVER.format(model='nvidia/DeepSeek-R1-FP4', size=8)}}}\n"
    f"  serve2: {{{SERVER.format(model='Qwen/Qwen3-30B-A3B', size=64)}}}\n",
    "a container at the same place of another manifest": "---\n".join(
        "{apiVersion: v1, kind: Pod, metadata: {name: x},\n"
        f"  spec: {{containers: [{{name: x, {SERVER.format(model=model, size=size)}}}]}}}}\n"
        for model, size in (("nvidia/DeepSeek-R1-FP4", 8), ("Qwen/Qwen3-30B-A3B", 64))
    ),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_container_is_judged_by_its_own_model(name: str, builder: Run, tmp_path: Path) -> None:
    (tmp_path / "servers.yaml").write_text(BESIDE[name])
    done = builder("check", tmp_path / "servers.yaml")
    assert "64 ranks do not share the 32 attention heads of Qwen/Qwen3-30B-A3B" in done.stdout
    assert ": 2 commands" in done.stdout
