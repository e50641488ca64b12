"""Who listens on a port of this host, and who is connected to it, by what the kernel shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ESTABLISHED, LISTENING = "01", "0A"  # states in the kernel's tables
MAX_ANCESTORS = 64


def count_connections(port: int) -> int:
    """How many clients are connected to that port of this host."""
    return len(list(_sockets(port, ESTABLISHED)))


def foreign_listener(port: int, mark: str) -> str | None:
    """A process that listens on the port and is not of those that carry the mark.

    The mark is a variable, `NAME=value`, that a server and all that it starts have in their
    environment. `None` also where nobody can be seen to listen: only what is known is told.
    """
    for inode, uid in _sockets(port, LISTENING):
        holders = _holders(inode)
        if not holders:
            if uid != os.geteuid() and os.geteuid() != 0:
                return f"a process of user {uid}"
        elif all(_carries(pid, mark) is False for pid in holders):
            return f"process {holders[0]} ({_name(holders[0])})"
    return None


def _sockets(port: int, state: str) -> Iterator[tuple[str, int]]:
    """Inode and user of the sockets of that port in that state."""
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):  # a host without IPv6
            for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                words = row.split()
                if words[3] == state and int(words[1].rpartition(":")[2], 16) == port:
                    yield words[9], int(words[7])


def _holders(inode: str) -> list[int]:
    """The processes that have a socket open, as far as this user may see."""
    return [
        int(entry.name)
        for entry in os.scandir("/proc")
        if entry.name.isdecimal() and _has_open(Path(entry.path), f"socket:[{inode}]")
    ]


def _has_open(process: Path, target: str) -> bool:
    with suppress(OSError):  # of another user, or over
        for one in (process / "fd").iterdir():
            with suppress(OSError):
                if str(one.readlink()) == target:
                    return True
    return False


def _carries(pid: int, mark: str) -> bool | None:
    """Whether a process, or one that it comes from, has the mark; `None` where nobody may look.

    A process may write over its environment, so that its ancestors count too.
    """
    is_known = True
    for _ in range(MAX_ANCESTORS):
        try:
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return True
        except ProcessLookupError:
            pass
        except OSError:
            is_known = False
        pid = _parent(pid)
        if pid <= 1:
            break
    return False if is_known else None


def _parent(pid: int) -> int:
    """0 for a process that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])  # after the name, which may hold brackets


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"
