"""Reference servers that run for all tests of the session that measure one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from benchmarks.reference_server.process import ReferenceServer
from benchmarks.reference_server.schedule import Schedule
from launch.bench.clients import Api


@pytest.fixture(scope="session")
def reference_servers() -> Iterator[Callable[[Api], ReferenceServer]]:
    """A reference server for each API, which starts with the first test that needs it."""
    with ExitStack() as stack:
        started: dict[Api, ReferenceServer] = {}

        def find(api: Api) -> ReferenceServer:
            if api not in started:
                schedule = Schedule(ttft_ms=60, itl_ms=2)
                started[api] = stack.enter_context(ReferenceServer(api, schedule))
            return started[api]

        yield find
