"""The verb estimate: how fast a deployment is by measured rows, or what to measure."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..diagnostics import Diagnostic
from ..errors import BadFacts, BadInput
from .arguments import Parser, add_json
from .terminal import columns, print_json, wrapped

if TYPE_CHECKING:
    from ..estimates import Estimate, Question, Refusal
    from ..planning import Plan

MAX_CONCURRENCY = 1_000_000
MAX_SHOWN = 40  # characters of a value that is refused


def add_estimate(parser: Parser) -> None:
    text = "a deployment file, or the name of a preset; not with --batch"
    parser.add_argument("deployment", nargs="?", help=text)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change a value of the deployment, e.g. workload.isl=8192",
    )
    text = "requests at a time over all servers, e.g. 1,4,16; else that of the workload"
    parser.add_argument("--concurrency", type=_loads, metavar="N,N,...", help=text)
    text = "a folder of runs of launch bench: they count like the public rows"
    parser.add_argument("--rows", type=Path, metavar="DIR", help=text)
    text = "US dollars for an hour of a GPU: also show the cost of a million output tokens"
    parser.add_argument("--price", type=_price, metavar="USD", help=text)
    text = "draft tokens give so many tokens a step (the target's own among them)"
    parser.add_argument("--acceptance", type=_acceptance, metavar="TOKENS", help=text)
    text = "answer questions, one JSON object a line, with one line each"
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
        what = "a deployment and --batch were given"
        raise BadInput(Diagnostic("estimate", what, "give one of both"))
    if options.batch:
        _run_batch(options)
        return
    if not options.deployment:
        what = "nothing to estimate"
        raise BadInput(
            Diagnostic("estimate", what, "name a deployment, or give --batch FILE.jsonl")
        )
    from .. import pipeline
    from ..estimates import Refusal, plan_estimate, planned

    plan = pipeline.plan(options.deployment, options.set, ()).plan
    if plan.deployment.role != "agg":
        what = f"{plan.deployment.name} is one side of disaggregated serving"
        remedy = "estimates are for whole servers; the rows of others hold no pool alone"
        raise BadInput(Diagnostic("role", what, remedy))
    loads = options.concurrency or [plan.deployment.workload.concurrency]
    questions = [_question(planned.question(plan, load), options.acceptance) for load in loads]
    estimator = plan_estimate.estimator(questions[0].model, options.rows)
    reason = planned.unmeasured(plan)
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
        what = f"{acceptance:g} is given, and the deployment drafts no tokens"
        raise BadInput(Diagnostic("--acceptance", what, "leave it out"))
    if acceptance > (most := question.mtp + 1):
        what = f"{acceptance:g} is more than a step gives with {question.mtp} draft tokens"
        raise BadInput(Diagnostic("--acceptance", what, f"give 1 to {most}"))
    return replace(question, acceptance=acceptance)


def _end_without_answer(where: str, reasons: Sequence[str]) -> NoReturn:
    """A script has to see that nothing was estimated."""
    remedy = "measure the deployment, and give the results with --rows"
    raise BadFacts(
        Diagnostic(where, f"no estimate: {reason}", remedy) for reason in dict.fromkeys(reasons)
    )


def _run_batch(options: argparse.Namespace) -> None:
    from ..estimates import Estimator, batch

    lines = batch.read_file(options.batch)
    estimator = Estimator.load(options.rows)
    reasons = []
    for row in batch.answer(lines, estimator):
        print(json.dumps(row))  # in ASCII: a name may hold what ends a line, or no letter at all
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
    what += layout_text(asked.tp, asked.attention_dp, asked.ep)
    what += f", MTP {asked.mtp}" if asked.mtp else ""
    yield from wrapped(f"{plan.deployment.name}: ", what)
    yield f"workload: {asked.isl:,} prompt and {asked.osl:,} answer tokens"
    known = [
        (load, found)
        for load, found in zip(loads, answers, strict=True)
        if not isinstance(found, Refusal)
    ]
    if known:
        yield ""
        yield columns(_table(known, count, price), range(8))
        yield "from and to are the ends of the 80 % intervals"
        yield ""
        yield from _evidence(found for _, found in known)
    for load, found in zip(loads, answers, strict=True):
        if isinstance(found, Refusal):
            yield ""
            yield from _refusal(load, found)


def _table(
    known: Sequence[tuple[int, Estimate]], instances: int, price: float | None
) -> list[tuple[str, ...]]:
    from ..estimates.question import number

    heads = ("LOAD", "TPOT ms", "TTFT ms", "E2E s", "OUT tok/s", "/USER", "/GPU")
    rows: list[tuple[str, ...]] = [heads if price is None else (*heads, "USD/M")]
    for load, found in known:
        measures = [
            *(found.tpot_ms, found.ttft_ms, found.e2e_ms.map(0.001)),
            *(found.output_tok_s.map(instances), found.tok_s_per_user, found.tok_s_per_gpu),
        ]
        if price is not None:
            measures.append(found.usd_per_million_tokens(price))
        rows.append((f"{load:,}", *(number(value.value) for value in measures)))
        rows.append(("from", *(number(value.low) for value in measures)))
        rows.append(("to", *(number(value.high) for value in measures)))
    return rows


def _evidence(answers: Iterator[Estimate]) -> Iterator[str]:
    from ..estimates.question import rows_text

    first, *_ = found = list(answers)
    yield f"{rows_text(first.rows)} of this model, GPU, precision and engine; the nearest:"
    seen = dict.fromkeys(str(near) for one in found for near in one.nearest[:2])
    for text in list(seen)[:3]:
        yield from wrapped("  ", text)
    for note in dict.fromkeys(note for one in found for note in one.notes):
        yield from wrapped("note: ", note)


def _refusal(load: int, found: Refusal) -> Iterator[str]:
    from ..estimates import measuring_plan

    yield from wrapped(f"{load:,} at a time: ", f"no estimate, {found.reason}")
    for note in found.notes:
        yield from wrapped("note: ", note)
    if found.nearest:
        yield "The nearest measured rows:"
        for near in found.nearest:
            yield from wrapped("  ", str(near))
    if not found.measure:
        return
    loads = [question.concurrency for question in found.measure]
    question = found.question
    command = measuring_plan.command(question.isl, question.osl, loads)
    where = f"on {question.num_gpus} {question.gpu}, the load that tells most first"
    yield from wrapped("measure: ", f"{where}: {command}; then give its folder with --rows")
