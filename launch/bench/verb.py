"""The verb `bench` and its other forms: calibrate this host, and judge two results."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from builder import bundle as bundles
from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ChecksFailed

from .. import show
from .. import target as targets
from ..cli.arguments import endpoint_of
from ..interrupts import Interrupts
from . import diff as differences
from . import document, host, order, quality, subject
from .order import Served
from .progress import Progress
from .sweep import Sweep


class AtOnce(Interrupts):
    """A second signal ends this process: whatever was measured is on disk already."""

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self._first is not None:
            os._exit(128 + number)
        super()._arrived(number, frame)


def bench(options: argparse.Namespace) -> None:
    """Measure a server and leave the results in a folder."""
    from .runner import Runner

    served = _served(options)
    ordered = order.of(options, served)
    evaluation = _evaluation(options, served, ordered)
    served.endpoint.check_listens()
    word = subject.ask(served.endpoint)
    about = subject.of(served.endpoint, served.bundle, served.run, word, options.gpus)
    kept = host.calibration(options.calibration, ordered.api)
    results = document.create(options.run_dir, _folder_name(served))
    facts = order.facts(ordered, about)
    facts["client"]["calibration"] = kept
    say(f"{facts['workload']['words']}; prompts are {ordered.tokens.source}")
    runner = Runner(ordered, served.endpoint, results, Progress(), facts, kept)
    try:
        with AtOnce():
            runner.run()
            if evaluation:
                say(f"{quality.TOOL}: {', '.join(evaluation.tasks)}")
                model = word[1] or about["model"]
                found = quality.run(dataclasses.replace(evaluation, model=model), results.folder)
                runner.record(quality=found)
    finally:
        results.close()
        _print(options, runner.document)
        say(f"results in {results.folder}")
    _judge(runner.document)


def _print(options: argparse.Namespace, found: Mapping[str, Any]) -> None:
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False), flush=True)
    elif found["points"]:
        print(show.bench(found), flush=True)


def _judge(found: Mapping[str, Any]) -> None:
    """Raises `ChecksFailed` for points that nothing came of, and for a quality below reference."""
    problems = [
        Diagnostic(f"point {one['label']}", "no request succeeded", _example(one))
        for one in found["points"]
        if not one["requests"]["ok"]
    ]
    if found["quality"]:
        problems += [
            Diagnostic(f"task {task}", "scores below its reference by more than chance")
            for task in quality.below(found["quality"])
        ]
    if problems:
        raise ChecksFailed(problems)


def _example(point: Mapping[str, Any]) -> str:
    kind, first = next(iter(point["errors"].items()))
    return f"{kind}: {first['example']}"


def _served(options: argparse.Namespace) -> Served:
    endpoint = endpoint_of(options)
    if "://" in options.server:
        return Served(endpoint)
    found = bundles.read(Path(options.server))
    target = targets.read_one(found, options.target)
    return Served(endpoint, found, target, subject.running(found, target.ports, Path("runs")))


def _folder_name(served: Served) -> str:
    if served.bundle and served.target:
        return f"{served.bundle.launch['name']}-{served.target.name}"
    return served.endpoint.kind


def _evaluation(
    options: argparse.Namespace, served: Served, ordered: Sweep
) -> quality.Order | None:
    """lm-eval speaks to OpenAI endpoints only."""
    if not options.quality:
        return None
    if served.endpoint.kind != "trtllm_serve" or served.endpoint.url is None:
        what = "asks through an OpenAI endpoint, which Triton is not"
        raise BadInput(Diagnostic("--quality", what, "measure the target trtllm_serve"))
    return quality.Order(
        python=options.quality_python,
        tasks=tuple(options.quality_tasks.split(",")),
        base_url=served.endpoint.url,
        model="",
        include=options.quality_include,
        limit=options.quality_limit,
        tokenizer=options.tokenizer,
        chat=ordered.api == "openai_chat",
        references=options.quality_reference,
    )


def calibrate(options: argparse.Namespace) -> None:
    """Measure this host against a true schedule and keep what it says."""
    from . import calibrate as calibration
    from .clients import APIS

    def tell(rung: calibration.Rung) -> None:
        fault = f", too much for the {rung.fault}" if rung.fault else ""
        say(f"  {rung.offered_tokens_per_s:,.0f} tokens/s{fault}")

    found = {}
    with AtOnce():
        for api in options.api or APIS:
            say(f"{api}: {calibration.STREAMS} streams at rising rates")
            found[api] = calibration.calibrate(api, tell)
    path = host.keep(found, options.output)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(show.calibrations(found))
    say(f"kept in {path}")


def diff(options: argparse.Namespace) -> None:
    """Judge B against A. Raises `ChecksFailed` where it is worse."""
    a, b = document.read(options.a), document.read(options.b)
    found = differences.of(a, b, options.margin)
    warnings, word = differences.unlike(a, b), differences.worst(found)
    if options.json:
        rows = [dataclasses.asdict(one) for one in found]
        report = {"verdict": word, "margin_percent": options.margin}
        print(json.dumps({**report, "warnings": warnings, "differences": rows}, indent=2))
    else:
        for warning in warnings:
            say(f"warning: {warning}")
        print(show.differences(found, word))
    if worse := [one for one in found if one.verdict == "worse"]:
        raise ChecksFailed(
            [
                Diagnostic(f"{one.point}: {one.measure}", f"is worse: {one.a:.6g} -> {one.b:.6g}")
                for one in worse
            ]
        )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
