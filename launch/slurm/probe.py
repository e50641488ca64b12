"""Probes a cluster for its site profile: what works when it is tried, not what Slurm lists.

Requests are tried first, each by `sbatch --test-only`, then one job on nodes."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from builder import site
from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady
from builder.facts import network_checks
from builder.files import reported, resource_root, whole_file
from supervisor import network
from supervisor.state import json_lines

from . import scheduler, services
from .jobs import Say


def probe_site(options: SiteOptions, say: Say) -> str:
    """The text of a profile. Raises `NotReady` where nothing can be tried."""
    partitions = _partitions()
    say(f"partitions: {', '.join(partitions)}")
    partition, request, gpus = _gpu_partition(options, partitions)
    say(f"partition {partition}: {gpus} GPUs on a node, requested by {request[1]}")
    base = [*options.sbatch, f"--partition={partition}"]
    found = [
        _name(options),
        *_given_options(options, partition),
        *_client(options, partitions, partition),
        request,
        _exclusive(base),
        _cpus(base),
        _block_size(base, partitions[partition]),
    ]
    with _folder(options) as folder:
        option = GPU_REQUESTS.get(request[1])
        sbatch = [*base, *([option.format(gpus)] if option else ["--exclusive"])]
        nodes_of_partition = partitions[partition]
        results = _on_nodes(options, sbatch, partition, nodes_of_partition, Path(folder), say)
        found += results[0]
    found.append(("checkpoints, environment, sbatch, srun", None, "nobody can try them"))
    lines = []
    for key, value, how in found:
        if value is not None:
            line = yaml.safe_dump({key: value}, sort_keys=False, width=1000)
            lines += [f"# {how}", line.rstrip()]
    left = [f"# - {key}: {why}" for key, value, why in found if value is None]
    heading = ["", "# Left out:"] if left else []
    return "\n".join([*lines, *heading, *left, *_network(results[1], say), ""])


def _folder(options: SiteOptions) -> tempfile.TemporaryDirectory[str]:
    remedy = "name a folder that this host and all nodes see with --state"
    with reported(options.root, "cannot be used", remedy):
        options.root.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix=".probe-", dir=options.root)


# The key of a line of the profile, its value, and how it was found. The value is `None` for what
# the profile leaves out; the last part is then the reason.
Finding = tuple[str, Any, str]


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """Known facts about the site, which are part of every trial."""

    name: str | None
    given: Mapping[str, str]
    images: Mapping[str, str]
    mounts: tuple[str, ...]
    root: Path
    timeout_s: float

    @classmethod
    def from_arguments(cls, options: argparse.Namespace) -> SiteOptions:
        names = ("partition", "account", "qos", "reservation", "constraint")
        given = {name: value for name in names if (value := getattr(options, name))}
        pairs = [text.partition("=") for text in options.image]
        if wrong := [name for name, _, image in pairs if not image]:
            raise BadInput(Diagnostic("--image", f"must be SERVER=IMAGE, not {wrong[0]}"))
        images = {name: image for name, _, image in pairs}
        root = services.root(options.state)
        return cls(options.name, given, images, tuple(options.mount), root, options.timeout)

    @property
    def sbatch(self) -> list[str]:
        return [f"--{name}={value}" for name, value in self.given.items()]


def save(profile: str, file: Path) -> None:
    """Writes the file, if it can be read as a profile."""
    with reported(file, "cannot be written"), whole_file(file) as new:
        new.write_text(profile, encoding="utf-8")
        site.read(new)


UNKNOWN_OPTION = 255
GPU_REQUESTS = {"gpus_per_node": "--gpus-per-node={}", "gres": "--gres=gpu:{}"}
# Of a node; no published one has more.
MOST_GPUS, MOST_CPUS = 16, 4096
PLAIN = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The exit code, and what Slurm or the command printed."""

    code: int
    output: str

    @property
    def ok(self) -> bool:
        return self.code == 0


def _test_request(*options: str) -> TrialResult:
    """Whether Slurm would take a job with these options, if its nodes were free; nothing runs."""
    done = scheduler.call(["sbatch", "--test-only", *options, "--wrap=true"])
    return TrialResult(done.returncode, scheduler.message(done.stderr))


def _name(options: SiteOptions) -> Finding:
    if options.name:
        return "name", options.name, "given with --name"
    shown = scheduler.call(["scontrol", "show", "config"]).stdout
    named = re.search(r"^ClusterName\s*=\s*(\S+)", shown, re.MULTILINE)
    return "name", named.group(1) if named else "site", "Slurm's name of the cluster"


def _partitions() -> dict[str, int]:
    """The nodes of partitions that are up, the default one first; each is tried."""
    done = scheduler.call(["sinfo", "--noheader", "--format=%R|%P|%a|%D"])
    if done.returncode:
        raise NotReady(Diagnostic("sinfo", scheduler.message(done.stderr), scheduler.LOGIN_NODE))
    nodes: dict[str, int] = {}
    rows = [line.split("|") for line in done.stdout.splitlines()]
    for name, _, state, count in sorted(rows, key=lambda row: not row[1].endswith("*")):
        if state == "up" and PLAIN.match(name):
            nodes[name] = nodes.get(name, 0) + int(count)
    return nodes


def _gpu_partition(options: SiteOptions, partitions: Iterable[str]) -> tuple[str, Finding, int]:
    """The first partition that accepts a request for GPUs, the request, and GPUs per node.

    If there is none, the first that accepts requests for whole nodes.
    """
    wanted = options.given.get("partition")
    candidates = [name for name in partitions if wanted in (None, name)]
    refusals = []
    for name in candidates:
        base = [*options.sbatch, f"--partition={name}", "--nodes=1"]
        for request, option in GPU_REQUESTS.items():
            result = _test_request(*base, option.format(1))
            if result.ok:
                count = _most_gpus(base, option)
                how = f"tried: {option.format(count)} is accepted, {count + 1} is not"
                return name, ("gpu_request", request, how), count
            refusals.append(f"{name}, {option.format(1)}: {result.output}")
    for name in candidates:
        if _test_request(*options.sbatch, f"--partition={name}", "--exclusive").ok:
            how = "tried: no request for GPUs is accepted, one for a whole node is"
            return name, ("gpu_request", "none", how), 0
    remedy = "name --partition, --account or --qos"
    what = "; ".join(refusals) or f"has no partition {wanted or 'that is up'}"
    raise NotReady(Diagnostic("Slurm", what, remedy))


def _most_gpus(base: Sequence[str], option: str) -> int:
    return _most(lambda count: _test_request(*base, option.format(count)).ok, MOST_GPUS)


def _given_options(options: SiteOptions, partition: str) -> Iterator[Finding]:
    how = "given with --partition" if "partition" in options.given else "tried: it takes such jobs"
    yield "partition", partition, how
    for name, value in options.given.items():
        if name != "partition":
            yield name, value, f"given with --{name}; part of every trial"


def _client(
    options: SiteOptions, partitions: Iterable[str], gpu_partition: str
) -> Iterator[Finding]:
    rest = [option for option in options.sbatch if not option.startswith("--partition=")]
    for name in partitions:
        base = [*rest, f"--partition={name}", "--nodes=1"]
        gpus = [_test_request(*base, option.format(1)) for option in GPU_REQUESTS.values()]
        if name != gpu_partition and not any(a.ok for a in gpus) and _test_request(*base).ok:
            how = "tried: it takes jobs, and none that ask for a GPU"
            yield "client_partition", name, how
            return
    yield "client_partition", None, "tried: each partition has GPUs; clients share the servers'"


def _exclusive(base: Sequence[str]) -> Finding:
    result = _test_request(*base, "--exclusive", "--mem=0")
    if result.ok:
        return "exclusive", True, "tried: --exclusive --mem=0 is accepted"
    return "exclusive", False, f"tried: --exclusive --mem=0 is refused: {result.output}"


def _block_size(base: Sequence[str], nodes_of_partition: int) -> Finding:
    """The largest segment that the nodes of a job may be requested in."""

    def test(nodes: int) -> TrialResult:
        return _test_request(*base, f"--nodes={nodes}", f"--segment={nodes}")

    first = test(1)
    if first.code == UNKNOWN_OPTION:
        return "block_size", None, "tried: this Slurm does not know --segment"
    if not first.ok:
        return "block_size", None, f"tried: --segment=1 is refused: {first.output}"
    most = _most(lambda nodes: test(nodes).ok, nodes_of_partition)
    if most == nodes_of_partition:
        why = f"tried: --segment={most}, all nodes, is accepted: the topology has no blocks, or one"
        return "block_size", None, why
    how = f"tried: --segment={most} is accepted for {most} nodes, {most + 1} is not"
    return "block_size", most, how


def _cpus(base: Sequence[str]) -> Finding:
    def test(count: int) -> TrialResult:
        return _test_request(*base, "--nodes=1", "--ntasks=1", f"--cpus-per-task={count}")

    if not (first := test(1)).ok:
        return "cpus_per_node", None, f"tried: --cpus-per-task=1 is refused: {first.output}"
    most = _most(lambda count: test(count).ok, MOST_CPUS)
    how = f"tried: --cpus-per-task={most} is accepted, {most + 1} is not"
    return "cpus_per_node", most, how


def _most(takes: Callable[[int], bool], limit: int) -> int:
    """The largest accepted number up to a limit; 1 is accepted."""
    low, above = 1, limit + 1
    while above - low > 1:
        middle = (low + above) // 2
        low, above = (middle, above) if takes(middle) else (low, middle)
    return low


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
SUPERVISOR = "supervisor"
# Facts of a node that a profile shows, a line each.
SHOWN = (
    ("hca_numa", "hcas_active"),
    ("near_hcas",),
    ("peermem", "kernel_modules"),
    ("cluster_uuid", "clique_id", "fabric_state", "fabric_status"),
    ("imex", "imex_channels"),
)
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


def _on_nodes(
    options: SiteOptions,
    base: Sequence[str],
    partition: str,
    nodes_of_partition: int,
    folder: Path,
    say: Say,
) -> tuple[list[Finding], TrialResult]:
    for nodes in range(min(2, nodes_of_partition), 0, -1):
        shape = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"]
        sbatch = [*base, *shape, "--time=30", "--export=ALL"]
        if nodes == 1 or _test_request(*sbatch).ok:
            break
    say(f"job on {nodes} nodes of {partition}: MPI, Python, containers, folders, network")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(resource_root(SUPERVISOR), folder / SUPERVISOR, ignore=ignored)
    results = _run_job(_trials(options, shape, folder), sbatch, folder, options.timeout_s)
    found = [
        _mpi(results, nodes),
        *_python(results, nodes),
        *_container(options, results),
        _state_folder(options, folder, nodes),
        _memory(results["memory"]),
    ]
    return found, results["network"]


def _trials(options: SiteOptions, shape: Sequence[str], folder: Path) -> dict[str, list[str]]:
    step = ["srun", *shape, "--overlap"]
    trials = {name: [*step, f"--mpi={name}", "true"] for name in MPI_PLUGINS}
    step.append("--mpi=none")
    trials |= {
        "python": [*step, "python3", "-c", PYTHON],
        "toolkit": [*step, sys.executable, "-m", "launch", "--version"],
        "shared": [*step, "bash", "-c", f'touch "{folder}/seen-$SLURM_NODEID"'],
        "network": [*step, "python3", "-B", str(folder / SUPERVISOR), "network"],
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


def _state_folder(options: SiteOptions, folder: Path, nodes: int) -> Finding:
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


def _network(result: TrialResult, say: Say) -> Iterator[str]:
    """What the nodes have for transfers between their GPUs, as comments of the profile."""
    nodes = [row for row in json_lines(result.output) if "facts" in row]
    yield from ("", "# Network of the nodes, for disaggregated serving:")
    if not nodes:
        yield f"# - not read: {_last(result)}"
    for node in nodes:
        for names in SHOWN:
            shown = [f"{name} {node['facts'][name]}" for name in names if node["facts"].get(name)]
            if shown:
                yield f"# - {node['node']}: {', '.join(shown)}"
    unread: dict[str, list[str]] = {}
    for name, (check, state, severity, what) in network.findings(network_checks.load(), nodes):
        if state == "failed":
            yield f"# - {name}: {severity}: {check}: {what}"
            say(f"{name}: {severity}: {check}: {what}")
        elif state == "ok":
            yield f"# - {name}: ok: {check}: {what}"
        else:
            unread.setdefault(f"{name}: not read: {what.partition(': ')[2]}", []).append(check)
    yield from (f"# - {why}: {', '.join(checks)}" for why, checks in unread.items())


def _last(result: TrialResult) -> str:
    return result.output.splitlines()[-1] if result.output else f"exit code {result.code}"


def _run_job(
    trials: Mapping[str, Sequence[str]], options: Sequence[str], folder: Path, timeout_s: float
) -> dict[str, TrialResult]:
    """The results of all trials in one job, which leaves them in a folder that its nodes see.

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
    """Waits for the end of a job; the timeout is for its time in the queue."""
    deadline = time.monotonic() + timeout_s
    while (job := scheduler.jobs(job_id).get(job_id)) is not None and job.is_alive:
        if job.state == "PENDING" and time.monotonic() > deadline:
            what = f"still waits after {timeout_s:g} s: {job.reason}"
            raise NotReady(Diagnostic(f"job {job_id}", what, "wait longer with --timeout"))
        time.sleep(POLL_S)
