"""Runs the verbs estimate and choose: speed and cost from measurements, and the best deployment."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..diagnostics import Diagnostic
from ..documents import dump_yaml
from ..errors import BadFacts, BadInput
from ..files import save
from . import terminal
from .terminal import WIDTH, Parser, add_deployment, add_json, columns, print_json, wrapped

if TYPE_CHECKING:
    from ..choice.selection import Option, Selection
    from ..estimates import Estimate, Interval, Question, Refusal
    from ..planning import Plan

MAX_CONCURRENCY = 1_000_000
_LOADS = 2  # in a table of 80 columns
MAX_SHOWN = 40  # characters of a value that is refused


def add_estimate(parser: Parser) -> None:
    text = "a deployment file, or the name of a preset; not with --batch"
    parser.add_argument("deployment", nargs="?", help=text)
    terminal.add_set(parser, "workload.isl=8192")
    text = "concurrent requests over all servers, e.g. 1,4,16 (default: the workload's concurrency)"
    parser.add_argument("--concurrency", type=_loads, metavar="N,N,...", help=text)
    terminal.add_rows(parser)
    text = "US dollars per GPU hour: also show the cost per million output tokens"
    parser.add_argument("--price", type=_price, metavar="USD", help=text)
    text = "accepted tokens per step with draft tokens, including the target model's own"
    parser.add_argument("--acceptance", type=_acceptance, metavar="TOKENS", help=text)
    text = "answer one JSON question per line, each with one line"
    parser.add_argument("--batch", type=Path, metavar="FILE.jsonl", help=text)
    add_json(parser)


def _loads(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if not all(1 <= load <= MAX_CONCURRENCY for load in found):
        what = f"is not a list of whole numbers from 1 to {MAX_CONCURRENCY:,}"
        raise argparse.ArgumentTypeError(f"{text[:MAX_SHOWN]} {what}")
    return list(dict.fromkeys(found))


def _price(text: str) -> float:
    return _number(text, 0, 1e6)


def _acceptance(text: str) -> float:
    return _number(text, 1, 17)


def _number(text: str, least: float, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= most or not value:
        what = (
            f"is not a number from {least:g} to {most:g}"
            if least
            else f"is not a number above 0 and up to {most:g}"
        )
        raise argparse.ArgumentTypeError(f"{text[:MAX_SHOWN]} {what}")
    return value


def run_estimate(options: argparse.Namespace) -> None:
    if options.batch and options.deployment:
        what = "has both a deployment and --batch"
        raise BadInput(Diagnostic("estimate", what, "give only one"))
    if options.batch:
        _run_batch(options)
        return
    if not options.deployment:
        what = "has nothing to estimate"
        raise BadInput(
            Diagnostic("estimate", what, "name a deployment, or give --batch FILE.jsonl")
        )
    from .. import pipeline
    from ..estimates import Refusal, plan_estimate

    planned = pipeline.plan(options.deployment, options.set, ())
    if planned.prefill is not None:
        from . import pools

        pools.run_estimate(planned.plan, planned.prefill.plan, options)
        return
    plan = planned.plan
    if plan.deployment.role != "agg":
        what = f"{plan.deployment.name} is one side of disaggregated serving"
        remedy = "estimate the decode deployment that names its prefill servers"
        raise BadInput(Diagnostic("role", what, remedy))
    loads = options.concurrency or [plan.deployment.workload.concurrency]
    asked = [plan_estimate.question_of(plan, load) for load in loads]
    questions = [_question(question, options.acceptance) for question in asked]
    estimator = plan_estimate.estimator(questions[0].model, options.rows)
    reason = plan_estimate.unmeasured_part(plan)
    answers = [
        plan_estimate.unmeasured(question, reason) if reason else estimator.estimate(question)
        for question in questions
    ]
    if options.json:
        print_json(_document(plan, loads, answers, options.price))
    else:
        print("\n".join(_text(plan, loads, answers, options.price)))
        for note in estimator.idle_runs(questions[:1]):
            print("\n".join(wrapped("note: ", note)))
    reasons = [found.reason for found in answers if isinstance(found, Refusal)]
    if len(reasons) == len(answers):
        _end_without_answer(plan.deployment.name, reasons)


def _question(question: Question, acceptance: float | None) -> Question:
    from dataclasses import replace

    if acceptance is None:
        return question
    if not question.mtp:
        what = f"{acceptance:g} needs draft tokens, and the deployment has none"
        raise BadInput(Diagnostic("--acceptance", what, "leave it out"))
    if acceptance > (most := question.mtp + 1):
        what = f"{acceptance:g} is more than {question.mtp} draft tokens allow per step"
        raise BadInput(Diagnostic("--acceptance", what, f"give 1 to {most}"))
    return replace(question, acceptance=acceptance)


def _end_without_answer(where: str, reasons: Sequence[str]) -> NoReturn:
    """Raises `BadFacts`, so that a script sees that nothing was estimated."""
    remedy = "measure the deployment and pass the results with --rows"
    raise BadFacts(
        Diagnostic(where, f"no estimate: {reason}", remedy) for reason in dict.fromkeys(reasons)
    )


def _run_batch(options: argparse.Namespace) -> None:
    from ..estimates import Estimator, batch

    lines = batch.read_file(options.batch)
    estimator = Estimator.load(options.rows)
    reasons = []
    for row in batch.answer(lines, estimator):
        print(json.dumps(row))  # in ASCII: a name may contain line breaks or unpaired surrogates
        reasons += [row["refused"]] if "refused" in row else []
    if wrong := [line for line in lines if isinstance(line, Diagnostic)]:
        raise BadInput(wrong)
    if len(reasons) == len(lines):
        _end_without_answer(str(options.batch), reasons)


def _document(
    plan: Plan, loads: Sequence[int], answers: Sequence[Estimate | Refusal], price: float | None
) -> dict[str, Any]:
    from ..estimates import Refusal, batch

    rows = []
    for load, found in zip(loads, answers, strict=True):
        row = {"concurrency": load, **batch.document(found)}
        if not isinstance(found, Refusal):
            row["output_tok_s"] = batch.interval(found.output_tok_s.map(plan.deployment.instances))
            if price is not None:
                cost = found.usd_per_million_tokens(price)
                row["usd_per_million_output_tokens"] = batch.interval(cost)
        rows.append(row)
    return {
        "deployment": plan.deployment.name,
        "instances": plan.deployment.instances,
        "question": batch.measurement(answers[0].question),
        "interval": "80 %",
        "points": rows,
    }


def _text(
    plan: Plan, loads: Sequence[int], answers: Sequence[Estimate | Refusal], price: float | None
) -> Iterator[str]:
    from ..estimates import Refusal
    from ..estimates.measurements import layout_text

    asked, count = answers[0].question, plan.deployment.instances
    what = f"{asked.model} {asked.precision}, {f'{count} servers of ' if count > 1 else ''}"
    what += f"{asked.num_gpus} {asked.gpu}, {asked.engine}, "
    what += layout_text(*asked.layout)
    what += f", MTP {asked.mtp}" if asked.mtp else ""
    yield from wrapped(f"{plan.deployment.name}: ", what)
    yield f"workload: {asked.isl:,} prompt and {asked.osl:,} output tokens"
    rows = list(zip(loads, answers, strict=True))
    known = [(load, found) for load, found in rows if not isinstance(found, Refusal)]
    if known:
        yield ""
        for first in range(0, len(known), _LOADS):
            yield columns(_table(known[first : first + _LOADS], count, price))
            yield ""
        yield "in parentheses: 80 % intervals"
        yield from _evidence(found for _, found in known)
    for load, found in rows:
        if isinstance(found, Refusal):
            yield ""
            yield from _refusal(load, found)


def _table(
    known: Sequence[tuple[int, Estimate]], instances: int, price: float | None
) -> list[tuple[str, ...]]:
    """Values with their 80 % intervals: a row for each measure, a column for each load."""
    rows = [("CONCURRENT REQUESTS", *(f"{load:,}" for load, _ in known))]
    measures: list[tuple[str, Callable[[Estimate], Interval]]] = [
        ("TPOT ms", lambda found: found.tpot_ms),
        ("TTFT ms", lambda found: found.ttft_ms),
        ("E2E s", lambda found: found.e2e_ms.map(0.001)),
        ("output tok/s", lambda found: found.output_tok_s.map(instances)),
        ("tok/s per user", lambda found: found.tok_s_per_user),
        ("tok/s per GPU", lambda found: found.tok_s_per_gpu),
    ]
    if price is not None:
        measures.append(("USD per million", lambda found: found.usd_per_million_tokens(price)))
    for name, of in measures:
        rows.append((name, *(str(of(found)) for _, found in known)))
    return rows


def _evidence(answers: Iterator[Estimate]) -> Iterator[str]:
    from ..estimates.question import rows_text

    first, *_ = found = list(answers)
    yield f"{rows_text(first.rows)} of this model, GPU, precision and engine; nearest:"
    nearest: dict[str, None] = {}
    notes: dict[str, None] = {}
    for one in found:
        nearest |= dict.fromkeys(map(str, one.nearest[:2]))
        notes |= dict.fromkeys(one.notes)
    for text in list(nearest)[:3]:
        yield from wrapped("  ", text)
    for note in notes:
        yield from wrapped("note: ", note)


def _refusal(load: int, found: Refusal) -> Iterator[str]:
    from ..estimates import refusals

    yield from wrapped(
        f"{load:,} concurrent requests: ", f"no estimate, {found.reason}; {found.lift}"
    )
    for note in found.notes:
        yield from wrapped("note: ", note)
    if found.nearest:
        yield "Nearest measurements:"
        for near in found.nearest:
            yield from wrapped("  ", str(near))
    if not found.measure:
        return
    loads = [question.concurrency for question in found.measure]
    question = found.question
    command = refusals.command(question.isl, question.osl, loads)
    where = f"on {question.num_gpus} {question.gpu}, the load that was asked for first"
    yield from wrapped("measure: ", f"{where}: {command}; then pass its folder with --rows")


_SHOWN = 12  # options in the table; --json lists all
_GPU, _LAYOUT = "GPU", "LAYOUT"
_NUMBERS = frozenset(("FREE", "TTFT MS", "ITL MS", "E2E S", "ROWS", "TOK/S/GPU", "$/M", "GPUS"))
_SPARE = ("E2E S", "FREE", "TTFT MS", "ROWS")  # dropped in this order if the table is too wide
_COLUMN_LEGENDS = {  # of the columns that are shown
    "": "value<conservative upper bound, ! if that misses the target",
    "FREE": "FREE: spare KV cache in GiB per GPU",
    "ROWS": "ROWS: measurements behind the estimate",
    "$/M": "$/M: USD per million output tokens",
}


def add_choose(parser: Parser) -> None:
    add_deployment(parser)
    text = "write the chosen deployment"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    text = "write a chart of the options with their Pareto front"
    parser.add_argument("--html", type=Path, metavar="FILE", help=text)
    terminal.add_rows(parser)
    add_json(parser)


def run_choose(options: argparse.Namespace) -> None:
    from ..choice import page, report, request, selection
    from ..estimates import plan_estimate

    asked = request.read(options.deployment, options.set, options.target)
    if asked.is_disaggregated:
        from . import pools

        pools.run_choose(asked, options)
        return
    estimator = plan_estimate.estimator(asked.bases[0].model, options.rows)
    found = selection.select(asked, estimator)
    chosen = report.chosen(found)
    if options.json:
        print_json(report.document(found, chosen and chosen[0]))
    else:
        print(choice_text(found, chosen and chosen[0]))
        for note in estimator.idle_runs(row.candidate.question(1) for row in found.options):
            print("\n" + "\n".join(wrapped("note: ", note)))
    if options.html:
        save(options.html, page.text(found, chosen and chosen[0]), "--html")
    if chosen is None:
        raise report.refusal(found)
    if options.output:
        save(options.output, dump_yaml(chosen[1].data), "-o")


def choice_text(found: Selection, chosen: Option | None) -> str:
    """The options on one screen, the chosen one first, and why it was chosen."""
    from ..choice import report

    head = report.question_text(found)
    parts = ["\n".join("\n".join(wrapped("", row)) for row in head)]
    shown = found.ordered(chosen)
    if shown:
        parts.append(_options_table(found, shown[:_SHOWN], chosen))
        if (more := len(shown) - _SHOWN) > 0:
            parts[-1] += f"\nand {more} more: --json lists all"
    lines = wrapped("", report.counts_text(found))
    for reason in report.reason_texts(found):
        lines += wrapped("  - ", reason)
    if chosen is not None:
        lines += ["", *wrapped("chosen:   ", report.reason(found, chosen))]
        lines += wrapped("evidence: ", report.source(chosen))
    parts.append("\n".join(lines))
    parts += ("\n".join(wrapped("note: ", note)) for note in report.notes(found, chosen))
    rows = report.measurement_texts(found) if chosen is None or not shown else []
    if rows:
        parts.append(
            "\n".join(["Measure, loads that were asked for first:", *(f"  {row}" for row in rows)])
        )
    return "\n\n".join(parts)


def _options_table(found: Selection, shown: Sequence[Option], chosen: Option | None) -> str:
    """The options in columns; the least needed columns are dropped if they do not fit."""
    rows = [_option_cells(found, option, option is chosen) for option in shown]
    heads = list(rows[0])
    if len(found.request.bases) == 1:
        heads.remove(_GPU)
    while True:
        cells = [heads, *([row[head] for head in heads] for row in rows)]
        table = columns(cells, [place for place, head in enumerate(heads) if head in _NUMBERS])
        spare = [head for head in _SPARE if head in heads]
        if max(map(len, table.splitlines())) <= WIDTH or not spare:
            break
        heads.remove(spare[0])
    legend = [words for head, words in _COLUMN_LEGENDS.items() if head in heads]
    legend += ["B: max_batch_size"] if any(" B" in row[_LAYOUT] for row in rows) else []
    return "\n".join([table, "", *wrapped("", "; ".join(legend))])


def _option_cells(found: Selection, option: Option, is_chosen: bool) -> dict[str, str]:
    from ..number_format import number

    forecast, candidate = option.forecast, option.candidate
    assert forecast is not None and option.planned.plan is not None
    batch = f" B{candidate.max_batch_size}" if candidate.max_batch_size else ""
    several = f"{candidate.instances}x " if candidate.instances > 1 else ""
    times = {
        head: f"{number(value.value)}<{number(value.high)}{'!' if name in option.misses else ''}"
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
