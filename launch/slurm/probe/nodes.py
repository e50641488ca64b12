"""The nodes: what only a job on them can tell, tried in one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..waiting import Say
from . import requests, trial
from .asked import Asked
from .profile import Finding, Found, Left
from .trial import UNKNOWN_OPTION, Answer

MPI_PLUGINS = ("pmix", "pmi2")
# Nodes of memory with processors; the others are GPUs', which no server's own memory may take.
MEMORY = """\
with= without=
for node in /sys/devices/system/node/node[0-9]*; do
  if [[ $(<"$node/cpulist") ]]; then with+=,${node##*node}; else without=1; fi
done
[[ $without ]] && numactl -m "${with#,}" true && echo "${with#,}"
"""
PYTHON = "import sys; print('Python', sys.version.split()[0]); sys.exit(sys.version_info < (3, 9))"


def found(
    asked: Asked,
    base: Sequence[str],
    partition: requests.Partition,
    gpu_options: Sequence[str],
    folder: Path,
    say: Say,
) -> list[Found]:
    """What only a job on nodes can tell; on two of them where there are two."""
    nodes = min(2, partition.nodes)
    shape = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
    options = [*base, *shape, *gpu_options, "--time=30", "--export=ALL"]
    if nodes == 2 and not trial.ask(*options).ok:
        nodes, shape = 1, ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1"]
        options = [*base, *shape, *gpu_options, "--time=30", "--export=ALL"]
    say(f"job on {nodes} nodes of {partition.name}: MPI, Python, containers, folders")
    answers = trial.run(_trials(asked, shape, folder), options, folder, asked.timeout_s)
    return [
        _mpi(answers, nodes),
        *_python(answers, nodes),
        *_container(asked, answers),
        _shared(asked, folder, nodes),
        _memory(answers["memory"]),
    ]


def _trials(asked: Asked, shape: Sequence[str], folder: Path) -> dict[str, list[str]]:
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
    for server, image in asked.images.items():
        mounts = [f"--container-mounts={','.join(asked.mounts)}"] if asked.mounts else []
        trials[f"pyxis-{server}"] = [*step, f"--container-image={image}", *mounts, "true"]
        binds = ["--bind", ",".join(asked.mounts)] if asked.mounts else []
        trials[f"apptainer-{server}"] = [*step, "apptainer", "exec", *binds, image, "true"]
    return trials


def _mpi(answers: Mapping[str, Answer], nodes: int) -> Finding:
    for name in MPI_PLUGINS:
        if answers[name].ok:
            return Finding("mpi", name, f"tried: srun --mpi={name} ran on {nodes} nodes")
    said = "; ".join(f"{name}: {_last(answers[name])}" for name in MPI_PLUGINS)
    return Finding("mpi", "none", f"tried: no plugin runs a step; {said}")


def _python(answers: Mapping[str, Answer], nodes: int) -> Iterator[Found]:
    python, toolkit = answers["python"], answers["toolkit"]
    if python.ok:
        how = f"tried: {_last(python)} ran on {nodes} nodes"
        yield Finding("python", "python3", how)
    else:
        yield Left("python", f"tried: no Python 3.9 or newer on the nodes: {_last(python)}")
    if toolkit.ok:
        yield Finding("toolkit", sys.executable, f"tried: its launch {_last(toolkit)} ran there")
    else:
        yield Left("toolkit", f"tried: {sys.executable} does not run it: {_last(toolkit)}")


def _container(asked: Asked, answers: Mapping[str, Answer]) -> Iterator[Found]:
    """The runtime that ran every given image."""
    for runtime in ("pyxis", "apptainer"):
        if asked.images and all(answers[f"{runtime}-{name}"].ok for name in asked.images):
            value: dict[str, Any] = {"runtime": runtime, "images": dict(asked.images)}
            value |= {"mounts": list(asked.mounts)} if asked.mounts else {}
            yield Finding("container", value, f"tried: {runtime} ran true in each image")
            return
    yield Finding("container", {"runtime": "none"}, "no runtime ran an image")
    if asked.images:
        for runtime in ("pyxis", "apptainer"):
            said = next(iter(_last(answers[f"{runtime}-{name}"]) for name in asked.images))
            yield Left(f"container.runtime {runtime}", f"tried: {said}")
        return
    known = answers["pyxis-option"].code != UNKNOWN_OPTION
    pyxis = "srun knows --container-image; not tried" if known else "tried: srun does not know it"
    there = answers["apptainer-command"].ok
    apptainer = "is on the nodes; not tried" if there else "tried: not on the nodes"
    remedy = "name images with --image SERVER=IMAGE"
    yield Left("container.runtime pyxis", f"{pyxis}; {remedy}" if known else pyxis)
    yield Left("container.runtime apptainer", f"{apptainer}; {remedy}" if there else apptainer)


def _shared(asked: Asked, folder: Path, nodes: int) -> Found:
    seen = len(list(folder.glob("seen-*")))
    if seen == nodes:
        how = f"tried: {nodes} nodes wrote files that this host sees"
        return Finding("state_folder", str(asked.root), how)
    return Left("state_folder", f"tried: {asked.root} is not seen by all nodes; give --state")


def _memory(memory: Answer) -> Found:
    if memory.ok and memory.words:
        how = "tried: numactl -m bound there; other nodes of memory have no processors"
        return Finding("memory_nodes", _last(memory), how)
    return Left("memory_nodes", "tried: all memory is the processors', or there is no numactl")


def _last(answer: Answer) -> str:
    return answer.words.splitlines()[-1] if answer.words else f"exit code {answer.code}"
