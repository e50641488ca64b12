"""Commands as people write them: those that are no fault, and faults in unusual places."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.lint import CheckOptions, check

DYNAMO = "python3 -m dynamo.trtllm --model-path m"
CONTAINER = """\
apiVersion: v1
kind: Pod
spec:
  hostIPC: true
  containers:
  - name: engine
    image: example/engine
    args:
"""
SERVICE = """\
services:
  engine:
    image: example/engine
    ipc: host
    deploy: {resources: {reservations: {devices: [{count: 4, capabilities: [gpu]}]}}}
"""
VALUES = """\
nodes: 2
resources: {limits: {nvidia.com/gpu: 8}}
extra_llm_api_options:
  kv_cache_config: {enable_block_reuse: true}
  tensor_parallel_size: 16
"""
SIZES = "tensor_parallel_size: 4\n"

SOUND = {
    "a module of the worker": ("sh", "python3 -m dynamo.trtllm.main --model-path m\n"),
    "a version of the worker": (
        "yaml",
        f"{SERVICE}    command: [bash, -c, 'pip show dynamo.trtllm==1 && {DYNAMO}']\n",
    ),
    "JSON that is none": ("sh", f"{DYNAMO} --override-engine-args '{{\"a\": [1, 2}}'\n"),
    "an alias without an anchor": ("sh", f"{DYNAMO} --override-engine-args '*x'\n"),
    "JSON of a template": (
        "yaml",
        f"{CONTAINER}    - python3\n    - -m\n    - dynamo.trtllm\n    - --override-engine-args\n"
        "    - '{\"tensor_parallel_size\": {{ .Values.tp }}}'\n",
    ),
    "a wrapper": ("sh", "/opt/bin/trtllm-server --model m\n./trtllm-serve.sh m\ntrtllm-serve m\n"),
    "names of images, containers and pods": (
        "sh",
        "docker run --rm trtllm-server --tp_size 4 --max_batch_size 8\n"
        "docker run --name trtllm-server --gpus all engine:1 python3 run.py --tp_size 8\n"
        "kubectl exec trtllm-server -- python3 run.py --tp_size 4\n"
        "srun --container-name trtllm-server ./start.sh --tp_size 8\n"
        "srun --container-name trtllm-llmapi-launcher ./start.sh trtllm-server --tp_size 8\n"
        "trtllm-serve m\n",
    ),
    "another file that a program edits": (
        "py",
        "import yaml  # for tensorrt_llm\nrun = yaml.safe_load(open('sweep.yaml'))\n"
        "run['model'] = 'a/b'\nrun['max_batch_size'] = 8\nrun['sweep_name'] = 'x'\n"
        "yaml.dump(run, open('run.yaml', 'w'))\n",
    ),
    "another file that a script's program edits": (
        "sh",
        "python3 - <<'EOF'\nimport yaml\nrun = yaml.safe_load(open('sweep.yaml'))\n"
        "run['max_batch_size'] = 8\nrun['sweep_name'] = 'x'\n"
        "yaml.dump(run, open('run.yaml', 'w'))\nEOF\ntrtllm-serve m --config other.yaml\n",
    ),
    "a name with a word that one side has too": (
        "sh",
        "echo '{cache_transceiver_config: {backend: UCX}, disable_overlap_scheduler: true}'"
        " > text-generation.yaml\n"
        "python3 -m dynamo.trtllm --model-path m --disaggregation-mode prefill "
        "--extra-engine-args text-generation.yaml\n",
    ),
    "ports of a file": (
        "yaml",
        f"{SERVICE}    command: trtllm-serve disaggregated -c d.yaml\n    ports: ['9000:9000']\n",
    ),
    "a file that replaces a flag": (
        "yaml",
        f"{SERVICE}    command: {DYNAMO} --tensor-parallel-size 8 --extra-engine-args o.yaml\n",
    ),
    "branches of a chart": (
        "yaml",
        f"{CONTAINER.replace('example/engine', 'vllm/vllm-openai')}    - --model=m\n"
        "    {{- if .Values.a }}\n    - --tensor-parallel-size=2\n    {{- else }}\n"
        "    - --tensor-parallel-size=4\n    {{- end }}\n",
    ),
    "actions of a template": ("sh", "trtllm-serve {{ m }} --tp_size {{ tp | default(1) }}\n"),
    "actions of a chart in a list": (
        "yaml",
        f"{CONTAINER}    - trtllm-serve\n    - {{{{ .Values.model }}}}\n    - --tp_size\n"
        "    - {{ .Values.tp | quote }}\n    - --max_batch_size={{ .Values.batch }}\n",
    ),
    "actions of a template over several lines": (
        "yaml.j2",
        "{% if moe %}  # of the model\nmoe_config: {backend: {{ moe }}}\n{% endif %}\n"
        "cuda_graph_config:\n  batch_sizes: [{% for s in sizes\n"
        "      | sort -%}\n    {{- s }}{{ ',' if not loop.last }} {%- endfor %}]\n",
    ),
    "quotes in quotes": (
        "sh",
        'docker exec c bash -lc "\n  cat <<E > o.yml\n'
        'kv_cache_config:\n  dtype: \\"auto\\"\nE\n"\n',
    ),
    "options of the engine beside those of its stack": (
        "yaml",
        "resources: {accelerator: B200:4}\ntrt_llm:\n  inference_stack: v2\n"
        "  build: {checkpoint_repository: {source: HF, repo: a/b}}\n"
        "  runtime:\n    tensor_parallel_size: 4\n"
        "    patch_kwargs: {engine_config: {moe_expert_parallel_size: 4}}\n",
    ),
    "marks of a recipe": ("mk", "serve:\n\t-@trtllm-serve m\n\tdocker run \\\n\t  -d img\n"),
    "flags of a benchmark's other tasks": (
        "sh",
        "trtllm-bench --model m prepare-dataset --output d.txt token-norm-dist --num-requests 9\n",
    ),
    "stages whose number a command gives": ("yaml", "pp_partition: [16, 16]\nmax_batch_size: 8\n"),
    "a report that a program writes": (
        "py",
        "# trtllm-serve\nwith open('r.txt', 'w') as f:\n"
        "    f.write('Result:\\nmax_batch_size: none yet\\nbackend: tried all\\n')\n"
        "print('max_batch_size: many\\nseconds: 8\\n')\n",
    ),
}
FAULTY = {
    "what a later release takes, beside the name of a GPU": (
        "yaml",
        "# h100\nmodel: openai/gpt-oss-120b\n"
        "tensor_parallel_size: 8\nmoe_config: {backend: MARLIN}\n",
        ("unknown-value", "warning"),
    ),
    "a flag of a benchmark": (
        "sh",
        "trtllm-bench --model m throughput --max_bach_size 8\n",
        ("unknown-flag", "error"),
    ),
    "a template": (
        "sh",
        "trtllm-serve {{model}} --tp_size {{tp}} --max_bach_size 8\n",
        ("unknown-flag", "error"),
    ),
    "a line below a place holder": (
        "sh",
        "export CUDA_VISIBLE_DEVICES=<UUID of yours>\ntrtllm-serve m --max_bach_size 8\n",
        ("unknown-flag", "error"),
    ),
    "an old image, whose release is not known": (
        "yaml",
        SERVICE.replace("example/engine", "nvcr.io/nvidia/tritonserver:25.05-trtllm-python-py3"),
        ("vulnerable-version", "warning"),
    ),
    "a switch of YAML 1.1": (
        "yaml",
        f"{VALUES}  on: true\n",
        ("unknown-key", "error"),
    ),
    "GPUs of one node of several": ("yaml", VALUES, ("gpus-below-ranks", "warning")),
    "JSON that replaces a flag and a file": (
        "yaml",
        f"{SERVICE}    command:\n    - dynamo.trtllm\n    - --override-engine-args\n"
        "    - '{tensor_parallel_size: 8}'\n    - --tensor-parallel-size=4\n"
        "    - --extra-engine-args=o.yaml\n",
        ("gpus-below-ranks", "error"),
    ),
}


def rules(folder: Path, suffix: str, text: str) -> set[tuple[str, str]]:
    (folder / f"f.{suffix}").write_text(text)
    (folder / "o.yaml").write_text(SIZES)
    found = check([folder], CheckOptions(), lambda path, overrides: []).findings
    return {(row.rule, row.severity) for row in found}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_wrong_with(name: str, tmp_path: Path) -> None:
    assert rules(tmp_path, *SOUND[name]) - {("vulnerable-version", "warning")} == set()


@pytest.mark.parametrize("name", FAULTY)
def test_the_fault_is_found_in(name: str, tmp_path: Path) -> None:
    suffix, text, found = FAULTY[name]
    assert found in rules(tmp_path, suffix, text)


def test_two_words_in_one_are_refused_and_count_for_what_they_mean(tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    path.write_text('trtllm-serve Qwen/Qwen3-235B-A22B-FP8 "--tp_size 8" --ep_size 8\n')
    found = check([path], CheckOptions(gpu="h200"), lambda path, overrides: []).findings
    [error] = [row for row in found if row.severity == "error"]
    assert "two words in one" in error.fix
