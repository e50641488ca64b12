"""The verb choose: which deployment keeps the objectives, by measured rows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import Parser, add_deployment, add_json
from .terminal import columns, print_json, wrapped

if TYPE_CHECKING:
    from ..choice.selection import Option, Selection

_SHOWN = 12  # options in the table; --json has all
_SUMMARY = "and {count} more: --json has all"


def add_choose(parser: Parser) -> None:
    add_deployment(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the chosen deployment, to render"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="draw the options and their Pareto front"
    )
    add_json(parser)


def run_choose(options: argparse.Namespace) -> None:
    from ..choice import page, record, request, selection, verdict
    from ..estimates import Estimator

    asked = request.read(options.deployment, options.set, options.target)
    found = selection.select(asked, Estimator.load())
    chosen = record.chosen(found)
    if options.json:
        print_json(verdict.document(found, chosen and chosen[0]))
    else:
        print(text(found, chosen and chosen[0]))
    if options.html:
        page.write(found, chosen and chosen[0], options.html)
    if chosen is None:
        raise verdict.refusal(found)
    if options.output:
        record.write(chosen[1], options.output)


def text(found: Selection, chosen: Option | None) -> str:
    """The options on one screen, the chosen one first and marked, and why it is chosen."""
    from ..choice import record, verdict

    head = verdict.question_text(found)
    parts = ["\n".join(line for row in head for line in wrapped("", row))]
    shown = _order(found, chosen)
    if shown:
        parts.append(_table(found, shown[:_SHOWN], chosen))
        if more := len(shown) - _SHOWN:
            parts[-1] += f"\n{_SUMMARY.format(count=more)}" if more > 0 else ""
    lines = wrapped("", verdict.counts_text(found))
    if chosen is not None:
        lines += ["", *wrapped("chosen: ", record.reason(found, chosen))]
        lines += wrapped("  evidence: ", record.source(chosen))
    parts.append("\n".join(lines))
    parts += ("\n".join(wrapped("note: ", note)) for note in verdict.notes(found, chosen))
    if chosen is None or not shown:
        parts += _measurements(found)
    return "\n\n".join(parts)


def _order(found: Selection, chosen: Option | None) -> list[Option]:
    """The chosen one, the others that keep the objectives, and the nearest of those that miss."""
    first = [chosen] if chosen else []
    kept = [option for option in found.kept if option is not chosen]
    return [*first, *kept, *found.nearest]


def _table(found: Selection, shown: Sequence[Option], chosen: Option | None) -> str:
    from ..choice.record import number

    priced = bool(found.request.prices_usd)
    heads = ["", "GPUS", "LAYOUT", "FREE GIB", "ITL MS", "TTFT MS", "ROWS", "TOK/S/GPU"]
    rows = [[*heads, *(["$/MTOK"] if priced else []), "KEEPS"]]
    for option in shown:
        forecast, candidate = option.forecast, option.candidate
        assert forecast is not None and option.planned.plan is not None
        batch = f" B{candidate.max_batch_size}" if candidate.max_batch_size else ""
        several = f"{candidate.instances}x" if candidate.instances > 1 else ""
        row = [
            "*" if option is chosen else "",
            f"{candidate.num_gpus} {candidate.gpu}",
            f"{several}{candidate.layout}{batch}",
            number(option.planned.plan.budget.margin_gib),
            *(f"{number(value.value)}<{number(value.high)}" for value in _latencies(option)),
            str(forecast.estimate.rows),
            _bar(forecast.tok_s_per_gpu),
        ]
        if priced:
            usd = forecast.usd_per_million_tokens(found.request.prices_usd[candidate.gpu])
            row.append(number(usd.value))
        rows.append([*row, ", ".join(_missed(option)) or "yes"])
    legend = "VALUE<UPPER END of the 80 % interval; B: max_batch_size; FREE: KV cache to spare"
    return f"{columns(rows, range(3, len(rows[0]) - 1))}\n\n{legend}"


def _latencies(option: Option) -> Iterator[Any]:
    assert option.forecast is not None
    yield option.forecast.itl_ms
    yield option.forecast.ttft_ms


def _bar(found: Any) -> str:
    from ..choice.record import number

    return f"{number(found.value)} ±{found.half_width:.0%}"


def _missed(option: Option) -> list[str]:
    from ..choice.record import UNITS

    return [f"{UNITS[miss.name]} +{miss.excess:.0%}" for miss in option.misses]


def _measurements(found: Selection) -> Iterator[str]:
    from ..choice import verdict

    if rows := verdict.measurement_texts(found):
        yield "\n".join(["Measure, the first tells most:", *(f"  {row}" for row in rows)])
