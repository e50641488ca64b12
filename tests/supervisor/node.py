"""Stand-ins for what a node has for RDMA and NVLink: sysfs below a folder, and tools that print.

The shapes are those of a GB200 node with two GPUs and two HCAs, as the tools' documentation shows
them; each test changes what it is about.
"""

from __future__ import annotations

import os
from pathlib import Path

UUID = "9c6f5af3-53bf-49b5-a436-b66766c413c3"
ZERO = "00000000-0000-0000-0000-000000000000"
TOPOLOGY = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\t{0}\tSYS\t0-71\t0\tN/A
GPU1\tNV18\t X \tSYS\t{1}\t72-143\t1\tN/A
NIC0\t{0}\tSYS\t X \tSYS
NIC1\tSYS\t{1}\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
GPU = """\
GPU 00000008:01:00.0
    Product Name                          : NVIDIA GB200
    Performance State                     : P0
    Fabric
        State                             : {state}
        Status                            : {status}
        CliqueId                          : {clique}
        ClusterUUID                       : {uuid}
        Health
            Bandwidth                     : N/A
    GSP Firmware Version                  : 580.95.05
    Processes
        State                             : none of the fabric's
"""


class Node:
    """A folder with the node's own /sys, /proc and /dev, and a folder of tools for its PATH."""

    def __init__(self, folder: Path) -> None:
        self.root, self.tools = folder / "root", folder / "tools"
        self.tools.mkdir(parents=True)
        for number in range(2):
            self.write(f"sys/class/infiniband/mlx5_{number}/device/numa_node", str(number))
            self.write(f"sys/class/infiniband/mlx5_{number}/ports/1/state", "4: ACTIVE")
        self.write("sys/class/net/eth0/operstate", "up")
        self.write("sys/module/nvidia_peermem/initstate", "live")
        self.driver("NVIDIA UNIX Open Kernel Module for aarch64")
        self.write("proc/cpuinfo", "flags\t\t: fpu sse2\n")
        self.write("dev/nvidia-caps-imex-channels/channel0", "")
        self.gpus()
        self.tool("nvidia-imex-ctl", "READY")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def driver(self, version: str) -> None:
        self.write("proc/driver/nvidia/version", f"NVRM version: {version}  580.95.05  Release\n")

    def gpus(
        self,
        near: tuple[str, str] = ("PIX", "PXB"),
        state: str = "Completed",
        status: str = "Success",
        uuid: str = UUID,
        clique: str = "4026",
    ) -> None:
        """`near` is the path of each GPU to its HCA."""
        fabric = GPU.format(state=state, status=status, uuid=uuid, clique=clique)
        (self.tools / "topology").write_text(TOPOLOGY.format(*near))
        (self.tools / "query").write_text(f"Attached GPUs : 2\n{fabric}{fabric}")
        texts = (
            f'if [ "$1" = topo ]; then cat {self.tools}/topology; else cat {self.tools}/query; fi'
        )
        self.script("nvidia-smi", texts)

    def tool(self, name: str, prints: str, code: int = 0) -> None:
        self.script(name, f"echo '{prints}'; exit {code}")

    def script(self, name: str, text: str) -> None:
        path = self.tools / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    @property
    def path(self) -> str:
        return f"{self.tools}{os.pathsep}{os.environ['PATH']}"
