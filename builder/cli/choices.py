"""The verb choose: which deployment keeps the objectives, by measured rows."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import Parser, add_deployment, add_json
from .terminal import WIDTH, columns, print_json, wrapped

if TYPE_CHECKING:
    from ..choice.selection import Option, Selection

_SHOWN = 12  # options in the table; --json has all
_SUMMARY = "and {count} more: --json has all"
_GPU, _LAYOUT = "GPU", "LAYOUT"
_NUMBERS = frozenset(("FREE", "TTFT MS", "ITL MS", "E2E S", "ROWS", "TOK/S/GPU", "$/M", "GPUS"))
_SPARE = ("E2E S", "FREE", "TTFT MS", "ROWS")  # columns that give way, the first one first
_LEGEND = {  # of columns, where they are shown
    "": "value<promised upper end, ! where that misses the objective",
    "FREE": "FREE: GiB of KV cache to spare on each GPU",
    "ROWS": "ROWS: measured rows behind the estimate",
    "$/M": "$/M: USD per million output tokens",
}


def add_choose(parser: Parser) -> None:
    add_deployment(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the chosen deployment, to render"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="draw the options and their Pareto front"
    )
    parser.add_argument(
        "--rows",
        type=Path,
        metavar="DIR",
        help="a folder of runs of launch bench: they count like the public rows",
    )
    add_json(parser)


def run_choose(options: argparse.Namespace) -> None:
    from ..choice import page, record, request, selection, verdict
    from ..estimates import plan_estimate

    asked = request.read(options.deployment, options.set, options.target)
    estimator = plan_estimate.estimator(asked.bases[0].model, options.rows)
    found = selection.select(asked, estimator)
    chosen = record.chosen(found)
    if options.json:
        print_json(verdict.document(found, chosen and chosen[0]))
    else:
        print(text(found, chosen and chosen[0]))
        for note in estimator.idle_runs(row.candidate.question(1) for row in found.options):
            print("\n" + "\n".join(wrapped("note: ", note)))
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
        if (more := len(shown) - _SHOWN) > 0:
            parts[-1] += f"\n{_SUMMARY.format(count=more)}"
    lines = wrapped("", verdict.counts_text(found))
    for reason in verdict.reason_texts(found):
        lines += wrapped("  - ", reason)
    if chosen is not None:
        lines += ["", *wrapped("chosen:   ", record.reason(found, chosen))]
        lines += wrapped("evidence: ", record.source(chosen))
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
    """The options in columns; what is least needed is left out where they would be too wide."""
    rows = [_cells(found, option, option is chosen) for option in shown]
    heads = list(rows[0])
    if len(found.request.bases) == 1:
        heads.remove(_GPU)
    while True:
        cells = [heads, *([row[head] for head in heads] for row in rows)]
        table = columns(cells, [place for place, head in enumerate(heads) if head in _NUMBERS])
        if max(map(len, table.splitlines())) <= WIDTH or not (spare := _spare(heads)):
            break
        heads.remove(spare)
    legend = [words for head, words in _LEGEND.items() if head in heads]
    legend += ["B: max_batch_size"] if any(" B" in row[_LAYOUT] for row in rows) else []
    return "\n".join([table, "", *wrapped("", "; ".join(legend))])


def _spare(heads: Sequence[str]) -> str | None:
    return next((head for head in _SPARE if head in heads), None)


def _cells(found: Selection, option: Option, is_chosen: bool) -> dict[str, str]:
    """One row of the table, by the heads of its columns."""
    from ..estimates.question import number

    forecast, candidate = option.forecast, option.candidate
    assert forecast is not None and option.planned.plan is not None
    batch = f" B{candidate.max_batch_size}" if candidate.max_batch_size else ""
    several = f"{candidate.instances}x " if candidate.instances > 1 else ""
    missed = {miss.name for miss in option.misses}
    times = {
        head: f"{number(value.value)}<{number(value.high)}{'!' if name in missed else ''}"
        for head, name, value in (
            ("TTFT MS", "ttft_ms", forecast.ttft_ms),
            ("ITL MS", "itl_ms", forecast.itl_ms),
            ("E2E S", "e2e_ms", forecast.e2e_ms.map(1 / 1000)),
        )
    }
    price = found.request.prices_usd.get(candidate.gpu)
    cost = {} if price is None else {"$/M": number(forecast.usd_per_million_tokens(price).value)}
    speed = forecast.tok_s_per_gpu
    return {
        "": "*" if is_chosen else "",
        "GPUS": str(candidate.num_gpus),
        _GPU: candidate.gpu,
        _LAYOUT: f"{several}{candidate.title}{batch}",
        "FREE": number(option.planned.plan.budget.margin_gib),
        **times,
        "ROWS": str(forecast.estimate.rows),
        "TOK/S/GPU": f"{number(speed.value)} ±{speed.half_width:.0%}",
        **cost,
    }


def _measurements(found: Selection) -> Iterator[str]:
    from ..choice import verdict

    if rows := verdict.measurement_texts(found):
        yield "\n".join(["Measure, the first tells most:", *(f"  {row}" for row in rows)])
