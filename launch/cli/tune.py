"""The command line of `launch tune`: starts servers on this machine to find the best deployment."""

from __future__ import annotations

import os
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ChecksFailed, NotReady

from . import arguments, say

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from builder.choice.request import ChoiceRequest
    from builder.tuning.candidates import Candidate
    from builder.tuning.search import Search

    from ..tune.session import Session, Verdict

EPILOG = """\
The same command goes on where an earlier one ended. At the end the winner is measured again next to
the untuned plan: two more starts, which --gpu-hours does not count. Under Slurm run it within an
allocation of one node: salloc or sbatch --wrap.
"""
OPTIONS: Sequence[arguments.Option] = (
    ("deployment", None, None, "DEPLOYMENT", "a deployment file or a preset; GPUs may be a range"),
    ("--gpu-hours", arguments.positive, None, "H", "GPU hours that the search may take"),
    ("--starts", arguments.count, 8, "N", "most starts of the search (8)"),
    ("--gain", arguments.percent, 3.0, "PERCENT",
     "end once no start is expected to gain so much (3)"),
    ("--output", Path, None, "DIR", "the folder of the run (NAME.tune next to the deployment)"),
    ("--set", None, [], "PATH=VALUE", "override a value of the deployment; may be repeated"),
    ("--target", None, None, None, "the server that is started; needed if there are several"),
    ("--engine", ("auto", *arguments.ENGINES), "auto", None, "as for up"),
    ("--timeout", arguments.seconds, None, "S", "seconds that a server may take to start"),
    ("--requests", arguments.count, None, "N", "requests of a load; else 10 per concurrent one"),
    ("--rows", Path, None, "DIR", "own runs of launch bench, for the estimate"),
    ("--dry-run", bool, None, None, "print the candidates in their order, and the cost"),
)  # fmt: skip


def add(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    arguments.add_options(parser, OPTIONS)


def run(options: argparse.Namespace) -> None:
    from builder.tuning import candidates

    if options.gpu_hours is None:
        raise BadInput(Diagnostic("--gpu-hours", "is needed", "give the GPU hours of the search"))
    _check_one_node(os.environ)
    request = candidates.read(options.deployment, options.set)
    layouts, refused = candidates.layouts(request)
    _check_size(request, layouts, refused)
    _check_limits(request, layouts)
    untuned = _untuned(request, layouts)
    if untuned not in layouts:
        layouts.append(untuned)
    search = _search(request, layouts, options, options.gpu_hours)
    expected = search.forecast()
    _check_budget(options.gpu_hours, expected)
    for line in _plan_lines(request, expected, layouts, refused, options):
        (print if options.dry_run else say)(line)
    if options.dry_run:
        return
    _tune(request, layouts, untuned, options)


def _check_one_node(environment: Mapping[str, str]) -> None:
    nodes = environment.get("SLURM_JOB_NUM_NODES", "1")
    if nodes != "1":
        what = f"has {nodes} nodes, and tune starts servers on one"
        remedy = "run it in an allocation of one node: salloc --nodes=1"
        raise BadInput(Diagnostic("the Slurm allocation", what, remedy))


def _check_size(
    request: ChoiceRequest, layouts: Sequence[Candidate], refused: Sequence[str]
) -> None:
    """Raises `BadInput` if no server can be planned, or one would need several nodes."""
    where = request.document.name
    if not layouts:
        rows = [Diagnostic(where, line) for line in refused]
        raise BadInput([Diagnostic(where, "no layout can be planned"), *rows])
    of_node = request.bases[0].facts.gpu.gpus_per_node.value
    most = max(one.question.num_gpus for one in layouts)
    if most > of_node:
        what = f"a server would take {most} GPUs, and a node has {of_node}"
        remedy = f"tune servers of one node: hardware.num_gpus at most {of_node}"
        raise BadInput(Diagnostic(f"{where}: hardware.num_gpus", what, remedy))


def _check_limits(request: ChoiceRequest, layouts: Sequence[Candidate]) -> None:
    """Raises `BadInput` for targets that these GPUs cannot meet."""
    from builder.choice.report import impossible_text
    from builder.choice.selection import impossible_limits

    asked = {replace(one.question, concurrency=1) for one in layouts}
    least = impossible_limits(request, asked)
    if least:
        limits = request.slo.limits_ms
        raise BadInput(
            Diagnostic(f"slo.{name}", *impossible_text(limits[name], time))
            for name, time in least.items()
        )


def _check_budget(gpu_hours: float, expected: Mapping[str, float]) -> None:
    """Raises `BadInput` if the hours do not cover the first start."""
    from builder.tuning.search import START_HOURS

    if not expected["starts"]:
        what = f"{gpu_hours:g} allows no start with its loads"
        remedy = f"a start is assumed to take {START_HOURS * 60:.0f} minutes until one is measured"
        raise BadInput(Diagnostic("--gpu-hours", what, f"give more; {remedy}"))


def _untuned(request: ChoiceRequest, layouts: Sequence[Candidate]) -> Candidate:
    """The untuned plan, as the layout that it is, if it is one."""
    from builder.tuning import candidates

    plain = candidates.untuned(request)
    for one in layouts:
        if _layout(one) == _layout(plain):
            return one
    return plain


def _layout(one: Candidate) -> tuple[object, ...]:
    asked = one.question
    return *asked.layout, asked.mtp or 0, asked.concurrency, one.instances


def _search(
    request: ChoiceRequest,
    layouts: Sequence[Candidate],
    options: argparse.Namespace,
    gpu_hours: float,
) -> Search:
    from builder.estimates import plan_estimate, unrefused
    from builder.tuning import candidates
    from builder.tuning.search import Search

    base = request.bases[0]
    estimator = plan_estimate.estimator(base.model, options.rows)
    is_measured = any(estimator.rows.of_model(layouts[0].question.model))
    return Search(
        layouts,
        request.slo.limits_ms,
        unrefused.prior(estimator, base.facts.checkpoint),
        objective=request.objective,
        by_rank=4 if is_measured else 1,
        variants=lambda layout: candidates.variants(request, layout),
        gain=options.gain / 100,
        starts=options.starts,
        gpu_hours=gpu_hours,
    )


def _plan_lines(
    request: ChoiceRequest,
    expected: Mapping[str, float],
    layouts: Sequence[Candidate],
    refused: Sequence[str],
    options: argparse.Namespace,
) -> Iterator[str]:
    """What to expect before the first start; a dry run also lists the candidates in their order."""
    of_gpus = request.bases[0].deployment.hardware
    yield f"{request.document.name}: {len(layouts)} layouts on {of_gpus.gpu}"
    if options.dry_run:
        for place, (one, reason) in enumerate(_ordered(request, layouts, options), 1):
            count = f"{one.instances} x " if one.instances > 1 else ""
            yield f"{place:>3}. {count}{one.title}, {one.question.num_gpus} GPUs ({reason})"
        for line in refused:
            yield f"  -  {line}"
        yield "then one changed option at a time on the best one or two"
    starts, hours = expected["starts"], expected["gpu_hours"]
    yield (
        f"expect {starts:.0f} starts (at most {options.starts}), {hours:.1f} GPU hours (at most "
        f"{options.gpu_hours:g}), {expected['wall_hours']:.1f} hours"
    )
    final = f", about {2 * hours / starts:.1f} GPU hours" if starts else ""
    yield f"and two more starts at the end{final}: the winner again next to the untuned plan"


def _ordered(
    request: ChoiceRequest, layouts: Sequence[Candidate], options: argparse.Namespace
) -> Iterator[tuple[Candidate, str]]:
    """The layouts as the search would start them if it learned nothing."""
    from builder.tuning.search import Start

    left = list(layouts)
    while left:
        step = _search(request, left, options, inf).next([])
        if not isinstance(step, Start):
            return
        yield step.candidate, step.reason
        left.remove(step.candidate)


def _tune(
    request: ChoiceRequest,
    layouts: Sequence[Candidate],
    untuned: Candidate,
    options: argparse.Namespace,
) -> None:
    from .. import engine
    from ..process import Interrupted, Interrupts
    from ..tune import ledger, results, session
    from ..tune.trial import Conditions

    name = request.bases[0].deployment.engine.name
    used = engine.choose(options.engine, name)
    folder = options.output or _folder(request, options.deployment)
    identity = session.identity(request, used, options.target)
    requirements = arguments.requirements_from(options)
    with ledger.opened(folder, identity, say) as book, Interrupts() as interrupts:
        search = _search(request, layouts, options, options.gpu_hours - book.cut_gpu_hours)
        own = Conditions(
            used,
            options.target,
            request.slo,
            os.environ,
            requirements,
            interrupts,
            options.timeout,
            options.requests,
        )
        running = session.Session(request, search, untuned, book, own, say)
        say(f"starts with engine {used}; ledger, logs and results in {folder}")
        try:
            found = running.run()
        except Interrupted:
            say(f"{folder}: no server is left; the same command goes on from here")
            raise
        files = results.write(running, found)
        for line in results.summary(running, found):
            print(line)
        for file in files:
            print(file)
    _check(running, found)


def _check(running: Session, found: Verdict) -> None:
    """Raises `NotReady` if nothing was measured, and `ChecksFailed` if nothing meets the limits."""
    if found.winner or found.is_untuned_best:
        return
    where = str(running.ledger.folder)
    if any(entry["loads"] for entry in running.ledger.ends()):
        raise ChecksFailed(Diagnostic(where, found.reason, "relax slo, or allow more GPUs"))
    remedy = "see the logs of the starts in their folders: launch diagnose FOLDER"
    raise NotReady(Diagnostic(where, found.reason, remedy))


def _folder(request: ChoiceRequest, reference: str) -> Path:
    """Beside a deployment file; of a preset in the current folder."""
    beside = Path(reference).parent if Path(reference).is_file() else Path()
    return beside / f"{request.bases[0].deployment.name}.tune"
