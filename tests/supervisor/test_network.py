"""What nodes have for disaggregated serving is read from their own tools, and checked by rows."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.documents import DATA
from builder.errors import BadFacts
from builder.facts import data_file, network_checks
from builder.facts.network_checks import NetworkCheck
from supervisor import network
from tests.supervisor.node import ZERO, Node

ROWS = network_checks.load()
Change = Callable[[Node], object]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setenv("PATH", made.path)
    limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limit)
    return made


def read(node: Node, **environment: str) -> dict[str, Any]:
    return network.read("node1", environment, node.root)


def states(*nodes: dict[str, Any]) -> dict[str, set[str]]:
    """The ids of the checks by their state."""
    found: dict[str, set[str]] = {"ok": set(), "failed": set(), "not read": set()}
    for _, (name, state, _, _) in network.findings(ROWS, nodes):
        found[state].add(name)
    return found


def test_a_node_reads_every_fact_that_rows_may_ask_for(node: Node) -> None:
    found = read(node)
    assert tuple(found["facts"]) == network_checks.FACTS and found["unread"] == {}
    assert found["facts"]["hca_numa"] == "mlx5_0:0,mlx5_1:1"
    assert found["facts"]["near_hcas"] == "GPU0:mlx5_0,GPU1:mlx5_1"
    assert found["facts"]["pix_hcas"] == "mlx5_0"
    assert found["facts"]["devices"] == "mlx5_0,mlx5_1,eth0"
    assert found["facts"]["fabric_state"] == "Completed"


def test_a_sound_node_passes(node: Node) -> None:
    found = states(read(node), {**read(node), "node": "node2"})
    assert found["failed"] == found["not read"] == set()
    assert found["ok"] >= {"hca-active", "near-hca", "imex-ready", "nvlink-domain", "ucx-tls-cuda"}


def downed(node: Node) -> None:
    for number in range(2):
        node.write(f"sys/class/infiniband/mlx5_{number}/ports/1/state", "1: DOWN")


def without_peer_memory(node: Node) -> None:
    node.driver("NVIDIA UNIX aarch64 Kernel Module")
    shutil.rmtree(node.root / "sys/module/nvidia_peermem")


def virtual(node: Node) -> None:
    node.write("proc/cpuinfo", "flags\t\t: fpu hypervisor sse2\n")


def keep(_: Node) -> None:
    pass


@pytest.mark.parametrize(
    ("check", "change", "environment"),
    [
        ("hca-active", downed, {}),
        ("hca-numa", lambda n: n.write("sys/class/infiniband/mlx5_1/device/numa_node", "-1"), {}),
        ("peer-memory", without_peer_memory, {}),
        ("near-hca", lambda n: n.gpus(near=("PIX", "NODE")), {}),
        ("ucx-tls-rdma", keep, {"UCX_TLS": "tcp,cuda_copy"}),
        ("ucx-tls-cuda", keep, {"UCX_TLS": "rc,sm,self"}),
        ("ucx-tls-cuda-ipc", keep, {"UCX_TLS": "^cuda_ipc"}),
        ("ucx-devices", keep, {"UCX_NET_DEVICES": "mlx5_0:1,mlx5_9:1"}),
        ("vm-devices-unset", virtual, {}),
        ("vm-devices", virtual, {"UCX_NET_DEVICES": "mlx5_0:1"}),
        ("fabric-state", lambda n: n.gpus(state="In Progress", uuid="N/A"), {}),
        ("fabric-status", lambda n: n.gpus(status="Insufficient Resources"), {}),
        ("nvlink-domain", lambda n: n.gpus(uuid="11111111-53bf-49b5-a436-b66766c413c3"), {}),
        ("nvlink-partition", lambda n: n.gpus(clique="7"), {}),
        ("imex-ready", lambda n: n.tool("nvidia-imex-ctl", "INITIALIZING"), {}),
        ("imex-channel", lambda n: shutil.rmtree(n.root / "dev/nvidia-caps-imex-channels"), {}),
        ("mnnvl-off", keep, {"UCX_CUDA_IPC_ENABLE_MNNVL": "n"}),
        ("mnnvl-without-domain", lambda n: n.gpus(uuid=ZERO), {"UCX_CUDA_IPC_ENABLE_MNNVL": "y"}),
    ],
)
def test_each_fault_is_found_by_its_row_alone(
    node: Node, check: str, change: Change, environment: dict[str, str]
) -> None:
    other = {**read(node), "node": "node2"}
    change(node)
    others = [other] if check.startswith("nvlink-") else []
    found = states(read(node, **environment), *others)
    assert found["failed"] == {check} and found["not read"] == set()


def test_locked_memory_must_not_be_limited(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (65536, 65536))
    found = list(network.findings(ROWS, [read(node)]))
    ((_, (_, _, _, what)),) = [row for row in found if row[1][1] == "failed"]
    assert what.startswith("memlock is 64 KiB, and needs an unlimited memlock limit; otherwise ")


@pytest.mark.parametrize(
    "value", ["all", "", "rc_x,rc,cuda_copy,cuda_ipc", "ib,cuda", "rc_mlx5,cuda", "^tcp"]
)
def test_transports_that_work_pass(node: Node, value: str) -> None:
    assert states(read(node, UCX_TLS=value))["failed"] == set()


def test_a_node_without_a_fabric_needs_no_imex(node: Node) -> None:
    node.gpus(state="N/A", status="N/A", uuid="N/A", clique="N/A")
    node.tool("nvidia-imex-ctl", "UNAVAILABLE")
    assert states(read(node))["failed"] == set()


def test_what_a_node_lacks_is_not_read_and_never_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    found = network.read("node1", {}, tmp_path)
    assert found["unread"]["hcas"] == "no InfiniBand or RoCE device"
    assert found["unread"]["peermem"] == "no NVIDIA driver"
    assert found["unread"]["cluster_uuid"] == "nvidia-smi: No such file or directory"
    by_state = states(found)
    assert by_state["failed"] == set() and by_state["ok"] == {"ucx-tls-cuda", "ucx-tls-cuda-ipc"}
    assert len(by_state["not read"]) == len(ROWS) - 4  # two are about set variables


def test_a_node_that_reports_nothing_is_not_read(node: Node) -> None:
    silent = {"node": "node2", "facts": {}, "unread": {}}
    assert states(silent) == {"ok": set(), "failed": set(), "not read": {row["id"] for row in ROWS}}


def test_a_tool_that_fails_or_hangs_is_not_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.tool("nvidia-imex-ctl", "connection refused", 1)
    node.script("nvidia-smi", "exec sleep 60")
    monkeypatch.setattr(network, "TOOL_TIMEOUT_S", 0.2)
    found = read(node)
    assert found["unread"]["imex"] == "nvidia-imex-ctl -q: exit code 1: connection refused"
    assert found["unread"]["near_hcas"].startswith("nvidia-smi did not end in")


def test_a_row_is_checked_by_its_schema(tmp_path: Path) -> None:
    shipped = (DATA / "network_checks.yaml").read_text()
    wrong = tmp_path / "wrong.yaml"
    for old, new, what in [
        ("reads: hcas_active", "reads: hca_active", "hcas_active"),
        ("when: {hcas:", "when: {hca:", "is no fact of a node"),
        ('must: ".+"\n  needs: an Inf', "needs: an Inf", "is missing; give must"),
        ('must: ".+"', 'must: "("', "must be a regular expression"),
        ("severity: warning", "severity: note", "severity"),
    ]:
        wrong.write_text(shipped.replace(old, new, 1))
        with pytest.raises(BadFacts) as raised:
            data_file.read(wrong, tuple[NetworkCheck, ...])
        assert what in str(raised.value)
