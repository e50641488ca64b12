"""Alerts with the commands that find their causes, and the objectives that some of them guard.

Alerts are rows of `builder/data/alerts.yaml`, over signals and thresholds. Latency objectives are
the deployment's own, at the percentile that it names; there are no default ones. Availability has a
default, marked as assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Any, Literal

from ..deployment import Deployment, Slo
from ..documents import DATA
from ..facts import data_file
from ..schema import Text
from . import signals

ALERTS = DATA / "alerts.yaml"


@dataclass(frozen=True, slots=True)
class Cause:
    """A possible cause of an alert, with commands that confirm it."""

    symptom: Text
    cause: Text
    commands: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert rule with its unit test. `threshold` is the word in its expression that is tested.

    Values of signals, by reference, feed the test: `fires` lets the alert fire with `value` and
    resolves with `quiet`, which is `below` where nothing else is given; `below` never does. The
    alert looks back over `lookback`.
    """

    name: Text
    severity: Literal["critical", "warning"]
    lasts: Text
    expression: Text
    summary: Text
    meaning: Text
    causes: tuple[Cause, ...]
    fires: Mapping[str, Any]
    below: Mapping[str, Any]
    quiet: Mapping[str, Any] | None = None
    value: float | None = None
    lookback: Text = "0s"
    labels: tuple[str, ...] | None = None
    threshold: Text | None = None

    @property
    def anchor(self) -> str:
        """The id of its section in the runbook."""
        parts = re.findall(r"[A-Z][a-z0-9]*", self.name)
        return f"alert-{'-'.join(parts).lower()}"

    @property
    def identifiers(self) -> tuple[str, ...]:
        """The signals and thresholds in its expression."""
        return tuple(Template(self.expression).get_identifiers())

    @property
    def references(self) -> tuple[str, ...]:
        return tuple(word for word in self.identifiers if word in signals.by_reference())


@dataclass(frozen=True, slots=True)
class AlertsFile:
    """The alert rules; `causes` and `burn` are shared parts.

    `accepted_length` maps a number of draft tokens to the published tokens per step.
    """

    accepted_length: Mapping[int, float]
    causes: Mapping[str, Cause]
    burn: Mapping[str, Mapping[str, Text]]
    alerts: tuple[Alert, ...]


def all_of() -> tuple[Alert, ...]:
    return data_file.load(ALERTS, AlertsFile).alerts


def accepted_length() -> Mapping[int, float]:
    """Published tokens per step, by number of draft tokens."""
    return data_file.load(ALERTS, AlertsFile).accepted_length


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
