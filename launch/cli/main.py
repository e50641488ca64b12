"""The command line of the launcher: arguments, exit codes and printing.

Exit codes: 0 done, 1 our bug, 2 bad input, 3 facts missing or contradictory, 4 bundle damaged,
5 not ready, 6 smoke or benchmark failed, 128 and the signal's number if interrupted before a
server was ready or a benchmark was done.
Modules are imported inside the verbs, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from builder import __version__, command
from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ChecksFailed, NotReady
from builder.files import reported, save, whole_file

from ..report import REPORT
from . import arguments, say
from .diagnose import explaining

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from ..rehearsal import RehearsalResult
    from ..smoke.results import CheckResult

REHEARSAL_START_TIMEOUT_S = 300.0
# How often a launcher that waits for the end of its server looks for signals.
LOOK_S = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    options = parser(words).parse_args(words)
    return command.run(lambda: options.run(options))


def parser(words: Sequence[str], every: bool = False) -> command.Parser:
    """All verbs; arguments that need further imports are added for the verb that runs.

    With `every`, all of them have their arguments.
    """
    parser = command.Parser(
        prog="python -m launch",
        description="From a bundle to a running server and the evidence that it works.",
    )
    parser.elsewhere = {"diff": "bench diff", "compare": "bench diff"}
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    used = words[0] if words else None

    def verb(
        name: str, run: Callable[[argparse.Namespace], None] | None, text: str
    ) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(run=run)
        return sub

    _add_up(verb("up", _up, "start a target of a bundle and serve until it is stopped"))
    sub = verb("smoke", explaining(_smoke), "check a running server")
    _add_smoke(sub)

    text = "start, check and stop every target of a bundle without a GPU"
    _add_rehearse(verb("rehearse", _rehearse, text))

    sub = verb("bench", None, "measure the client-side latency and throughput of a running server")
    if every or used == "bench":
        from . import bench

        bench.add(sub, words[1:])

    sub = verb("tune", _tune, "find the best deployment by starts on this machine")
    if every or used == "tune":
        from . import tune

        tune.add(sub)

    sub = verb("diagnose", _diagnose, "name the cause of a failure from logs and state")
    _add_diagnose(sub)

    sub = verb("report", _report, "write one HTML page from runs and result files")
    _add_report(sub)

    sub = verb("attach", _attach, "put the results of runs into the bundle that they are of")
    _add_attach(sub)

    sub = verb(
        "slurm", None, "serve under Slurm: submit, status, logs, stop, replace, bench, probe"
    )
    if every or used == "slurm":
        from . import slurm

        slurm.add(sub)

    sub = verb("completion", _completion, "print what completes these commands in bash or zsh")
    sub.add_argument("shell", choices=get_args(command.Shell))
    return parser


def _completion(options: argparse.Namespace) -> None:
    from builder.facts import servers

    known = {"target": servers.names}
    print(
        command.completion_script(options.shell, parser((), every=True), "trtllm-launch", known),
        end="",
    )


_TARGET: arguments.Option = ("--target", None, None, None, "needed if the bundle has several")
_ENGINE = ("--engine", ("auto", *arguments.ENGINES), "auto", None)
_JSON: arguments.Option = ("--json", bool, None, None, "print JSON")


def _add_up(parser: argparse.ArgumentParser) -> None:
    text = "auto takes the bundle's engine where it is installed, or its CPU build, "
    text += "else the reference engine"
    rows = (("bundle", Path, None, None, None), _TARGET, (*_ENGINE, text))
    arguments.add_options(parser, rows)
    arguments.add_run(parser, "the folder for logs and results")
    arguments.add_options(parser, (*arguments.ACCESS, *arguments.SIGNERS))


def _add_smoke(parser: argparse.ArgumentParser) -> None:
    arguments.add_options(parser, (
        ("server", None, None, "BUNDLE|URL", "a bundle's folder, or a URL"),
        _TARGET,
        _JSON,
        ("--junit", Path, None, "FILE", "write the results as JUnit XML"),
        *arguments.ACCESS,
        *arguments.SIGNERS,
    ))  # fmt: skip


def _add_rehearse(parser: argparse.ArgumentParser) -> None:
    text = "auto takes the CPU build of the bundle's engine where it is set up, "
    text += "else the reference engine"
    arguments.add_options(parser, (
        ("bundle", Path, None, None, None),
        ("--target", None, [], None, "only this target; may be repeated"),
        (*_ENGINE, text),
        _JSON,
    ))  # fmt: skip
    arguments.add_run(parser, "the folder that gets a run folder for every target")
    arguments.add_options(parser, arguments.SIGNERS)


def _add_diagnose(parser: argparse.ArgumentParser) -> None:
    text = "a log, - for standard input, a run folder, the state folder or a job id of a Slurm "
    text += "service, or a folder of logs and events; NAME.state.yaml next to a log describes its "
    text += "machine"
    parser.add_argument("paths", nargs="+", metavar="PATH", help=text)
    text = "the bundle that was started; found by itself in a run folder"
    parser.add_argument("--bundle", type=Path, metavar="FOLDER", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON")


def _diagnose(options: argparse.Namespace) -> None:
    from . import diagnose

    diagnose.run(options)


def _tune(options: argparse.Namespace) -> None:
    from . import tune

    tune.run(options)


def _add_attach(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path)
    text = "the folder of a run or of a benchmark; all that the bundle shall hold"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=text)


def _add_report(parser: argparse.ArgumentParser) -> None:
    text = "a run folder, a folder of runs (a rehearsal, the demo, a bundle with its evidence), a "
    text += "bench.json, or a result file of aiperf, sglang, vllm or guidellm"
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help=text)
    text = f"the page; {REPORT} in the run folder, or here where there are several runs"
    arguments.add_options(parser, (
        ("-o --output", Path, None, "FILE", text),
        ("--json", bool, None, None, "print what the page compares as JSON"),
    ))  # fmt: skip


def _report(options: argparse.Namespace) -> None:
    from ..report import evidence, page

    file = options.output or _page_of(options.runs)
    if file.is_dir():
        raise BadInput(Diagnostic(str(file), "is a folder", "name a file with -o"))
    if file.exists() and not page.is_report(file):
        remedy = "choose another file with -o, or remove it"
        raise BadInput(Diagnostic(str(file), "exists and is not a report", remedy))
    runs, skipped = evidence.survey(options.runs)
    save(file, page.text(runs, skipped), "-o")
    for one in skipped:
        say(f"skipped: {one}")
    if options.json:
        found = page.summary(runs, file) | {"skipped": list(map(str, skipped))}
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        print(file)


def _page_of(runs: Sequence[Path]) -> Path:
    """In the folder of a run or of runs, but never in a bundle, which holds only what it lists."""
    from builder.bundle import MANIFEST

    folder = runs[0].absolute()
    is_bundle = any((one / MANIFEST).exists() for one in (folder, *folder.parents[:2]))
    is_inside = len(runs) == 1 and folder.is_dir() and not is_bundle
    return runs[0] / REPORT if is_inside else Path(REPORT)


def _up(options: argparse.Namespace) -> None:
    from .. import engine, known_defects, run, serving, target, trust
    from ..process import Interrupted, Interrupts

    requirements = arguments.requirements_from(options)
    found = trust.read(options.bundle, requirements)
    served = arguments.with_access(target.read_one(found, options.target), options)
    served = served.on_checkpoints_of(os.environ)
    served.check_nodes()
    served.check_ports()
    used = engine.choose(options.engine, name := found.launch["engine"]["name"])
    defects = known_defects.of_bundle(found.folder, known_defects.machine(name))
    for line in known_defects.lines(defects):
        say(f"{served.name}: {line}")
    with (
        Interrupts() as interrupts,
        run.create(found, served.name, used, options.run_dir) as its_run,
    ):
        say(f"{served.name}: starts with engine {used}; logs and results in {its_run.folder}")
        copy = trust.private_copy(found, its_run.folder / trust.COPY, requirements)
        served = arguments.with_access(target.read(copy, served.name), options)
        served = served.on_checkpoints_of(os.environ)
        served = serving.with_checkpoint(served, used, its_run)
        with serving.serve(
            served,
            used,
            its_run,
            interrupts,
            start_timeout_s=options.timeout or served.start_timeout_s,
            stop_grace_s=served.stop_timeout_s,
        ) as (_, server):
            try:
                for name, url in served.urls.items():
                    print(f"{name}: {url}", flush=True)
                say(f"{served.name}: ready; Ctrl-C stops it")
                while (status := server.exit_status(LOOK_S)) is None:
                    interrupts.check()
            except Interrupted as interrupt:
                serving.say_stopping(served, server, interrupt)
                return
            its_run.record(outcome="died", exit_status=status)
            what = f"died with exit status {status} while it served"
            raise serving.not_ready(served, what, its_run, server)


def _smoke(options: argparse.Namespace) -> None:
    from .. import discovery
    from ..smoke import metrics, suite
    from ..smoke import results as reports
    from . import text_tables

    if options.junit and not options.junit.parent.is_dir():
        what = "cannot be written: no such folder"
        raise BadInput(Diagnostic(str(options.junit), what, "choose another file"))
    server = arguments.endpoint_from(options)
    discovery.check_answers(server)
    engine = metrics.engine_info(server)
    results = suite.run(server, (lambda _: None) if options.json else _print_check)
    summary = reports.summary(results, engine)
    if options.junit:
        with reported(options.junit, "cannot be written"), whole_file(options.junit) as new:
            new.write_bytes(reports.junit(results, engine))
    if options.json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        print(f"\n{text_tables.smoke_table(summary)}")
    if summary["failed"]:
        from .. import access

        rows = [
            Diagnostic(f"check {one.id} over {one.transport}", one.evidence)
            for one in results
            if one.outcome == "failed"
        ]
        fix = next(filter(None, (access.remedy(row.message) for row in rows)), "")
        raise ChecksFailed([replace(rows[0], fix=fix), *rows[1:]] if fix else rows)


def _rehearse(options: argparse.Namespace) -> None:
    from .. import target, trust
    from ..process import Interrupts

    requirements = arguments.requirements_from(options)
    found = trust.read(options.bundle, requirements)
    for name, value in target.named_checkpoints(os.environ).items():
        say(f"{name}={value} of this environment: not used; up serves a checkpoint")
    timeout_s = options.timeout or REHEARSAL_START_TIMEOUT_S
    rows = []
    with Interrupts() as interrupts:
        with interrupts.held():  # numpy takes an interrupt while it loads for a fault of its own
            from .. import engine, rehearsal
            from .. import run as runs
            from . import text_tables
        wanted = engine.choose_without_gpu(options.engine, found.launch["engine"]["name"])
        for one in target.read_all(found, options.target):
            used = rehearsal.engine_for(one, wanted, say)
            say(f"{one.name}: rehearsal with {rehearsal.title(used)} on a miniature")
            folder = options.run_dir / one.name if options.run_dir else None
            with runs.create(found, one.name, used, folder) as run:
                copy = trust.private_copy(found, run.folder / trust.COPY, requirements)
                copied = target.read(copy, one.name)
                row = rehearsal.rehearse(
                    found, copied, used, run, timeout_s, interrupts, _say_check
                )
            rows.append(row)
            if row.bench:
                say(text_tables.bench_table(row.bench))
    if options.json:
        documents = [text_tables.rehearsal_document(row) for row in rows]
        print(json.dumps(documents, indent=2, ensure_ascii=False))
    else:
        say("")
        print(text_tables.rehearsals_table(rows))
    from ..report import page

    pages = {options.run_dir: rows} if options.run_dir else {row.folder: [row] for row in rows}
    for folder, of in pages.items():
        page.write([row.folder for row in of], folder / "report.html")
        say(f"report: {folder / 'report.html'}")
    _raise_worst(rows)


def _raise_worst(rows: Sequence[RehearsalResult]) -> None:
    not_ready: list[Diagnostic] = []
    for row in rows:
        if row.not_ready:
            not_ready += row.not_ready.diagnostics
    if not_ready:
        raise NotReady(not_ready)
    if failed := [_failed_rehearsal(row) for row in rows if not row.passed]:
        raise ChecksFailed(failed)


def _failed_rehearsal(row: RehearsalResult) -> Diagnostic:
    what = "failed smoke checks"
    if row.bench_errors:
        what = f"could not be measured: {row.bench_errors[0]}"
    return Diagnostic(f"target {row.target}", what, f"see {row.folder}")


def _attach(options: argparse.Namespace) -> None:
    from builder import bundle
    from builder.bundle import EVIDENCE

    from .. import attach

    found = bundle.read(options.bundle)
    unsigned = attach.attach(found, options.runs)
    print(found.folder / EVIDENCE)
    if unsigned:
        say("the signature was of other files and is removed; sign the bundle again")


def _print_check(results: Sequence[CheckResult]) -> None:
    from . import text_tables

    print(text_tables.check_lines(results), flush=True)


def _say_check(results: Sequence[CheckResult]) -> None:
    from . import text_tables

    say(text_tables.check_lines(results))
