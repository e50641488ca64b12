"""Alerts: what wakes somebody, what it means, and what to look at then.

Rows of `builder/data/alerts.yaml`, over signals and thresholds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from string import Template
from typing import Any, Literal

from ..documents import DATA
from ..facts import data_file, plain_data
from . import signals

ALERTS = DATA / "alerts.yaml"

Severity = Literal["critical", "warning"]


@dataclass(frozen=True, slots=True)
class Cause:
    """One way in which it comes about, and commands that show whether it did."""

    symptom: str
    cause: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Test:
    """What feeds an alert's unit test: values of signals by reference.

    `fires` lets it fire with `value` and resolves with `quiet`, `below` never does. An alert looks
    back over `lookback`.
    """

    fires: Mapping[str, Any]
    below: Mapping[str, Any]
    quiet: Mapping[str, Any]
    value: float | None
    lookback: str
    labels: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert rule. `threshold` is the word in its expression that its test is about."""

    name: str
    severity: Severity
    lasts: str
    expression: str
    threshold: str | None
    summary: str
    meaning: str
    causes: tuple[Cause, ...]
    test: Test

    @property
    def anchor(self) -> str:
        """Where the runbook tells of it."""
        words = re.findall(r"[A-Z][a-z0-9]*", self.name)
        return f"alert-{'-'.join(words).lower()}"

    @property
    def words(self) -> tuple[str, ...]:
        """The signals and thresholds that it asks for."""
        return tuple(Template(self.expression).get_identifiers())

    @property
    def references(self) -> tuple[str, ...]:
        """The signals among them."""
        return tuple(word for word in self.words if word in signals.by_reference())


@cache
def all_of() -> tuple[Alert, ...]:
    """Every alert, in the order of the data."""
    return tuple(map(_alert, _document()["alerts"]))


def accepted_length() -> Mapping[int, float]:
    """Tokens per step that were published for so many draft tokens."""
    return {int(depth): float(length) for depth, length in _document()["accepted_length"].items()}


def _alert(row: Mapping[str, Any]) -> Alert:
    return Alert(
        name=row["name"],
        severity=row["severity"],
        lasts=row["for"],
        expression=row["expr"],
        threshold=row.get("threshold"),
        summary=row["summary"],
        meaning=row["meaning"],
        causes=tuple(
            Cause(cause["symptom"], cause["cause"], tuple(cause["commands"]))
            for cause in row["causes"]
        ),
        test=Test(
            fires=row["fires"],
            below=row["below"],
            quiet=row.get("quiet", row["below"]),
            value=row.get("value"),
            lookback=row.get("lookback", "0s"),
            labels=tuple(row["labels"]) if "labels" in row else None,
        ),
    )


@cache
def _document() -> Mapping[str, Any]:
    document: Mapping[str, Any] = data_file.load(ALERTS, plain_data.AlertsFile)
    return document
