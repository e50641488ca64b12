"""What was decided and why, and what a reader should doubt."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ...servers import BundleContext
from . import prose
from .document import Block, Bullets, Section, Span, Table, Text, code, plain


def decisions(context: BundleContext) -> Section:
    rows = (*context.engine.decisions, *context.plan.flags, *context.plan.environment)
    columns = ("setting", "value", "why", "evidence")
    table = tuple(
        (
            code(row.path),
            code(_value(row.value)),
            plain(row.reason),
            plain(f"{row.evidence}: {row.source}"),
        )
        for row in rows
    )
    return prose.section("decisions", {}, Table("Settings", columns, table), *_doubts(context))


def _doubts(context: BundleContext) -> Iterator[Block]:
    if context.plan.differences:
        columns = ("option", "published", "here", "why")
        yield Table("Published options that are not used", columns, tuple(_differences(context)))
    if warnings := (*context.plan.warnings, *context.engine.warnings):
        items = tuple(
            (
                Span(row.where, code=True),
                Span(f" {row.message}" + (f": {row.fix}" * bool(row.fix))),
            )
            for row in warnings
        )
        yield Section("warnings", "Warnings of the plan", (Bullets(items),))


def _differences(context: BundleContext) -> Iterator[tuple[Text, ...]]:
    for row in context.plan.differences:
        planned = plain("not set") if row.planned is None else code(_value(row.planned))
        reason = plain(f"{row.reason} ({row.source})")
        yield code(row.path), code(_value(row.published)), planned, reason


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
