"""What the rules of job scripts foresee, seen on a real cluster: a script that breaks each, mended.

The engine's programs are stand-ins on the PATH; scheduler, steps and states are Slurm's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from builder import pipeline
from builder.lint import CheckOptions, check
from builder.lint.read.slurm import table
from tests.slurm import cluster as clusters
from tests.slurm.cluster import Cluster
from tests.slurm.service import wait_until

# Slurm looks after steps every so often; a step that should have begun by then waits.
PATIENCE_S = 4.0
END_S = 90.0
STAND_INS = {
    # Serves for so many seconds, as its model is called, or fails.
    "trtllm-serve": """\
case "$*" in
  disaggregated*) echo "UCX_TLS is ${UCX_TLS-unset}"; exit ;;
  *--tp_size*) [[ ${tllm_mpi_size:-8} == "${@: -1}" ]] || { echo wrong ranks; exit 1; } ;;
esac
echo "up as ${tllm_mpi_size:+a rank of }${tllm_mpi_size:-a server}"; sleep "$1" || exit 3
""",
    # As the engine's own: it counts the tasks, and passes the words on without quotes.
    "trtllm-llmapi-launch": 'export tllm_mpi_size=$SLURM_NTASKS; command="$*"; $command',
    "tritonserver": (
        "exec python3 -c 'import socket, sys, time; s = socket.socket(); "
        's.bind(("127.0.0.1", int(sys.argv[1]))); time.sleep(3)\' "$2"'
    ),
    # As Open MPI's: where the variables of Slurm are, they say how many ranks there may be.
    "mpirun": (
        '(( $2 <= ${SLURM_STEP_TASKS_PER_NODE:-$2} )) || { echo "not enough slots"; exit 1; }\n'
        'exec "${@:3}"'
    ),
}


@dataclass(frozen=True)
class Refused:
    """sbatch takes no such script."""


@dataclass(frozen=True)
class Waits:
    """The job neither ends nor goes on, once its log has these words."""

    once: str


@dataclass(frozen=True)
class Ends:
    """The job ends in this state, and its log has these words and not those.

    `code` is empty where it depends on who is first, as with tasks that fail together: srun ends
    those that are left with a signal, and its own code is the highest.
    """

    state: str
    code: str = "0:0"
    says: str = ""
    never: str = "\0"


Outcome = Refused | Waits | Ends
Become = Callable[[str, Outcome], None]
FAILED, COMPLETED = Ends("FAILED", "3:0"), Ends("COMPLETED")
ALL_FAIL = Ends("FAILED", "")


@dataclass(frozen=True)
class Example:
    """A script that breaks a rule and what becomes of it, then the same one mended."""

    rule: str
    broken: str
    seen: Outcome
    mended: str
    then: Outcome = COMPLETED


HEAD = "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --output=%j.log\n"
ONE_NODE = HEAD.replace("--nodes=2", "--nodes=1")
ANY_NODES = HEAD.replace("--nodes=2", "--ntasks=8")
TRUE = "srun -n1 true\n"
LAUNCH = "trtllm-llmapi-launch"
# The second server finds no node of its own; the script ends with it.
SERVE = f"srun -n8 -K {LAUNCH} trtllm-serve"
BOTH = f"{SERVE} 60 --tp_size 8 &\nsleep 1\nsrun -N1 -n1 -K%s trtllm-serve x\n"
DIES = "printf '[[ $SLURM_PROCID != 3 ]] || kill -KILL $$\\nsleep 60\\n' >rank.sh\n"
PORT = "srun -n1 --overlap -K tritonserver --http-port 28761 &\n"
PORTS = f"{ONE_NODE}{PORT}{PORT}wait -n && wait -n\n"
QUOTES = f"{ONE_NODE}srun -n1 -K {LAUNCH} printf '[%s]' 'a b'\n"
SCRIPT = f"{ONE_NODE}echo \"printf '[%s]' 'a b'\" >run.sh\nsrun -n1 -K {LAUNCH} bash run.sh\n"
UNSET = "unset ${!SLURM_@} ${!PMI_@} ${!PMIX_@}"

EXAMPLES = [
    Example("job-shebang", f"{HEAD[12:]}{TRUE}", Refused(), HEAD + TRUE),
    Example("job-line-ends", (HEAD + TRUE).replace("\n", "\r\n"), Refused(), HEAD + TRUE),
    Example(
        "job-stray-word",
        f"{HEAD[:-1]} --comment=a b\n{TRUE}",
        Refused(),
        f"{HEAD[:-1]} --comment='a b'\n{TRUE}",
    ),
    Example(
        "job-unknown-option", HEAD.replace("ntasks-p", "ntask-p") + TRUE, Refused(), HEAD + TRUE
    ),
    Example(
        "job-plugin-option",
        f"{HEAD}#SBATCH --container-image=/images/engine.sqsh\n{TRUE}",
        Refused(),
        HEAD + TRUE,
    ),
    Example(
        "job-time",
        f"{HEAD}#SBATCH --time=1h\n{TRUE}",
        Refused(),
        f"{HEAD}#SBATCH --time=01:00:00\n{TRUE}",
    ),
    Example(
        "job-value",
        f"{HEAD}#SBATCH --signal=B:USR1@70000\n{TRUE}",
        Refused(),
        f"{HEAD}#SBATCH --signal=B:USR1@300\n{TRUE}",
    ),
    Example(
        "job-contradiction",
        f"{HEAD}#SBATCH --ntasks=9\n{TRUE}",
        Refused(),
        f"{HEAD}#SBATCH --ntasks=8\n{TRUE}",
    ),
    Example(
        "job-late-directive",
        f"{HEAD}echo named $SLURM_JOB_NAME\n#SBATCH --job-name=late\n{TRUE}",
        Ends("COMPLETED", never="named late"),
        f"{HEAD}#SBATCH --job-name=late\necho named $SLURM_JOB_NAME\n{TRUE}",
        Ends("COMPLETED", says="named late"),
    ),
    Example(
        "job-ranks",
        f"{HEAD}srun -n4 -K {LAUNCH} trtllm-serve 1 --tp_size 8\n",
        replace(ALL_FAIL, says="wrong ranks"),
        f"{HEAD}{SERVE} 1 --tp_size 8\n",
    ),
    Example(  # all tasks of the job, on one node
        "job-ntasks",
        f"{ANY_NODES}srun -N1 --ntasks-per-node=4 -K {LAUNCH} trtllm-serve 1 --tp_size 4\n",
        ALL_FAIL,
        f"{ANY_NODES}srun -N1 -n4 --ntasks-per-node=4 -K {LAUNCH} trtllm-serve 1 --tp_size 4\n",
    ),
    Example(
        "job-launcher",
        f"{HEAD}srun -n8 -K trtllm-serve 1 --tp_size 8\n",
        Ends("COMPLETED", says="up as a server"),
        f"{HEAD}{SERVE} 1 --tp_size 8\n",
        Ends("COMPLETED", says="up as a rank of 8", never="up as a server"),
    ),
    Example("job-overlap", HEAD + BOTH % "", Waits("up"), HEAD + BOTH % " --overlap", FAILED),
    Example(
        "job-may-wait", ANY_NODES + BOTH % "", Waits("up"), ANY_NODES + BOTH % " --overlap", FAILED
    ),
    Example(
        "job-ports",
        PORTS,
        Ends("FAILED", "1:0", says="Address already in use"),
        PORTS.replace("28761", "28762", 1),
    ),
    Example(
        "job-kill-on-bad-exit",
        f"{HEAD}{DIES}srun -n8 {LAUNCH} bash rank.sh\n",
        Waits("Killed"),
        f"{HEAD}{DIES}srun -n8 -K {LAUNCH} bash rank.sh\n",
        ALL_FAIL,
    ),
    Example(
        "job-launcher-quoting",
        QUOTES,
        Ends("COMPLETED", says="[a][b]"),
        SCRIPT,
        Ends("COMPLETED", says="[a b]"),
    ),
    Example(
        "job-mpirun-in-srun",
        f"{HEAD}srun -n1 mpirun -n 4 trtllm-serve 1\n",
        Ends("FAILED", "1:0", says="not enough slots"),
        f"{HEAD}srun -n1 bash -c '{UNSET}; mpirun -n 4 trtllm-serve 1'\n",
    ),
    Example(  # the cluster has it in its environment
        "job-leaked-ucx",
        f"{HEAD}srun -n1 -K trtllm-serve disaggregated -c f\n",
        Ends("COMPLETED", says="UCX_TLS is tcp"),
        f"{HEAD}unset UCX_TLS\nsrun -n1 -K trtllm-serve disaggregated -c f\n",
        Ends("COMPLETED", says="UCX_TLS is unset"),
    ),
    Example(
        "job-wait",
        f"{HEAD}{SERVE} 60 --tp_size 8 &\nsleep 2\necho over\n",
        COMPLETED,
        f"{HEAD}{SERVE} x --tp_size 8 &\nsleep 2\nwait $!\n",
        ALL_FAIL,
    ),
    *(
        Example(
            "job-exit-code",
            f"{HEAD}srun -n1 -K trtllm-serve x {end}\n",
            COMPLETED,
            f"{HEAD}srun -n1 -K trtllm-serve x {mended}\n",
            FAILED,
        )
        for end, mended in {
            "&\nwait": "&\nwait $!",
            "|| true": "|| exit",
            "| cat": "",
            "\necho over": "\ncode=$?; echo over; exit $code",
        }.items()
    ),
    Example(
        "job-cancels-itself",
        f"{HEAD}srun -n1 -K trtllm-serve 1 &\nwait $!\nscancel $SLURM_JOB_ID\n",
        Ends("CANCELLED", ""),
        f"{HEAD}srun -n1 -K trtllm-serve 1 &\nwait $!\n",
    ),
]
if not clusters.why_not() and clusters.version() >= (24, 5):
    EXAMPLES.append(
        Example(
            "job-segment",
            f"{HEAD}#SBATCH --nodes=3 --segment=2\n{TRUE}",
            Refused(),
            f"{HEAD}#SBATCH --nodes=2 --segment=2\n{TRUE}",
        )
    )
# What an older Slurm than that has no option for.
SEGMENTS = {"job-segment", "job-wide-segment"}


class Job:
    """A job of the cluster and its log."""

    def __init__(self, cluster: Cluster, folder: Path, number: str) -> None:
        self._cluster, self._folder, self._number = cluster, folder, number

    @property
    def log(self) -> str:
        path = self._folder / f"{self._number}.log"
        return path.read_text() if path.exists() else ""

    def show(self) -> dict[str, str]:
        shown = self._cluster.run("scontrol", "-o", "show", "job", self._number).stdout
        return dict(word.partition("=")[::2] for word in shown.split() if "=" in word)

    def end(self) -> tuple[str, str]:
        """The state and exit code of the job once it is over."""
        self.wait_for(lambda: self.show()["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"))
        shown = self.show()
        return shown["JobState"], shown["ExitCode"]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, END_S, lambda: f"{self.show()}\n{self.log}")

    def runs_on_for(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.show()["JobState"] != "RUNNING":
                return False
            time.sleep(0.2)
        return True

    def cancel(self) -> None:
        self._cluster.run("scancel", self._number, check=False)
        self.end()


@pytest.fixture
def become(cluster: Cluster, tmp_path: Path) -> Become:
    """Submit a script, and see that this becomes of it."""
    for name, text in STAND_INS.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    surroundings = {"PATH": f"{tmp_path}/bin:{clusters.SEARCH}", "UCX_TLS": "tcp"}

    def send(text: str, outcome: Outcome) -> None:
        script = tmp_path / "job.sbatch"
        script.write_text(text)
        command = ["sbatch", "--parsable", str(script)]
        done = cluster.run(*command, cwd=tmp_path, check=False, **surroundings)
        assert (done.returncode != 0) == isinstance(outcome, Refused), done.stderr
        job = Job(cluster, tmp_path, done.stdout.strip())
        if isinstance(outcome, Waits):
            job.wait_for(lambda: outcome.once in job.log)
            assert job.runs_on_for(PATIENCE_S), job.log
            job.cancel()
        elif isinstance(outcome, Ends):
            state, code = job.end()
            assert (state, outcome.code and code) == (outcome.state, outcome.code), job.log
            assert outcome.says in job.log
            assert outcome.never not in job.log

    return send


def rules(text: str, tmp_path: Path) -> set[str]:
    script = tmp_path / "judged.sbatch"
    script.write_text(text)
    report = check([script], CheckOptions(), pipeline.deployment_diagnostics)
    return {row.rule for row in report.findings if row.rule.startswith("job-")}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.rule)
def test_a_script_that_breaks_a_rule_goes_wrong_and_mended_it_goes_well(
    example: Example, become: Become, tmp_path: Path
) -> None:
    assert rules(example.broken, tmp_path) == {example.rule}
    become(example.broken, example.seen)
    assert rules(example.mended, tmp_path) == set()
    become(example.mended, example.then)


def test_every_rule_is_seen_here_or_has_a_source() -> None:
    seen = {example.rule for example in EXAMPLES} | SEGMENTS
    unseen = {name: row for name, row in table()["rules"].items() if name not in seen}
    assert [name for name, row in unseen.items() if "no test shows it" not in row["source"]] == []
