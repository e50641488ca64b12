"""Writes the recording and alert rules of a deployment, their thresholds and their unit tests.

Each threshold comes from the plan, the objectives or the options, with its reason.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from string import Template
from typing import Any

from ...observability import alerts, signals
from ...observability.alerts import Alert
from ...observability.signals import Signal, Source, quoted
from ...render import CommentedValue
from .monitored import MonitoredServer

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


class Rules(MonitoredServer):
    """What is recorded and alerted of a server, and what is left out with the reason."""

    @cached_property
    def thresholds(self) -> dict[str, Threshold]:
        return thresholds(self)

    @cached_property
    def selection(self) -> tuple[dict[str, Source], dict[str, str]]:
        """The source of each signal that is recorded, and why others are not."""
        known = {word for word, row in self.thresholds.items() if row.value is not None}
        unknown = {word: row.reason for word, row in self.thresholds.items() if row.value is None}
        absent = unknown | self.absent()
        release = self.context.release
        return signals.select(self.server, release, self.families, self.jobs, known, absent)

    @cached_property
    def recordings(self) -> list[Recording]:
        found = []
        for name, source in self.selection[0].items():
            signal = signals.all_of()[name]
            for reference, window in signal.references.items():
                values = self.substitutions(window)
                expression = Template(source.expression).substitute(values)
                found.append(
                    Recording(reference, signal, signal.record(window), expression, source)
                )
        return found

    @cached_property
    def alerts(self) -> list[Alert]:
        return [row for row in alerts.all_of() if self._obstacle(row) is None]

    @property
    def left_out(self) -> Iterator[tuple[str, str]]:
        for row in alerts.all_of():
            if reason := self._obstacle(row):
                yield row.name, reason

    def substitutions(self, window: str | None = None) -> dict[str, str]:
        """The values that expressions and texts may name."""
        known = {word: row.text for word, row in self.thresholds.items() if row.value is not None}
        name = self.deployment.name
        own = {"self": f"deployment={signals.quoted(name)}"}
        return {**known, **own, **({"window": self.window(window)} if window else {})}

    def expression(self, alert: Alert) -> str:
        values = self.substitutions()
        series = {row.reference: f"{row.record}{{{values['self']}}}" for row in self.recordings}
        return Template(alert.expression).substitute({**values, **series})

    def annotations(self, alert: Alert, value: str = VALUE) -> dict[str, str]:
        """The texts of an alert, with `value` where the value stands that it has."""
        deployment = self.deployment
        given = {"name": deployment.name, "release": deployment.engine.release}
        values = {name: _literal(text) for name, text in {**self.substitutions(), **given}.items()}
        threshold, because = self.thresholds.get(alert.threshold or ""), ""
        if threshold:
            reason = f"{threshold.text}, {threshold.reason}"
            because = f" It is {value} and should not pass {_literal(reason)}."
        return {
            "summary": Template(alert.summary).substitute(values),
            "description": Template(alert.meaning).substitute(values, value=value) + because,
            "runbook_url": f"{self.options.runbook_url}#{alert.anchor}",
        }

    def _obstacle(self, alert: Alert) -> str | None:
        for word in alert.identifiers:
            if word in self.thresholds:
                threshold = self.thresholds[word]
                if threshold.value is None:
                    return threshold.reason
            else:
                signal, _ = signals.by_reference()[word]
                if reason := self.selection[1].get(signal.name):
                    return reason
        return None


def _literal(text: str) -> str:
    """A text that Prometheus' own templates leave as it is."""
    return text.replace("{{", OPENING)


def recording_document(rules: Rules) -> dict[str, Any]:
    rows = [
        CommentedValue({"record": row.record, "expr": row.expression}, row.signal.title)
        for row in rules.recordings
    ]
    return _groups(rules, "signals", rows)


def alert_document(rules: Rules) -> dict[str, Any]:
    rows = [
        {
            "alert": alert.name,
            "expr": rules.expression(alert),
            "for": rules.duration(alert.lasts),
            "labels": {"deployment": rules.deployment.name, "severity": alert.severity},
            "annotations": rules.annotations(alert),
        }
        for alert in rules.alerts
    ]
    return _groups(rules, "alerts", rows)


def _groups(rules: Rules, kind: str, rows: list[Any]) -> dict[str, Any]:
    interval = rules.duration(INTERVAL, 1)
    name = f"{rules.deployment.name}-{kind}"
    group: Mapping[str, Any] = {"name": name, "interval": interval, "rules": rows}
    return {"groups": [group]}


MAX_FAILING = 0.05
MAX_LOAD = 0.8
LEAST_KV_SHARE, HIGHEST_KV_SHARE = 0.9, 0.98
QUEUE_S_WITHOUT_OBJECTIVE = 1.0
ASSUMED_ACCEPTANCE = 0.6
STALL_WITHOUT_TIMEOUT_S = 300
# By these paths plans know how many tokens are drafted per step.
_DEPTHS = ("mtp_draft_tokens", "speculative_config.max_draft_len")


@dataclass(frozen=True, slots=True)
class Threshold:
    """A word that expressions may use. If `value` is missing, `reason` says why."""

    word: str
    value: float | str | None
    reason: str

    @property
    def text(self) -> str:
        """Its form in PromQL: exact numbers, and text for use inside a string."""
        if isinstance(self.value, str):
            return quoted(self.value)[1:-1]
        return json.dumps(self.value)


def thresholds(monitored: MonitoredServer) -> dict[str, Threshold]:
    rows = [
        *_of_objectives(monitored),
        *_of_load(monitored),
        *_of_engine(monitored),
        Threshold(
            "least_certificate_days",
            monitored.options.certificate_days,
            "targets.monitoring.certificate_days",
        ),
        Threshold("hour", monitored.window("1h"), "the time that counts as again and again"),
    ]
    return {row.word: row for row in rows}


def _of_objectives(monitored: MonitoredServer) -> Iterator[Threshold]:
    rows = alerts.objectives(monitored.deployment, monitored.options.availability)
    found: dict[str, alerts.Objective] = {row.kind: row for row in rows}
    yield Threshold("most_failing", MAX_FAILING, "one request in twenty [assumed]")
    budget = found["availability"]
    said = f"an availability of {budget.share:.6g} [{budget.evidence}]"
    yield Threshold("availability_budget", budget.budget, said)
    for rate, factor in alerts.BURN_RATES.items():
        reason = f"{factor:g} times the budget of {said}"
        yield Threshold(f"availability_{rate}", budget.burn(rate), reason)
    for kind in ("ttft", "itl"):
        yield from _of_latency(monitored, kind, found.get(kind))
    share = alerts.latency_share(monitored.deployment)
    yield Threshold("latency_budget", round(1 - share, 10), f"objectives at the {share:.0%}")


def _of_latency(
    monitored: MonitoredServer, name: str, objective: alerts.Objective | None
) -> Iterator[Threshold]:
    """What a latency is compared with: the first bound of its histogram that is not a stricter."""
    words = (f"{name}_bound", f"{name}_le", f"{name}_fast", f"{name}_slowly")
    if objective is None or objective.limit_ms is None:
        yield from (Threshold(word, None, f"slo.{name}_ms is not set") for word in words)
        return
    row = monitored.can_export.get(monitored.metric_names.get(name, ""))
    limit_s = objective.limit_ms / 1000
    bound = next((bound for bound in row.bounds if bound >= limit_s), None) if row else None
    if bound is None:
        why = f"no bucket of the server's histogram reaches {objective.limit_ms:g} ms"
        yield from (Threshold(word, None, why) for word in words)
        return
    counted = f"counted at {bound * 1000:g} ms, the server's next bound"
    said = f"slo.{name}_ms {objective.limit_ms:g}, {counted}"
    spelled = f"{bound:.10g}"
    pattern = re.escape(spelled) + ("" if "." in spelled else r"(\.0)?")
    yield Threshold(f"{name}_bound", spelled, said)
    yield Threshold(f"{name}_le", pattern, said)
    for rate, word in (("fast", f"{name}_fast"), ("slow", f"{name}_slowly")):
        reason = f"{alerts.BURN_RATES[rate]:g} times the budget; {said}"
        yield Threshold(word, objective.burn(rate), reason)


def _of_load(monitored: MonitoredServer) -> Iterator[Threshold]:
    deployment = monitored.deployment
    planned = -(-deployment.workload.concurrency // deployment.instances)
    yield Threshold(
        "most_waiting",
        max(1, planned // 2),
        f"half of the {planned} requests at once that are planned for one server",
    )
    objective = deployment.slo.ttft_ms if deployment.slo else None
    if objective:
        yield Threshold("most_queue_s", objective / 2000, f"half of slo.ttft_ms {objective:g}")
    else:
        said = "a second in the queue [assumed]; slo.ttft_ms is not set"
        yield Threshold("most_queue_s", QUEUE_S_WITHOUT_OBJECTIVE, said)
    budget = monitored.context.plan.budget
    if limit := monitored.rendered.settings.get("max_requests"):
        yield Threshold("most_requests", limit, "triton_config.max_requests of model.yaml")
    elif budget.max_concurrency > 0:
        said = "requests that the plan's batch and KV cache hold at once"
        yield Threshold("most_requests", budget.max_concurrency, said)
    else:
        yield Threshold("most_requests", None, "the plan holds no request at once")
    yield Threshold("most_load", MAX_LOAD, "a fifth is left for bursts [assumed]")
    used = budget.needed_gib / budget.kv_cache_gib if budget.kv_cache_gib else 1.0
    share = min(HIGHEST_KV_SHARE, max(LEAST_KV_SHARE, math.ceil((1 + used) * 50) / 100))
    said = f"the planned load takes {used:.0%} of it; half of the rest is gone, at least 90%"
    yield Threshold("most_kv", share, said)


def _of_engine(monitored: MonitoredServer) -> Iterator[Threshold]:
    release = monitored.context.release.name
    yield _acceptance(monitored)
    settings = monitored.rendered.settings
    timeout_s = settings.get("engine_stall_timeout_s")
    stall_s = timeout_s // 2 if timeout_s else STALL_WITHOUT_TIMEOUT_S
    said = "half of engine_stall_timeout_s" if timeout_s else "five minutes [assumed]"
    if settings.get("decoupled", True):
        yield Threshold("stall_window", monitored.window(f"{stall_s}s"), said)
    else:
        why = "without streams, tokens are counted when a request has ended"
        yield Threshold("stall_window", None, why)
    if re.match(r"\d", release) and not release.endswith(".json"):
        pattern = re.escape(release) + r"([+.-].*)?"
        yield Threshold("engine_version", pattern, f"engine.release {release}")
    else:
        why = f"the version that {release} gives itself is not known"
        yield Threshold("engine_version", None, why)


def _acceptance(monitored: MonitoredServer) -> Threshold:
    """Half of what was published for the draft depth, unless the options say."""
    word = "acceptance_floor"
    if not monitored.context.engine.options.get("speculative_config"):
        return Threshold(word, None, "the deployment does not speculate")
    if floor := monitored.options.acceptance_floor:
        return Threshold(word, floor, "targets.monitoring.acceptance_floor")
    decisions = monitored.context.plan.decisions
    depth = next((int(row.value) for row in decisions if row.path in _DEPTHS), None)
    length = alerts.accepted_length().get(depth or 0)
    if depth is None or length is None:
        said = f"half of an acceptance of {ASSUMED_ACCEPTANCE:g} [assumed]"
        return Threshold(word, ASSUMED_ACCEPTANCE / 2, said)
    expected = (length - 1) / depth
    said = f"half of {expected:.2f}, which was published for {depth} draft tokens with DeepSeek-R1"
    return Threshold(word, round(expected / 2, 2), said)


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
    found: list[dict[str, Any]] = []
    for alert in rules.alerts:
        found += [_stays_quiet(rules, alert), _fires_and_ends(rules, alert)]
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
    value = alert.value  # else that of its first signal
    if value is None:
        value = float(_number(next(iter(alert.fires.values())), threshold))
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
        series = f"{signal.record(window)}{labels}"
        found.append({"series": series, "values": " ".join(map(str, row))})
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
