"""A calibration: how wrong this host is as a client, and how many tokens it can follow.

A client process meets the truth server at rising rates, until it is wrong by more than `BOUNDS` or
the truth server itself is late.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..run import now
from .clients import Api
from .truth import trial
from .truth.server import Truth
from .truth.trial import Comparison, Trial

Faulty = Literal["client", "truth server"]

# Above this share of the limit a measurement says as much of its client as of the server.
MARKED_ABOVE = 0.7
STREAMS = 64
RATES = (2_000, 4_000, 8_000, 12_000, 16_000, 24_000, 32_000, 40_000, 50_000, 60_000, 80_000)
# Errors that are stated; the rate is that of a busy node of eight GPUs.
STATED = 12_000
REQUEST_S = 0.7  # how long each one streams, apart from its first token
ROUNDS = 2
LATE_PERCENT = 2.0
# The most that a client may be wrong at its limit, in percent.
BOUNDS: Mapping[str, float] = {"ttft_error_percent": 2.0, "tpot_error_percent": 1.0}


@dataclass(frozen=True, slots=True)
class Rung:
    """A rate that was tried."""

    offered_tokens_per_s: float
    found: Comparison
    fault: Faulty | None


def calibrate(api: Api, say: Callable[[Rung], None] = lambda _: None) -> dict[str, Any]:
    """The document of this host and this API. Takes less than half a minute."""
    rungs: list[Rung] = []
    for rate in RATES:
        rungs.append(_rung(api, rate))
        say(rungs[-1])
        if rungs[-1].fault:
            break
    return document(api, rungs)


def document(api: Api, rungs: list[Rung]) -> dict[str, Any]:
    """The limit is the highest rate that a client process followed. Where the truth server was late
    before it was wrong, the client could do more, and nobody knows how much."""
    good = [one for one in rungs if one.fault is None]
    stated = max(
        (one for one in good if one.offered_tokens_per_s <= STATED), default=rungs[0], key=_rate
    )
    return {
        "api": api,
        "date": now(),
        "cpus": os.cpu_count(),
        "streams": STREAMS,
        "limit_tokens_per_s": max((one.found.tokens_per_s for one in good), default=0.0),
        "limited_by": rungs[-1].fault or "nothing that was tried",
        "bounds": BOUNDS,
        **{
            name: value
            for name, value in dataclasses.asdict(stated.found).items()
            if name not in ("tokens_per_s", "late_percent")
        },
        "stated_at_tokens_per_s": stated.found.tokens_per_s,
        "rates": [
            {"offered_tokens_per_s": one.offered_tokens_per_s, "fault": one.fault}
            | dataclasses.asdict(one.found)
            for one in rungs
        ],
    }


def share_of_limit(
    calibration: Mapping[str, Any], tokens_per_s: float, processes: int
) -> float | None:
    """How much of what this host's client processes can follow a load is.

    No more processes count than there are CPUs. `None` where no rate could be followed at all.
    """
    limit = calibration["limit_tokens_per_s"] * min(processes, calibration["cpus"] or processes)
    return tokens_per_s / limit if limit else None


def _rate(rung: Rung) -> float:
    return rung.offered_tokens_per_s


def _rung(api: Api, rate: int) -> Rung:
    server_core, client_core = trial.cores()
    itl_ms = STREAMS / rate * 1000
    tokens = int(REQUEST_S * 1000 / itl_ms)
    tried = Trial(STREAMS, STREAMS * ROUNDS, tokens, itl_ms)
    with Truth(api, tried.schedule, server_core) as truth:
        found = trial.run(tried, truth, client_core)
    return Rung(tried.offered_tokens_per_s, found, fault(found))


def fault(found: Comparison) -> Faulty | None:
    """Who could not follow. A late server shows how late it was, so that its client is judged."""
    if any(abs(getattr(found, name)) > most for name, most in BOUNDS.items()):
        return "client"
    return "truth server" if found.late_percent > LATE_PERCENT else None
