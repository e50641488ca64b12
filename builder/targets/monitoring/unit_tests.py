"""Unit tests of the rules, for `promtool test rules`.

Each signal is fed from its server's metrics; each alert from its signals: just below its threshold
it stays quiet, above it fires, not before its time, and it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Any

from ...observability import signals
from ...observability.alerts import Alert
from .rules import OPENING, Recording, Rules

# The example instance in all series.
INSTANCE = "a"
# Values a rule is fed with before it is asked.
STEPS = 10
STEP = "1m"
# Shares of rates are not exact to the last bit.
PRECISION = 0.001
# What moves a threshold across: as little as shows in any of them.
_NUDGE = 1e-6
# What promtool calls a value that is not there, and the end of a series.
_MISSING, _GONE = "_", "stale"


def recording_tests(rules: Rules) -> dict[str, Any]:
    return _document(rules, "recording", [_of_recording(rules, row) for row in rules.recordings])


def alert_tests(rules: Rules) -> dict[str, Any]:
    found = [
        test(rules, alert) for alert in rules.alerts for test in (_stays_quiet, _fires_and_ends)
    ]
    return _document(rules, "alerts", found)


def _document(rules: Rules, kind: str, tests: list[dict[str, Any]]) -> dict[str, Any]:
    step = rules.duration(STEP, 1)
    return {
        "rule_files": [f"../rules/{kind}.yml"],
        "evaluation_interval": step,
        "tests": [{"interval": step, **test} for test in tests],
    }


def _of_recording(rules: Rules, row: Recording) -> dict[str, Any]:
    """What a recording rule makes of ten minutes of its server's metrics."""
    values_by_name, test = rules.substitutions(), row.source.test
    end_s = STEPS * rules.seconds(STEP)
    expected = float(test["expect"])
    if test.get("per_s"):
        expected *= 60 / rules.seconds(STEP)
    if test.get("days_from_end"):
        expected = (expected - end_s) / 86400
    labels = _labels(rules, row.signal.level, row.signal.labels)
    return {
        "name": row.record,
        "input_series": [
            {
                "series": _with_labels(Template(series).substitute(values_by_name), rules),
                "values": Template(str(values)).substitute(values_by_name),
            }
            for series, values in test["feed"].items()
        ],
        "promql_expr_test": [
            {
                "expr": f"round({row.record}, {PRECISION})",
                "eval_time": f"{end_s}s",
                "exp_samples": [{"labels": labels, "value": round(expected, 3)}],
            }
        ],
    }


def _stays_quiet(rules: Rules, alert: Alert) -> dict[str, Any]:
    """Just below the threshold, for longer than the alert waits."""
    steps = _active_steps(rules, alert)
    values = {
        name: _values(item, steps, _threshold(rules, alert)) for name, item in alert.below.items()
    }
    return {
        "name": f"{alert.name} stays quiet",
        "input_series": _series(rules, values),
        "alert_rule_test": [_check(rules, alert, steps - 1, [])],
    }


def _fires_and_ends(rules: Rules, alert: Alert) -> dict[str, Any]:
    """Above the threshold, though not before its time, until the values are quiet again."""
    threshold = _threshold(rules, alert)
    quiet = alert.below if alert.quiet is None else alert.quiet
    steps, ends = _active_steps(rules, alert), _steps(rules, alert.lookback) + STEPS
    values = {
        name: [
            *_values(alert.fires.get(name, _MISSING), steps, threshold),
            *_values(quiet.get(name, _GONE), ends, threshold),
        ]
        for name in {**alert.fires, **quiet}
    }
    checks = [
        _check(rules, alert, steps - 1, [_firing(rules, alert, threshold)]),
        _check(rules, alert, steps + ends - 1, []),
    ]
    if waits := _steps(rules, alert.lasts):
        checks.insert(0, _check(rules, alert, waits - 1, []))
    return {
        "name": f"{alert.name} fires and ends",
        "input_series": _series(rules, values),
        "alert_rule_test": checks,
    }


def _active_steps(rules: Rules, alert: Alert) -> int:
    """How long values stay as they are: longer than the alert waits."""
    return _steps(rules, alert.lasts) + STEPS


def _steps(rules: Rules, time: str) -> int:
    """A time of the data in steps of the test, rounded up."""
    return -(-rules.seconds(time) // rules.seconds(STEP))


def _threshold(rules: Rules, alert: Alert) -> Any:
    return rules.thresholds[alert.threshold].value if alert.threshold else None


def _check(rules: Rules, alert: Alert, step: int, found: list[dict[str, Any]]) -> dict[str, Any]:
    at_s = step * rules.seconds(STEP)
    return {"eval_time": f"{at_s}s", "alertname": alert.name, "exp_alerts": found}


def _firing(rules: Rules, alert: Alert, threshold: Any) -> dict[str, Any]:
    value = _fired_value(alert.value, alert.fires, threshold)
    labels = {"deployment": rules.deployment.name, "severity": alert.severity}
    if alert.labels is None and alert.fires:
        signal, _ = signals.by_reference()[alert.references[0]]
        labels |= _own_labels(signal.level, signal.labels)
    texts = rules.annotations(alert, f"{value:.3g}")
    filled = {name: text.replace(OPENING, "{{") for name, text in texts.items()}
    return {"exp_labels": labels, "exp_annotations": filled}


def _series(rules: Rules, values: Mapping[str, list[Any]]) -> list[dict[str, str]]:
    found = []
    for name, row in values.items():
        reference, brace, extra = name.partition("{")
        signal, window = signals.by_reference()[reference]
        own = dict(item.split("=") for item in extra.rstrip("}").split(",")) if brace else {}
        given = {key: text.strip('"') for key, text in own.items()}
        labels = _labels(rules, signal.level, {**signal.labels, **given})
        text = " ".join(map(str, row))
        found.append({"series": f"{signal.record(window)}{labels}", "values": text})
    return found


def _values(item: Any, count: int, threshold: Any) -> list[Any]:
    """So many values: one that stays, or a list whose last one does."""
    given = item if isinstance(item, list) else [item]
    known = [_number(value, threshold) for value in given]
    return [*known, *[known[-1]] * (count - len(known))][:count]


def _number(value: Any, threshold: Any) -> Any:
    match value:
        case "above":
            return threshold * (1 + _NUDGE)
        case "under":
            return threshold * (1 - _NUDGE)
        case "at":
            return threshold
        case _:
            return value


def _fired_value(given: float | None, fires: Mapping[str, Any], threshold: Any) -> float:
    """The value of an alert is that of its first signal, unless the test says another."""
    if given is not None:
        return given
    return float(_number(next(iter(fires.values())), threshold))


def _own_labels(level: str, labels: Mapping[str, str]) -> dict[str, str]:
    return {**({} if level == "deployment" else {"instance": INSTANCE}), **labels}


def _labels(rules: Rules, level: str, labels: Mapping[str, str]) -> str:
    own = {"deployment": rules.deployment.name, **_own_labels(level, labels)}
    return "{" + ", ".join(f"{key}={signals.quoted(text)}" for key, text in own.items()) + "}"


def _with_labels(series: str, rules: Rules) -> str:
    """A series of a server, with the labels that scraping adds."""
    name, _, rest = series.partition("{")
    own = f"{rules.substitutions()['self']}, instance={signals.quoted(INSTANCE)}"
    return f"{name}{{{own}{', ' if rest != '}' else ''}{rest}"
