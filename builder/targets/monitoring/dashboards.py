"""Grafana dashboards: panels over the recorded signals, the same for every kind of server."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from ...facts import data_file, plain_data
from .rules import Recording, Rules

# The version of the dashboard model that Grafana 10 writes and later ones read.
SCHEMA_VERSION = 38
COLUMNS = 24
HEIGHT = {"stat": 4, "timeseries": 8}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Grafana's own units for those of signals.
UNITS = {"tps": "short", "bool": "short"}
LEGENDS = {
    "deployment": "",
    "instance": "{{instance}} ",
    "gpu": "{{instance}} GPU {{gpu}} ",
    "job": "{{job}} {{instance}} ",
}


def dashboards(rules: Rules) -> dict[str, dict[str, Any]]:
    rows = data_file.shipped("dashboards.yaml", plain_data.DASHBOARDS)["dashboards"]
    return {row["file"]: _dashboard(rules, row) for row in rows}


def _dashboard(rules: Rules, row: Mapping[str, Any]) -> dict[str, Any]:
    name = rules.deployment.name
    digest = hashlib.sha256(f"{name}/{row['file']}".encode()).hexdigest()
    return {
        "uid": digest[:20],
        "title": f"{name}: {row['title']}",
        "description": row["description"],
        "tags": [rules.context.engine_record.package, name],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "schemaVersion": SCHEMA_VERSION,
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "annotations": {"list": [_firing(name)]},
        "panels": list(_panels(rules, row["rows"])),
    }


def _firing(name: str) -> dict[str, Any]:
    """Marks on every graph while an alert fires."""
    return {
        "name": "Alerts",
        "enable": True,
        "iconColor": "red",
        "datasource": DATASOURCE,
        "expr": f'ALERTS{{deployment="{name}", alertstate="firing"}}',
    }


def _panels(rules: Rules, rows: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    recorded = {row.reference: row for row in rules.recordings}
    number, top = 0, 0
    for row in rows:
        panels = [panel for panel in row["panels"] if set(panel["signals"]) & set(recorded)]
        if not panels:
            continue
        number += 1
        position = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
        yield {
            "id": number,
            "type": "row",
            "title": row["title"],
            "collapsed": False,
            "gridPos": position,
            "panels": [],
        }
        top += 1
        width = COLUMNS // len(panels)
        for index, panel in enumerate(panels):
            number += 1
            height = HEIGHT[panel["kind"]]
            position = {"x": index * width, "y": top, "w": width, "h": height}
            shown = [recorded[name] for name in panel["signals"] if name in recorded]
            yield {"id": number, "gridPos": position, **_panel(rules, panel, shown)}
        top += max(HEIGHT[panel["kind"]] for panel in panels)


def _panel(rules: Rules, panel: Mapping[str, Any], shown: list[Recording]) -> dict[str, Any]:
    unit = UNITS.get(shown[0].signal.unit, shown[0].signal.unit)
    threshold = rules.thresholds.get(panel.get("threshold", ""))
    steps: list[dict[str, Any]] = [{"value": None, "color": "green"}]
    limit = threshold.value if threshold else None
    if isinstance(limit, int | float):
        steps.append({"value": limit, "color": "red"})
    custom = {"thresholdsStyle": {"mode": "line" if len(steps) > 1 else "off"}}
    options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    is_graph = panel["kind"] == "timeseries"
    return {
        "type": panel["kind"],
        "title": panel["title"],
        "description": threshold.reason if limit is not None and threshold else "",
        "datasource": DATASOURCE,
        "targets": [
            _target(rules, panel, row, "ABCDEFGH"[index]) for index, row in enumerate(shown)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "thresholds": {"mode": "absolute", "steps": steps},
                **({"custom": custom} if is_graph else {}),
            },
            "overrides": [],
        },
        **({} if is_graph else {"options": options}),
    }


def _target(rules: Rules, panel: Mapping[str, Any], row: Recording, letter: str) -> dict[str, Any]:
    expression = f"{row.record}{{{rules.substitutions()['self']}}}"
    if reduce := panel.get("reduce"):
        expression = f"{reduce}({expression})"
    window = row.record.partition(":llm_")[2].partition(":")[2]
    legend = LEGENDS[row.signal.level] + row.signal.title + (f" ({window})" if window else "")
    return {
        "refId": letter,
        "datasource": DATASOURCE,
        "expr": expression,
        "legendFormat": legend,
    }
