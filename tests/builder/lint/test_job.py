"""Job scripts: each rule with a script that breaks it, and one close by that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import pipeline
from builder.diagnostics import Diagnostic
from builder.lint import CheckOptions, check
from builder.lint.read.shell import read_script
from builder.lint.read.slurm import read_job, table
from tests.tables import by_table

HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4\nset -e\n"
GOOD = "--overlap --kill-on-bad-exit=1"
SERVE = "trtllm-llmapi-launch bash /b/serve.sh"
STEP = f"srun -N2 -n8 --ntasks-per-node=4 {GOOD} {SERVE}\n"


def findings(folder: Path, text: str, gpu: str | None = None) -> list[Diagnostic]:
    script = folder / "job.sbatch"
    script.write_text(text)
    found = check([script], CheckOptions(gpu=gpu), pipeline.deployment_diagnostics).findings
    return [row for row in found if row.rule.startswith("job-")]


def rules(folder: Path, text: str, gpu: str | None = None) -> set[str]:
    return {row.rule for row in findings(folder, text, gpu)}


# (rule, a script that breaks it, one that keeps it)
EXAMPLES = [
    ("job-shebang", f"# a job\n{HEAD[12:]}{STEP}", HEAD + STEP),
    ("job-line-ends", (HEAD + STEP).replace("\n", "\r\n"), HEAD + STEP),
    (
        "job-late-directive",
        f"{HEAD}#SBATCH --time=10\n{STEP}",
        f"#!/bin/bash\n\n# SLURM\n#SBATCH --time=10\n{STEP}",
    ),
    ("job-unknown-option", f"#!/bin/bash\n#SBATCH --ntask-per-nod=4\n{STEP}", HEAD + STEP),
    ("job-unknown-option", f"#!/bin/bash\n#SBATCH -z\n{STEP}", f"#!/bin/bash\n#SBATCH -vH\n{STEP}"),
    (
        "job-unknown-option",
        f"{HEAD}srun -n1 --overlp date\n{STEP}",
        f"{HEAD}srun -n1 --burst-of-site=x date\n{STEP}",
    ),
    (
        "job-stray-word",
        f"{HEAD}#SBATCH -J a b\n{STEP}".replace("set -e\n", ""),
        f"{HEAD}#SBATCH -J 'a b' # c\n{STEP}".replace("set -e\n", ""),
    ),
    (
        "job-stray-word",
        f"#!/bin/bash\n#SBATCH --comment='a\n{STEP}",
        f"#!/bin/bash\n  # note\n#SBATCH --comment='a'\n{STEP}",
    ),
    (
        "job-plugin-option",
        f"#!/bin/bash\n#SBATCH --container-image=/a.sqsh\n{STEP}",
        f"#!/bin/bash\n#SBATCH --segment=1\n{STEP}",
    ),
    (
        "job-value",
        f"#!/bin/bash\n#SBATCH --signal=B:USR1@70000\n{STEP}",
        f"#!/bin/bash\n#SBATCH --signal=B:USR1@3000\n{STEP}",
    ),
    ("job-value", f"#!/bin/bash\n#SBATCH --mem\n{STEP}", f"#!/bin/bash\n#SBATCH --mem 0\n{STEP}"),
    (
        "job-value",
        f"#!/bin/bash\n#SBATCH --no-requeue=1\n{STEP}",
        f"#!/bin/bash\n#SBATCH --no-requeue\n{STEP}",
    ),
    ("job-value", f"#!/bin/bash\n#SBATCH -N 4-2\n{STEP}", f"#!/bin/bash\n#SBATCH -N 2-4\n{STEP}"),
    (
        "job-contradiction",
        f"#!/bin/bash\n#SBATCH -N2 -n9 --ntasks-per-node=4\n{STEP}",
        f"#!/bin/bash\n#SBATCH -N2-3 -n9 --ntasks-per-node=4\n{STEP}",
    ),
    (
        "job-contradiction",
        f"#!/bin/bash\n#SBATCH --mem=0 --mem-per-cpu=1G\n{STEP}",
        f"#!/bin/bash\n#SBATCH --mem=0\n#SBATCH hetjob\n#SBATCH --mem-per-cpu=1G\n{STEP}",
    ),
    ("job-time", f"#!/bin/bash\n#SBATCH -t 1h\n{STEP}", f"#!/bin/bash\n#SBATCH -t 1-00:30\n{STEP}"),
    (
        "job-segment",
        f"#!/bin/bash\n#SBATCH -N 6 --segment=4\n{STEP}",
        f"#!/bin/bash\n#SBATCH -N 6 --segment=3\n{STEP}",
    ),
    (
        "job-wide-segment",
        f"#!/bin/bash\n#SBATCH -N 36 --segment=36\n{STEP}",
        f"#!/bin/bash\n#SBATCH -N 36 --segment=18\n{STEP}",
    ),
    (
        "job-ranks",
        f"{HEAD}srun -n8 {GOOD} trtllm-llmapi-launch trtllm-serve m --tp_size 16\n",
        f"{HEAD}srun -n8 {GOOD} trtllm-llmapi-launch trtllm-serve m --tp_size 4 --pp_size=2\n",
    ),
    (
        "job-ranks",
        f"{HEAD}srun -n8 {GOOD} bash -c 'trtllm-llmapi-launch trtllm-serve m --tp_size 16'\n",
        f"{HEAD}srun -n8 {GOOD} bash -c 'trtllm-llmapi-launch trtllm-serve m --tp_size 8'\n",
    ),
    ("job-ntasks", f"{HEAD}srun -N2 --ntasks-per-node=4 {GOOD} {SERVE}\n", HEAD + STEP),
    (
        "job-overlap",
        f"{HEAD}srun -n8 -K {SERVE} &\nsrun -N1 -n1 -K trtllm-serve m &\nwait -n\n",
        f"{HEAD}srun -n8 -K {SERVE} &\nsrun -N1 -n1 -K --overlap trtllm-serve m &\nwait -n\n",
    ),
    (
        "job-may-wait",
        f"#!/bin/bash\n#SBATCH -t 9\nsrun -n8 -K {SERVE} &\nsrun -n1 trtllm-serve m\n",
        f"#!/bin/bash\n#SBATCH -t 9\nsrun -n8 -K {SERVE} &\nsrun -n1 --overlap trtllm-serve m\n",
    ),
    (
        "job-ports",
        f"#!/bin/bash\n#SBATCH -N1\nsrun -n1 {GOOD} trtllm-serve m --port 8000 &\n"
        f"srun -n1 {GOOD} trtllm-serve m --port 8000 &\nwait -n\n",
        f"#!/bin/bash\n#SBATCH -N1\nsrun -n1 {GOOD} trtllm-serve m --port 8000 &\n"
        f"srun -n1 {GOOD} trtllm-serve m --port 8010 &\nwait -n\n",
    ),
    (
        "job-ports",
        f"{HEAD}srun -n1 -w n1 {GOOD} tritonserver --http-port 8000 &\n"
        f"srun -n1 -w n1 {GOOD} tritonserver --http-port 8000 &\nwait -n\n",
        f"{HEAD}srun -n1 -w n1 {GOOD} tritonserver --http-port 8000 &\n"
        f"srun -n1 -w n2 {GOOD} tritonserver --http-port 8000 &\nwait -n\n",
    ),
    ("job-kill-on-bad-exit", f"{HEAD}srun -n8 {SERVE}\n", f"{HEAD}srun -n8 -K {SERVE}\n"),
    (
        "job-kill-on-bad-exit",
        f"{HEAD}srun -n8 --kill-on-bad-exit=0 {SERVE}\n",
        f"{HEAD}export SLURM_KILL_BAD_EXIT=1\nsrun -n8 {SERVE}\n",
    ),
    (
        "job-launcher",
        f"{HEAD}srun -n8 {GOOD} trtllm-serve m --tp_size 8\n",
        f"{HEAD}srun -n8 {GOOD} trtllm-llmapi-launch trtllm-serve m --tp_size 8\n",
    ),
    (
        "job-launcher-quoting",
        f"{HEAD}srun -n8 {GOOD} trtllm-llmapi-launch bash -c 'exec server'\n",
        f"{HEAD}srun -n8 {GOOD} bash -c 'trtllm-llmapi-launch server'\n",
    ),
    (
        "job-mpirun-in-srun",
        f"{HEAD}srun -n1 mpirun -n 8 trtllm-serve m\n",
        f"{HEAD}srun -n1 bash -c 'env -u SLURM_JOB_ID mpirun -n 8 trtllm-serve m'\n",
    ),
    (
        "job-mpirun-in-srun",
        f"{HEAD}srun -n1 mpirun -n $SLURM_NTASKS trtllm-serve m\n",
        f"{HEAD}srun -n1 bash -c 'unset ${{!SLURM_@}}; mpirun -n 8 trtllm-serve m'\n",
    ),
    (
        "job-leaked-ucx",
        f"{HEAD}srun -n1 {GOOD} trtllm-serve disaggregated -c f\n",
        f"{HEAD}unset UCX_TLS\nsrun -n1 {GOOD} trtllm-serve disaggregated -c f\n",
    ),
    (
        "job-leaked-ucx",
        f"{HEAD}srun -n1 {GOOD} bash -c 'trtllm-serve disaggregated -c f'\n",
        f"{HEAD}srun -n1 {GOOD} bash -c 'unset UCX_TLS; trtllm-serve disaggregated -c f'\n",
    ),
    (
        "job-ucx-contradiction",
        f"{HEAD}export UCX_TLS=^cuda_ipc UCX_CUDA_IPC_ENABLE_MNNVL=y\n{STEP}",
        f"{HEAD}export UCX_TLS=^tcp UCX_CUDA_IPC_ENABLE_MNNVL=y\n{STEP}",
    ),
    ("job-wait", f"{HEAD}{STEP[:-1]} >log 2>&1 &\necho up\n", f"{HEAD}{STEP[:-1]} &\nwait $!\n"),
    ("job-exit-code", f"{HEAD}{STEP[:-1]} &\nwait\n", f"{HEAD}{STEP[:-1]} &\nwait -n\n"),
    (
        "job-exit-code",
        f"{HEAD}{STEP[:-1]} | tee log\n",
        f"{HEAD}set -o pipefail\n{STEP[:-1]} | tee log\n",
    ),
    ("job-exit-code", f"{HEAD}{STEP[:-1]} || true\n", f"{HEAD}{STEP[:-1]} || exit 1\n"),
    ("job-exit-code", f"#!/bin/bash\n#SBATCH -N2\n{STEP}echo over\n", f"{HEAD}{STEP}echo over\n"),
    (
        "job-cancels-itself",
        f'{HEAD}{STEP[:-1]} &\nwait $!\nscancel "$SLURM_JOB_ID"\n',
        f'{HEAD}{STEP[:-1]} &\nwait $!\nscancel "$OTHER"\n',
    ),
]


@pytest.mark.parametrize(("rule", "broken", "kept"), EXAMPLES)
def test_each_rule_finds_its_fault_and_leaves_its_neighbour(
    rule: str, broken: str, kept: str, tmp_path: Path
) -> None:
    assert rules(tmp_path, broken) == {rule}
    assert rules(tmp_path, kept) - {"job-ntasks"} == set()


def test_every_rule_has_an_example() -> None:
    assert {rule for rule, _, _ in EXAMPLES} == set(table()["rules"])


def test_findings_name_the_line_and_what_to_do(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, f"{HEAD}#SBATCH --gres=gpu:4\n{STEP}")
    assert (found.location.line, found.path) == (4, "--gres")
    assert (found.message, found.fix) == (
        "is below a command, where sbatch does not read it",
        "move it above the first command",
    )


def test_a_block_is_that_of_the_gpu(tmp_path: Path) -> None:
    text = f"#!/bin/bash\n#SBATCH -N 36 --segment=12\n{STEP}"
    assert rules(tmp_path, text, "gb200") == set()
    assert rules(tmp_path, text.replace("12", "36"), "gb300") == {"job-segment"}


def test_ranks_are_those_of_the_option_file_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("tensor_parallel_size: 16\n")
    step = f"srun -n8 {GOOD} trtllm-llmapi-launch trtllm-serve m --config config.yaml\n"
    assert rules(tmp_path, HEAD + step) == {"job-ranks"}
    assert rules(tmp_path, HEAD + step.replace("-n8", "-n16")) == set()


def test_ranks_come_from_the_job_where_the_step_says_nothing(tmp_path: Path) -> None:
    step = f"srun {GOOD} trtllm-llmapi-launch trtllm-serve m --tp_size 16\n"
    assert rules(tmp_path, HEAD + step) == {"job-ranks", "job-ntasks"}
    assert rules(tmp_path, HEAD + step.replace("16", "8")) == {"job-ntasks"}


def test_sizes_that_the_shell_fills_in_are_not_judged(tmp_path: Path) -> None:
    step = f"srun -n $RANKS {GOOD} trtllm-llmapi-launch trtllm-serve m --tp_size ${{TP}}\n"
    assert rules(tmp_path, HEAD + step) == set()


@by_table
def test_tasks_may_be_ranks_by_themselves_or_copies(step: str, tmp_path: Path) -> None:
    assert rules(tmp_path, f"{HEAD}srun {step}\n") == set()


def test_jobs_without_a_server_are_left_alone(tmp_path: Path) -> None:
    text = (
        "#!/bin/bash\n#SBATCH -N2\nsrun hostname | sort\npython train.py &\nsrun -n4 date || true\n"
    )
    assert rules(tmp_path, text) == set()


def test_a_step_that_only_names_a_server_is_none(tmp_path: Path) -> None:
    text = f"#!/bin/bash\n#SBATCH -N2\nsrun pkill -f trtllm-serve || true\n{STEP}"
    assert rules(tmp_path, text) == set()
    text = f"#!/bin/bash\n#SBATCH -N2\nsrun bash -c 'pgrep trtllm-serve' || true\n{STEP}"
    assert rules(tmp_path, text) == set()


def test_data_of_a_script_is_no_command(tmp_path: Path) -> None:
    text = f"{HEAD}cat <<'EOF' >notes\nsrun trtllm-serve m | tee x\n#SBATCH --time=1\nEOF\n{STEP}"
    assert rules(tmp_path, text) - {"job-late-directive"} == set()


def test_commands_behind_the_data_of_an_inner_script_are_read(tmp_path: Path) -> None:
    inner = "cat <<EOF >notes\nof mpirun\nEOF\nmpirun trtllm-serve m"
    step = f"srun -N2 -n8 {GOOD} bash -c "
    (found,) = findings(tmp_path, f'{HEAD}{step}"{inner}"\n')
    assert (found.rule, found.location.line) == ("job-mpirun-in-srun", 7)


def test_options_are_read_as_sbatch_reads_them() -> None:
    text = (
        "#!/bin/bash\n#SBATCH -N2 -n 8 --mem 0 # comment\n#SBATCH --job-name='a b' --exclus\n"
        "# SBATCH --no\n##SBATCH --no\n#SBATCH hetjob\n#SBATCH -N1\necho\n#SBATCH --late\n"
    )
    first = {"nodes": "2", "ntasks": "8", "mem": "0", "job-name": "a b", "exclusive": None}
    parts = read_job(read_script(text)).parts
    assert [{row.name: row.value for row in part} for part in parts] == [first, {"nodes": "1"}]
