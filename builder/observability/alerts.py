"""Alerts: their expressions, what each means, and the commands that find its cause.

Rows of `builder/data/alerts.yaml`, over signals and thresholds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Any, Literal

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
        """The signals in its expression."""
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
    """Every alert, in the order of the data."""
    return data_file.load(ALERTS, AlertsFile).alerts


def accepted_length() -> Mapping[int, float]:
    """Published tokens per step, by number of draft tokens."""
    return data_file.load(ALERTS, AlertsFile).accepted_length
