"""`launch bench`: its arguments, the measurement of a server, and the comparison of two results."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from builder.diagnostics import Diagnostic, closest
from builder.errors import BadInput, ChecksFailed

from ..bench.clients import APIS
from ..bench.config import CONCURRENCIES
from ..bench.diff import ASPECTS
from ..bench.point_metrics import WindowKind
from . import arguments, say
from .diagnose import explaining

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..bench.system_under_test import SystemUnderTest

PUBLISHED = "published"
WORKLOADS = ("fixed", "sharegpt", "trace", "shared-prefix", "agent")
REHEARSAL_HINT = (
    "this is the reference engine, which is slow and whose figures say nothing about a GPU;\n"
    "--isl 16 --osl 16 --concurrency 1,4 takes seconds"
)
_C, _W, _S = arguments.count, arguments.whole, arguments.seconds
_LIMITS, _SHARES = arguments.latency_limits, arguments.shares_by_name
GROUPS: Mapping[str, Sequence[arguments.Option]] = {
    "workload": (
        ("--workload", WORKLOADS, "fixed", None, None),
        ("--isl", _C, None, None, "prompt tokens; else the bundle's, or 1024"),
        ("--osl", _C, None, None, "output tokens; else the bundle's, or 1024"),
        ("--range-ratio", arguments.share, 1.0, "R",
         "fixed: lengths are drawn from R of them up to them"),
        ("--data", Path, None, "FILE", "sharegpt, trace: your file"),
        ("--context-length", _C, None, "N", "sharegpt: most tokens of a request"),
        ("--prefix", _C, None, "N", "shared-prefix: tokens of it"),
        ("--groups", _C, 1, "N", "shared-prefix: different ones"),
        ("--calls", _C, 5, "N", "agent: calls of a task"),
        ("--turn", _C, 200, "N", "agent: new prompt tokens of a call"),
        ("--retries", _W, 3, "N", "agent: of a call that may be retried"),
        ("--tokenizer", Path, None, "DIR", "a folder with tokenizer.json"),
        ("--temperature", arguments.temperature, 0.0, "T", None),
        ("--stop-at-eos", bool, None, None, "answers may be shorter than what is asked for"),
        ("--seed", int, 0, None, "the same one asks the same"),
    ),
    "load": (
        ("--concurrency", arguments.counts, None, "C,C",
         f"requests at a time, a point each ({','.join(map(str, CONCURRENCIES))})"),
        ("--rate", arguments.rates, None, "R,R", "requests per second, a point each"),
        ("--burstiness", arguments.positive, 1.0, "B",
         "shape of gamma arrivals: 1 is Poisson, less is burstier"),
        ("--speed", arguments.positive, 1.0, None, "trace: times as fast"),
        ("--requests", _C, None, "N", "of each point; or tasks"),
        ("--duration", _S, None, "S", "of each point, in seconds"),
        ("--warmup", _W, None, "N", "requests before each point"),
        ("--request-timeout", _S, 600.0, "S", None),
        ("--processes", _C, None, "N", "client processes"),
    ),
    "metrics": (
        ("--window", get_args(WindowKind), "steady", None,
         "leave out the load's begin and end, or count all of it, as published results do"),
        ("--slo", _LIMITS, None, "ttft_ms=N,itl_ms=N,e2e_ms=N", "else the bundle's"),
        ("--price-per-gpu-hour", arguments.positive, None, "USD", None),
        ("--gpus", _C, None, "N", "else the bundle's"),
    ),
    "quality, by an lm-eval of your own environment": (
        ("--quality", ("lm-eval",), None, None, "evaluate after the measurement"),
        ("--quality-python", Path, None, "FILE", "that has lm-eval"),
        ("--quality-tasks", None, None, "T,T", "names of its tasks"),
        ("--quality-include", Path, None, "DIR", "tasks of your own"),
        ("--quality-limit", _C, None, "N", "items of each task"),
        ("--quality-reference", _SHARES, {}, "TASK=SCORE",
         "scores to hold against, such as those of FP8"),
    ),
}  # fmt: skip
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
    allowed = f"what may differ all the same: {', '.join(ASPECTS)}"
    arguments.add_options(parser, (
        ("a", Path, None, "A", text),
        ("b", Path, None, "B", "the one that is compared with A"),
        ("--margin", arguments.percent, 5.0, "PERCENT", "less is no difference (5)"),
        ("--allow", aspects, (), "ASPECT,ASPECT", allowed),
        ("--json", bool, None, None, "print JSON"),
    ))  # fmt: skip


def aspects(text: str) -> list[str]:
    found = text.split(",")
    if wrong := [name for name in found if name not in ASPECTS]:
        what = f"unknown aspect {', '.join(wrong)}; known: {', '.join(ASPECTS)}"
        raise argparse.ArgumentTypeError(what)
    return found


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.set_defaults(run=explaining(bench))
    arguments.add_options(parser, (
        ("server", None, None, "BUNDLE|URL", "a bundle's folder, or a URL"),
        ("--target", None, None, None, "needed if the bundle has several"),
        ("--api", APIS, None, None, "how requests are sent; by default what fits"),
    ))  # fmt: skip
    for title, rows in GROUPS.items():
        arguments.add_options(parser.add_argument_group(title), rows)
    arguments.add_options(parser, (
        ("--run-dir", Path, None, "DIR", "for the results; under runs/"),
        ("--json", bool, None, None, "print the whole document"),
        ("--progress", ("text", "json"), "text", None,
         "how stderr says how far it is: json has a line for programs every 5 s"),
        *arguments.ACCESS,
    ))  # fmt: skip


def bench(options: argparse.Namespace) -> None:
    from .. import discovery
    from ..bench import config, quality, results, system_under_test
    from ..bench.progress import Progress
    from ..bench.runner import Runner
    from ..process import Interrupts

    config.check(options)
    system = _system_under_test(options)
    if options.quality and (system.endpoint.api != "openai" or system.endpoint.url is None):
        what = "asks through an OpenAI endpoint, which Triton is not"
        raise BadInput(Diagnostic("--quality", what, "measure the target trtllm_serve"))
    discovery.check_answers(system.endpoint)
    reported = system_under_test.reported(system.endpoint)
    bench_config = config.of_options(options, system, reported[0])
    files = results.create(options.run_dir, _folder_name(system))
    runner = Runner(bench_config, system, reported, files, Progress(form=options.progress))
    about = runner.document["subject"]
    words = runner.document["workload"]["words"]
    say(words)
    say(f"prompts are {bench_config.prompts.source}")
    if about["engine"]["rehearsal"] and not (options.isl or options.osl or options.data):
        say(REHEARSAL_HINT)
    try:
        with Interrupts(exit_at_second=True):
            runner.run()
            if options.quality:
                say(f"{quality.TOOL}: {options.quality_tasks}")
                model, chat = reported[1] or about["model"], bench_config.api == "openai_chat"
                url = system.endpoint.url or ""
                runner.record(quality=quality.run(options, url, model, chat, files.folder))
    finally:
        files.close()
        if options.json:
            print(json.dumps(runner.document, indent=2, ensure_ascii=False), flush=True)
        elif runner.document["points"] or runner.document["outcome"] == "interrupted":
            from . import text_tables

            print(text_tables.bench_table(runner.document), flush=True)
        say(f"results in {files.folder}")
    if not (options.json or about["engine"]["rehearsal"]):
        from ..report import estimated, evidence
        from . import text_tables

        for run in evidence.gather([files.folder]):
            if (one := estimated.for_run(run)) and one.is_compared:
                print(text_tables.paragraph(one.summary), flush=True)
    _check_results(runner.document)


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

    endpoint = arguments.endpoint_from(options)
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
            say(f"warning: {warning}")
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
