"""The document of objectives: what the service promises, how it is measured, what follows."""

from __future__ import annotations

from collections.abc import Iterator

from ...observability import slo
from ...servers import RenderContext
from .document import Block, Document, Section, bullets, note, table
from .runbook_text import fill

MINUTES_A_DAY = 24 * 60


def objectives(context: RenderContext, availability: float | None) -> Document:
    deployment = context.deployment
    found = slo.objectives(deployment, availability)
    sections = (
        Section("promises", "What is promised", tuple(_promises(context, found))),
        Section("budget", "Error budget", tuple(_budget(found))),
        Section("measured", "How it is measured", (bullets(_MEASURED),)),
        Section("missed", "When it is missed", (bullets(_MISSED),)),
    )
    workload = deployment.workload
    subject = (
        f"{workload.concurrency:,} requests at a time",
        f"{workload.isl:,} prompt and {workload.osl:,} answer tokens",
    )
    return Document(
        f"Objectives of {deployment.name}", "Service level objectives", subject, sections
    )


def _promises(context: RenderContext, found: tuple[slo.Objective, ...]) -> Iterator[Block]:
    rows = tuple(
        (one.title, f"{_percent(one.share)} of requests", one.good, one.evidence) for one in found
    )
    columns = ("objective", "share", "a request is good if it is, or has,", "source")
    yield table("Objectives", columns, rows)
    if any(one.evidence == "assumed" for one in found):
        text = (
            "An objective marked as assumed is a default; it holds until the deployment sets "
            "another one."
        )
        yield note("Assumed", text)
    limits = context.deployment.slo
    if limits is None or limits.ttft_ms is None or limits.itl_ms is None:
        words = (
            "Only latencies that the deployment names under `slo` are promised. Measure first: a "
            "limit without a measurement is a wish."
        )
        yield note("Latency", fill(words, {}))


def _budget(found: tuple[slo.Objective, ...]) -> Iterator[Block]:
    minutes = slo.PERIOD_DAYS * MINUTES_A_DAY
    rows = tuple(
        (
            one.title,
            f"{_percent(one.budget)} of requests",
            f"{one.budget * minutes:,.0f} minutes",
            *(_percent(one.burn(rate)) for rate in slo.BURN_RATES),
        )
        for one in found
    )
    rates = tuple(f"{name} alert: more bad than" for name in slo.BURN_RATES)
    columns = ("objective", "may be bad", f"as a full outage in {slo.PERIOD_DAYS} days", *rates)
    yield table("Error budgets", columns, rows, frozenset(range(1, len(columns))))


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"


_MEASURED = (
    "By the server's own metrics, over all requests that it took: the time to the first token "
    "begins when the request is there, and ends when the first token leaves.",
    "Client-side latency also includes the network and the gateway. Measure it where clients are: "
    "the command is in the runbook, under Watch and measure.",
)
_MISSED = (
    "The alerts link into the runbook. The fast one is for now, at any hour; the slow one is for "
    "the next working day.",
    "While a budget is spent, only a release that fixes it is rolled out.",
)
