"""The numbers that alerts compare with, each from the plan, the objectives or the options."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...observability import alerts, slo
from ...observability.signals import quoted
from .watched import Watched

MOST_FAILING = 0.05
MOST_LOAD = 0.8
LEAST_KV_SHARE, HIGHEST_KV_SHARE = 0.9, 0.98
QUEUE_S_WITHOUT_OBJECTIVE = 1.0
ASSUMED_ACCEPTANCE = 0.6
STALL_WITHOUT_TIMEOUT_S = 300
# By these paths plans know how many tokens are drafted per step.
_DEPTHS = ("mtp_draft_tokens", "speculative_config.max_draft_len")


@dataclass(frozen=True, slots=True)
class Threshold:
    """A word that expressions may use. Without a value, `reason` says why there is none."""

    word: str
    value: float | str | None
    reason: str

    @property
    def text(self) -> str:
        """As it stands in PromQL: numbers exactly, texts inside of a string."""
        if isinstance(self.value, str):
            return quoted(self.value)[1:-1]
        return json.dumps(self.value)


def thresholds(watched: Watched) -> dict[str, Threshold]:
    """Every threshold, by its word."""
    rows = [
        *_of_objectives(watched),
        *_of_load(watched),
        *_of_engine(watched),
        Threshold(
            "least_certificate_days",
            watched.options.certificate_days,
            "targets.monitoring.certificate_days",
        ),
        Threshold("hour", watched.window("1h"), "the time that counts as again and again"),
    ]
    return {row.word: row for row in rows}


def _of_objectives(watched: Watched) -> Iterator[Threshold]:
    rows = slo.objectives(watched.deployment, watched.options.availability)
    found: dict[str, slo.Objective] = {row.kind: row for row in rows}
    yield Threshold("most_failing", MOST_FAILING, "one request in twenty [assumed]")
    budget = found["availability"]
    said = f"an availability of {budget.share:.6g} [{budget.evidence}]"
    yield Threshold("availability_budget", budget.budget, said)
    for rate, factor in slo.BURN_RATES.items():
        reason = f"{factor:g} times the budget of {said}"
        yield Threshold(f"availability_{rate}", budget.burn(rate), reason)
    for kind in ("ttft", "itl"):
        yield from _of_latency(watched, kind, found.get(kind))
    latency = round(1 - slo.LATENCY_SHARE, 10)
    yield Threshold("latency_budget", latency, f"objectives at the {slo.LATENCY_SHARE:.0%}")


def _of_latency(
    watched: Watched, name: str, objective: slo.Objective | None
) -> Iterator[Threshold]:
    """What a latency is compared with: the first bound of its histogram that is no stricter."""
    words = (f"{name}_bound", f"{name}_le", f"{name}_fast", f"{name}_slowly")
    if objective is None or objective.limit_ms is None:
        yield from (Threshold(word, None, f"slo.{name}_ms is not set") for word in words)
        return
    row = watched.can_export.get(watched.metric_names.get(name, ""))
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
        reason = f"{slo.BURN_RATES[rate]:g} times the budget; {said}"
        yield Threshold(word, objective.burn(rate), reason)


def _of_load(watched: Watched) -> Iterator[Threshold]:
    deployment = watched.deployment
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
    budget = watched.context.plan.budget
    if limit := watched.settings.get("max_requests"):
        yield Threshold("most_requests", limit, "triton_config.max_requests of model.yaml")
    elif budget.max_concurrency > 0:
        said = "requests that the plan's batch and KV cache hold at once"
        yield Threshold("most_requests", budget.max_concurrency, said)
    else:
        yield Threshold("most_requests", None, "the plan holds no request at once")
    yield Threshold("most_load", MOST_LOAD, "a fifth is left for bursts [assumed]")
    used = budget.needed_gib / budget.kv_cache_gib if budget.kv_cache_gib else 1.0
    share = min(HIGHEST_KV_SHARE, max(LEAST_KV_SHARE, math.ceil((1 + used) * 50) / 100))
    said = f"the planned load takes {used:.0%} of it; half of the rest is gone, at least 90%"
    yield Threshold("most_kv", share, said)


def _of_engine(watched: Watched) -> Iterator[Threshold]:
    release = watched.context.release.name
    yield _acceptance(watched)
    settings = watched.settings
    timeout_s = settings.get("engine_stall_timeout_s")
    stall_s = timeout_s // 2 if timeout_s else STALL_WITHOUT_TIMEOUT_S
    said = "half of engine_stall_timeout_s" if timeout_s else "five minutes [assumed]"
    if settings.get("decoupled", True):
        yield Threshold("stall_window", watched.window(f"{stall_s}s"), said)
    else:
        why = "without streams, tokens are counted when a request has ended"
        yield Threshold("stall_window", None, why)
    if re.match(r"\d", release) and not release.endswith(".json"):
        pattern = re.escape(release) + r"([+.-].*)?"
        yield Threshold("engine_version", pattern, f"engine.release {release}")
    else:
        why = f"the version that {release} gives itself is not known"
        yield Threshold("engine_version", None, why)


def _acceptance(watched: Watched) -> Threshold:
    """Half of what was published for the draft depth, unless the options say."""
    word = "acceptance_floor"
    if not watched.context.engine.options.get("speculative_config"):
        return Threshold(word, None, "the deployment does not speculate")
    if floor := watched.options.acceptance_floor:
        return Threshold(word, floor, "targets.monitoring.acceptance_floor")
    decisions = watched.context.plan.decisions
    depth = next((int(row.value) for row in decisions if row.path in _DEPTHS), None)
    length = alerts.accepted_length().get(depth or 0)
    if depth is None or length is None:
        said = f"half of an acceptance of {ASSUMED_ACCEPTANCE:g} [assumed]"
        return Threshold(word, ASSUMED_ACCEPTANCE / 2, said)
    expected = (length - 1) / depth
    said = f"half of {expected:.2f}, which was published for {depth} draft tokens with DeepSeek-R1"
    return Threshold(word, round(expected / 2, 2), said)
