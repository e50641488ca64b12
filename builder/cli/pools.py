"""Prints estimates and choices of separate prefill and decode servers."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..diagnostics import Diagnostic
from ..documents import dump_yaml
from ..errors import BadFacts, BadInput
from ..files import save
from .terminal import columns, print_json, wrapped

SHOWN = 12  # options in the table; --json lists all

if TYPE_CHECKING:
    from ..choice.pools import PoolOption
    from ..choice.request import ChoiceRequest
    from ..estimates import Interval, Refusal
    from ..estimates.pools import PoolEstimate, Pools
    from ..planning import Plan


def run_estimate(decode: Plan, prefill: Plan, options: argparse.Namespace) -> None:
    """Prints the answers for the load of a deployment, or for `--concurrency`."""
    from ..estimates import Refusal, plan_estimate, pools

    for name in ("acceptance", "rows"):
        if getattr(options, name) is not None:
            what = "is not used for separate prefill and decode servers"
            raise BadInput(Diagnostic(f"--{name}", what, "leave it out"))
    loads = options.concurrency or [None]
    asked = [plan_estimate.pools_of(decode, prefill, load) for load in loads]
    answers = [pools.estimate(one) for one in asked]
    name = decode.deployment.name
    if options.json:
        print_json({"deployment": name, "interval": "80 %", "points": _points(asked, answers)})
    else:
        print("\n".join(_text(name, asked, answers, options.price)))
    reasons = [one.reason for one in answers if isinstance(one, Refusal)]
    if len(reasons) == len(answers):
        remedy = "measure the loads listed above"
        raise BadFacts(
            Diagnostic(name, f"no estimate: {reason}", remedy) for reason in dict.fromkeys(reasons)
        )


def run_choose(asked: ChoiceRequest, options: argparse.Namespace) -> None:
    """Prints the best options, writes the chosen deployment."""
    from ..choice import pools

    for name in ("html", "rows"):
        if getattr(options, name) is not None:
            what = "is not used for separate prefill and decode servers"
            raise BadInput(Diagnostic(f"--{name}", what, "leave it out"))
    kept = pools.select(asked)
    option, document = pools.chosen(asked, kept)
    runs = [one.title for one in pools.ratio_runs(option)]
    if options.json:
        rows = [{"layout": one.title, **point(one.found)} for one in kept]
        chosen, why = kept.index(option), pools.reason(asked, option)
        print_json({"candidates": rows, "chosen": rows[chosen], "reason": why, "measure": runs})
    else:
        print(columns(list(_options(kept[:SHOWN]))))
        print("\n".join(["", *wrapped("chosen:   ", pools.reason(asked, option))]))
        print("\n".join(wrapped("evidence: ", pools.source(option))))
        print("\nMeasure next, at the same load:", *(f"  {title}" for title in runs), sep="\n")
    if options.output:
        save(options.output, dump_yaml(document.data), "-o")


def _options(kept: Sequence[PoolOption]) -> Iterator[tuple[str, ...]]:
    from ..number_format import number

    yield "PREFILL + DECODE", "ITL MS", "TTFT MS", "TOK/S/GPU", "LIMIT"
    for option in kept:
        found = option.found
        times = (
            f"{number(one.value)}<{number(one.high)}" for one in (found.tpot_ms, found.ttft_ms)
        )
        speed = found.tok_s_per_gpu
        yield option.title, *times, f"{number(speed.value)}>{number(speed.low)}", found.limit


def question_text(asked: Pools) -> str:
    one = asked.server
    drafts = f", MTP {one.mtp}" if one.mtp else ""
    server = f"{one.model} {one.precision} on {one.gpu}, {one.engine}"
    return f"{server}, prefill + decode {asked.title}{drafts}"


def figures(found: PoolEstimate, price: float | None = None) -> dict[str, Interval]:
    """The estimated figures by names with units."""
    named = {
        "tpot_ms": found.tpot_ms,
        "ttft_ms": found.ttft_ms,
        "e2e_ms": found.e2e_ms,
        "output_tok_s": found.output_tok_s,
        "tok_s_per_user": found.tok_s_per_user,
        "tok_s_per_gpu": found.tok_s_per_gpu,
    }
    if price is not None:
        cost = found.tok_s_per_gpu.inverse(price / 3600 * 1e6)
        named["usd_per_million_output_tokens"] = cost
    return named


def point(found: PoolEstimate) -> dict[str, Any]:
    """An estimate for `--json`."""
    from ..estimates import batch

    return {
        **{name: batch.interval(value) for name, value in figures(found).items()},
        "limit": found.limit,
        "prefill_use": round(found.prefill_use, 3),
        "decode_use": round(found.decode_use, 3),
        "rows": found.rows,
        "nearest": [str(near) for near in found.nearest],
    }


def _points(asked: Sequence[Pools], answers: Sequence[PoolEstimate | Refusal]) -> list[Any]:
    from ..estimates import Refusal

    rows = []
    for question, found in zip(asked, answers, strict=True):
        row: dict[str, Any] = {"concurrency": question.server.concurrency}
        if isinstance(found, Refusal):
            loads = [one.concurrency for one in found.measure]
            row |= {"refused": found.reason, "kind": found.kind, "measure": loads}
        else:
            row |= point(found)
        rows.append(row)
    return rows


def _text(
    name: str,
    asked: Sequence[Pools],
    answers: Sequence[PoolEstimate | Refusal],
    price: float | None,
) -> Iterator[str]:
    from ..estimates import Refusal, refusals
    from ..estimates.question import rows_text

    one = asked[0].server
    yield from wrapped(f"{name}: ", question_text(asked[0]))
    yield f"workload: {one.isl:,} prompt and {one.osl:,} output tokens"
    known = [found for found in answers if not isinstance(found, Refusal)]
    if known:
        yield ""
        yield columns(list(_table(known, price)))
        yield ""
        yield "in parentheses: 80 % intervals; TTFT is a likely range, not a promise"
        yield f"{rows_text(known[0].rows)} of this model, GPU, precision and engine; nearest:"
        for near in known[0].nearest[:2]:
            yield from wrapped("  ", str(near))
    for question, found in zip(asked, answers, strict=True):
        if isinstance(found, Refusal):
            yield ""
            load = question.server.concurrency
            yield from wrapped(f"{load:,} concurrent requests: ", f"no estimate, {found.reason}")
            loads = [each.concurrency for each in found.measure]
            yield from wrapped("measure: ", refusals.command(one.isl, one.osl, loads))


def _table(known: Sequence[PoolEstimate], price: float | None) -> Iterator[tuple[str, ...]]:
    """A row for each measure, a column for each load."""
    loads = (f"{found.question.server.concurrency:,}" for found in known)
    yield ("CONCURRENT REQUESTS", *loads)
    titles = {
        "tpot_ms": "TPOT ms",
        "ttft_ms": "TTFT ms",
        "output_tok_s": "output tok/s",
        "tok_s_per_user": "tok/s per user",
        "tok_s_per_gpu": "tok/s per GPU",
        "usd_per_million_output_tokens": "USD per million",
    }
    named = [figures(found, price) for found in known]
    for name, title in titles.items():
        if name in named[0]:
            yield (title, *(str(one[name]) for one in named))
    texts: dict[str, Callable[[PoolEstimate], str]] = {
        "limited by": lambda found: found.limit,
        "prefill busy": lambda found: f"{found.prefill_use:.0%}",
        "time in decode": lambda found: f"{found.decode_use:.0%}",
    }
    for title, text in texts.items():
        yield (title, *map(text, known))
