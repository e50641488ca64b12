"""Faults of vLLM's files where users write them, each found in its line with its rule and remedy.

The line that is wrong ends with `<<< RULE: words of the remedy`, which is taken off before.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder import lint as check
from builder import pipeline

IMAGE = "vllm/vllm-openai:v0.32.0"
POD = f"""apiVersion: v1
kind: Pod
metadata: {{name: one}}
spec:
  containers:
  - image: {IMAGE}
"""
WRONG = {
    "a folded command": POD
    + """    command: [sh, -c]
    args:
    - >-
      vllm serve some/model
      --max-num-seqs 64
      --max-num-sequences 64 <<< unknown-flag: did you mean --max-num-seqs
""",
    "a probe": POD
    + """    args: [--model, some/model, --port, "8080"]
    ports: [{containerPort: 8080}]
    readinessProbe:
      httpGet: {path: /health, port: 8000} <<< port-unreached: give 8080
""",
    "an opened port": POD
    + """    args: [--model, some/model, --port, "8080"]
    ports:
    - containerPort: 8000 <<< port-unreached: open 8080
""",
    "a command behind an entry point": f"""services:
  one:
    image: {IMAGE}
    command: vllm serve some/model <<< stray-word: the model and flags alone
""",
    "a shell behind an entry point": f"""#!/bin/sh
docker run {IMAGE} bash -c "vllm serve some/model" <<< stray-word: another entry point
""",
    "a flag that is one word with its value": POD
    + """    args:
    - --model=some/model
    - --max-num-seqs 64 <<< stray-word: --max-num-seqs=64
""",
    "the subcommand behind an entry point": POD
    + """    args:
    - serve <<< stray-word: drop it
    - some/model
    - --max-num-seqs=64
""",
    "options that a launcher hands on, which nobody completes": """# vllm==0.32.0
llm_configs:
- engine_kwargs:
    tensor_parallel_size: 2
    max_num_seq: 64 <<< unknown-key: max_num_seqs
""",
    "a switch that is turned off by another word": """#!/bin/sh
vllm serve some/model --no-enable-prefix-cache <<< unknown-flag: --no-enable-prefix-caching
""",
    "a published port": f"""#!/bin/sh
docker run -p 8000:8080 {IMAGE} --model some/model <<< port-unreached: publish 8000
""",
    "no port": """#!/bin/sh
vllm serve some/model --port 80000 <<< flag-value: up to 65535
""",
    "two servers of one port": """#!/bin/sh
CUDA_VISIBLE_DEVICES=0 vllm serve some/model &
CUDA_VISIBLE_DEVICES=1 vllm serve some/model & <<< port-taken: another port
wait
""",
    "two servers of one port, one at every address": """#!/bin/sh
vllm serve some/model --host 10.0.0.1 --port 8000 &
vllm serve some/model --host 0.0.0.0 --port 8000 & <<< port-taken: another port
""",
    "a script that a line prints": """#!/bin/sh
echo "vllm serve some/model --max-num-sequ 4" | tee run.sh <<< unknown-flag: --max-num-seqs
""",
    "a flag and its value that quotes keep together": """#!/bin/sh
ARGS=("--max-num-seqs 64") <<< stray-word: --max-num-seqs=64
vllm serve some/model "${ARGS[@]}"
""",
    "a line that lost its backslash": """#!/bin/sh
vllm serve some/model --max-num-seqs 64
  --max-model-len 4096 <<< lost-flag: backslash
""",
    "a variable of almost that name": """#!/bin/sh
MODEL_NAME=some/model
vllm serve $MODEL_NAM <<< misspelt-name: MODEL_NAME
""",
    "a flag that is turned off by its beginning": """#!/bin/sh
vllm serve some/model --no-enable-chunked-pre <<< flag-abbreviated: --no-enable-chunked-prefill
""",
    "an option that is gone, misspelt": """#!/bin/sh
vllm serve some/model --swapspace 4 <<< unknown-flag: looks like swap_space
""",
    "a job with Ray": """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8 <<< gpus-below-ranks: ask for 32 GPUs
srun --nodes=1 --ntasks=1 ray start --head --block &
vllm serve some/model -tp 8 -pp 4 --distributed-executor-backend ray
""",
    "values of a chart": """servingEngineSpec:
  modelSpec:
  - name: one
    repository: vllm/vllm-openai
    requestGPU: 1 <<< gpus-below-ranks: ask for 2 GPUs
    vllmConfig: {maxModelLen: 4096, tensorParallelSize: 2}
""",
    "a program": """from vllm import LLM, SamplingParams
options = dict(
    max_num_seq=64, <<< unknown-key: max_num_seqs
)
llm = LLM("some/model", chat_template="x", **options)
""",
    "options of a program's engine": """import vllm.engine.arg_utils as arguments
made = arguments.AsyncEngineArgs(
    model="some/model",
    speculative_config={
        "num_spec_tokens": 4, <<< unknown-key: num_speculative_tokens
        "method": "ngram",
    },
)
""",
    "a command of a program": """import subprocess
subprocess.Popen([
    "vllm", "serve", "some/model",
    "--tensor-paralel-size", "2", <<< unknown-flag: --tensor-parallel-size
])
""",
    "a line of a program": """import subprocess
def serve(port):
    command = f"vllm serve some/model --port {port} --max-model-lenght 4" <<< unknown-flag: len
    subprocess.run(command, shell=True)
""",
    "a program of Ray": """from ray.serve.llm import LLMConfig
OPTIONS = dict(
    max_num_seqs=64,
    enable_auto_tool_choice=True, tool_call_parser="hermes",
    max_model_length=8192, <<< unknown-key: did you mean max_model_len?
)
LLMConfig(model_loading_config={"model_id": "one"}, engine_kwargs=OPTIONS)
""",
    "an application of Ray": """applications:
- args:
    llm_configs:
    - model_loading_config: {model_id: one}
      engine_kwargs:
        gpu_memory_utilisation: 0.9 <<< unknown-key: did you mean gpu_memory_utilization?
""",
    "an application of Ray in a manifest": """apiVersion: ray.io/v1
kind: RayService
spec:
  serveConfigV2: |
    applications:
    - args:
        llm_configs:
        - model_loading_config: {model_id: one}
          engine_kwargs:
            tensor_paralel_size: 2 <<< unknown-key: did you mean tensor_parallel_size?
""",
    "a request of a program": """from vllm import LLM, SamplingParams
llm = LLM("some/model")
llm.generate("x", SamplingParams(
    temperature=0,
    max_new_tokens=8, <<< unknown-key: it is max_tokens
))
""",
    "classes of a program": """from vllm import LLM
from vllm.config import CompilationConfig
LLM("some/model", compilation_config=CompilationConfig(
    cudagraph_mode="FULL_AND_PICEWISE", <<< unknown-value: FULL_AND_PIECEWISE
))
""",
}
SUFFIXES = {"#!": ".sh", "from": ".py", "import": ".py"}
_FAULT = re.compile(r" <<< (?P<rule>[\w-]+): (?P<remedy>.*)$", re.MULTILINE)


def findings(folder: Path, **files: str) -> list[tuple[str, int, str, str]]:
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_text(text)
    report = check.check([folder], check.CheckOptions(), pipeline.deployment_diagnostics)
    rows = (row for row in report.findings if row.rule != "vulnerable-version")
    return [(Path(row.where).name, row.location.line, row.rule, row.fix) for row in rows]


@pytest.mark.parametrize("case", WRONG)
def test_a_fault_is_found_in_its_line(case: str, tmp_path: Path) -> None:
    text = WRONG[case]
    suffix = next((end for begin, end in SUFFIXES.items() if text.startswith(begin)), ".yaml")
    found = findings(tmp_path, **{f"file_{suffix[1:]}": _FAULT.sub("", text)})
    [(_, line, rule, fix)] = found
    [wanted] = _FAULT.finditer(text)
    assert (line, rule) == (text.count("\n", 0, wanted.start()) + 1, wanted["rule"])
    assert wanted["remedy"] in fix


RIGHT = {
    "pod_yaml": POD + "    command: [sh, -c, bash /start.sh worker --address=$(LEADER)]\n",
    "lws_yaml": POD.replace("kind: Pod", "kind: Job")
    + "    command: [vllm, serve, some/model, --port, '8080']\n"
    + "    ports: [{containerPort: 8080, name: http}]\n"
    + "    livenessProbe: {httpGet: {path: /health, port: http}}\n",
    "compose_yaml": f"services: {{one: {{image: {IMAGE}, entrypoint: [vllm, serve], "
    "command: some/model --port 8080, ports: ['80:8080']}}\n",
    "run_sh": f"docker run --entrypoint bash {IMAGE} -c 'vllm serve some/model'\n",
    "extended_yaml": f"services: {{one: {{extends: base, image: {IMAGE}, "
    "command: vllm serve some/model}}\n",
    "parted_sh": "A=()\nA+=('--max-num-seqs 64')\nvllm serve some/model ${A[@]}\n"
    "eval vllm serve some/model '--seed 1' \"${A[@]}\"\n",
    "killed_sh": "vllm serve some/model &\nsudo pkill -f 'vllm serve'\nvllm serve some/model &\n",
    "asked_sh": "vllm serve some/model &\nps aux | grep 'vllm serve --help me'\n"
    "while ! pgrep -f 'vllm serve some/model x'; do sleep 1; done\n"
    "ssh host pgrep -f 'vllm serve some/model --prot 1'\nlog 'vllm serve is up'\n",
    "said_sh": "vllm serve some/model &\necho 'vllm serve is up' | tee -a $LOG_FILE\n"
    "echo vllm serve some/model --prot 1 >> run.log\nprintf 'vllm serve is up'\n",
    "hosts_sh": "vllm serve some/model --host 10.0.0.1 &\n"
    "vllm serve some/model --host $OTHER &\nvllm serve some/model --host 10.0.0.2 &\n",
    "two_sh": "vllm serve some/model &\nvllm serve some/model --port 8001 &\nwait\n",
    "chart_yaml": "raySpec: {}\nrequestGPU: 1\nvllmConfig: {maxModelLen: 4096, "
    "tensorParallelSize: 2}\n",
    "told_py": '"""vllm serve m --prot 1"""\nprint(\'vllm serve is gone --no more\')\n'
    "c = ['vllm', 'serve', M, 'and', *rest]\n",
    "ray_py": "from ray.serve.llm import LLMConfig\nLLMConfig(engine_kwargs={'seed': N})\n"
    "SGLangServer(LLMConfig(engine_kwargs={'mem_fraction_static': 0.8}))\n",
    "served_yaml": "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\n"
    "spec: {predictor: {model: {modelFormat: {name: huggingface}, storageUri: 'hf://x/y', "
    "args: ['--model_name=one', '--backend=vllm', --dtype=auto]}}}\n",
    "tasks_yaml": "resources: {accelerators: 'H100:8'}\nnum_nodes: 2\n"
    "run: vllm serve some/model --tensor-parallel-size 16\n",
    "requests_py": "from vllm import LLM, SamplingParams\nLLM('m')\n"
    "SamplingParams(2, top_p=1, _real_n=3)\n",
    "number_py": "from vllm import LLM\nLLM('m', compilation_config=3)\n",
    "other_py": "from vllm import SamplingParams\nfrom mine import LLM\nLLM(max_num_seq=4)\n",
}


def test_nothing_is_found_in_what_looks_alike(tmp_path: Path) -> None:
    assert not findings(tmp_path, **RIGHT)


@pytest.mark.parametrize(("pin", "severity"), [("", "warning"), ("# vllm==0.32.0\n", "error")])
def test_what_ray_hands_to_a_release_that_nobody_names_may_be_right(
    pin: str, severity: str, tmp_path: Path
) -> None:
    text = (
        f"{pin}from ray.serve.llm import LLMConfig\nLLMConfig(engine_kwargs=dict(task='embed'))\n"
    )
    (tmp_path / "serve.py").write_text(text)
    report = check.check([tmp_path], check.CheckOptions(), pipeline.deployment_diagnostics)
    assert [(row.rule, row.severity) for row in report.findings] == [("unknown-key", severity)]


SERVE = "#!/bin/sh\n# vllm==0.20.0\nvllm serve meta-llama/Llama-3.3-70B-Instruct --config"


def test_a_configuration_file_is_of_the_command_that_reads_it(tmp_path: Path) -> None:
    """It alone would be a file of no engine, and know neither release nor model."""
    options = "port: 9000\nseed: 1\ndtype: bfloat\ntensor_parallel_size: 3\n"
    started = f"{SERVE} /etc/vllm/small.yaml\n"
    found = findings(tmp_path, small_yaml=options, serve_sh=started)
    assert [row[:3] for row in found] == [
        ("small.yaml", 3, "unknown-value"),
        ("small.yaml", 4, "heads-per-rank"),
    ]
