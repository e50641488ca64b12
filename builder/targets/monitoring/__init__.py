"""Target `monitoring`: what watches a server, and wakes somebody who then knows what to do.

`options` is what a deployment file says, `watched` the server and the jobs that ask it,
`thresholds` the numbers from the plan, `rules` the signals and alerts that its release can have,
`unit_tests` those of the rules, `scrape` the configurations, `dashboards` the pages.
"""

from __future__ import annotations

from ...bundle import File, to_json
from ...render import text
from ...servers import BundleContext
from ..manifest import manifest
from .dashboards import dashboards
from .options import Options
from .rules import Rules, alert_document, recording_document
from .scrape import alertmanager, blackbox, prometheus
from .unit_tests import alert_tests, recording_tests
from .watched import TARGET, Watched, problems

__all__ = ["Options", "Rules", "problems", "render", "rules"]


def rules(context: BundleContext, options: Options) -> Rules:
    """What is recorded and alerted of a deployment."""
    return Rules(Watched(context, options))


def render(context: BundleContext, options: Options) -> dict[str, File]:
    found = rules(context, options)
    watched, name = found.watched, context.deployment.name
    files = {
        "prometheus.yml": manifest(f"Prometheus, for {name}.", prometheus(watched)),
        "alertmanager.yml": manifest(
            "Alertmanager: an example. Put your own receivers in.", alertmanager()
        ),
        "rules/recording.yml": manifest(f"Signals of {name}.", recording_document(found)),
        "rules/alerts.yml": manifest(f"Alerts of {name}.", alert_document(found)),
        "tests/recording.yml": manifest(
            "Tests of the signals: promtool test rules recording.yml", recording_tests(found)
        ),
        "tests/alerts.yml": manifest(
            "Tests of the alerts: promtool test rules alerts.yml", alert_tests(found)
        ),
        "README.md": File(_readme(found).encode()),
    }
    if {"ready", "certificate"} & set(watched.jobs):
        modules = manifest("Blackbox exporter: what the probes ask.", blackbox(watched))
        files["blackbox.yml"] = modules
    for file, dashboard in dashboards(found).items():
        files[f"grafana/{file}.json"] = File(to_json(dashboard))
    return {f"{TARGET}/{path}": file for path, file in files.items()}


def _readme(found: Rules) -> str:
    watched = found.watched
    return text(
        "monitoring/README.md.j2",
        name=watched.deployment.name,
        server=watched.server,
        release=watched.context.release.name,
        confidence=watched.context.release.metrics.confidence,
        jobs=watched.jobs,
        options=watched.options,
        rules=found,
        alerts=found.alerts,
        thresholds=found.thresholds,
    )
