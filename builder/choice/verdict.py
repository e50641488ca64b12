"""What a selection says: the question, what was counted, why nothing was chosen, all as JSON."""

from __future__ import annotations

from collections import Counter
from math import ceil
from typing import Any

from ..deployment import USUAL_PERCENTILE
from ..diagnostics import Diagnostic
from ..errors import BadFacts, BadInput, ToolkitError
from ..estimates import Question, Refusal
from ..estimates.intervals import number
from ..estimates.measurements import layout_text
from .load import Forecast, Overload
from .record import AIMS, SHORT_NAMES, figures, reason, servers_text
from .selection import WORTH_MEASURING, Option, Selection

MOST_REASONS = 6  # of each kind
WIDEST_REASON = 80  # characters
CLIENT = "python -m launch bench"


def question_text(found: Selection) -> list[str]:
    """What is to be chosen, in two lines."""
    request = found.request
    base, load = request.bases[0], request.workload
    gpus = " or ".join(base.deployment.hardware.gpu for base in request.bases)
    few, most = request.num_gpus.at_least, request.num_gpus.at_most
    count = str(most) if few == most else f"{few} to {most}" if few > 1 else f"at most {most}"
    at_once = (
        f"{load.concurrency:,} at once"
        if load.concurrency is not None
        else f"{load.request_rate:g} requests/s"
    )
    limits = [f"{SHORT_NAMES[n]} within {limit:g} ms" for n, limit in request.slo.limits_ms.items()]
    return [
        f"{base.facts.checkpoint.name} on {count} {gpus}, {base.deployment.engine.name} "
        f"{base.deployment.engine.release}",
        f"{load.isl:,} prompt and {load.osl:,} answer tokens, {at_once}; "
        f"{', '.join(limits) or 'no latency is asked for'}; {AIMS[request.objective]}",
    ]


def counts_text(found: Selection) -> str:
    counts = _counts(found)
    return (
        f"{counts['candidates']} candidates: {counts['invalid']} cannot be planned, "
        f"{counts['too_large']} have too little memory, {counts['refused']} are without evidence, "
        f"{counts['overloaded']} too slow for the rate, {counts['estimated']} estimated, "
        f"{counts['kept']} keep all objectives."
    )


def reason_texts(found: Selection) -> list[str]:
    """Why candidates cannot be planned or have no evidence: the commonest reasons, with counts."""
    rejected = (o.planned.objections for o in found.options)
    objections = (sorted({_in_short(row.message) for row in rows}) for rows in rejected)
    refusals = (o.outcome for o in found.refused)
    groups = {
        "cannot be planned": Counter(text for texts in objections for text in texts),
        "without evidence": Counter(
            row.reason.partition(": ")[0] for row in refusals if isinstance(row, Refusal)
        ),
    }
    lines = []
    for what, reasons in groups.items():
        lines += [f"{count} {what}: {text}" for text, count in reasons.most_common(MOST_REASONS)]
        if (left := len(reasons) - MOST_REASONS) > 0:
            lines.append(f"{what}: {left} more reasons, which --json has")
    return lines


def _in_short(message: str) -> str:
    """What is wrong, without a long list of the figures of one candidate."""
    return message if len(message) <= WIDEST_REASON else message.partition(": ")[0]


def _counts(found: Selection) -> dict[str, int]:
    invalid = sum(option.planned.plan is None for option in found.options)
    fitting = sum(option.fits for option in found.options)
    return {
        "candidates": len(found.options),
        "invalid": invalid,
        "too_large": len(found.options) - invalid - fitting,
        "refused": len(found.refused),
        "overloaded": len(found.overloaded),
        "estimated": len(found.estimated),
        "kept": len(found.kept),
    }


def notes(found: Selection, chosen: Option | None) -> list[str]:
    """What a reader should know before relying on the choice."""
    rows: list[str] = []
    slo = found.request.slo
    percentile = slo.percentile or USUAL_PERCENTILE
    if slo.limits_ms and percentile != "p50":
        rows.append(
            f"the objectives are of the {percentile[1:]}th percentile of requests; measured rows "
            "tell one figure of a run, its mean or median. The interval is of that figure: check "
            f"the percentile with `{CLIENT}` before production"
        )
    if found.request.workload.request_rate is not None:
        rows.append("a rate is taken as even: requests that arrive in bursts wait longer")
    if chosen is not None and chosen.forecast is not None:
        rows += chosen.forecast.estimate.notes
        plan = chosen.planned.plan
        if plan is not None and plan.budget.tight:
            rows.append(
                f"its KV cache holds the load with {plan.budget.margin_gib:.1f} GiB to spare, and "
                f"such budgets were off by up to {plan.budget.uncertainty_gib:.1f}"
            )
    return rows


def refusal(found: Selection) -> ToolkitError:
    """Why nothing is chosen: which objective fails and by how much, or what is not known."""
    where = found.request.document.name
    if (likely := found.untold) and likely.forecast:
        what = (
            f"{servers_text(likely)} likely keeps the objectives too and is worth more than "
            f"{WORTH_MEASURING:g} times {servers_text(found.kept[0])}, the best that is promised"
        )
        remedy = "measure the first, and give the result with --rows"
        return BadFacts(Diagnostic(where, what, remedy))
    if found.estimated:
        return BadInput(_objectives_missed(found))
    if found.overloaded:
        wanted, rates, gpus = found.request.workload.request_rate or 0.0, [], []
        for option in found.overloaded:
            assert isinstance(option.outcome, Overload)
            rates.append(option.outcome.requests_per_s)
            gpus.append(_gpus_for(option, wanted / rates[-1]))
        what = f"no candidate keeps up: {number(max(rates))} requests/s is the most"
        remedy = f"lower it, or allow at least {min(gpus)} GPUs"
        return BadInput(_at(found, "workload.request_rate", what, remedy))
    if found.refused:
        first = found.refused[0].outcome
        assert isinstance(first, Refusal)
        what = f"no candidate has an estimate: {first.reason}"
        remedy = "measure what is listed above, and give the results with --rows"
        return BadFacts(Diagnostic(where, what, remedy))
    objections = [row for option in found.options for row in option.planned.objections]
    smallest = objections[-1:] or [_too_large(found)]
    what = "no candidate can be planned" if objections else "no candidate fits"
    first_row = Diagnostic(where, what, "the reason of the largest follows")
    return BadInput([first_row, *smallest])


def _gpus_for(option: Option, times: float) -> int:
    """The GPUs of so many times as many of a candidate's servers."""
    candidate = option.candidate
    return ceil(candidate.instances * times) * candidate.layout.num_gpus


def _too_large(found: Selection) -> Diagnostic:
    """Candidates that can be planned, and whose memory holds less than is to run at once."""
    load = found.request.workload.concurrency
    each = [o for o in found.options if o.planned.holds and load]
    gpus = [_gpus_for(o, (load or 0) / (o.planned.holds * o.candidate.instances)) for o in each]
    remedy = f"allow at least {min(gpus)} GPUs" if gpus else "allow larger GPUs"
    return _at(found, "workload", "no candidate's memory holds it", remedy)


def _more(times: float) -> str:
    return f"{times - 1:.0%} more" if times < 10 else f"{times:.3g} times as much"


def _objectives_missed(found: Selection) -> list[Diagnostic]:
    """One diagnostic for each objective that no candidate keeps, or for all of them together."""
    limits, nearest = found.request.slo.limits_ms, found.nearest[0]
    near = ", ".join(f"{SHORT_NAMES[m.name]} {number(m.upper_ms)} ms" for m in nearest.misses)
    remedy = f"the nearest is {servers_text(nearest)} with {near} at the upper end"
    rows = [
        _at(
            found,
            f"slo.{name}",
            f"{limits[name]:g} is kept by no candidate: the least upper end is "
            f"{number(least)} ms, {_more(least / limits[name])}",
            remedy,
        )
        for name, least in found.least_ms().items()
        if least > limits[name]
    ]
    whole = f"no candidate keeps {' and '.join(SHORT_NAMES[name] for name in limits)} together"
    return rows or [_at(found, "slo", whole, remedy)]


def _at(found: Selection, path: str, what: str, remedy: str) -> Diagnostic:
    (row,) = found.request.document.locate_all([Diagnostic(path, what, remedy)])
    return row


def measurement_texts(found: Selection) -> list[str]:
    """The measurements that would answer, in words."""
    return [
        f"{layout_text(*q.layout)}{f' MTP{q.mtp}' if q.mtp else ''} on "
        f"{q.num_gpus} {q.gpu}: {q.isl:,} in, {q.osl:,} out, {q.concurrency:,} at a time"
        for q in found.measurements()
    ]


def document(found: Selection, chosen: Option | None) -> dict[str, Any]:
    """The selection as `choose --json` prints it."""
    request = found.request
    front = {id(option) for option in found.front}
    options = [_option(option, found, id(option) in front) for option in found.options]
    place = next((i for i, option in enumerate(found.options) if option is chosen), None)
    return {
        "model": request.bases[0].facts.checkpoint.name,
        "objective": request.objective,
        "slo": request.slo.limits_ms,
        "percentile": request.slo.percentile or USUAL_PERCENTILE,
        "workload": request.workload.data(exclude_none=True),
        "counts": _counts(found),
        "chosen": None if place is None else options[place],
        "reason": reason(found, chosen) if chosen else None,
        "candidates": options,
        "failing": [
            {
                "objective": name,
                "limit_ms": request.slo.limits_ms[name],
                "least_upper_ms": round(least, 3),
                "excess": round(least / request.slo.limits_ms[name] - 1, 4),
            }
            for name, least in found.least_ms().items()
            if least > request.slo.limits_ms[name]
        ],
        "nearest": [_option(o, found, id(o) in front) for o in found.nearest[:1] if not chosen],
        "measure": [_question(question) for question in found.measurements()],
        "notes": notes(found, chosen),
    }


def _option(option: Option, found: Selection, on_front: bool) -> dict[str, Any]:
    candidate, plan, outcome = option.candidate, option.planned.plan, option.outcome
    row: dict[str, Any] = {
        "gpu": candidate.gpu,
        "num_gpus": candidate.num_gpus,
        "instances": candidate.instances,
        "layout": candidate.title,
        "tensor_parallel_size": candidate.layout.num_gpus,
        "moe_expert_parallel_size": candidate.layout.ep,
        "enable_attention_dp": candidate.layout.attention_dp,
        "mtp_draft_tokens": candidate.mtp_draft_tokens,
        "max_batch_size": candidate.max_batch_size,
        "fits": option.fits,
        "keeps": option.keeps,
        "on_front": on_front,
    }
    if plan is not None:
        row["kv_cache_margin_gib"] = round(plan.budget.margin_gib, 2)
    else:
        row["objections"] = [f"{o.where}: {o.message}" for o in option.planned.objections]
    if isinstance(outcome, Forecast):
        row["concurrency"] = outcome.running + outcome.waiting
        row["running"] = outcome.running
        row["estimate"] = {
            name: {"low": value.low, "value": value.value, "high": value.high}
            for name, value in figures(option, found.request).items()
        }
        row["rows"] = outcome.estimate.rows
        row["nearest_rows"] = [str(near) for near in outcome.estimate.nearest]
        row["misses"] = {miss.name: round(miss.excess, 4) for miss in option.misses}
    elif isinstance(outcome, Overload):
        row["most_requests_per_s"] = outcome.requests_per_s
    elif outcome is not None:
        row["refused"] = outcome.reason
    return row


def _question(question: Question) -> dict[str, Any]:
    names = ("model", "gpu", "precision", "engine", "tp", "ep", "attention_dp", "isl", "osl")
    found = {name: getattr(question, name) for name in (*names, "concurrency", "mtp")}
    return {name: value for name, value in found.items() if value is not None}
