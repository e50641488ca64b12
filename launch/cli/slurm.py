"""The command line of `launch slurm`: what its commands take, do and print."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.bundle import MANIFEST
from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ChecksFailed, NotReady
from builder.files import reason

from .. import engine as engines
from ..process import Interrupts
from ..slurm import jobs, rolling_update, scheduler, services, submission
from . import arguments, say
from .arguments import seconds

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from supervisor.state import ServiceFolder

    from ..slurm.submission import Submission

PREFLIGHT_TIMEOUT_S = 3600.0
# What `probe` may be told to ask for in every trial.
REQUESTED = ("partition", "account", "qos", "reservation", "constraint")
GOOD_OUTCOMES = ("stopped", "handed_over", "cancelled")


def add(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    state = "where services keep their state, seen by all nodes; else $SERVICE_STATE_FOLDER, "
    state += "the bundle's or that of the last submission, or runs"
    for run, text in (
        (probe, "try out what works on a cluster and write its site profile"),
        (submit, "start the service of a bundle as a job"),
        (status, "show services, their jobs and where they are reached"),
        (logs, "print the log of a service's job"),
        (stop, "drain a service and end its jobs"),
        (replace, "let a new bundle take over a service, or leave it as it is"),
        (bench, "measure a service by a job array and write one report"),
    ):
        name = run.__name__
        sub = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        sub.set_defaults(run=partial(_with_access, run))
        sub.add_argument("--state", type=Path, metavar="DIR", help=state)
        if name == "status":
            sub.add_argument("names", nargs="*", metavar="NAME|BUNDLE", help="else every service")
        arguments.add_options(sub, OPTIONS[name])


def _with_access(run: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Files may be those of others, and disks fill. Raises `BadInput` that names the file."""
    try:
        run(options)
    except OSError as error:
        if error.filename is None:  # not of a file, such as a connection
            raise
        what = f"cannot be accessed: {reason(error)}"
        remedy = "ask its owner, see the disk, or name another state folder with --state"
        raise BadInput(Diagnostic(str(error.filename), what, remedy)) from None


_SERVICE: arguments.Option = ("name", None, None, "NAME|BUNDLE", None)
_JSON: arguments.Option = ("--json", bool, None, None, "print JSON")
_PREFLIGHT: arguments.Option = (
    "--preflight", bool, None, None, "look on a node first, by a short job"
)  # fmt: skip
_JOB: tuple[arguments.Option, ...] = (
    ("--sbatch", None, [], "OPTION",
     "one more option for sbatch, as in --sbatch=--partition=debug; may be repeated"),
    ("--engine", arguments.ENGINES, arguments.ENGINES[0], None,
     "reference serves a miniature without a GPU, on nodes that see this installation"),
    *arguments.SIGNERS,
)  # fmt: skip
OPTIONS: Mapping[str, Sequence[arguments.Option]] = {
    "probe": (
        ("-o --output", Path, None, "FILE", "the profile; or stdout"),
        ("--name", None, None, None, "of the site; else Slurm's name of the cluster"),
        *((f"--{name}", None, None, None, "that jobs ask for; tried with all else")
          for name in REQUESTED),
        ("--image", None, [], "SERVER=IMAGE",
         "an image of trtllm_serve or triton to try containers with; may be repeated"),
        ("--mount", None, [], "SRC:DST", "tried in the container"),
        ("--timeout", seconds, 300.0, "S", "that a trial may wait (300)"),
    ),
    "submit": (
        ("bundle", Path, None, None, None),
        *_JOB,
        _PREFLIGHT,
        ("--wait", bool, None, None, "until clients can use the service"),
        ("--timeout", seconds, None, "S", "that a wait may take"),
        _JSON,
    ),
    "status": (_JSON,),
    "logs": (
        _SERVICE,
        ("--job", None, None, "ID", "else the newest"),
        ("--step", None, None, "STEP", "that of a step, else the supervisor's"),
        ("-f --follow", bool, None, None, "go on until the job has ended"),
    ),
    "stop": (
        _SERVICE,
        ("--now", bool, None, None, "cancel instead of draining"),
        ("--timeout", seconds, 900.0, "S", "to wait for its end (900)"),
    ),
    "replace": (
        _SERVICE,
        ("bundle", Path, None, None, "a bundle of the same name"),
        *_JOB,
        _PREFLIGHT,
        ("--timeout", seconds, None, "S", "until it must be admitted"),
        ("--stand-by", seconds, 5.0, "S",
         "that the admitted job must hold before clients are sent to it (5)"),
    ),
    "bench": (
        ("service", None, None, "NAME|BUNDLE", "one that runs, or a bundle to serve meanwhile"),
        *_JOB,
        ("--option", None, [], "OPTION",
         "one more option for launch bench, as in --option=--isl=512; may be repeated; "
         "else the workload is the bundle's"),
        ("--here", bool, None, None, "measure from this host instead of by jobs"),
        ("--run-dir", Path, None, "DIR", "for the results; under runs/"),
        ("--timeout", seconds, None, "S", "that a start may take"),
    ),
}  # fmt: skip


def probe(options: argparse.Namespace) -> None:
    from ..slurm import probe  # with the schema of a profile

    with Interrupts():
        text = probe.probe_site(probe.SiteOptions.from_arguments(options), say)
    if options.output is None:
        print(text, end="")
        return
    probe.save(text, options.output)
    say(f"site profile: {options.output}")


def submit(options: argparse.Namespace) -> None:
    order = _order(options)
    submission.check_free(order.service)
    order = _checked(order, options)
    order.service.stop_file.unlink(missing_ok=True)
    job = order.submit()
    say(f"{order.service.name}: job {job.id} submitted; its state in {order.service.path}")
    say(f"see it with: {_next('status', order.service)}")
    endpoint = None
    if options.wait:
        jobs.until_run_has(job, "published", say, options.timeout)
        endpoint = order.service.endpoint
    facts = {"job_id": job.id, "service": order.service.name, "state": str(order.service.path)}
    _print(options, {**facts, "endpoint": endpoint}, _urls(endpoint) if endpoint else job.id)


def status(options: argparse.Namespace) -> None:
    folders = services.roots(options.state)
    named = [services.find(options.state, name) for name in options.names]
    rows = services.statuses(named or services.every_in(folders), scheduler.jobs())
    if not rows and not options.json:
        say(f"no service has its state in {', '.join(map(str, folders))}")
        return
    _print(options, rows, services.table(rows))


def logs(options: argparse.Namespace) -> None:
    service = _service(options)
    job, path = jobs.find_log(service, options.job, options.step)
    with Interrupts():
        if not path.is_file() and not options.follow:
            jobs.Watch(job, say).until_gone(0)
            say(f"job {job.id}: has no log yet")
        elif jobs.until_log(job, path, say):
            jobs.follow_log(job, path) if options.follow else jobs.print_log(path)


def stop(options: argparse.Namespace) -> None:
    service = _service(options)
    stopped = jobs.stop(service, options.now, options.timeout, say)
    if not stopped:
        say(f"{service.name}: has no job")
    diagnostics = []
    for job in stopped:
        run = job.run or {}
        outcome, why = run.get("outcome"), run.get("why") or ""
        print(f"job {job.id}: {outcome or 'cancelled before it started'}")
        if outcome not in (None, *GOOD_OUTCOMES):
            diagnostics.append(Diagnostic(f"job {job.id}", f"ended as {outcome}: {why}"))
    if diagnostics:
        raise ChecksFailed(diagnostics)


def replace(options: argparse.Namespace) -> None:
    service = _service(options)
    order = _order(options, service.root)
    rolling_update.check_name(service, order)
    rolling_update.serving(service)
    order = _checked(order, options)
    with Interrupts() as interrupts:
        job = rolling_update.replace(order, options.timeout, options.stand_by, interrupts, say)
    say(f"{service.name}: job {job.id} serves {order.source}")
    print(_urls(service.endpoint or {}))


def bench(options: argparse.Namespace) -> None:
    """A running service is measured as it is; a bundle is served for that time."""
    folder = Path(options.service)
    with Interrupts():
        if (folder / MANIFEST).is_file():
            options.bundle = folder
            order = _order(options)
            submission.check_free(order.service)
            order = _checked(order, options)
            order.service.stop_file.unlink(missing_ok=True)
            job = order.submit()
            say(f"{order.service.name}: job {job.id} submitted")
            try:
                jobs.until_run_has(job, "published", say, options.timeout)
                _measure(order, options)
            finally:
                jobs.stop(order.service, False, order.document["time"]["limit_s"], say)
        else:
            options.name = options.service
            _bench_service(options)


def _bench_service(options: argparse.Namespace) -> None:
    service = _service(options)
    endpoint = service.live_endpoint()
    if endpoint is None:
        remedy = "start it with: launch slurm submit BUNDLE --wait"
        raise NotReady(Diagnostic(f"service {service.name}", "has no live endpoint", remedy))
    run = service.job(endpoint["job_id"]).run or {}
    if not run.get("bundle"):
        what, remedy = "has no record of its bundle", "name the bundle instead of the service"
        raise NotReady(Diagnostic(f"job {endpoint['job_id']}", what, remedy))
    options.bundle = Path(run["bundle"])
    _measure(_order(options, service.root), options)


def _measure(order: Submission, options: argparse.Namespace) -> None:
    from ..slurm import sweep  # with what reads results and draws the report

    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    name = f"{order.service.name}-bench-{stamp}"
    folder = (options.run_dir or order.service.root / ".bench" / name).absolute()
    url = sweep.server_url(order, order.service.endpoint or {})
    measure = sweep.here if options.here else sweep.run
    print(measure(sweep.ServiceSweep(order, url, folder, tuple(options.option)), say))


def _checked(order: Submission, options: argparse.Namespace) -> Submission:
    """What runs, a private copy; and what can be known before: from Slurm, and from a node."""
    order = order.with_private_copy(arguments.requirements_from(options))
    order.check()
    if getattr(options, "preflight", False):
        order.preflight(options.timeout or PREFLIGHT_TIMEOUT_S, say)
    return order


def _order(options: argparse.Namespace, root: Path | None = None) -> Submission:
    if ignored := scheduler.ignored_options():
        remedy = "give them with --sbatch, or in the profile of the site"
        say(f"{', '.join(ignored)} of this environment: not used; {remedy}")
    if options.engine == engines.REFERENCE:
        say("using a miniature with random weights instead of the checkpoint")
    root = root or options.state
    return submission.read_bundle(options.bundle, root, options.sbatch, options.engine)


def _service(options: argparse.Namespace) -> ServiceFolder:
    return services.find(options.state, options.name)


def _next(command: str, service: ServiceFolder) -> str:
    """A command about the service as it can be typed now, wherever its state is."""
    words = ["python", "-m", "launch", "slurm", command, service.name]
    try:
        is_found = services.find(None, service.name).path == service.path
    except BadInput:
        is_found = False
    return shlex.join(words if is_found else [*words, "--state", str(service.root)])


def _urls(endpoint: Any) -> str:
    return "\n".join(f"{name}: {url}" for name, url in endpoint["urls"].items())


def _print(options: argparse.Namespace, document: Any, text: str) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False) if options.json else text, flush=True)
