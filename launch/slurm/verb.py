"""The verbs of `launch slurm`: what each reads, does and prints."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from builder import bundle as bundles
from builder.diagnostics import Diagnostic
from builder.errors import ChecksFailed, NotReady

from ..interrupts import Interrupts
from . import overview, scheduler, waiting
from . import service as services
from . import submission as submissions
from .service import Service
from .submission import Submission

PREFLIGHT_TIMEOUT_S = 3600.0
GOOD_ENDS = ("stopped", "handed_over", "cancelled")


def probe(options: argparse.Namespace) -> None:
    from .probe import profile
    from .probe.asked import Asked
    from .probe.verb import probe

    with Interrupts():
        text = probe(Asked.of(options), say)
    if options.output is None:
        print(text, end="")
        return
    profile.save(text, options.output)
    say(f"site profile: {options.output}")


def submit(options: argparse.Namespace) -> None:
    order = _order(options)
    submissions.check_free(order.service)
    _check(order, options)
    order.service.stop_file.unlink(missing_ok=True)
    job = order.submit()
    say(f"{order.service.name}: job {job.id} submitted; its state in {order.service.folder}")
    endpoint = None
    if options.wait:
        waiting.until_run_has(job, "published", say, options.timeout)
        endpoint = order.service.endpoint
    facts = {"job_id": job.id, "service": order.service.name, "state": str(order.service.folder)}
    _print(options, {**facts, "endpoint": endpoint}, _urls(endpoint) if endpoint else job.id)


def status(options: argparse.Namespace) -> None:
    root = services.root(options.state)
    found = [services.find(root, name) for name in options.names] or services.every(root)
    rows = overview.of(found, scheduler.jobs().values())
    if not rows and not options.json:
        say(f"no service has its state in {root}")
        return
    _print(options, [row.as_json() for row in rows], overview.table(rows))


def logs(options: argparse.Namespace) -> None:
    from . import logs as reading

    service = _service(options)
    job, path = reading.file(service, options.job, options.step)
    with Interrupts():
        reading.follow(job, path) if options.follow else reading.show(path)


def stop(options: argparse.Namespace) -> None:
    from . import stopping

    service = _service(options)
    stopped = stopping.stop(service, options.now, options.timeout, say)
    if not stopped:
        say(f"{service.name}: has no job")
    problems = []
    for job in stopped:
        run = job.run or {}
        outcome, why = run.get("outcome"), run.get("why") or ""
        print(f"job {job.id}: {outcome or 'cancelled before it started'}")
        if outcome not in (None, *GOOD_ENDS):
            problems.append(Diagnostic(f"job {job.id}", f"ended as {outcome}: {why}"))
    if problems:
        raise ChecksFailed(problems)


def replace(options: argparse.Namespace) -> None:
    from . import replacement

    service, order = _service(options), _order(options)
    replacement.check_name(service, order)
    replacement.serving(service)
    _check(order, options)
    time = order.document["time"]
    stop_s = max(step["stop_timeout_s"] for step in order.document["steps"])
    patience = replacement.Patience(options.timeout, options.stand_by, time["drain_s"] + stop_s)
    with Interrupts() as interrupts:
        job = replacement.replace(order, patience, interrupts, say)
    say(f"{service.name}: job {job.id} serves {order.bundle.folder}")
    print(_urls(service.endpoint or {}))


def bench(options: argparse.Namespace) -> None:
    """A running service is measured as it is; a bundle is served for that time."""
    folder = Path(options.service)
    with Interrupts():
        if (folder / bundles.MANIFEST).is_file():
            options.bundle = folder
            _bench_bundle(options)
        else:
            options.name = options.service
            _bench_service(options)


def _bench_bundle(options: argparse.Namespace) -> None:
    from . import stopping

    order = _order(options)
    submissions.check_free(order.service)
    order.check()
    order.service.stop_file.unlink(missing_ok=True)
    job = order.submit()
    say(f"{order.service.name}: job {job.id} submitted")
    try:
        waiting.until_run_has(job, "published", say, options.timeout)
        _measure(order, options)
    finally:
        stopping.stop(order.service, False, order.document["time"]["limit_s"], say)


def _bench_service(options: argparse.Namespace) -> None:
    service = _service(options)
    endpoint = service.live_endpoint()
    if endpoint is None:
        remedy = "start it with: launch slurm submit BUNDLE --wait"
        raise NotReady(Diagnostic(f"service {service.name}", "has no live endpoint", remedy))
    run = service.job(endpoint["job_id"]).run or {}
    options.bundle = Path(run["bundle"])
    _measure(_order(options), options)


def _measure(order: Submission, options: argparse.Namespace) -> None:
    from . import sweep

    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    name = f"{order.service.name}-bench-{stamp}"
    folder = (options.run_dir or order.service.root / ".bench" / name).absolute()
    url = sweep.server_url(order, order.service.endpoint or {})
    measure = sweep.here if options.here else sweep.run
    print(measure(sweep.Sweep(order, url, folder, tuple(options.option)), say))


def _check(order: Submission, options: argparse.Namespace) -> None:
    """All that can be known before the job: by Slurm, and by a node if that is wanted."""
    order.check()
    if options.preflight:
        from . import preflight

        preflight.run(order, options.timeout or PREFLIGHT_TIMEOUT_S, say)


def _order(options: argparse.Namespace) -> Submission:
    return submissions.of(options.bundle, options.state, options.sbatch, options.engine)


def _service(options: argparse.Namespace) -> Service:
    return services.find(services.root(options.state), options.name)


def _urls(endpoint: Any) -> str:
    return "\n".join(f"{name}: {url}" for name, url in endpoint["urls"].items())


def _print(options: argparse.Namespace, document: Any, text: str) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False) if options.json else text, flush=True)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
