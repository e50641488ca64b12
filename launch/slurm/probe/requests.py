"""Probe which requests Slurm accepts, each by `sbatch --test-only`; nothing runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from builder.diagnostics import Diagnostic
from builder.errors import NotReady

from .. import scheduler
from .profile import Finding, SiteOptions

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


def test_request(*options: str) -> TrialResult:
    """Whether Slurm would take a job with these options, if its nodes were free; nothing runs."""
    done = scheduler.call(["sbatch", "--test-only", *options, "--wrap=true"])
    return TrialResult(done.returncode, scheduler.message(done.stderr))


def name(options: SiteOptions) -> Finding:
    if options.name:
        return "name", options.name, "given with --name"
    shown = scheduler.call(["scontrol", "show", "config"]).stdout
    named = re.search(r"^ClusterName\s*=\s*(\S+)", shown, re.MULTILINE)
    return "name", named.group(1) if named else "site", "Slurm's name of the cluster"


def partitions() -> dict[str, int]:
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


def gpu_partition(options: SiteOptions, partitions: Iterable[str]) -> tuple[str, Finding, int]:
    """The first partition that takes a request for GPUs, how it does, and how many on a node.

    Without such a one, the first that takes whole nodes.
    """
    wanted = options.given.get("partition")
    candidates = [name for name in partitions if wanted in (None, name)]
    refusals = []
    for name in candidates:
        base = [*options.sbatch, f"--partition={name}", "--nodes=1"]
        for request, option in GPU_REQUESTS.items():
            result = test_request(*base, option.format(1))
            if result.ok:
                count = _most_gpus(base, option)
                how = f"tried: {option.format(count)} is accepted, {count + 1} is not"
                return name, ("gpu_request", request, how), count
            refusals.append(f"{name}, {option.format(1)}: {result.output}")
    for name in candidates:
        if test_request(*options.sbatch, f"--partition={name}", "--exclusive").ok:
            how = "tried: no request for GPUs is accepted, one for a whole node is"
            return name, ("gpu_request", "none", how), 0
    remedy = "name --partition, --account or --qos"
    what = "; ".join(refusals) or f"has no partition {wanted or 'that is up'}"
    raise NotReady(Diagnostic("Slurm", what, remedy))


def _most_gpus(base: Sequence[str], option: str) -> int:
    return _most(lambda count: test_request(*base, option.format(count)).ok, MOST_GPUS)


def gpu_options(request: str, gpus: int) -> list[str]:
    option = GPU_REQUESTS.get(request)
    return [option.format(gpus)] if option else ["--exclusive"]


def given_options(options: SiteOptions, partition: str) -> Iterator[Finding]:
    how = "given with --partition" if "partition" in options.given else "tried: it takes such jobs"
    yield "partition", partition, how
    for name, value in options.given.items():
        if name != "partition":
            yield name, value, f"given with --{name}; part of every trial"


def client(
    options: SiteOptions, partitions: Iterable[str], gpu_partition: str
) -> Iterator[Finding]:
    """A partition that has no GPUs to waste on a client."""
    rest = [option for option in options.sbatch if not option.startswith("--partition=")]
    for name in partitions:
        base = [*rest, f"--partition={name}", "--nodes=1"]
        gpus = [test_request(*base, option.format(1)) for option in GPU_REQUESTS.values()]
        if name != gpu_partition and not any(a.ok for a in gpus) and test_request(*base).ok:
            how = "tried: it takes jobs, and none that ask for a GPU"
            yield "client_partition", name, how
            return
    yield "client_partition", None, "tried: each partition has GPUs; clients share the servers'"


def exclusive(base: Sequence[str]) -> Finding:
    result = test_request(*base, "--exclusive", "--mem=0")
    if result.ok:
        return "exclusive", True, "tried: --exclusive --mem=0 is accepted"
    return "exclusive", False, f"tried: --exclusive --mem=0 is refused: {result.output}"


def block_size(base: Sequence[str], nodes_of_partition: int) -> Finding:
    """The largest segment that the nodes of a job may be requested in."""

    def test(nodes: int) -> TrialResult:
        return test_request(*base, f"--nodes={nodes}", f"--segment={nodes}")

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


def cpus(base: Sequence[str]) -> Finding:
    def test(count: int) -> TrialResult:
        return test_request(*base, "--nodes=1", "--ntasks=1", f"--cpus-per-task={count}")

    if not (first := test(1)).ok:
        return "cpus_per_node", None, f"tried: --cpus-per-task=1 is refused: {first.output}"
    most = _most(lambda count: test(count).ok, MOST_CPUS)
    how = f"tried: --cpus-per-task={most} is accepted, {most + 1} is not"
    return "cpus_per_node", most, how


def _most(takes: Callable[[int], bool], limit: int) -> int:
    """The largest number up to a limit that is taken; 1 is."""
    low, above = 1, limit + 1
    while above - low > 1:
        middle = (low + above) // 2
        low, above = (middle, above) if takes(middle) else (low, middle)
    return low
