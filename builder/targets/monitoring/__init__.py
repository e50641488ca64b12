"""Target `monitoring`: scrape configuration, recording and alert rules with tests, and dashboards.

`monitored` is the server with the options of a deployment file and the jobs that ask it, `rules`
the signals and alerts that its release can have, with the numbers that they compare with,
`unit_tests` those of the rules, `scrape` the configurations, `pods` what Kubernetes is asked for,
`dashboards` the pages.
"""

from __future__ import annotations

from ...bundle import File, to_json
from ...facts import servers
from ...render import text, yaml_document
from ...servers import RenderContext
from . import pods
from .dashboards import dashboards
from .monitored import TARGET, diagnostics, warnings
from .monitored import MonitoringOptions as Options
from .rules import Rules, alert_document, alert_tests, recording_document, recording_tests
from .scrape import blackbox, prometheus

__all__ = ["Options", "Rules", "diagnostics", "render", "warnings"]


def render(context: RenderContext, options: Options) -> dict[str, File]:
    found, name = Rules(context, options), context.deployment.name
    files = {
        "prometheus.yml": yaml_document(f"Prometheus, for {name}.", prometheus(found)),
        "alertmanager.yml": File(text("monitoring/alertmanager.yml").encode()),
        "rules/recording.yml": yaml_document(f"Signals of {name}.", recording_document(found)),
        "rules/alerts.yml": yaml_document(f"Alerts of {name}.", alert_document(found)),
        "tests/recording.yml": yaml_document(
            "Tests of the signals: promtool test rules recording.yml", recording_tests(found)
        ),
        "tests/alerts.yml": yaml_document(
            "Tests of the alerts: promtool test rules alerts.yml", alert_tests(found)
        ),
        "README.md": File(_readme(found).encode()),
    }
    if {"ready", "certificate"} & set(found.jobs):
        modules = yaml_document("Blackbox exporter: what the probes ask.", blackbox(found))
        files["blackbox.yml"] = modules
    for file, (title, rows) in pods.documents(found).items():
        files[f"kubernetes/{file}.yaml"] = yaml_document(f"{title}, for {name}.", *rows)
    for file, dashboard in dashboards(found).items():
        files[f"grafana/{file}.json"] = File(to_json(dashboard))
    return {f"{TARGET}/{path}": file for path, file in files.items()}


def _readme(found: Rules) -> str:
    return text(
        "monitoring/README.md.j2",
        name=found.deployment.name,
        server=found.server,
        release=found.context.release.name,
        by_release=servers.load(found.server).metrics.by_release,
        confidence=found.context.release.metrics_confidence,
        jobs=found.jobs,
        options=found.options,
        rules=found,
        alerts=found.alerts,
        thresholds=found.thresholds,
    )
