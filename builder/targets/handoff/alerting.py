"""The alerts that wake somebody: what each means, and what to look at first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...observability.alerts import Alert
from ...servers import BundleContext
from ..monitoring.monitored import TARGET, MonitoredServer, MonitoringOptions
from ..monitoring.rules import Rules
from . import prose
from .document import Paragraph, Remedies, Section, plain
from .servers import Server

# What stands for the value of an alert, which only the alert has.
VALUE = "shown in the alert"


def alerts(context: BundleContext, found: Sequence[Server], before: Sequence[Section]) -> Section:
    """A part for each alert, under the name that its rule links to."""
    parts = {
        alert.anchor: _part(alert, rules)
        for rules in _rules(context, found)
        for alert in rules.alerts
    }
    return prose.section("alerts", {}, *before, *parts.values())


def _rules(context: BundleContext, found: Sequence[Server]) -> Iterator[Rules]:
    """Those of the target `monitoring`, or those that it would have for any of the servers."""
    given = context.deployment.targets.get(TARGET)
    if given is not None:
        yield Rules(MonitoredServer(context, MonitoringOptions.model_validate(given)))
        return
    for server in found:
        yield Rules(
            MonitoredServer(context, MonitoringOptions.model_validate({"server": server.target}))
        )


def _part(alert: Alert, rules: Rules) -> Section:
    said = rules.annotations(alert, VALUE)
    words = f"{alert.severity.capitalize()}. {said['summary']} {said['description']}"
    causes = tuple(
        (
            prose.fill(one.symptom, {}),
            prose.fill(one.cause, {}),
            "".join(f"{line}\n" for line in one.commands),
        )
        for one in alert.causes
    )
    return Section(alert.anchor, alert.name, (Paragraph(plain(words)), Remedies(causes)))
