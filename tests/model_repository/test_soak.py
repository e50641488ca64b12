"""A short soak: the same load as the long one, see `soak`."""

from __future__ import annotations

import os
import signal

from tests.model_repository.conftest import Serve
from tests.model_repository.soak import soak


def test_a_crowd_that_cancels_errs_and_vanishes_leaves_nothing_behind(start: Serve) -> None:
    served = start()
    assert soak(served, streams=100, rounds=2) == []
    counts = served.metrics()
    outcomes = {name: counts[f'requests_total{{outcome="{name}"}}'] for name in OUTCOMES}
    assert outcomes == OUTCOMES
    os.kill(served.server.pid, signal.SIGTERM)
    assert served.server.exit_status(120) == 0
    assert served.regions == []


OUTCOMES = {"finished": 168, "cancelled": 22, "invalid": 10, "refused": 0, "failed": 0}
