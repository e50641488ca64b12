"""Checks of servers and ports: readiness, generated text, who listens and who is connected."""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .ports import free_ports, listen
from .slurm import COMMAND_TIMEOUT_S, AuxiliarySteps, Cluster, own_argv
from .spec import CanaryRequest, JobExit
from .state import Json, json_lines

START_PERIOD_S = 0.5  # between probes of a server that is not ready yet
RESPONSE_BYTES = 1 << 20  # of an answer to a probe or a canary request
ESTABLISHED, LISTENING = "01", "0A"  # states in the kernel's tables
MAX_ANCESTORS = 64
# What this host lacks for a connection, whatever the other side does.
LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL)


# --- Servers --------------------------------------------------------------------------------------


class NotSent(OSError):
    """A request that this host could not send, or not even address: the server got none."""


def http_request(
    address: str,
    port: int,
    path: str,
    timeout_s: float,
    body: Json | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Status and body, without any proxy of the environment.

    Raises `OSError`, also where the whole response takes longer than `timeout_s`, however it
    comes, is longer than any that is asked for here, or none of HTTP; `NotSent` where that is
    this host's own fault.
    """
    deadline = time.monotonic() + timeout_s
    connection = http.client.HTTPConnection(address, port, timeout=timeout_s)
    content = None if body is None else json.dumps(body)
    sent = {"Content-Type": "application/json", "Connection": "close", **(headers or {})}
    late = None
    try:
        try:
            connection.connect()
        except OSError as fault:
            if isinstance(fault, socket.gaierror) or fault.errno in LACKING:
                raise NotSent(*fault.args) from fault
            raise
        late = threading.Timer(deadline - time.monotonic(), _end, [connection.sock])
        late.daemon = True
        with suppress(RuntimeError):  # no thread is left: then each read alone is bounded
            late.start()
        connection.request("GET" if body is None else "POST", path, content, sent)
        response = connection.getresponse()
        found = response.status, response.read(RESPONSE_BYTES)
        if len(found[1]) == RESPONSE_BYTES:
            raise OSError(f"a response of {RESPONSE_BYTES} bytes and more")
        if response.length:
            raise OSError(f"cut off {response.length} bytes before its end")
        if time.monotonic() < deadline:
            return found
        raise TimeoutError("timed out")
    except (http.client.HTTPException, ValueError, OSError) as fault:
        if time.monotonic() >= deadline:
            raise TimeoutError("timed out") from fault
        if isinstance(fault, OSError):
            raise
        raise OSError(f"{type(fault).__name__}: {fault}") from fault
    finally:
        if late:
            late.cancel()
        connection.close()


def _end(connection: socket.socket) -> None:
    """What waits for a part of a response goes on at once."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def health_error(address: str, port: int, path: str, timeout_s: float) -> str | None:
    """What is wrong with the server; `None` where it is ready. Raises `NotSent`."""
    try:
        status, _ = http_request(address, port, path, timeout_s)
    except NotSent:
        raise
    except OSError as fault:
        return f"{path}: {fault}"
    return None if status == 200 else f"{path}: HTTP {status}"


def canary_error(address: str, port: int, request: CanaryRequest) -> str | None:
    """What is wrong with a generated response; `None` where it is text, or the server only busy.

    Raises `NotSent`.
    """
    try:
        status, body = http_request(address, port, request.path, request.timeout_s, request.body)
    except NotSent:
        raise
    except OSError as fault:
        return f"{request.path}: {fault}"
    shown = body[:200].decode(errors="replace")
    if status == 429:
        return None
    if status != 200:
        return f"{request.path}: HTTP {status} {shown}"
    return None if has_text(body) else f"{request.path}: no text in {shown}"


def has_text(body: bytes) -> bool:
    """Whether a response of OpenAI's completions or chat, or of Triton's generate, has text."""
    try:
        response = json.loads(body)
    except (ValueError, RecursionError):
        return False
    try:
        choice = (response.get("choices") or [{}])[0]
        message = choice.get("message") or {}
        texts = [choice.get("text"), response.get("text_output")]
        texts += [message.get("content"), message.get("reasoning_content")]
    except (AttributeError, LookupError, TypeError):  # another shape than either has
        return False
    return any(isinstance(text, str) and text for text in texts)


class Probe(threading.Thread):
    """A check that is repeated until `stop`.

    `failures` counts those in a row since the server was first ready; `last` is what the last check
    returned, `None` where all was well. One that could not be made says nothing of the server.
    """

    def __init__(
        self,
        check: Callable[[], str | None],
        period_s: float,
        failure_threshold: int,
        is_ready: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        self._check = check
        self._period_s = period_s
        self._failure_threshold = failure_threshold
        self._stopped = threading.Event()
        self.is_ready = is_ready
        self.failures = 0
        self.last: str | None = "not probed yet"
        self.error: BaseException | None = None

    @property
    def is_lost(self) -> bool:
        return self.failures >= self._failure_threshold

    def run(self) -> None:
        try:
            while not self._stopped.is_set():
                began = time.monotonic()
                self._look()
                period_s = self._period_s if self.is_ready else min(START_PERIOD_S, self._period_s)
                self._stopped.wait(max(0.0, period_s - (time.monotonic() - began)))
        except BaseException as error:  # the main loop raises it
            self.error = error

    def _look(self) -> None:
        try:
            self.last = self._check()
        except NotSent as fault:
            self.last = str(fault)
            return
        self.is_ready = self.is_ready or self.last is None
        self.failures = self.failures + 1 if self.last and self.is_ready else 0

    def stop(self) -> None:
        self._stopped.set()


# --- Ports ----------------------------------------------------------------------------------------


def check_ports(node: str, wanted: Sequence[int]) -> Json:
    """Which of the wanted ports are taken on this host; one that is free for each 0.

    Raises `OSError` where that cannot be tried.
    """
    taken = []
    with ExitStack() as held:  # so that none of them is a free one
        for port in filter(None, dict.fromkeys(wanted)):
            try:
                held.enter_context(listen("", port))
            except OSError as fault:
                if fault.errno in LACKING:
                    raise
                taken.append(port)
        free = free_ports(wanted.count(0), "")
    return {"node": node, "taken": taken, "free": free}


def ports_of_nodes(
    cluster: Cluster, auxiliary: AuxiliarySteps, wanted: Mapping[str, Sequence[int]]
) -> dict[str, Json]:
    """`check_ports` on every node that is named. Raises `JobExit` where it cannot run."""
    here = cluster.node
    found = {here: check_ports(here, wanted[here])} if here in wanted else {}
    # One step for each het group, since a step may not span them.
    for group in cluster.groups:
        others = [node for node in group if node in wanted and node != here]
        if others:
            argv = own_argv("ports", json.dumps(wanted))
            code, output = auxiliary.run("ports", others, argv, COMMAND_TIMEOUT_S * 3)
            found.update({row["node"]: row for row in json_lines(output) if "node" in row})
            if code != 0 or not set(others) <= set(found):
                raise JobExit("server_failed", f"cannot check the ports of {others}: {output}")
    return found


def count_connections(port: int) -> int:
    return len(list(_sockets(port, ESTABLISHED)))


def foreign_listener(port: int, mark: str, host: str | None = None) -> str | None:
    """A process that listens on the port, on any address or as `host`, and is not of the mark's.

    The mark is a variable, `NAME=value`, that a server and all that it starts have in their
    environment. `None` also where the listening process cannot be found out.
    Raises `OSError` where this host lacks what a look takes.
    """
    found = list(_sockets(port, LISTENING))
    if host is not None:
        own = _in_tables(host)
        found = [row for row in found if row[0] in own] or [
            row for row in found if not int(row[0], 16)
        ]
    for _, inode, uid in found:
        holders = _holders(inode)
        if not holders:
            if uid != os.geteuid() and os.geteuid() != 0:
                return f"a process of user {uid}"
        elif all(_carries(pid, mark) is False for pid in holders):
            return f"process {holders[0]} ({_name(holders[0])})"
    return None


def _in_tables(host: str) -> set[str]:
    """The addresses of a name as the kernel's tables have them: words of four bytes, turned."""
    texts = {str(row[4][0]) for row in socket.getaddrinfo(host, None)}
    found = set()
    for text in texts:
        data = socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
        words = [data[at : at + 4][::-1].hex().upper() for at in range(0, len(data), 4)]
        found |= {"".join(words), f"{'0' * 16}FFFF0000{words[-1]}" if len(words) == 1 else ""}
    return found


def _sockets(port: int, state: str) -> Iterator[tuple[str, str, int]]:
    """Local address, inode and user of the sockets of that port in that state."""
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):  # a host without IPv6
            for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                words = row.split()
                address, _, number = words[1].partition(":")
                if words[3] == state and int(number, 16) == port:
                    yield address, words[9], int(words[7])


def _holders(inode: str) -> list[int]:
    """The processes that have a socket open, of those that this user may see."""
    with os.scandir("/proc") as entries:
        return [
            int(entry.name)
            for entry in entries
            if entry.name.isdecimal() and _has_open(Path(entry.path), f"socket:[{inode}]")
        ]


def _has_open(process: Path, target: str) -> bool:
    with _others():
        for one in (process / "fd").iterdir():
            with _others():
                if str(one.readlink()) == target:
                    return True
    return False


@contextmanager
def _others() -> Iterator[None]:
    """Processes that are another user's, or over: nothing is seen of them.

    What this host lacks for a look is raised, since it tells nothing of them.
    """
    try:
        yield
    except OSError as error:
        if error.errno in LACKING:
            raise


def _carries(pid: int, mark: str) -> bool | None:
    """Whether a process or an ancestor has the mark; `None` where this user may not look.

    A process may write over its environment, so that its ancestors count too.
    """
    is_known = True
    for _ in range(MAX_ANCESTORS):
        try:
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return True
        except ProcessLookupError:
            pass
        except OSError as error:
            if error.errno in LACKING:
                raise
            is_known = False
        pid = _parent(pid)
        if pid <= 1:
            break
    return False if is_known else None


def _parent(pid: int) -> int:
    """0 for a process that is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError as error:
        if error.errno in LACKING:
            raise
        return 0
    return int(stat.rpartition(")")[2].split()[1])  # after the name, which may hold brackets


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"
