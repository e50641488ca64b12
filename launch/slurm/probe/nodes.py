"""Probe the nodes of a cluster with one job: MPI, Python, containers, folders and memory."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder.diagnostics import Diagnostic
from builder.errors import NotReady

from .. import scheduler
from ..jobs import Say
from .profile import Finding, SiteOptions
from .requests import UNKNOWN_OPTION, TrialResult, test_request

MPI_PLUGINS = ("pmix", "pmi2")
# Nodes of memory with processors; the others are GPUs', which no server's own memory may take.
MEMORY = """\
with= without=
for node in /sys/devices/system/node/node[0-9]*; do
  if [[ $(<"$node/cpulist") ]]; then with+=,${node##*node}; else without=1; fi
done
[[ $without ]] && numactl -m "${with#,}" true && echo "${with#,}"
"""
POLL_S = 0.5
# Of one live trial; the import of a cold image takes minutes.
STEP_TIMEOUT_S = 600
SCRIPT = """\
#!/bin/bash
# Tries on nodes of this site what its profile may say. Each trial leaves its output and exit code.
try() {{
  local name=$1
  shift
  timeout {timeout_s} "$@" >"$name.out" 2>&1
  echo $? >"$name.code"
}}
cd {folder} || exit 1
{trials}
touch whole
"""
PYTHON = "import sys; print('Python', sys.version.split()[0]); sys.exit(sys.version_info < (3, 9))"


def found(
    options: SiteOptions,
    base: Sequence[str],
    partition: str,
    nodes_of_partition: int,
    folder: Path,
    say: Say,
) -> list[Finding]:
    """What only a job on nodes can tell; on two of them where there are two."""
    for nodes in range(min(2, nodes_of_partition), 0, -1):
        shape = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
        sbatch = [*base, *shape, "--time=30", "--export=ALL"]
        if nodes == 1 or test_request(*sbatch).ok:
            break
    say(f"job on {nodes} nodes of {partition}: MPI, Python, containers, folders")
    results = _run_job(_trials(options, shape, folder), sbatch, folder, options.timeout_s)
    return [
        _mpi(results, nodes),
        *_python(results, nodes),
        *_container(options, results),
        _shared(options, folder, nodes),
        _memory(results["memory"]),
    ]


def _trials(options: SiteOptions, shape: Sequence[str], folder: Path) -> dict[str, list[str]]:
    step = ["srun", *shape, "--overlap"]
    trials = {name: [*step, f"--mpi={name}", "true"] for name in MPI_PLUGINS}
    step.append("--mpi=none")
    trials |= {
        "python": [*step, "python3", "-c", PYTHON],
        "toolkit": [*step, sys.executable, "-m", "launch", "--version"],
        "shared": [*step, "bash", "-c", f'touch "{folder}/seen-$SLURM_NODEID"'],
        "memory": [*step, "--nodes=1", "--ntasks=1", "bash", "-c", MEMORY],
        "pyxis-option": [*step, "--container-image=", "true"],
        "apptainer-command": [*step, "apptainer", "--version"],
    }
    for server, image in options.images.items():
        mounts = [f"--container-mounts={','.join(options.mounts)}"] if options.mounts else []
        trials[f"pyxis-{server}"] = [*step, f"--container-image={image}", *mounts, "true"]
        binds = ["--bind", ",".join(options.mounts)] if options.mounts else []
        trials[f"apptainer-{server}"] = [*step, "apptainer", "exec", *binds, image, "true"]
    return trials


def _mpi(results: Mapping[str, TrialResult], nodes: int) -> Finding:
    for name in MPI_PLUGINS:
        if results[name].ok:
            return "mpi", name, f"tried: srun --mpi={name} ran on {nodes} nodes"
    errors = "; ".join(f"{name}: {_last(results[name])}" for name in MPI_PLUGINS)
    return "mpi", "none", f"tried: no plugin runs a step; {errors}"


def _python(results: Mapping[str, TrialResult], nodes: int) -> Iterator[Finding]:
    python, toolkit = results["python"], results["toolkit"]
    if python.ok:
        how = f"tried: {_last(python)} ran on {nodes} nodes"
        yield "python", "python3", how
    else:
        yield "python", None, f"tried: no Python 3.9 or newer on the nodes: {_last(python)}"
    if toolkit.ok:
        yield "toolkit", sys.executable, f"tried: its launch {_last(toolkit)} ran there"
    else:
        yield "toolkit", None, f"tried: {sys.executable} does not run it: {_last(toolkit)}"


def _container(options: SiteOptions, results: Mapping[str, TrialResult]) -> Iterator[Finding]:
    """The runtime that ran every given image."""
    for runtime in ("pyxis", "apptainer"):
        if options.images and all(results[f"{runtime}-{name}"].ok for name in options.images):
            value: dict[str, Any] = {"runtime": runtime, "images": dict(options.images)}
            value |= {"mounts": list(options.mounts)} if options.mounts else {}
            yield "container", value, f"tried: {runtime} ran true in each image"
            return
    yield "container", {"runtime": "none"}, "no runtime ran an image"
    if options.images:
        for runtime in ("pyxis", "apptainer"):
            error = next(iter(_last(results[f"{runtime}-{name}"]) for name in options.images))
            yield f"container.runtime {runtime}", None, f"tried: {error}"
        return
    known = results["pyxis-option"].code != UNKNOWN_OPTION
    pyxis = "srun knows --container-image; not tried" if known else "tried: srun does not know it"
    there = results["apptainer-command"].ok
    apptainer = "is on the nodes; not tried" if there else "tried: not on the nodes"
    remedy = "name images with --image SERVER=IMAGE"
    yield "container.runtime pyxis", None, f"{pyxis}; {remedy}" if known else pyxis
    yield "container.runtime apptainer", None, f"{apptainer}; {remedy}" if there else apptainer


def _shared(options: SiteOptions, folder: Path, nodes: int) -> Finding:
    seen = len(list(folder.glob("seen-*")))
    if seen == nodes:
        how = f"tried: {nodes} nodes wrote files that this host sees"
        return "state_folder", str(options.root), how
    return "state_folder", None, f"tried: {options.root} is not seen by all nodes; give --state"


def _memory(memory: TrialResult) -> Finding:
    if memory.ok and memory.output:
        how = "tried: numactl -m bound there; other nodes of memory have no processors"
        return "memory_nodes", _last(memory), how
    return "memory_nodes", None, "tried: all memory is the processors', or there is no numactl"


def _last(result: TrialResult) -> str:
    return result.output.splitlines()[-1] if result.output else f"exit code {result.code}"


def _run_job(
    trials: Mapping[str, Sequence[str]], options: Sequence[str], folder: Path, timeout_s: float
) -> dict[str, TrialResult]:
    """What each trial did in one job, whose results are left in a folder that its nodes see.

    Raises `NotReady` if the job does not start in time, or does not see the folder.
    """
    lines = [f"try {name} {shlex.join(argv)}" for name, argv in trials.items()]
    script = folder / "trial.sbatch"
    place = shlex.quote(str(folder))
    text = SCRIPT.format(timeout_s=STEP_TIMEOUT_S, folder=place, trials="\n".join(lines))
    script.write_text(text, encoding="utf-8")
    log = folder / "trial.log"
    job_id = scheduler.submit(script, [f"--output={log}", *options], scheduler.job_environment())
    try:
        _wait(job_id, timeout_s)
    except BaseException:
        scheduler.cancel(job_id)
        raise
    if not (folder / "whole").exists():
        output = log.read_text(errors="replace").strip() if log.exists() else "it left nothing here"
        remedy = "name a folder that this host and all nodes see with --state"
        raise NotReady(
            Diagnostic(f"job {job_id}", f"left no results in {folder}: {output}", remedy)
        )
    return {name: _result(folder, name) for name in trials}


def _result(folder: Path, name: str) -> TrialResult:
    output = (folder / f"{name}.out").read_text(encoding="utf-8", errors="replace")
    return TrialResult(int((folder / f"{name}.code").read_text()), output.strip())


def _wait(job_id: str, timeout_s: float) -> None:
    """A job that waits in the queue has so much time; one that runs ends by its own limits."""
    deadline = time.monotonic() + timeout_s
    while (job := scheduler.jobs(job_id).get(job_id)) is not None and job.is_alive:
        if job.state == "PENDING" and time.monotonic() > deadline:
            what = f"still waits after {timeout_s:g} s: {job.reason}"
            raise NotReady(Diagnostic(f"job {job_id}", what, "wait longer with --timeout"))
        time.sleep(POLL_S)
