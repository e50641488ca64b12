"""Runs Slurm's commands on a login node and reads their answers and refusals."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.diagnostics import Diagnostic, one_line
from builder.errors import BadInput, NotReady
from builder.files import reason
from supervisor.slurm import ACCESS, COMMAND_INPUT, ENDED, NO_SUCH_JOB, submitted_job

COMMAND_TIMEOUT_S = 60.0
FIELDS = "%i|%j|%T|%r|%N|%A"
LOGIN_NODE = "run this where Slurm's commands are, such as a login node of the cluster"
SEE_CONTROLLER = "see whether slurmctld runs: scontrol ping"
COMMAND_PREFIX = re.compile(r"^(sbatch|srun|squeue|scancel|slurm_\w+): (error: |fatal: )?")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as Slurm knows it. `reason` says why it waits, or how it ended.

    `number` is what the job itself and its files have: `id` is `7_1` for a task of an array.
    """

    id: str
    name: str
    state: str
    reason: str
    nodes: str
    number: str

    @property
    def is_alive(self) -> bool:
        return self.state not in ENDED

    @property
    def summary(self) -> str:
        state = self.state.lower()
        return state if self.reason in ("None", "") else f"{state}, {self.reason}"


def call(
    argv: Sequence[str],
    variables: Mapping[str, str] | None = None,
    timeout_s: float = COMMAND_TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    """Runs a command of Slurm. Raises `NotReady` if it is missing or hangs."""
    try:
        return subprocess.run(
            argv,
            env=environment() if variables is None else variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise NotReady(Diagnostic(argv[0], "is not on the path", LOGIN_NODE)) from None
    except OSError as error:
        what = f"cannot be started: {reason(error)}"
        raise NotReady(Diagnostic(argv[0], what, LOGIN_NODE)) from None
    except subprocess.TimeoutExpired:
        what = f"does not answer within {timeout_s:g} s"
        raise NotReady(Diagnostic(argv[0], what, SEE_CONTROLLER)) from None


def environment() -> dict[str, str]:
    """This environment without variables of a surrounding job, whose shape a new job must not
    inherit, and without options of Slurm's commands, which would override a bundle's scripts.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in ACCESS or not (name.startswith("SLURM_") or COMMAND_INPUT.match(name))
    }


# What jobs take over from whoever submits them: where programs and modules lie, the language, and
# what servers and the libraries under them read. Not the rest of a person's shell, and no key.
_OF_JOBS = re.compile(
    r"(?!.*(KEY|TOKEN|SECRET|PASS|PASSWORD|PASSWD|CREDENTIALS)$)("
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|LD_LIBRARY_PATH|PYTHONPATH"
    r"|MODULE\w+|LMOD_\w+|LOADEDMODULES|__LMOD_\w+|BASH_FUNC_(module|ml)%%"
    r"|(APPTAINER|CUDA|ENROOT|FI|GLOO|NCCL|NVIDIA|NVSHMEM|OMPI|PMIX_MCA|SERVE|SERVICE|SINGULARITY"
    r"|TLLM|TRTLLM|UCX)_\w+|DO_NOT_TRACK|HF_HUB_OFFLINE|(DRAFT_)?CHECKPOINT)"
)


def job_environment() -> dict[str, str]:
    """The environment of a new job: with `--export=ALL`, that of sbatch itself."""
    mine = environment().items()
    return {key: value for key, value in mine if key in ACCESS or _OF_JOBS.fullmatch(key)}


def ignored_options() -> list[str]:
    return sorted(name for name in os.environ if re.match(r"SBATCH_|SLURM_CLUSTERS$", name))


def submit(
    script: Path,
    options: Sequence[str],
    variables: Mapping[str, str],
    arguments: Sequence[str] = (),
) -> str:
    """The id of a new job. Raises `BadInput` with the reasons of a refusal."""
    done = call(["sbatch", "--parsable", *options, str(script), *arguments], variables)
    if done.returncode:
        raise BadInput(refusal(script, done))
    if (job_id := submitted_job(done.stdout)) is None:
        what = f"answers {one_line(done.stdout.strip())[:60]!r} instead of the number of a job"
        raise NotReady(Diagnostic("sbatch", what, "see which sbatch is first on the path"))
    return job_id


def check(script: Path, options: Sequence[str], variables: Mapping[str, str]) -> list[Diagnostic]:
    """Why Slurm would refuse the script; nothing is submitted."""
    done = call(["sbatch", "--test-only", *options, str(script)], variables)
    return [refusal(script, done)] if done.returncode else []


def refusal(script: Path, done: subprocess.CompletedProcess[str]) -> Diagnostic:
    """Code 1 means that the cluster has no such nodes, 255 that Slurm knows no such option."""
    unknown = done.returncode == 255
    remedy = "render with the profile of this site" if unknown else "see the nodes with: sinfo -Nl"
    return Diagnostic(str(script), f"is refused by Slurm: {message(done.stderr)}", remedy)


def message(output: str) -> str:
    """The output of a command of Slurm on one line, without the command's name."""
    lines = (COMMAND_PREFIX.sub("", line.strip()) for line in output.splitlines())
    return "; ".join(dict.fromkeys(filter(None, lines))) or "no reason given"


def jobs(only: str | None = None) -> dict[str, SlurmJob]:
    """All jobs that Slurm knows by number, in one call; a heterogeneous job by that of the whole.

    Raises `NotReady` if Slurm does not answer, or does not mention the job `only`.
    """
    asked = [f"--jobs={only}"] if only else []
    done = call(["squeue", "--noheader", "--states=all", f"--format={FIELDS}", *asked])
    if done.returncode and NO_SUCH_JOB not in done.stderr:
        raise NotReady(Diagnostic("squeue", message(done.stderr), SEE_CONTROLLER))
    rows = [line.split("|") for line in done.stdout.splitlines()]
    found = {
        row[5]: SlurmJob(row[0].removesuffix("+0"), *row[1:])
        for row in rows
        if len(row) == 6 and _is_whole(row[0], row[5])
    }
    if only and only not in found and not done.returncode:
        what = f"neither shows job {only} nor says that there is none"
        raise NotReady(Diagnostic("squeue", what, "see which squeue is first on the path"))
    return found


def exit_codes(job_id: str) -> str:
    """The exit codes of a job and its steps, a line each; empty where Slurm no longer knows it.

    `DerivedExitCode` is the highest one of all steps. Without accounting the controller knows those
    of the whole job for some minutes.
    """
    fields = "JobID,State,ExitCode,DerivedExitCode"
    done = call(["sacct", "--noheader", "--parsable2", f"--jobs={job_id}", f"--format={fields}"])
    rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") == 3]
    if not rows:
        done = call(["scontrol", "show", "job", "-o", job_id])
        words = (word.partition("=") for word in done.stdout.split())
        shown = {name: value for name, _, value in words}
        if "ExitCode" in shown:
            codes = (shown.get(name, "") for name in ("JobState", "ExitCode", "DerivedExitCode"))
            rows = [[job_id, *codes]]
    return "".join(
        "|".join(row[:3]) + (f"|DerivedExitCode={row[3]}" if row[3] else "") + "\n" for row in rows
    )


def _is_whole(job_id: str, number: str) -> bool:
    """Whether a line is complete: a cut list ends with a cut number."""
    return number.isdecimal() and (number == job_id or not job_id.isdecimal())


def unlisted(number: str, name: str) -> SlurmJob:
    """A job that is alive by its own record although Slurm does not list it."""
    return SlurmJob(number, name, "UNKNOWN", "squeue does not list it", "", number)


def cancel(job_id: str, *options: str) -> None:
    """Cancels a job, which may have ended already."""
    done = call(["scancel", "--quiet", *options, job_id])
    if done.returncode and NO_SUCH_JOB not in done.stderr:
        raise NotReady(Diagnostic(f"job {job_id}", f"cannot be cancelled: {message(done.stderr)}"))
