"""Writes what the plan says: capacity, figures, decisions, terms, vulnerabilities, objectives.

All but the objectives are sections of the runbook; those are a document of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain

from ...estimates import plan_estimate, refusals
from ...facts import advisories
from ...facts.published_results import MEASURES, Published, describe
from ...number_format import number
from ...observability import alerts
from ...rules import vulnerability_policy
from ...servers import RenderContext
from .document import (
    Block,
    Document,
    Section,
    bullets,
    code,
    facts,
    fill,
    link,
    note,
    paragraph,
    section,
    table,
)

# Limits of the engine's options and of the model behind Triton: what each does to a request.
ENGINE_LIMITS = {
    "max_batch_size": "concurrent requests per rank; others wait in the engine",
    "max_num_tokens": "tokens per step",
    "max_seq_len": "tokens per request, prompt and output together; longer ones are refused",
}
MODEL_LIMITS = {
    "max_requests": "requests that run or wait; others are refused and may be retried",
    "max_unary_http_requests": "of these, unstreamed over HTTP; a disconnect is not noticed there",
    "max_unary_http_running": "of those, running in the engine; others wait in the model",
    "max_prompt_bytes": "bytes of a request's inputs; larger ones are refused unread",
    "max_tokens_per_request": "output tokens that a request may ask for",
    "max_seconds_per_request": "seconds per request; then it ends with the tokens so far",
    "drain_timeout_s": "seconds for running requests when the server stops",
    "engine_stall_timeout_s": "seconds without a token after which the server exits",
}


def capacity(context: RenderContext) -> Section:
    budget = context.plan.budget
    parts = (
        ("weights", budget.weights_gib),
        ("activations", budget.activations_gib),
        ("CUDA graphs", budget.cuda_graphs_gib),
        ("context and workspaces", budget.other_gib),
        ("KV cache", budget.kv_cache_gib),
    )
    free = max(0.0, budget.total_gib - sum(gib for _, gib in parts))
    rows = (*parts, ("free", free), ("total reported by CUDA", budget.total_gib))
    memory = table(
        "Memory per GPU",
        ("part", "GiB"),
        [(name, f"{gib:,.1f}") for name, gib in rows],
        numeric={1},
    )
    columns = ("limit", "value", "of", "meaning")
    limits = table("Limits", columns, tuple(_limits(context)), frozenset({1}))
    values = {"uncertainty_gib": f"{budget.uncertainty_gib:.0f}"}
    return section("capacity", values, memory, facts(tuple(_kv_cache(context))), limits)


def _kv_cache(context: RenderContext) -> Iterator[tuple[str, str]]:
    budget, workload = context.plan.budget, context.deployment.workload
    yield (
        "KV cache",
        f"{budget.kv_tokens:,} tokens of {budget.kv_bytes_per_token:,} bytes per GPU",
    )
    yield (
        "Concurrent requests",
        (
            f"{budget.max_concurrency:,} per server, of {workload.isl:,} prompt and "
            f"{workload.osl:,} output tokens; {workload.concurrency:,} are planned"
        ),
    )
    yield (
        "Above that",
        "requests wait for others to finish: the time to first token grows, answers stay correct",
    )


def _limits(context: RenderContext) -> Iterator[tuple[str, ...]]:
    longest = context.plan.limits
    meaning = f"tokens, by {longest.bounded_by}; longer prompts are refused"
    yield "longest prompt", f"{longest.longest_prompt_tokens:,}", "plan", meaning
    for name, meaning in ENGINE_LIMITS.items():
        if (value := context.engine.options.get(name)) is not None:
            yield code(name), f"{value:,}", "engine", meaning
    for server in context.servers.values():
        for name, meaning in MODEL_LIMITS.items():
            if (value := server.settings.get(name)) is not None:
                yield code(name), f"{value:,}", server.record.title, meaning


def figures(context: RenderContext) -> Section:
    """Estimated and published speeds, after a note that this deployment was never measured."""
    facts = context.plan.facts
    text = (
        f"This deployment had not run on {facts.gpu.product} when this page was made. Later "
        "measurements are attached as evidence."
    )
    blocks: list[Block] = [note("Not measured", text), *_estimate(context)]
    rows = tuple(chain.from_iterable(map(_published, facts.published)))
    if rows:
        text = "Published results for the same model on the same GPUs, with various workloads:"
        columns = ("figure", "workload and engine", "source")
        blocks += [paragraph(text), table("Published figures", columns, rows)]
    else:
        text = "No published results for this model on these GPUs are known."
        blocks.append(paragraph(text))
    return section("figures", {}, *blocks)


def _estimate(context: RenderContext) -> Iterator[Block]:
    """The speed estimated from public measurements, or what to measure."""
    found = plan_estimate.document(context.plan)
    load = f"{found['isl']:,} prompt and {found['osl']:,} output tokens, {found['concurrency']:,}"
    if "refused" in found:
        yield paragraph(f"No estimate of {load} concurrent requests: {found['refused']}.")
        if loads := found["measure"]:
            script = refusals.command(found["isl"], found["osl"], loads)
            yield paragraph("Measure it, the load that was asked for first: " + code(script))
    else:
        rows = tuple(
            (words, *(number(found[name][end]) for end in ("value", "low", "high")), unit)
            for name, (words, unit) in MEASURES.items()
        )
        columns = ("estimated", "value", "from", "to", "unit")
        caption = f"Estimate of {load} concurrent requests"
        yield table(caption, columns, rows, frozenset({1, 2, 3}))
        yield paragraph(f"From {plan_estimate.evidence_text(found)}.")
    points = map(plan_estimate.published_text, found.get("published", ()))
    notes = [
        *found.get("notes", ()),
        *(f"Nearest measurement: {near}" for near in found["nearest"]),
    ]
    if lines := [*notes, *(f"Published: {text}" for text in points)]:
        yield bullets(lines)


def _published(row: Published) -> Iterator[tuple[str, ...]]:
    workload = f"{row.workload}; {row.engine}"
    if row.incomplete:
        workload += f"; not published: {', '.join(row.incomplete)}"
    for figure in row.figures:
        yield describe(figure), workload, row.source


def decisions(context: RenderContext) -> Section:
    rows = (*context.engine.decisions, *context.plan.flags, *context.plan.environment)
    columns = ("setting", "value", "why", "evidence")
    cells = [
        (code(row.path), code(_value(row.value)), row.reason, f"{row.evidence}: {row.source}")
        for row in rows
    ]
    return section("decisions", {}, table("Settings", columns, cells), *_doubts(context))


def _doubts(context: RenderContext) -> Iterator[Block]:
    if context.plan.differences:
        columns = ("option", "published", "here", "why")
        yield table("Published options not used here", columns, tuple(_differences(context)))
    if warnings := (*context.plan.warnings, *context.engine.warnings):
        items = [
            code(row.where) + f" {row.message}" + f": {row.fix}" * bool(row.fix) for row in warnings
        ]
        yield Section("warnings", "Warnings of the plan", (bullets(items),))


def _differences(context: RenderContext) -> Iterator[tuple[str, ...]]:
    for row in context.plan.differences:
        planned = "not set" if row.planned is None else code(_value(row.planned))
        reason = f"{row.reason} ({row.source})"
        yield code(row.path), code(_value(row.published)), planned, reason


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


REMOTE_CODE = "trust_remote_code"


def terms(context: RenderContext) -> Section:
    return section("licence", {}, facts((*_licenses(context), _remote_code(context))))


def _licenses(context: RenderContext) -> Iterator[tuple[str, str]]:
    facts = context.plan.facts
    for title, model in (("Model", facts.checkpoint), ("Draft model", facts.draft)):
        if model is None:
            continue
        found = model.license
        if found is None:
            words = f"{model.name}: unknown to this toolkit; see the checkpoint's model card"
            yield title, words
            continue
        grade = "" if found.verified else ", not verified"
        note = f" {found.note}" if found.note else ""
        text = f"{model.name}: {found.name}.{note} Source: {found.source}{grade}."
        yield title, text + (" " + link("Terms", found.url) if found.url else "")


def _remote_code(context: RenderContext) -> tuple[str, str]:
    on = context.engine.options.get(REMOTE_CODE) or f"--{REMOTE_CODE}" in {
        flag.path for flag in context.flags
    }
    if on:
        words = (
            "on: Python code from the checkpoint runs in the server. Review it, pin the revision "
            "and keep the digests of its files."
        )
        return "Remote code", words
    words = "off: no Python code from the checkpoint runs; the engine supports this architecture."
    return "Remote code", words


def vulnerabilities(context: RenderContext) -> Section:
    used = vulnerability_policy.references(context.deployment, context.release.name)
    found = [use for use in used if use.version != advisories.UNKNOWN]
    accepted = vulnerability_policy.accepted(context.deployment, context.release.name)
    blocks: list[Block] = []
    for use in found:
        blocks += _open(use, accepted.get((use.product, use.version)))
    known = {use.product for use in found}
    if context.engine_record.product not in known:
        title = context.engine_record.title
        text = f"This toolkit has no advisories for {title}: look them up."
        blocks.append(note("Unknown advisories", text))
    for row in (server.record for server in context.servers.values()):
        if row.image["product"] not in known:
            text = f"The version of {row.title} in the image is unknown: look it up."
            blocks.append(note("Unknown version", text))
    return section("vulnerabilities", {}, *blocks)


def _open(use: vulnerability_policy.ComponentReference, accepted: str | None) -> Iterator[Block]:
    title = f"{advisories.name(use.product)} {use.version}"
    found, day = advisories.open_for(use.product, use.version), advisories.as_of(use.product)
    if not found:
        yield paragraph(f"{title}: none known as of {day}.")
        return
    text = f"{title} has {advisories.number_text(len(found))} on {day}; {_way_out(use.product)}"
    yield note("Open", text)
    if accepted:
        yield note("Accepted by the deployment", accepted)
    rows = tuple(
        (
            code(row.cve),
            "-" if row.cvss is None else f"{row.cvss:.1f}",
            row.fixed_in or "not known",
            f"NVIDIA bulletin {row.bulletin}, {row.published}",
        )
        for row in found
    )
    columns = ("vulnerability", "CVSS", "fixed in", "source")
    yield table(title, columns, rows, frozenset({1}))


def _way_out(product: str) -> str:
    least, stays = advisories.minimum(product), advisories.open_for_all(product)
    unfixed = f" except {advisories.listed(stays)}" if stays else ""
    return (
        f"{advisories.closes_all(product)} fixes all known vulnerabilities{unfixed}. The oldest "
        f"accepted version is {least.version}: {least.reason}."
    )


MINUTES_A_DAY = 24 * 60


def objectives(context: RenderContext, availability: float | None) -> Document:
    deployment = context.deployment
    found = alerts.objectives(deployment, availability)
    sections = (
        Section("promises", "Objectives", tuple(_promises(context, found))),
        Section("budget", "Error budget", tuple(_budget(found))),
        Section("measured", "Measurement", (bullets(_MEASURED),)),
        Section("missed", "When an objective is missed", (bullets(_MISSED),)),
    )
    workload = deployment.workload
    subject = (
        f"{workload.concurrency:,} concurrent requests",
        f"{workload.isl:,} prompt and {workload.osl:,} output tokens",
    )
    return Document(
        f"Objectives of {deployment.name}", "Service level objectives", subject, sections
    )


def _promises(context: RenderContext, found: tuple[alerts.Objective, ...]) -> Iterator[Block]:
    rows = tuple(
        (one.title, f"{_percent(one.share)} of requests", one.good, one.evidence) for one in found
    )
    columns = ("objective", "share", "a good request is, or has,", "source")
    yield table("Objectives", columns, rows)
    if any(one.evidence == "assumed" for one in found):
        text = "An objective marked as assumed is a default; the deployment can set another one."
        yield note("Assumed", text)
    limits = context.deployment.slo
    if limits is None or limits.ttft_ms is None or limits.itl_ms is None:
        words = (
            "Only the latencies under `slo` in the deployment are objectives. Measure before you "
            "set one."
        )
        yield note("Latency", fill(words, {}))


def _budget(found: tuple[alerts.Objective, ...]) -> Iterator[Block]:
    minutes = alerts.PERIOD_DAYS * MINUTES_A_DAY
    rows = tuple(
        (
            one.title,
            f"{_percent(one.budget)} of requests",
            f"{one.budget * minutes:,.0f} minutes",
            *(_percent(one.burn(rate)) for rate in alerts.BURN_RATES),
        )
        for one in found
    )
    rates = tuple(f"{name} alert above" for name in alerts.BURN_RATES)
    columns = ("objective", "may fail", f"as a full outage in {alerts.PERIOD_DAYS} days", *rates)
    yield table("Error budgets", columns, rows, frozenset(range(1, len(columns))))


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


_MEASURED = (
    "With the server's metrics, over all accepted requests: the time to first token runs from the "
    "arrival of the request to the first token sent.",
    "Client-side latency also includes the network and the gateway. Measure it where clients are: "
    "the command is in the runbook, under Watch and measure.",
)
_MISSED = (
    "The alerts link to the runbook. Respond to the fast one immediately, at any hour; to the slow "
    "one on the next working day.",
    "While an error budget is used up, only roll out releases that fix the cause.",
)
