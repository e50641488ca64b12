"""Scripts that start a server as it is written: nothing that keeps one from starting is in them.

What is found, and where, is among the rows of `semantic_faults.yaml`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline

RIGHT = {
    "a list with the server in it": "A=(\n  trtllm-serve m/m\n  --tp_size 8\n)\n${A[@]}\n",
    "tabs before an end that may have them": "cat > x.yaml <<-E\n\tmax_batch_size: 8\n\tE\n",
    "another shell": "bash -c '\ncat > x.yaml <<E\nmax_batch_size: 8\nE\n'\n",
    "functions that write the same file": (
        "a() {\n  echo 'max_batch_size: 8' > x.yaml\n}\n"
        "b() {\n  echo 'max_batch_size: 9' > x.yaml\n}\n"
    ),
    "branches that write the same file": (
        "if [ $A ]; then\n  echo 'max_batch_size: 8' > x.yaml\n"
        "else\n  echo 'max_batch_size: 9' > x.yaml\nfi\n"
    ),
    "a file that is used before it is written anew": (
        "echo 'max_batch_size: 8' > x.yaml\ncp x.yaml y.yaml\necho 'max_batch_size: 9' > x.yaml\n"
    ),
    "what only speaks of the server": "echo 'stop trtllm-serve --now'\npkill -f trtllm-serve\n",
    "a question for help": "trtllm-serve --help\n",
    "a model behind the flags": "trtllm-serve --tp_size 1 m/m\n",
    "a model that the caller gives": 'trtllm-serve --tp_size 1 "$@"\n',
    "a variable of its own name": "TP=8\ntrtllm-serve $MODEL --tp_size $TP\n",
    "a variable that a function asks for": (
        "check_env_vars MODL\nMODEL=m/m\ntrtllm-serve $MODL --tokenizer $MODEL\n"
    ),
    "a variable that is asked for": ': "${MODL:?}"\nMODEL=m/m\ntrtllm-serve $MODL\n',
    "a short name beside another": "MTP=3\ntrtllm-serve m/m --tp_size $TP\n",
    "the network of the host": "docker run --network host i trtllm-serve m/m --port 8001\n",
    "a port of one machine each": (
        "srun -w a trtllm-serve m/m --port 8001 &\nsrun -w b trtllm-serve m/m --port 8001 &\n"
    ),
    "one server after another": "trtllm-serve m/m\ntrtllm-serve m/m\n",
    "processes that are the ranks": (
        "mpirun -n 4 trtllm-llmapi-launch trtllm-serve m/m --tp_size 2 --pp_size 2\n"
    ),
    "one process that starts the others": "mpirun -n 1 trtllm-serve m/m --tp_size 4\n",
    "one server of two": (
        "if [ $A ]; then\n  trtllm-serve m/m --port 8001 &\n"
        "else\n  trtllm-serve m/m --port 8001 &\nfi\n"
    ),
    "a server that ends before the next": (
        "trtllm-serve m/m --port 8001 &\nkill $!\ntrtllm-serve m/m --port 8001 &\n"
    ),
    "a server that a name ends before the next": (
        "trtllm-serve m/m --port 8001 &\nssh h 'pkill -f trtllm-serve'\n"
        "trtllm-serve m/m --port 8001 &\n"
    ),
    "what looks for a server": (
        "trtllm-serve m/m &\npgrep -f 'trtllm-serve m/m --prot 1'\n"
        "ps aux | grep trtllm-serve\necho trtllm-serve --up | tee -a log\n"
    ),
    "addresses of one machine": (
        "trtllm-serve m/m --host 10.0.0.1 &\ntrtllm-serve m/m --host 10.0.0.2 &\n"
    ),
    "a list that the shell takes apart": (
        "A=('--tp_size 2' --pp_size '1')\ntrtllm-serve m/m ${A[@]}\n"
    ),
    "variables of NCCL and UCX, also former ones and those of single transports": (
        "export NCCL_P2P_PER_CHANNEL_NET_BW=1 NCCL_TIMEOUT=9 NCCL_IB_GDR_LEVEL=3\n"
        "export UCX_TCP_CM_RCVBUF=1m UCX_TCP_CM_SNDBUF=1m UCX_RC_GID_INDEX=3 UCX_CONFIG_DIR=/c\n"
        "export UCX_IB_RCACHE_MAX_SIZE=1m UCX_TCP_ALLOC=md UCX_LOG_FILE_SIZE=1m\n"
        "export UCX_SYSV_SEG_SIZE=8k UCX_CUDA_IPC_ENABLE_GET_ZCOPY=y UCX_POSIX_BW=1 UCX_IB_SL=1\n"
    ),
    "files for one run after another": (
        "echo 'max_batch_size: 8' > x.yaml\nbash bench.sh\necho 'max_batch_size: 9' > x.yaml\n"
    ),
    "a script that is written before its file": (
        "cat > s.sh <<E\ntrtllm-serve m/m --config x.yaml\nE\necho 'max_batch_size: 9' > x.yaml\n"
    ),
    "a variable of the job": "SLURM_JOBID=1\ntrtllm-serve m/m --tokenizer $SLURM_JOB_ID\n",
    "sizes in a file": (
        "echo 'pipeline_parallel_size: 2' > x.yaml\n"
        "mpirun -n 4 trtllm-llmapi-launch trtllm-serve m/m --tp_size 2 --config x.yaml\n"
    ),
    "ports as the user gives them": "docker run -p $P:$P i trtllm-serve m/m --port $P\n",
}


@pytest.mark.parametrize("case", RIGHT)
def test_nothing_is_found_where_nothing_is_wrong(case: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"#!/bin/bash\n{RIGHT[case]}trtllm-serve m/m --port 9000\n")
    report = lint.check([path], lint.CheckOptions(("1.2.1",)), pipeline.deployment_diagnostics)
    assert report.checked == 1
    assert [str(row) for row in report.findings if row.rule != "unknown-model"] == []


def test_an_address_in_a_file_beside_the_script_is_one_that_the_script_serves(
    tmp_path: Path,
) -> None:
    urls = 'context_servers: {urls: ["localhost:8001"]}\n'
    urls += 'generation_servers: {urls: ["localhost:%d"]}\n'
    (tmp_path / "run.sh").write_text(
        "trtllm-serve m/m --port 8001 &\ntrtllm-serve m/m --port 8002 &\n"
        "trtllm-serve disaggregated -c both.yaml\n"
    )
    for port, expected in ((8002, []), (8003, [(3, "give 8001 or 8002 there")])):
        (tmp_path / "both.yaml").write_text(urls % port)
        options = lint.CheckOptions(("1.2.1",))
        rows = lint.check([tmp_path], options, pipeline.deployment_diagnostics).findings
        found = [(row.location.line, row.fix) for row in rows if row.rule == "port-unreached"]
        assert found == expected
