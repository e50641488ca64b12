"""What nodes have for transfers between GPUs of different nodes, checked by rows of data.

A node reads its own facts: HCAs, PCIe neighbours, NVLink domain, IMEX and variables of UCX. Each is
a text, lists joined by commas. What a node does not have is not read, and no check of it passes.
"""

from __future__ import annotations

import re
import resource
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .slurm import AuxiliarySteps, Cluster, own_argv
from .state import Json, json_lines

VARIABLES = ("UCX_TLS", "UCX_NET_DEVICES", "UCX_CUDA_IPC_ENABLE_MNNVL")
TOOL_TIMEOUT_S = 30.0
STEP_TIMEOUT_S = 180.0  # for every tool, on slow nodes
CHANNELS = "dev/nvidia-caps-imex-channels"
NEAR = ("PIX", "PXB")  # through PCIe switches alone; PIX through a single one
FABRIC = {
    "State": "fabric_state",
    "Status": "fabric_status",
    "ClusterUUID": "cluster_uuid",
    "CliqueId": "clique_id",
}
# A check of a node: its id, `ok`, `failed` or `not read`, its severity, and what was found.
Finding = tuple[str, str, str, str]


class NotRead(Exception):
    """Why a fact is not known."""


def read(node: str, environment: Mapping[str, str], root: Path = Path("/")) -> Json:
    """The facts of this node, and for others why they are not known.

    `root` is the folder with the node's own /sys, /proc and /dev.
    """
    facts: dict[str, str] = {name: environment.get(name, "") for name in VARIABLES}
    unread: dict[str, str] = {}
    for names, reader in READERS.items():
        try:
            facts.update(zip(names, reader(root)))
        except (NotRead, OSError) as fault:
            unread.update(dict.fromkeys(names, str(fault)))
    return {"node": node, "facts": facts, "unread": unread}


def read_nodes(cluster: Cluster, auxiliary: AuxiliarySteps, folder: Path) -> list[Json]:
    """The facts of every node of the job, read by a step on each with the spec of that folder."""
    nodes: list[Json] = []
    for group in cluster.groups:
        argv = own_argv("network", folder)
        _, output = auxiliary.run("network", group, argv, STEP_TIMEOUT_S)
        found = {row["node"]: row for row in json_lines(output) if "facts" in row}
        nodes += [found.get(name, {"node": name, "facts": {}, "unread": {}}) for name in group]
    return nodes


def environment_of(spec: Json, inherited: Mapping[str, str]) -> dict[str, str]:
    """The variables of a server: those that it inherits, and the spec's, where `None` unsets."""
    own: Mapping[str, str | None] = spec.get("environment") or {}
    rest = {name: value for name, value in inherited.items() if name not in own}
    return {**rest, **{name: value for name, value in own.items() if value is not None}}


def findings(rows: Sequence[Json], nodes: Sequence[Json]) -> Iterator[tuple[str, Finding]]:
    """Each check that concerns a node, with the node's name."""
    for row in rows:
        for node in nodes:
            if (found := _finding(row, node, nodes)) is not None:
                state, what = found
                yield node["node"], (row["id"], state, row["severity"], what)


def _finding(row: Json, node: Json, nodes: Sequence[Json]) -> tuple[str, str] | None:
    """The state of a check and what was found; `None` where the check is about other nodes."""
    facts, unread = node["facts"], node["unread"]
    when: Mapping[str, str] = row.get("when") or {}
    if any(name in facts and not re.fullmatch(when[name], facts[name]) for name in when):
        return None
    lists = [row[key] for key in ("each_in", "none_in") if row.get(key)]
    for name in (*when, row["reads"], *lists):
        if name not in facts:
            return "not read", f"{name}: {unread.get(name, 'the node did not report it')}"
    value = facts[row["reads"]]
    if _holds(row, value, facts, nodes):
        return "ok", f"{row['reads']} is {value or 'empty'}"
    shown = f"{row['reads']} is {value or 'empty'}, and needs {row['needs']}"
    return "failed", f"{shown}; otherwise {row['otherwise']}; {row['remedy']} ({row['source']})"


def _holds(row: Json, value: str, facts: Mapping[str, str], nodes: Sequence[Json]) -> bool:
    must, must_not = row.get("must"), row.get("must_not")
    if must is not None and not re.fullmatch(must, value):
        return False
    if must_not is not None and re.fullmatch(must_not, value):
        return False
    own = _devices(value)
    if row.get("each_in") and not own <= _devices(facts[row["each_in"]]):
        return False
    if row.get("none_in") and own & _devices(facts[row["none_in"]]):
        return False
    others = {node["facts"][row["reads"]] for node in nodes if row["reads"] in node["facts"]}
    return not row.get("same") or (len(others) == 1 and "," not in value)


def _devices(text: str) -> set[str]:
    """The devices of a list, without the numbers of their ports."""
    return {item.partition(":")[0] for item in text.split(",") if item}


# --- Reading a node -------------------------------------------------------------------------------


def _hcas(root: Path) -> list[str]:
    """HCAs, those with an active port, their NUMA nodes, those without one, and all devices."""
    folder = root / "sys/class/infiniband"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not names:
        raise NotRead("no InfiniBand or RoCE device")
    numa = {name: _text(folder / name / "device/numa_node") for name in names}
    active = []
    for name in names:
        if any("ACTIVE" in _text(state) for state in folder.glob(f"{name}/ports/*/state")):
            active.append(name)
    interfaces = [path.name for path in (root / "sys/class/net").glob("*")]
    lists = [names, active, [f"{name}:{numa[name]}" for name in names]]
    lists += [[name for name in names if numa[name] in ("-1", "")], [*names, *interfaces]]
    return [",".join(items) for items in lists]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else ""


def _driver(root: Path) -> list[str]:
    """Whether a module for peer memory is loaded, and whether the driver's modules are open."""
    version = _text(root / "proc/driver/nvidia/version")
    if not version:
        raise NotRead("no NVIDIA driver")
    loaded = any(
        (root / "sys/module" / name).is_dir() for name in ("nvidia_peermem", "nv_peer_mem")
    )
    kind = "open" if "Open Kernel Module" in version else "proprietary"
    return ["yes" if loaded else "no", kind]


def _virtual(root: Path) -> list[str]:
    found = re.search(r"(?m)^flags\s*:(.*)$", _text(root / "proc/cpuinfo"))
    if found is None:
        raise NotRead("/proc/cpuinfo has no flags")
    return ["yes" if "hypervisor" in found.group(1).split() else "no"]


def _memlock(_root: Path) -> list[str]:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return ["unlimited" if limit == resource.RLIM_INFINITY else f"{limit >> 10} KiB"]


def _topology(_root: Path) -> list[str]:
    """GPUs and the HCAs near them, HCAs on the switch of a GPU, and GPUs without a near HCA."""
    text = _run("nvidia-smi", "topo", "-m")
    nics = dict(re.findall(r"(?m)^\s*(NIC\d+): (\S+)", text))
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    header = next((words for words in lines if words[:1] == ["GPU0"] and words[1:2] != ["X"]), [])
    if not any(name in nics for name in header):
        raise NotRead("nvidia-smi topo -m shows no NIC")
    near, pix, without = [], set(), []
    for gpu, *cells in (words for words in lines if words and re.fullmatch(r"GPU\d+", words[0])):
        if gpu == header[0] and cells == header[1:]:
            continue
        links = {nics[name]: cell for name, cell in zip(header, cells) if name in nics}
        own = [name for name, cell in links.items() if cell in NEAR]
        near += [f"{gpu}:{name}" for name in own]
        pix |= {name for name in own if links[name] == "PIX"}
        without += [] if own else [gpu]
    return [",".join(near), ",".join(sorted(pix)), ",".join(without)]


def _fabric(_root: Path) -> list[str]:
    """State, status, domain and partition of the NVLink fabric, each different value once."""
    found: dict[str, list[str]] = {key: [] for key in FABRIC}
    is_inside = False
    for line in _run("nvidia-smi", "-q").splitlines():
        key, colon, value = (part.strip() for part in line.partition(":"))
        is_inside = key == "Fabric" or (is_inside and bool(colon) and key in FABRIC)
        if is_inside and colon and value not in found[key]:
            found[key].append(value)
    if not found["State"]:
        raise NotRead("nvidia-smi -q shows no fabric")
    return [",".join(values) for values in found.values()]


def _imex(_root: Path) -> list[str]:
    return [_run("nvidia-imex-ctl", "-q").strip().partition("\n")[0]]


def _channels(root: Path) -> list[str]:
    folder = root / CHANNELS
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [",".join(names)]


def _run(*argv: str) -> str:
    """What a tool prints. Raises `NotRead`."""
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotRead(f"{argv[0]} did not end in {TOOL_TIMEOUT_S:.0f} s") from None
    except OSError as fault:
        raise NotRead(f"{argv[0]}: {fault.strerror}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise NotRead(f"{' '.join(argv)}: exit code {done.returncode}: {said}"[:200])
    return done.stdout


READERS: Mapping[tuple[str, ...], Any] = {
    ("hcas", "hcas_active", "hca_numa", "hcas_without_numa", "devices"): _hcas,
    ("peermem", "kernel_modules"): _driver,
    ("virtual",): _virtual,
    ("memlock",): _memlock,
    ("near_hcas", "pix_hcas", "gpus_without_near_hca"): _topology,
    tuple(FABRIC.values()): _fabric,
    ("imex",): _imex,
    ("imex_channels",): _channels,
}
