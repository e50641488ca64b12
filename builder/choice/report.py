"""Reports a selection: as text, as JSON, and the chosen deployment as a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from math import ceil
from typing import Any

from .. import pipeline
from ..deployment import USUAL_PERCENTILE, Document, Objective
from ..diagnostics import Diagnostic
from ..errors import BadFacts, BadInput, ToolkitError
from ..estimates import Interval, Refusal, batch
from ..estimates.measurements import layout_text
from ..estimates.question import rows_text
from ..facts.published_results import SHORT_NAMES, flatten
from ..number_format import milliseconds, number, plain
from .candidates import Forecast, with_settings
from .request import ChoiceRequest, closed
from .selection import WORTH_MEASURING, Option, Selection

AIMS: Mapping[Objective, str] = {
    "output_tokens_per_s_per_gpu": "the most output tokens/s per GPU",
    "cost": "the lowest cost per token",
    "latency": "the shortest time to the last token",
}
MOST_REASONS = 6  # of each kind
WIDEST_REASON = 80  # characters
CLIENT = "python -m launch bench"
_WORDS = {
    **{name: (short, "ms") for name, short in SHORT_NAMES.items()},
    "output_tokens_per_s_per_user": ("output tokens/s per user", ""),
    "output_tokens_per_s_per_gpu": ("per GPU", ""),
    "usd_per_million_output_tokens": ("USD per million", ""),
}


def chosen(selection: Selection) -> tuple[Option, Document] | None:
    """The best option whose whole deployment can be planned, and that deployment."""
    if selection.untold:
        return None
    for option in selection.kept:
        document = chosen_document(selection, option)
        try:
            pipeline.plan_document(document)
        except ToolkitError:
            continue
        return option, document
    return None


def chosen_document(selection: Selection, option: Option) -> Document:
    request, candidate = selection.request, option.candidate
    base, forecast = candidate.base, option.forecast
    assert forecast is not None
    settings = candidate.settings()
    given = flatten(base.overrides)
    load = (forecast.running + forecast.waiting) * candidate.instances
    record = {
        "objective": request.objective,
        "reason": reason(selection, option),
        "source": source(option),
        "settings": {path: value for path, value in settings.items() if path not in given},
        "estimate": {
            name: batch.interval(found, digits=4)
            for name, found in figures(option, request).items()
        },
    }
    values: dict[str, Any] = {
        "hardware": {"gpu": candidate.gpu, "num_gpus": candidate.num_gpus},
        "instances": candidate.instances if candidate.instances > 1 else None,
        "workload.concurrency": request.workload.concurrency or load,
        "workload.request_rate": None,
        "engine_config": with_settings(base.deployment.engine_config, base.overrides, settings),
        "choice": record,
    }
    if base.facts.checkpoint.path is not None:  # a folder, whose name was relative to the file
        values["checkpoint"] = str(base.facts.checkpoint.path)
    return closed(request.document, values)


def figures(option: Option, request: ChoiceRequest) -> dict[str, Interval]:
    """The estimated figures of an option, by names with units."""
    found = option.forecast
    assert found is not None
    named = {
        "ttft_ms": found.ttft_ms,
        "itl_ms": found.itl_ms,
        "e2e_ms": found.e2e_ms,
        "output_tokens_per_s": found.output_tok_s,
        "output_tokens_per_s_per_user": found.tok_s_per_user,
        "output_tokens_per_s_per_gpu": found.tok_s_per_gpu,
    }
    if (price := request.prices_usd.get(option.candidate.gpu)) is not None:
        named["usd_per_million_output_tokens"] = found.usd_per_million_tokens(price)
    return named


def reason(selection: Selection, option: Option, with_figures: bool = True) -> str:
    """Why this one, with the figures that decided it."""
    found = option.forecast
    assert found is not None
    request = selection.request
    kept = ""
    if limits := _limits(request):
        count = len(selection.kept)
        kept = f", {count} meet {' and '.join(limits)} at the conservative bound"
    shown = []
    named = figures(option, request) if with_figures else {}
    for name, estimated in named.items():
        if name in _WORDS:
            words, unit = _WORDS[name]
            interval, unit = estimated.in_unit(unit)
            shown.append(f"{words} {interval} {unit}".rstrip())
    return (
        f"Of {len(selection.estimated)} candidates that fit and have an estimate{kept}; of these, "
        f"{servers_text(option)} has {AIMS[request.objective]}"
        f"{': ' if shown else ''}{', '.join(shown)}."
    )


def _ms(value: float) -> str:
    return plain(milliseconds(value))


def _limits(request: ChoiceRequest) -> list[str]:
    limits_ms = request.slo.limits_ms
    return [f"{SHORT_NAMES[name]} within {_ms(limit)}" for name, limit in limits_ms.items()]


def source(option: Option) -> str:
    """The measurements behind an option."""
    assert option.forecast is not None
    estimate = option.forecast.estimate
    first = f"; the nearest: {estimate.nearest[0]}" if estimate.nearest else ""
    return f"{rows_text(estimate.rows)}{first}"[:1000]


def servers_text(option: Option) -> str:
    """The servers in a few words: 2 x TP4/EP4 on 8 b200."""
    candidate = option.candidate
    several = f"{candidate.instances} x " if candidate.instances > 1 else ""
    batch = f", batches of {candidate.max_batch_size}" if candidate.max_batch_size else ""
    return f"{several}{candidate.title} on {candidate.num_gpus} {candidate.gpu}{batch}"


def question_text(found: Selection) -> list[str]:
    """What is to be chosen, in two lines."""
    request = found.request
    base, load = request.bases[0], request.workload
    gpus = " or ".join(base.deployment.hardware.gpu for base in request.bases)
    few, most = request.num_gpus.at_least, request.num_gpus.at_most
    count = f"{few} to {most}" if few > 1 else f"at most {most}"
    if few == most:
        count = str(most)
    if load.concurrency is None:
        requests = f"{load.request_rate:g} requests/s"
    else:
        requests = f"{load.concurrency:,} concurrent requests"
    return [
        f"{base.facts.checkpoint.name} on {count} {gpus}, {base.deployment.engine.name} "
        f"{base.deployment.engine.release}",
        f"{load.isl:,} prompt and {load.osl:,} answer tokens, {requests}; "
        f"{', '.join(_limits(request)) or 'no latency target'}; {AIMS[request.objective]}",
    ]


def counts_text(found: Selection) -> str:
    counts = _counts(found)
    return (
        f"{counts['candidates']} candidates: {counts['invalid']} cannot be planned, "
        f"{counts['too_large']} need more memory, {counts['refused']} have no measurements, "
        f"{counts['overloaded']} too slow for the rate, {counts['estimated']} estimated, "
        f"{counts['kept']} meet all targets."
    )


def reason_texts(found: Selection) -> list[str]:
    """Why candidates cannot be planned or have no estimate: the commonest reasons, with counts."""
    objections: Counter[str] = Counter()
    for option in found.options:
        objections.update(sorted({_in_short(row.message) for row in option.planned.objections}))
    outcomes = (option.outcome for option in found.refused)
    refusals = Counter(
        f"{row.reason.partition(': ')[0]}; {row.lift}"
        for row in outcomes
        if isinstance(row, Refusal)
    )
    groups = {"cannot be planned": objections, "without an estimate": refusals}
    lines = []
    for what, counted in groups.items():
        lines += [f"{count} {what}: {text}" for text, count in counted.most_common(MOST_REASONS)]
        if (left := len(counted) - MOST_REASONS) > 0:
            lines.append(f"{what}: {left} more reasons; see --json")
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
    """What to know before relying on the choice."""
    rows: list[str] = []
    slo = found.request.slo
    percentile = slo.percentile or USUAL_PERCENTILE
    if slo.limits_ms and percentile != "p50":
        rows.append(
            f"the targets are for the {percentile[1:]}th percentile of requests; measurements have "
            "one figure per run, its mean or median, and the interval is for that figure: check "
            f"the percentile with `{CLIENT}` before production"
        )
    if found.request.workload.request_rate is not None:
        rows.append("requests are assumed to arrive evenly; in bursts they wait longer")
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
    """Why nothing is chosen: which target is missed and by how much, or what is unknown."""
    where = found.request.document.name
    if found.impossible:
        return BadInput(_impossible(found))
    if (likely := found.untold) and likely.forecast:
        what = (
            f"{servers_text(likely)} likely meets the targets too, and is more than "
            f"{WORTH_MEASURING:g} times as good as {servers_text(found.kept[0])}, which surely does"
        )
        remedy = "measure the first and pass the result with --rows"
        return BadFacts(Diagnostic(where, what, remedy))
    if found.estimated:
        return BadInput(_objectives_missed(found))
    if found.overloaded:
        wanted, rates, gpus = found.request.workload.request_rate or 0.0, [], []
        for option in found.overloaded:
            assert isinstance(option.outcome, float)
            rates.append(option.outcome)
            gpus.append(_gpus_for(option, wanted / rates[-1]))
        what = f"no candidate is fast enough: the fastest handles {number(max(rates))} requests/s"
        remedy = f"lower it, or allow at least {min(gpus)} GPUs"
        return BadInput(_at(found, "workload.request_rate", what, remedy))
    if found.refused:
        first = found.refused[0].outcome
        assert isinstance(first, Refusal)
        what = f"no candidate has an estimate: {first.reason}"
        remedy = "run the measurements listed above and pass the results with --rows"
        return BadFacts(Diagnostic(where, what, remedy))
    objections = list(chain.from_iterable(o.planned.objections for o in found.options))
    smallest = objections[-1:] or [_too_large(found)]
    what = "no candidate can be planned" if objections else "no candidate fits"
    first_row = Diagnostic(where, what, "the reason for the largest follows")
    return BadInput([first_row, *smallest])


def _impossible(found: Selection) -> list[Diagnostic]:
    """Targets below what the GPUs' peak arithmetic and memory bandwidth allow."""
    limits = found.request.slo.limits_ms
    return [
        _at(found, f"slo.{name}", *impossible_text(limits[name], least))
        for name, least in found.impossible.items()
    ]


def impossible_text(limit_ms: float, least_ms: float) -> tuple[str, str]:
    """What is wrong with such a target, and the remedy."""
    return (
        f"{_ms(limit_ms)} is impossible: at peak arithmetic and bandwidth one request "
        f"alone needs {_ms(least_ms)}",
        "raise it, or allow more or faster GPUs",
    )


def _gpus_for(option: Option, times: float) -> int:
    candidate = option.candidate
    return ceil(candidate.instances * times) * candidate.sharding.tensor_parallel_size


def _too_large(found: Selection) -> Diagnostic:
    """All candidates that can be planned have too little memory for the load."""
    load = found.request.workload.concurrency
    each = [o for o in found.options if o.planned.holds and load]
    gpus = [_gpus_for(o, (load or 0) / (o.planned.holds * o.candidate.instances)) for o in each]
    remedy = f"allow at least {min(gpus)} GPUs" if gpus else "allow larger GPUs"
    return _at(found, "workload", "no candidate's memory holds it", remedy)


def more(times: float) -> str:
    return f"{times - 1:.0%} more" if times < 10 else f"{times:.3g} times as much"


def _objectives_missed(found: Selection) -> list[Diagnostic]:
    """One diagnostic for each target that no candidate meets, or for all of them together."""
    limits, nearest = found.request.slo.limits_ms, found.nearest[0]
    assert nearest.forecast is not None
    uppers = {name: nearest.forecast.latency(name).high for name in nearest.misses}
    near = ", ".join(f"{SHORT_NAMES[name]} {_ms(ms)}" for name, ms in uppers.items())
    remedy = (
        f"the nearest is {servers_text(nearest)} with {near} at the upper end: raise the target, "
        "or measure it and pass the result with --rows"
    )
    rows = [
        _at(
            found,
            f"slo.{name}",
            f"no candidate meets {_ms(limits[name])}: the lowest upper "
            f"end is {_ms(least)}, {more(least / limits[name])}",
            remedy,
        )
        for name, least in found.least_ms().items()
        if least > limits[name]
    ]
    whole = f"no candidate meets {' and '.join(SHORT_NAMES[name] for name in limits)} together"
    return rows or [_at(found, "slo", whole, remedy)]


def _at(found: Selection, path: str, what: str, remedy: str) -> Diagnostic:
    (row,) = found.request.document.locate_all([Diagnostic(path, what, remedy)])
    return row


def measurement_texts(found: Selection) -> list[str]:
    return [
        f"{layout_text(*q.layout)}{f' MTP{q.mtp}' if q.mtp else ''} on "
        f"{q.num_gpus} {q.gpu}: {q.isl:,} in, {q.osl:,} out, {q.concurrency:,} concurrent requests"
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
        "measure": list(map(batch.measurement, found.measurements())),
        "notes": notes(found, chosen),
    }


def _option(option: Option, found: Selection, on_front: bool) -> dict[str, Any]:
    candidate, plan, outcome = option.candidate, option.planned.plan, option.outcome
    row: dict[str, Any] = {
        "gpu": candidate.gpu,
        "num_gpus": candidate.num_gpus,
        "instances": candidate.instances,
        "layout": candidate.title,
        "tensor_parallel_size": candidate.sharding.tensor_parallel_size,
        "moe_expert_parallel_size": candidate.sharding.moe_expert_parallel_size,
        "enable_attention_dp": candidate.sharding.enable_attention_dp,
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
            name: asdict(value) for name, value in figures(option, found.request).items()
        }
        row["rows"] = outcome.estimate.rows
        row["nearest_rows"] = [str(near) for near in outcome.estimate.nearest]
        row["misses"] = {name: round(excess, 4) for name, excess in option.misses.items()}
    elif isinstance(outcome, float):
        row["most_requests_per_s"] = outcome
    elif outcome is not None:
        row["refused"] = outcome.reason
    return row
