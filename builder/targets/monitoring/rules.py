"""Recording and alert rules: the signals and alerts that this deployment can have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from string import Template
from typing import Any

from ...observability import alerts, signals
from ...observability.alerts import Alert
from ...observability.signals import Selection, Signal, Source, Surroundings
from ..manifest import Because
from .thresholds import Threshold, thresholds
from .watched import Watched

# How often rules are evaluated, and servers asked.
INTERVAL = "15s"
# In the texts of alerts: two braces as such, and where the value stands.
OPENING = '{{ "{{" }}'
VALUE = '{{ printf "%.3g" $value }}'


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule."""

    reference: str
    signal: Signal
    record: str
    expression: str
    source: Source


@dataclass(frozen=True)
class Rules:
    """What is recorded and alerted, and what is left out with the reason."""

    watched: Watched

    @cached_property
    def thresholds(self) -> dict[str, Threshold]:
        return thresholds(self.watched)

    @cached_property
    def selection(self) -> Selection:
        watched = self.watched
        known = {word for word, row in self.thresholds.items() if row.value is not None}
        unknown = {word: row.reason for word, row in self.thresholds.items() if row.value is None}
        return signals.select(
            Surroundings(
                watched.server,
                watched.context.release.name,
                watched.context.release.metrics.prefix,
                watched.families,
                watched.jobs,
                known,
                unknown | watched.absent(),
            )
        )

    @cached_property
    def recordings(self) -> list[Recording]:
        found = []
        for name, source in self.selection.sources.items():
            signal = signals.all_of()[name]
            for reference, window in signal.references.items():
                words = self.words(window)
                expression = Template(source.expression).substitute(words)
                found.append(
                    Recording(reference, signal, signal.record(window), expression, source)
                )
        return found

    @cached_property
    def alerts(self) -> list[Alert]:
        return [row for row in alerts.all_of() if self._obstacle(row) is None]

    @property
    def left_out(self) -> Iterator[tuple[str, str]]:
        """The alerts that this deployment cannot have, each with the reason."""
        for row in alerts.all_of():
            if reason := self._obstacle(row):
                yield row.name, reason

    def words(self, window: str | None = None) -> dict[str, str]:
        """What expressions and texts may name."""
        known = {word: row.text for word, row in self.thresholds.items() if row.value is not None}
        name = self.watched.deployment.name
        own = {"self": f"deployment={signals.quoted(name)}"}
        return {**known, **own, **({"window": self.watched.window(window)} if window else {})}

    def expression(self, alert: Alert) -> str:
        """The expression of an alert, over this deployment's series."""
        series = {
            row.reference: f"{row.record}{{{self.words()['self']}}}" for row in self.recordings
        }
        return Template(alert.expression).substitute({**self.words(), **series})

    def annotations(self, alert: Alert, value: str = VALUE) -> dict[str, str]:
        """The texts of an alert, with `value` where the value stands that it has."""
        deployment = self.watched.deployment
        given = {"name": deployment.name, "release": deployment.engine.release}
        words = {name: _literal(text) for name, text in {**self.words(), **given}.items()}
        threshold, because = self.thresholds.get(alert.threshold or ""), ""
        if threshold:
            reason = f"{threshold.text}, {threshold.reason}"
            because = f" It is {value} and should not pass {_literal(reason)}."
        return {
            "summary": Template(alert.summary).substitute(words),
            "description": Template(alert.meaning).substitute(words, value=value) + because,
            "runbook_url": f"{self.watched.options.runbook_url}#{alert.anchor}",
        }

    def _obstacle(self, alert: Alert) -> str | None:
        for word in alert.words:
            if word in self.thresholds:
                threshold = self.thresholds[word]
                if threshold.value is None:
                    return threshold.reason
            else:
                signal, _ = signals.by_reference()[word]
                if reason := self.selection.missing.get(signal.name):
                    return reason
        return None


def _literal(text: str) -> str:
    """A text that Prometheus' own templates leave as it is."""
    return text.replace("{{", OPENING)


def recording_document(rules: Rules) -> dict[str, Any]:
    rows = [
        Because({"record": row.record, "expr": row.expression}, row.signal.title)
        for row in rules.recordings
    ]
    return _groups(rules, "signals", rows)


def alert_document(rules: Rules) -> dict[str, Any]:
    rows = [alert_rule(rules, alert) for alert in rules.alerts]
    return _groups(rules, "alerts", rows)


def alert_rule(rules: Rules, alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": rules.expression(alert),
        "for": rules.watched.duration(alert.lasts),
        "labels": {"deployment": rules.watched.deployment.name, "severity": alert.severity},
        "annotations": rules.annotations(alert),
    }


def _groups(rules: Rules, kind: str, rows: list[Any]) -> dict[str, Any]:
    interval = rules.watched.duration(INTERVAL, 1)
    name = f"{rules.watched.deployment.name}-{kind}"
    group: Mapping[str, Any] = {"name": name, "interval": interval, "rules": rows}
    return {"groups": [group]}
