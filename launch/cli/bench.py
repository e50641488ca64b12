"""`launch bench`: its arguments, the measurement of a server, and the comparison of two results."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from builder.diagnostics import Diagnostic, closest
from builder.errors import BadInput, ChecksFailed

from ..bench.clients import APIS
from ..bench.config import CONCURRENCIES
from ..bench.diff import ASPECTS
from ..bench.point_metrics import WindowKind
from .arguments import (
    add_access,
    count,
    counts,
    endpoint_from,
    latency_limits,
    percent,
    positive,
    rates,
    seconds,
    share,
    shares_by_name,
    temperature,
    whole,
)

if TYPE_CHECKING:
    from ..bench.system_under_test import SystemUnderTest
    from ..endpoint import Endpoint

PUBLISHED = "published"
WORKLOADS = ("fixed", "sharegpt", "trace", "shared-prefix", "agent")
REHEARSAL_HINT = (
    "this is the reference engine, which is slow and whose figures say nothing about a GPU;\n"
    "--isl 16 --osl 16 --concurrency 1,4 takes seconds"
)
EPILOG = """\
Another form, with its own --help:
  bench diff A B    compare two results: exit code 6 if B is worse than A; with the word
                    published for A, tells why B is slower than published results
"""


def add(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """The arguments of the form that the first word names; any other word is a server."""
    form = words[0] if words else ""
    if form == "diff":
        parser.add_argument("form", metavar="diff")
        _add_diff(parser)
    elif closest(form.lower(), ["diff"]) and not Path(form).exists():
        parser.error(f"{form} is no form of bench; did you mean diff?")
    else:
        _add_bench(parser)


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare two results point by point. Exit code 6 if B is worse than A, 2 if they cannot be "
        "compared: no successes, or another workload, API, model or kind of run."
    )
    parser.set_defaults(run=run_diff)
    text = f"a run folder or a bench.json; or {PUBLISHED}: the figures of others in B's bundle"
    parser.add_argument("a", type=Path, metavar="A", help=text)
    parser.add_argument("b", type=Path, metavar="B", help="the one that is compared with A")
    parser.add_argument(
        "--margin", type=percent, default=5.0, metavar="PERCENT", help="less is no difference (5)"
    )
    parser.add_argument(
        "--allow",
        type=aspects,
        default=(),
        metavar="ASPECT,ASPECT",
        help=f"what may differ all the same: {', '.join(ASPECTS)}",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def aspects(text: str) -> list[str]:
    found = text.split(",")
    if wrong := [name for name in found if name not in ASPECTS]:
        what = f"unknown aspect {', '.join(wrong)}; known: {', '.join(ASPECTS)}"
        raise argparse.ArgumentTypeError(what)
    return found


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.set_defaults(run=bench)
    parser.add_argument("server", metavar="BUNDLE|URL", help="a bundle's folder, or a URL")
    parser.add_argument("--target", help="needed if the bundle has several")
    parser.add_argument("--api", choices=APIS, help="how requests are sent; by default what fits")
    _add_workload(parser.add_argument_group("workload"))
    _add_load(parser.add_argument_group("load"))
    _add_measures(parser.add_argument_group("metrics"))
    _add_quality(parser.add_argument_group("quality, by an lm-eval of your own environment"))
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="for the results; under runs/")
    parser.add_argument("--json", action="store_true", help="print the whole document")
    text = "how stderr says how far it is: json has a line for programs every 5 s"
    parser.add_argument("--progress", choices=("text", "json"), default="text", help=text)
    add_access(parser)


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--workload", choices=WORKLOADS, default="fixed")
    group.add_argument("--isl", type=count, help="prompt tokens; else the bundle's, or 1024")
    group.add_argument("--osl", type=count, help="output tokens; else the bundle's, or 1024")
    group.add_argument(
        "--range-ratio",
        type=share,
        default=1.0,
        metavar="R",
        help="fixed: lengths are drawn from R of them up to them",
    )
    group.add_argument("--data", type=Path, metavar="FILE", help="sharegpt, trace: your file")
    group.add_argument(
        "--context-length", type=count, metavar="N", help="sharegpt: most tokens of a request"
    )
    group.add_argument("--prefix", type=count, metavar="N", help="shared-prefix: tokens of it")
    group.add_argument(
        "--groups", type=count, default=1, metavar="N", help="shared-prefix: different ones"
    )
    group.add_argument("--calls", type=count, default=5, metavar="N", help="agent: calls of a task")
    group.add_argument(
        "--turn", type=count, default=200, metavar="N", help="agent: new prompt tokens of a call"
    )
    group.add_argument(
        "--retries", type=whole, default=3, metavar="N", help="agent: of a call that may be retried"
    )
    group.add_argument("--tokenizer", type=Path, metavar="DIR", help="a folder with tokenizer.json")
    group.add_argument("--temperature", type=temperature, default=0.0, metavar="T")
    group.add_argument(
        "--stop-at-eos", action="store_true", help="answers may be shorter than what is asked for"
    )
    group.add_argument("--seed", type=int, default=0, help="the same one asks the same")


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--concurrency",
        type=counts,
        metavar="C,C",
        help=f"requests at a time, a point each ({','.join(map(str, CONCURRENCIES))})",
    )
    group.add_argument(
        "--rate", type=rates, metavar="R,R", help="requests per second, a point each"
    )
    group.add_argument(
        "--burstiness",
        type=positive,
        default=1.0,
        metavar="B",
        help="shape of gamma arrivals: 1 is Poisson, less is burstier",
    )
    group.add_argument("--speed", type=positive, default=1.0, help="trace: times as fast")
    group.add_argument("--requests", type=count, metavar="N", help="of each point; or tasks")
    group.add_argument("--duration", type=seconds, metavar="S", help="of each point, in seconds")
    group.add_argument("--warmup", type=whole, metavar="N", help="requests before each point")
    group.add_argument("--request-timeout", type=seconds, default=600.0, metavar="S")
    group.add_argument("--processes", type=count, metavar="N", help="client processes")


def _add_measures(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--window",
        choices=get_args(WindowKind),
        default="steady",
        help="leave out the load's begin and end, or count all of it, as published results do",
    )
    group.add_argument(
        "--slo",
        type=latency_limits,
        metavar="ttft_ms=N,itl_ms=N,e2e_ms=N",
        help="else the bundle's",
    )
    group.add_argument("--price-per-gpu-hour", type=positive, metavar="USD")
    group.add_argument("--gpus", type=count, metavar="N", help="else the bundle's")


def _add_quality(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--quality", choices=["lm-eval"], help="evaluate after the measurement")
    group.add_argument("--quality-python", type=Path, metavar="FILE", help="that has lm-eval")
    group.add_argument("--quality-tasks", metavar="T,T", help="names of its tasks")
    group.add_argument("--quality-include", type=Path, metavar="DIR", help="tasks of your own")
    group.add_argument("--quality-limit", type=count, metavar="N", help="items of each task")
    group.add_argument(
        "--quality-reference",
        type=shares_by_name,
        default={},
        metavar="TASK=SCORE",
        help="scores to hold against, such as those of FP8",
    )


def bench(options: argparse.Namespace) -> None:
    """Measure a server and leave the results in a folder."""
    from .. import discovery
    from ..bench import config, quality, results, system_under_test
    from ..bench.progress import Progress
    from ..bench.runner import Runner
    from ..process import Interrupts

    config.check(options)
    system = _system_under_test(options)
    if options.quality:
        _check_openai(system.endpoint)
    discovery.check_answers(system.endpoint)
    reported = system_under_test.reported(system.endpoint)
    bench_config = config.of_options(options, system, reported[0])
    files = results.create(options.run_dir, _folder_name(system))
    runner = Runner(bench_config, system, reported, files, Progress(form=options.progress))
    about = runner.document["subject"]
    words = runner.document["workload"]["words"]
    _say(words)
    _say(f"prompts are {bench_config.prompts.source}")
    if about["engine"]["rehearsal"] and not (options.isl or options.osl or options.data):
        _say(REHEARSAL_HINT)
    try:
        with Interrupts(exit_at_second=True):
            runner.run()
            if options.quality:
                _say(f"{quality.TOOL}: {options.quality_tasks}")
                model, chat = reported[1] or about["model"], bench_config.api == "openai_chat"
                url = system.endpoint.url or ""
                runner.record(quality=quality.run(options, url, model, chat, files.folder))
    finally:
        files.close()
        _print(options, runner.document)
        _say(f"results in {files.folder}")
    if not (options.json or about["engine"]["rehearsal"]):
        _print_estimate(files.folder)
    _check_results(runner.document)


def _print(options: argparse.Namespace, found: Mapping[str, Any]) -> None:
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False), flush=True)
    elif found["points"] or found["outcome"] == "interrupted":
        from . import text_tables

        print(text_tables.bench_table(found), flush=True)


def _print_estimate(folder: Path) -> None:
    """Where the measured values lie in the bundle's estimate, if it has one of their load."""
    from ..report import estimated, evidence
    from . import text_tables

    for run in evidence.gather([folder]):
        if (one := estimated.for_run(run)) and one.is_compared:
            print(text_tables.paragraph(one.summary), flush=True)


def _check_results(found: Mapping[str, Any]) -> None:
    """Raises `ChecksFailed` for points at which most requests failed, and for a quality below its
    reference."""
    from ..bench import quality

    diagnostics = [
        Diagnostic(f"point {one['label']}", _failed(**one["requests"]), _example(one))
        for one in found["points"]
        if one["requests"]["ok"] < one["requests"]["failed"]
    ]
    if found["quality"]:
        diagnostics += [
            Diagnostic(f"task {task}", "scores below its reference by more than chance")
            for task in quality.below(found["quality"])
        ]
    if diagnostics:
        raise ChecksFailed(diagnostics)


def _failed(sent: int, ok: int, failed: int, **_: int) -> str:
    return f"{failed:,} of {sent:,} requests failed" if ok else "no request succeeded"


def _example(point: Mapping[str, Any]) -> str:
    kind, most = max(point["errors"].items(), key=lambda pair: pair[1]["count"])
    return f"{kind}: {most['example']}"


def _system_under_test(options: argparse.Namespace) -> SystemUnderTest:
    from builder import bundle as bundles

    from .. import target as targets
    from ..bench import system_under_test
    from ..bench.system_under_test import SystemUnderTest

    endpoint = endpoint_from(options)
    if "://" in options.server:
        return SystemUnderTest(endpoint)
    found = bundles.read(Path(options.server))
    target = targets.read_one(found, options.target).on_checkpoints_of(os.environ)
    run = system_under_test.running(found, target.ports, Path("runs"))
    return SystemUnderTest(endpoint, found, target, run)


def _folder_name(system: SystemUnderTest) -> str:
    if system.bundle and system.target:
        return f"{system.bundle.launch['name']}-{system.target.name}"
    return system.endpoint.server


def _check_openai(endpoint: Endpoint) -> None:
    """lm-eval speaks to OpenAI endpoints only."""
    if endpoint.api != "openai" or endpoint.url is None:
        what = "asks through an OpenAI endpoint, which Triton is not"
        raise BadInput(Diagnostic("--quality", what, "measure the target trtllm_serve"))


def run_diff(options: argparse.Namespace) -> None:
    """Compare B with A. Raises `BadInput` where that would say nothing, and `ChecksFailed` where B
    is worse."""
    from ..bench import diff
    from . import text_tables

    if str(options.a) == PUBLISHED:
        _diff_published(options)
        return
    a, b = diff.read(options.a), diff.read(options.b)
    diff.check(a, b, options.allow)
    found = diff.compare(a, b, options.margin)
    warnings, verdict = diff.warnings(a, b), diff.worst(found)
    if options.json:
        rows = [dataclasses.asdict(one) for one in found]
        report = {"verdict": verdict, "margin_percent": options.margin}
        print(json.dumps({**report, "warnings": warnings, "differences": rows}, indent=2))
    else:
        for warning in warnings:
            _say(f"warning: {warning}")
        print(text_tables.differences_table(found, verdict))
    if worse := [one for one in found if one.verdict == "worse"]:
        raise ChecksFailed(
            [
                Diagnostic(f"{one.point}: {one.measure}", f"is worse: {one.a:.6g} -> {one.b:.6g}")
                for one in worse
            ]
        )


def _diff_published(options: argparse.Namespace) -> None:
    """A run beside published figures. No verdict unless the conditions are the same."""
    from ..report import evidence, published
    from . import text_tables

    run, *others = evidence.gather([options.b])
    if others:
        what = f"holds {1 + len(others)} runs, and one is compared"
        raise BadInput(Diagnostic(str(options.b), what, f"name one, such as {run.place}"))
    found = [one for one in published.for_run(run) if one.speeds]
    if not found:
        why, remedy = "has none", "measure a bundle with published figures"
        if run.rehearsal:
            why = "is a rehearsal, which says nothing about a GPU"
        elif run.bench.headline is None:
            why, remedy = "served no load without failures", "measure it again"
        remedy = ". ".join((remedy, *run.notes))
        raise BadInput(Diagnostic(f"published figures for {run.place}", why, remedy))
    if options.json:
        print(json.dumps([dataclasses.asdict(one) for one in found], indent=2))
    else:
        print("\n\n".join(map(text_tables.causes_table, found)))
    if (outcome := run.bench.outcome) != "complete" and "outcome" not in options.allow:
        what = f"that of {run.place} is {outcome or 'unknown'}"
        raise BadInput(Diagnostic("outcome", what, "measure it again, or give --allow outcome"))
    judged = [one for one in found if one.same_conditions]
    if not judged:
        what = "no verdict: no figure was measured under conditions that are known to be the same"
        raise BadInput(Diagnostic(PUBLISHED, what, "measure under the published conditions"))
    slower = [one for one in judged if (one.ratio or 1) < 1 - options.margin / 100]
    if slower:
        raise ChecksFailed([Diagnostic(one.source, one.summary) for one in slower])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
