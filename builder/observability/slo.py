"""Service level objectives: what a deployment promises, and how fast it may use its error budget.

Latency objectives are the deployment's own, at the percentile that it names; there are no default
ones. Availability has a default, marked as assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..deployment import Deployment, Slo

Kind = Literal["availability", "ttft", "itl"]

ASSUMED_AVAILABILITY = 0.99
# The time over which an error budget counts.
PERIOD_DAYS = 30
# So many times faster than allowed, the budget goes while an alert fires. Each alert looks at a
# long window, and at a short one so that it ends soon after the failure.
# Source: Google, The Site Reliability Workbook, chapter 5, table 5-8.
BURN_RATES = {"fast": 14.4, "slow": 6.0}
# A failure of everything is above every threshold, however small the objective.
HIGHEST_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Objective:
    """A share of requests that must be good, and what good means.

    `limit_ms` bounds a latency; availability has none. `evidence` is `deployment` if the deployment
    sets it, else `assumed`.
    """

    kind: Kind
    title: str
    good: str
    share: float
    limit_ms: float | None
    evidence: Literal["deployment", "assumed"]

    @property
    def budget(self) -> float:
        """The share of requests that may be bad."""
        return round(1 - self.share, 10)

    def burn(self, rate: str) -> float:
        """The share of bad requests above which an alert of this burn rate fires."""
        return round(min(BURN_RATES[rate] * self.budget, HIGHEST_SHARE), 10)


def latency_share(deployment: Deployment) -> float:
    """The share of requests that must meet each latency target."""
    return (deployment.slo or Slo()).share


def objectives(deployment: Deployment, availability: float | None = None) -> tuple[Objective, ...]:
    """The objectives of a deployment; `availability` is the share that it sets, if any."""
    found = [
        Objective(
            "availability",
            "Availability",
            "answered: neither failed by the server nor refused for lack of room",
            availability or ASSUMED_AVAILABILITY,
            None,
            "deployment" if availability else "assumed",
        )
    ]
    slo = deployment.slo or Slo()
    latencies: tuple[tuple[Kind, str, str, float | None], ...] = (
        ("ttft", "Time to first token", "a first token within {:g} ms", slo.ttft_ms),
        ("itl", "Time between tokens", "a token every {:g} ms on average, or faster", slo.itl_ms),
    )
    for kind, title, good, ms in latencies:
        if ms:
            found.append(Objective(kind, title, good.format(ms), slo.share, ms, "deployment"))
    return tuple(found)
