"""A network between pods on this machine, and the names by which they find each other."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests import watcher

SUBNET = "10.77.0"


@dataclass(frozen=True, slots=True)
class Host:
    """A pod in the network: its name, its network namespace, and the file with all names."""

    name: str
    namespace: str
    hosts: Path


@dataclass
class Network:
    """A switch, in a network namespace of its own; each name keeps its address."""

    hosts: Path
    prefix: str
    _addresses: dict[str, int] = field(default_factory=dict)
    _choice: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def joined(self, name: str, domain: str) -> Iterator[Host]:
        """A network namespace with a cable to the switch, until the end of the block."""
        number = self._number(name, domain)
        namespace, inside, cable = f"{self.prefix}{number}", "eth0", f"pod{number}"
        with ExitStack() as stack:
            ip("netns", "add", namespace)
            stack.callback(ip, "netns", "del", namespace)
            ends = ("link", "add", inside, "netns", namespace, "type", "veth")
            ip(*ends, "peer", "name", cable, "netns", self.prefix)
            stack.callback(ip, "-n", self.prefix, "link", "del", cable)
            ip("-n", self.prefix, "link", "set", cable, "master", "switch", "up")
            ip("-n", namespace, "addr", "add", f"{SUBNET}.{number}/24", "dev", inside)
            for device in ("lo", inside):
                ip("-n", namespace, "link", "set", device, "up")
            yield Host(name, namespace, self.hosts)

    def _number(self, name: str, domain: str) -> int:
        with self._choice:
            if name not in self._addresses:
                number = self._addresses[name] = len(self._addresses) + 1
                with self.hosts.open("a") as file:
                    file.write(f"{SUBNET}.{number} {name}.{domain} {name}\n")
            return self._addresses[name]


@contextmanager
def network(folder: Path) -> Iterator[Network]:
    """`folder` is for the file with the names."""
    made = Network(folder / "hosts", watcher.unique("pods") + "-")
    made.hosts.write_text("127.0.0.1 localhost\n")
    ip("netns", "add", made.prefix)
    try:
        ip("-n", made.prefix, "link", "add", "switch", "up", "type", "bridge")
        yield made
    finally:
        ip("netns", "del", made.prefix)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
