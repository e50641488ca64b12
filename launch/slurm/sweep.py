"""A sweep under Slurm: a job array measures a service; its points become one report."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.bundle import Bundle
from builder.diagnostics import Diagnostic
from builder.errors import BadInput, ChecksFailed
from builder.facts import servers

from .. import endpoint
from ..bench import point_metrics, results, system_under_test
from ..bench.system_under_test import SystemUnderTest
from ..report import REPORT, page
from . import scheduler
from .jobs import Say
from .scheduler import SlurmJob
from .submission import BENCH, Submission

POLL_S = 1.0
WORST_FIRST = ("failed", "interrupted")  # outcomes of a part that are those of the whole


@dataclass(frozen=True, slots=True)
class ServiceSweep:
    """What is measured: a service by its URL, with further options of `launch bench`."""

    order: Submission
    url: str
    folder: Path
    arguments: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        """The bundle's workload, then the operator's arguments, which override it."""
        deployment = system_under_test.deployment(self.order.bundle)
        workload, slo = deployment.get("workload") or {}, deployment.get("slo") or {}
        limits = [f"{name}={slo[name]}" for name in point_metrics.LIMITS if slo.get(name)]
        given = {
            "--isl": workload.get("isl"),
            "--osl": workload.get("osl"),
            "--gpus": (deployment.get("hardware") or {}).get("num_gpus"),
            "--slo": ",".join(limits),
        }
        words: list[str] = []
        for option, value in given.items():
            words += [option, str(value)] if value else []
        return [*words, *self.arguments]

    def make_folder(self) -> None:
        """Raises `BadInput` if it is not empty."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise BadInput(Diagnostic(str(self.folder), "is not empty", "choose another --run-dir"))


def run(sweep: ServiceSweep, say: Say) -> Path:
    """The report of all points, each measured by a job of the array. Raises what failed."""
    order, folder = sweep.order, sweep.folder
    script = order.script(BENCH)
    if not script.is_file():
        remedy = "measure with --here, or render with site.toolkit, a Python that has this toolkit"
        raise BadInput(Diagnostic(str(order.bundle.folder), "has no job that measures", remedy))
    sweep.make_folder()
    options = ["--export=ALL", *order.options, f"--output={folder}/point-%a.log"]
    variables = {**order.environment, "SERVER": sweep.url, "RESULTS": str(folder)}
    array = scheduler.submit(script, options, variables, sweep.options)
    say(f"job array {array}: measures {sweep.url}; results in {folder}")
    try:
        tasks = _wait(array, say)
    except BaseException:
        scheduler.cancel(array)
        raise
    report = collect(sweep)
    if lost := [_job_failure(job, folder) for job in tasks if job.state != "COMPLETED"]:
        raise ChecksFailed(lost)
    return report


def here(sweep: ServiceSweep, _: Say) -> Path:
    """The report of the points that this host measured."""
    sweep.make_folder()
    arguments = [*sweep.options, "--run-dir", str(sweep.folder / "0")]
    argv = [sys.executable, "-m", "launch", "bench", sweep.url, *arguments]
    with subprocess.Popen(argv) as process:
        try:
            code = process.wait()
        except BaseException:
            process.terminate()  # it writes what it measured, and ends
            raise
    if code and not _parts(sweep.folder):
        raise ChecksFailed(Diagnostic(sweep.url, f"was not measured: exit code {code}"))
    report = collect(sweep)
    if code:
        what = f"was measured with exit code {code}"
        raise ChecksFailed(Diagnostic(sweep.url, what, f"see {report}"))
    return report


def collect(sweep: ServiceSweep) -> Path:
    """The points of all jobs as one result in the folder, and its report."""
    folder = sweep.folder
    if not (parts := _parts(folder)):
        raise ChecksFailed(Diagnostic(str(folder), "holds no result", "see the logs there"))
    whole = merged([results.read(file) for file in parts], sweep.order.bundle, sweep.url)
    with closing(results.Results(folder)) as files:
        files.write(whole)
    requests = [file.with_name(results.REQUESTS).read_text(encoding="utf-8") for file in parts]
    (folder / results.REQUESTS).write_text(
        "".join(requests), encoding="utf-8", errors="backslashreplace"
    )
    page.write([folder], folder / REPORT)
    return folder / REPORT


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*/{results.BENCH}"), key=lambda file: int(file.parent.name))


def merged(documents: Sequence[Mapping[str, Any]], bundle: Bundle, url: str) -> dict[str, Any]:
    """One document with all points; the rest is from the first document and the bundle."""
    first, measured = documents[0], documents[0]["subject"]
    points: list[Any] = []
    failures: list[str] = []
    for one in documents:
        points += one["points"]
        failures += [one["failure"]] if one.get("failure") else []
    system = SystemUnderTest(endpoint.from_url(url), bundle)
    about = system.described((measured["server_version"], measured["model"]))
    outcomes = {one["outcome"] for one in documents}
    return {
        **first,
        "subject": about,
        "started": min(one["started"] for one in documents),
        "ended": max(one["ended"] for one in documents),
        "outcome": next((one for one in WORST_FIRST if one in outcomes), "complete"),
        "failure": "; ".join(failures) or None,
        "client": {**first["client"], **point_metrics.client_limit(points)},
        "points": points,
        "largest_concurrency_within_slo": point_metrics.largest_within_slo(points),
    }


def _wait(array: str, say: Say) -> list[SlurmJob]:
    """The jobs of the array as Slurm saw them last, when it has ended them all."""
    seen, last = dict[str, SlurmJob](), ""
    while True:
        rows = scheduler.jobs(array)
        seen |= rows
        alive = [job for job in rows.values() if job.is_alive]
        summary = ", ".join(f"{job.id} {job.summary}" for job in alive)
        if not alive:
            return [job for job in seen.values() if "[" not in job.id]
        if summary != last:
            last = summary
            say(f"job array {array}: {summary}")
        time.sleep(POLL_S)


def _job_failure(job: SlurmJob, folder: Path) -> Diagnostic:
    log = folder / f"point-{job.id.rpartition('_')[2]}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return Diagnostic(
        f"job {job.id}", f"{job.summary}; {errors[-1] if errors else 'no error'} in {log}"
    )


def server_url(order: Submission, published: Mapping[str, Any]) -> str:
    """The published endpoint as `launch bench` and `launch smoke` take it."""
    record = servers.load(order.document["server"])
    is_disaggregated = any(step["role"] == "prefill" for step in order.document["steps"])
    is_named = is_disaggregated or record.default_model is not None
    model = published["model"] if is_named else None
    return record.url(published["host"], published["ports"], model)
