"""A reference server in a process of its own, for as long as it is entered."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from builder.diagnostics import Diagnostic
from builder.errors import NotReady
from launch.bench.clients import Api
from launch.endpoint import Endpoint

from . import log
from .log import LogEntry
from .responses import MODEL
from .schedule import Schedule

TOOLKIT = Path(__file__).parents[2]
STOP_S = 10.0


class ReferenceServer:
    """Ends with this process, however that ends. `core` is where it runs alone."""

    def __init__(self, api: Api, schedule: Schedule | None = None, core: int | None = None) -> None:
        self.api = api
        self._schedule = schedule or Schedule()
        self._core = core
        self._lines = 0

    def __enter__(self) -> Self:
        """Raises `NotReady`."""
        self._folder = tempfile.TemporaryDirectory(prefix="reference-server-")
        self._log = Path(self._folder.name) / "log.jsonl"
        schedule = json.dumps(dataclasses.asdict(self._schedule))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.reference_server",
                self.api,
                schedule,
                str(self._log),
            ],
            cwd=TOOLKIT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt of the terminal is for the client
        )
        if self._core is not None:
            os.sched_setaffinity(self._process.pid, {self._core})
        assert self._process.stdout is not None
        port = self._process.stdout.readline().decode().strip()
        if not port:
            self.__exit__()
            raise NotReady(Diagnostic("reference server", "did not start"))
        self.address = f"127.0.0.1:{port}"
        self.endpoint = endpoint(self.api, self.address)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        return self._process.pid

    def log(self, count: int) -> Mapping[int, LogEntry]:
        """The next `count` requests by their id. Raises `TimeoutError`."""
        entries = log.read(self._log, count, self._lines)
        self._lines += count
        return entries


def endpoint(api: Api, address: str) -> Endpoint:
    """Of a reference server, by HOST:PORT."""
    if api == "grpc":
        return Endpoint("triton", None, grpc=address, model=MODEL)
    server = "triton" if api == "generate_stream" else "trtllm_serve"
    return Endpoint(server, f"http://{address}", model=MODEL)
