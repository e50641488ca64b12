"""A real Prometheus with the rendered rules, and what it asks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from builder.bundle import Bundle
from launch.process import Interrupts, ServerProcess
from tests.launch.conftest import launch  # noqa: F401  # a fixture of these tests too
from tests.model_repository.conftest import find_programs
from tests.monitoring.programs import program

POLL_S = 0.1
# An engine that hangs holds its server up for longer than this; then all of it is killed.
GRACE_S = 8.0
Start = Callable[..., ServerProcess]


@dataclass(frozen=True)
class Prometheus:
    url: str

    def query(self, expression: str) -> list[Mapping[str, Any]]:
        given = {"query": expression}
        answer = httpx.get(
            f"{self.url}/api/v1/query", params=given, trust_env=False, verify=False, timeout=60
        )
        return list(answer.raise_for_status().json()["data"]["result"])

    def firing(self) -> set[str]:
        """The alerts that fire now; that no GPU's exporter is there is left out."""
        rows = self.query('ALERTS{alertstate="firing", job!="gpu"}')
        return {row["metric"]["alertname"] for row in rows}

    def fired(self) -> set[str]:
        """The alerts that fired at some time."""
        rows = self.query('count_over_time(ALERTS{alertstate="firing"}[1h])')
        return {row["metric"]["alertname"] for row in rows}

    def metrics(self) -> dict[str, set[str]]:
        """Every series that was scraped or recorded, with the names of its labels."""
        given = {"match[]": '{__name__=~".+"}'}
        answer = httpx.get(
            f"{self.url}/api/v1/series", params=given, trust_env=False, verify=False, timeout=60
        )
        found: dict[str, set[str]] = {}
        for labels in answer.raise_for_status().json()["data"]:
            found.setdefault(labels["__name__"], set()).update(labels)
        return found

    def wait(self, *fire: str, gone: tuple[str, ...] = (), within_s: float = 120.0) -> None:
        """Until these fire and those are gone. What is late, the tests tell."""

        def is_so() -> bool:
            found = self.firing()
            return found.issuperset(fire) and found.isdisjoint(gone)

        until(is_so, within_s)

    def wait_for(self, expression: str) -> None:
        """Until an expression has a value."""
        until(lambda: bool(self.query(expression)), 120.0)


def until(holds: Callable[[], bool], within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while not holds() and time.monotonic() < deadline_s:
        threading.Event().wait(POLL_S)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts programs, which end with the module; each has a log beside it."""
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())

        def begin(*argv: str | Path, **variables: str) -> ServerProcess:
            folder = tmp_path_factory.mktemp("program")
            server = ServerProcess(
                list(map(str, argv)),
                cwd=folder,
                environment={**os.environ, **variables},
                log=folder / "log",
                grace_s=GRACE_S,
                interrupts=interrupts,
            )
            return stack.enter_context(server)

        yield begin


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders for the front of the path: a Python with the scripted engine, and Triton."""
    return find_programs(tmp_path_factory.mktemp("programs"))


def watch(start: Start, bundle: Bundle, port: int, folder: Path) -> Prometheus:
    """A Prometheus with the configuration of a bundle, as soon as it answers."""
    server = start(
        program("prometheus"),
        f"--config.file={bundle.folder / 'monitoring/prometheus.yml'}",
        f"--storage.tsdb.path={folder}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    )
    url = f"http://127.0.0.1:{port}"
    wait_for(server, f"{url}/-/ready")
    return Prometheus(url)


def wait_for(server: ServerProcess, url: str, within_s: float = 300.0) -> None:
    """Until a URL gives 200."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        assert server.exit_status(POLL_S) is None, "\n".join(server.last_lines())
        try:
            if httpx.get(url, trust_env=False, verify=False, timeout=60).status_code == 200:
                return
        except httpx.TransportError:
            continue
    raise AssertionError("\n".join(server.last_lines()))
