"""Watches for clients that give up and an engine that dies, in a separate thread.

Triton does not tell the model that a client cancelled, disconnected or ran into its deadline: the
model has to ask, with a round trip to the server process for every request. So it asks now and
then, not per token, and at a different time for each request, so that no row of questions holds up
responses. Of many requests each is asked less often, since the questions would cost as much as
their tokens. An engine may die without raising anything: then it says so when asked for its health,
or produces nothing more while requests run.
"""

from __future__ import annotations

import os
import random
import threading
import time
import traceback
from pathlib import Path

import triton_python_backend_utils as pb_utils

from .engine import LlmEngine
from .generation import Generations
from .settings import Settings

CLOSE_TIMEOUT_S = 5.0
HEALTH_PERIOD_S = 1.0
# How often it is seen who is to be asked, as a part of the time after which each is asked again.
TICKS = 9
# For all clients together, at about 0.1 ms each. At the default period, above 22 of them each is
# asked less often for it: 256 every 1.7 s.
MOST_QUESTIONS_PER_S = 150
# Where requests come in, and the kernel's tables of connections with their states.
PORTS = ("SERVE_HTTP_PORT", "SERVE_GRPC_PORT")
CONNECTIONS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = "01"


def has_clients() -> bool:
    """Whether a client may be connected to this server: `False` is certain.

    Of one that left, Triton keeps the connection as long as its request runs, but half closed.
    """
    ports = [f":{int(os.environ[name]):04X}" for name in PORTS if name in os.environ]
    tables = [path for path in CONNECTIONS if path.exists()]
    if not (ports and tables):
        return True
    for path in tables:
        with path.open() as rows:
            for row in rows:
                _, address, _, state, _ = row.split(maxsplit=4)
                if state == ESTABLISHED and address.endswith(tuple(ports)):
                    return True
    return False


class Watchdog:
    """Runs from its making until it is closed."""

    def __init__(self, engine: LlmEngine, generations: Generations, settings: Settings) -> None:
        self._engine = engine
        self._generations = generations
        self._period_s = settings.cancellation_check_period_ms / 1000
        self._stall_timeout_s = settings.engine_stall_timeout_s
        self._is_alive = True
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        health_s = 0.0
        while not self._closed.wait(self._period_s / TICKS):
            now_s = time.monotonic()
            try:
                self._ask_clients(now_s)
                if now_s - health_s >= HEALTH_PERIOD_S:
                    health_s = now_s
                    self._ask_engine()
            except Exception:
                pb_utils.Logger.log_error(traceback.format_exc())

    def _ask_clients(self, now_s: float) -> None:
        running = self._generations.running()
        period_s = max(self._period_s, len(running) / MOST_QUESTIONS_PER_S)
        due_s = now_s - period_s + self._period_s / TICKS
        for stream in running:
            if not stream.asked_s:
                stream.asked_s = now_s - period_s * random.random()
            elif stream.asked_s <= due_s:
                try:
                    answer = stream.sender.is_cancelled()
                except Exception:  # about one request; the others are asked as well
                    pb_utils.Logger.log_error(traceback.format_exc())
                    answer = False
                if answer is not None:
                    stream.asked_s = now_s
                if answer:
                    self._generations.cancel([stream])

    def _ask_engine(self) -> None:
        """A request that it died of says why, and has done so by the second time."""
        was_alive, self._is_alive = self._is_alive, self._engine.is_alive()
        if not (was_alive or self._is_alive):
            self._generations.failure.declare("it says that it cannot serve")
        # A request that is not streamed shows nothing until it ends, which may take long.
        elif self._stall_timeout_s is not None and (
            self._engine.has_statistics
            or any(stream.request.streaming for stream in self._generations.running())
        ):
            silent_s = time.monotonic() - self._generations.progress_s
            if silent_s > self._stall_timeout_s:
                self._generations.failure.declare(f"it has given nothing for {silent_s:.0f} s")
