"""A real Slurm cluster of virtual nodes on this machine, for as long as it is entered.

One slurmctld, one slurmd for each node and a munged, all of the distribution's packages, run in
the foreground with their state in one folder, and listen on loopback only. Nodes share the host's
name and ports, unless `own_network` gives each its own, which takes root.

`$SLURM_ROOT` names the root folder of another distribution, whose Slurm is taken instead of this
one's (`tests/newer_slurm.sh` makes one); that takes root as well.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from supervisor.ports import free_ports
from tests import watcher

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.1  # a look starts a command of Slurm
PACKAGES = (
    "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libpmix-dev haproxy iproute2"
)
COMMANDS = ("slurmctld", "slurmd", "sbatch", "munged")
SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
ROOT = os.environ.get("SLURM_ROOT", "")
# The Python that runs this, where it is the distribution's own.
PYTHON = tuple(
    path
    for path in (os.path.realpath(sys.executable), sysconfig.get_path("stdlib"))
    if Path(path).is_relative_to("/usr")
)
# The other distribution's own files with all else of this machine, as long as the command runs.
ENTER = f"""\
for folder in /*/; do
  case $folder in /usr/|/bin/|/sbin/|/lib*/|/etc/|/var/|/boot/|/lost+found/) continue ;; esac
  mkdir -p "$0$folder" && mount --rbind "$folder" "$0$folder" || exit 1
done
for path in /etc/hosts /etc/resolv.conf {shlex.join(PYTHON)}; do
  if [ -d "$path" ]; then mkdir -p "$0$path"; else touch "$0$path"; fi &&
    mount --bind "$path" "$0$path" || exit 1
done
exec chroot "$0" env -C "$PWD" "$@"
"""

# KillWait, SlurmdTimeout: what sites set to 30 s and 300 s. Sockets on loopback only. A TmpFS for
# each node, since the PMIx servers of two nodes in one folder would meet.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobs.txt
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
InactiveLimit=0
KillWait=5
MinJobAge=300
Waittime=0
JobRequeue=1
TCPTimeout=2
MessageTimeout=5
"""
# `urgent` preempts `batch`; `again` is preempted as well, but its jobs are requeued.
PARTITIONS = """\
PartitionName=batch Nodes={nodes} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=5
PartitionName=again Nodes={nodes} MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes={nodes} MaxTime=INFINITE State=UP PriorityTier=9
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the cluster looks like. `block` nodes each form a block of the topology, 0 for none."""

    nodes: int = 4
    gpus: int = 4
    cpus: int = 16
    block: int = 0
    own_network: bool = False
    extra: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [f"node{index}" for index in range(1, self.nodes + 1)]


def why_not() -> str | None:
    """What keeps a cluster from running here; `None` where nothing does."""
    search = f"{ROOT}/usr/sbin:{ROOT}/usr/bin" if ROOT else SEARCH
    missing = [name for name in COMMANDS if not shutil.which(name, path=search)]
    if ROOT:
        return f"no {', '.join(missing)} in {ROOT}; run tests/newer_slurm.sh" if missing else None
    return f"{', '.join(missing)} missing; apt-get install {PACKAGES}" if missing else None


def in_root(argv: Sequence[str]) -> list[str]:
    """The command with the files of `$SLURM_ROOT`, where that is set."""
    return ["unshare", "--mount", "sh", "-c", ENTER, ROOT, *argv] if ROOT else list(argv)


def version() -> tuple[int, ...]:
    """Of Slurm, as (22, 5)."""
    command = in_root(["slurmctld", "-V"])
    answer = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PATH": SEARCH}
    )
    return tuple(int(part) for part in answer.stdout.split()[1].split(".")[:2])


class Cluster:
    """Commands run on it with `run`; `environment` is what a client of it needs."""

    def __init__(self, folder: Path, shape: Shape | None = None) -> None:
        self.folder = folder
        self.shape = shape or Shape()
        self.environment = {
            **{name: value for name, value in os.environ.items() if name != "SLURM_CONF"},
            "PATH": SEARCH,
            "SLURM_CONF": str(folder / "slurm.conf"),
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._network = Network(shape) if shape and shape.own_network else None

    def __enter__(self) -> Self:
        for name in ("state", "spool", "tmp", "log", "run", "munge", "dev"):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        (self.folder / "munge").chmod(0o755 if os.getuid() == 0 else 0o711)
        try:
            if self._network:
                self._network.make()
            self._configure()
            self._start_munge()
            self._start("slurmctld", "controller", ["slurmctld", "-D", "-c", "-f", self._conf])
            for node in self.shape.names:
                self.start_node(node)
            self.wait_idle()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def log_of(self, job_id: str) -> list[str]:
        """What the controller wrote about the job."""
        lines = (self.folder / "log" / "slurmctld.log").read_text().splitlines()
        return [line for line in lines if re.search(rf"\bJobId={job_id}\b", line)]

    def run(
        self, *argv: str | Path, check: bool = True, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A client's command, where slurmctld is."""
        done = subprocess.run(
            self.inside("controller", [str(item) for item in argv]),
            env={**self.environment, **environment},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{argv}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def inside(self, node: str, argv: Sequence[str]) -> list[str]:
        """The command as it runs on that node, or where slurmctld is (`controller`)."""
        command = in_root(argv)
        return self._network.inside(node, command) if self._network else command

    def start_node(self, name: str) -> None:
        for folder in ("spool", "tmp"):
            (self.folder / folder / name).mkdir(exist_ok=True)
        (self.folder / "tmp" / name).chmod(0o1777)
        self._start(f"slurmd-{name}", name, ["slurmd", "-D", "-N", name, "-f", self._conf])

    def kill_node(self, name: str) -> None:
        """A power cut: the node's slurmd, its steps and their tasks are gone at once."""
        daemon = self._daemons.pop(f"slurmd-{name}")
        daemon.kill()
        daemon.wait()
        tasks = self.processes(SLURMD_NODENAME=name)
        for pid in [*_step_daemons(tasks), *tasks]:  # a daemon would report its tasks' end
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self, **environment: str) -> list[int]:
        """Those of this cluster's jobs that have these variables."""
        marks = {**environment, "SLURM_CONF": self._conf}
        needed = {f"{name}={value}".encode() for name, value in marks.items()}
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):  # it ended
                    if needed <= set((entry / "environ").read_bytes().split(b"\0")):
                        found.append(int(entry.name))
        return sorted(found)

    def stop(self) -> None:
        if "slurmctld" in self._daemons:
            self.run("scancel", "-Q", "--state=PENDING", check=False)
            self.run("scancel", "-Q", "--state=RUNNING", check=False)
            self._wait_until(
                STOP_TIMEOUT_S, lambda: not self.run("squeue", "-h", check=False).stdout
            )
        for daemon in self._daemons.values():
            daemon.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for daemon in self._daemons.values():
            try:
                daemon.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._daemons.clear()
        for pid in self.processes():  # steps outlive their slurmd
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._network:
            self._network.remove()

    @property
    def _conf(self) -> str:
        return str(self.folder / "slurm.conf")

    def _configure(self) -> None:
        shape = self.shape
        host, address = (
            ("controller", NETWORK.format(254)) if self._network else (_host(), LOOPBACK)
        )
        ports = free_ports(shape.nodes + 1)
        user = pwd.getpwuid(os.getuid()).pw_name
        lines = [
            CONFIGURATION.format(
                host=host, address=address, port=ports[0], user=user, folder=self.folder
            ).rstrip()
        ]
        for index, name in enumerate(shape.names, 1):
            where = f"NodeHostname={host} NodeAddr={address}"
            if self._network:
                where = f"NodeAddr={NETWORK.format(index)}"
            lines.append(
                f"NodeName={name} {where} Port={ports[index]} CPUs={shape.cpus} Sockets=1"
                f" CoresPerSocket={shape.cpus} ThreadsPerCore=1 RealMemory=65536"
                f" Gres=gpu:{shape.gpus} State=UNKNOWN"
            )
        lines.append(PARTITIONS.format(nodes=f"node[1-{shape.nodes}]").rstrip())
        lines += shape.extra
        if shape.block:
            lines.append("TopologyPlugin=topology/block")
            self._write_blocks()
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        plugin = "disabled" if version() >= (23, 11) else "cgroup/v1"
        (self.folder / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\n")
        self._write_devices()

    def _write_blocks(self) -> None:
        names, size = self.shape.names, self.shape.block
        blocks = [names[first : first + size] for first in range(0, len(names), size)]
        lines = [f"BlockName=b{n} Nodes={','.join(block)}" for n, block in enumerate(blocks)]
        (self.folder / "topology.conf").write_text("\n".join([*lines, f"BlockSizes={size}", ""]))

    def _write_devices(self) -> None:
        """With files behind them, slurmd gives steps their CUDA_VISIBLE_DEVICES."""
        files = [self.folder / "dev" / f"gpu{index}" for index in range(self.shape.gpus)]
        for file in files:
            file.symlink_to("/dev/null")
        rows = [f"Name=gpu Flags=nvidia_gpu_env File={file}" for file in files]
        (self.folder / "gres.conf").write_text("\n".join(["AutoDetect=off", *rows, ""]))

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        (folder / "key").write_bytes(os.urandom(1024))
        (folder / "key").chmod(0o400)
        options = {
            "socket": folder / "socket",
            "key-file": folder / "key",
            "pid-file": self.folder / "run" / "munged.pid",
            "log-file": self.folder / "log" / "munged.log",
            "seed-file": folder / "seed",
        }
        argv = ["munged", "--foreground", "--force"]
        argv += [f"--{name}={value}" for name, value in options.items()]
        self._start("munged", None, argv)
        self._wait_until(START_TIMEOUT_S, (folder / "socket").exists, "munged does not start")

    def _start(self, name: str, node: str | None, argv: Sequence[str]) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                self.inside(node, argv) if node else in_root(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
            )

    def wait_idle(self) -> None:
        """Until every node is idle, and each GPU free."""

        def idle() -> bool:
            states = self.run("sinfo", "-h", "-N", "-p", "batch", "-o", "%T", check=False).stdout
            return states.split() == ["idle"] * self.shape.nodes

        self._wait_until(START_TIMEOUT_S, idle, "not all nodes are idle")

    def _wait_until(self, timeout_s: float, done: Callable[[], object], fault: str = "") -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            dead = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            if fault and (dead or time.monotonic() > deadline):
                outputs = [(self.folder / "log" / f"{name}.out").read_text() for name in dead]
                raise AssertionError(f"{fault}; ended: {dead}\n" + "\n".join(outputs))
            if time.monotonic() > deadline:
                return
            time.sleep(POLL_S)


LOOPBACK = "127.0.0.1"
NETWORK = "10.77.0.{}"


class Network:
    """A network namespace for each node and one for slurmctld, on a bridge that only they have."""

    def __init__(self, shape: Shape) -> None:
        self._nodes = shape.names
        self._prefix = watcher.unique("slurm") + "-"

    def make(self) -> None:
        names = {name: NETWORK.format(index) for index, name in enumerate(self._nodes, 1)}
        addresses = {"localhost": LOOPBACK, "controller": NETWORK.format(254), **names}
        hosts = "".join(f"{address} {name}\n" for name, address in addresses.items())
        for name in ("controller", *self._nodes):
            _ip("netns", "add", self._prefix + name)
            _ip("-n", self._prefix + name, "link", "set", "lo", "up")
            folder = Path("/etc/netns") / (self._prefix + name)
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(hosts)  # `ip netns exec` puts it over /etc/hosts
        controller = self._prefix + "controller"
        _ip("-n", controller, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", controller, "addr", "add", NETWORK.format(254) + "/24", "dev", "bridge0")
        _ip("-n", controller, "link", "set", "bridge0", "up")
        for name, address in names.items():
            own = self._prefix + name
            cable = ["type", "veth", "peer", "name", "eth0", "netns", own]
            _ip("-n", controller, "link", "add", f"v-{name}", *cable)
            _ip("-n", controller, "link", "set", f"v-{name}", "master", "bridge0", "up")
            _ip("-n", own, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", own, "link", "set", "eth0", "up")

    def inside(self, node: str, argv: Sequence[str]) -> list[str]:
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', node, *argv]
        return ["ip", "netns", "exec", self._prefix + node, *named]

    def remove(self) -> None:
        for name in (*self._nodes, "controller"):
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self._prefix + name)
            shutil.rmtree(Path("/etc/netns") / (self._prefix + name), ignore_errors=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, env={"PATH": SEARCH})


def _step_daemons(tasks: Sequence[int]) -> set[int]:
    parents = set()
    for pid in tasks:
        with suppress(OSError):  # it ended
            _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            parent = int(fields.split()[1])
            if Path(f"/proc/{parent}/comm").read_text().startswith("slurmstepd"):
                parents.add(parent)
    return parents


def _host() -> str:
    return socket.gethostname().split(".")[0]
