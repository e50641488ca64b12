"""The service of one job, from its start to its end."""

from __future__ import annotations

import functools
import math
import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from . import network, state
from .allocation import Allocation
from .checks import Probe, canary_error, count_connections
from .handover import Publication, Successor
from .preflight import bundle_error, file_digest
from .record import Record
from .slurm import AuxiliarySteps, Cluster, own_argv
from .spec import END_MARGIN_S, OUTCOMES, RESTARTABLE, JobExit, Spec
from .state import Json
from .steps import Steps

TICK_S = 0.2
SLURM_GRACE_S = 10.0  # for steps when Slurm ends the job: it kills all after its KillWait
SMOKE_LINES = 20  # of a failed suite that are recorded
MOST_ERRORS = 3  # of nodes that the end of a job names; network.json has them all
LAST_GENERATION = 2**53 - 1  # that a record can hold: an odd one may say that it was the last

Result = TypeVar("Result")


class Service:
    """The job from its start to its end."""

    def __init__(self, spec: Spec, cluster: Cluster) -> None:
        self._spec = spec
        self._cluster = cluster
        self._allocation = Allocation(cluster, spec.limits.limit_s)
        job = spec.service.job(cluster.job_id)
        self._record = Record(job, initial_run(spec, self._allocation))
        cluster.before_command = self._record.heartbeat  # a slow Slurm lets no lease run out
        self._auxiliary = AuxiliarySteps(cluster, spec.bundle, job.path, self._tick)
        self._steps = Steps(spec, self._allocation, self._record)
        self._publication = Publication(spec, self._allocation, self._record)
        self._successor = Successor(spec, cluster, self._record)
        self._canary: Probe | None = None
        self._silent_nodes: list[str] = []

    def run(self) -> int:
        """The exit code of the job."""
        try:
            self._start()
            self._admit()
            self._await_promotion()
            self._publish()
            while True:
                owner = self._serve()
                self._drain()
                if not self._must_resume(owner):
                    raise JobExit("handed_over", f"to job {owner}")
        except JobExit as job_exit:
            return self._finish(job_exit)
        except Exception as error:
            traceback.print_exc()
            return self._finish(JobExit("supervisor_bug", f"{type(error).__name__}: {error}"))

    def _start(self) -> None:
        self._check_job()
        self._until_done("job", self._begin)
        self._check_bundle()
        self._until_done("endpoint", self._publication.begin)
        self._until_done("nodes", self._steps.create)
        self._check_network()
        self._until_done("ports", lambda: self._steps.assign_ports(self._auxiliary))
        while not self._steps.are_ready:
            self._steps.start_next()
            self._tick()
        self._until_done("listeners", lambda: self._steps.check_listeners(self._auxiliary))
        self._steps.record_state(ready=state.timestamp())
        self._publication.draft(self._steps.frontend)

    def _admit(self) -> None:
        """The smoke suite, as a step on the frontend's node. Raises `JobExit` where it fails."""
        self._record.update(state="admitting")
        self._record.event("admitting")
        began = time.monotonic()
        argv, timeout_s = self._smoke_suite()
        nodes, filled = self._steps.frontend.nodes[:1], [self._steps.fill(word) for word in argv]
        code, output = self._auxiliary.run("smoke", nodes, filled, timeout_s)
        what = smoke_summary(output)
        if code is None:
            what = f"no end in {timeout_s:.0f} s\n{what}"
        seconds = round(time.monotonic() - began, 3)
        result = {"ok": code == 0, "exit_code": code, "seconds": seconds, "what": what}
        self._record.write(state.SMOKE, result)
        if code != 0:
            raise JobExit("not_admitted", f"smoke: {what or f'exit code {code}'}")
        self._record.update(state="admitted", admitted=state.timestamp())
        self._record.event("admitted", seconds=seconds)

    def _until_done(self, what: str, action: Callable[[], Result]) -> Result:
        """Its result: files that cannot be read or written for a while only take time.

        Raises `JobExit` where they take longer than a server may take to start.
        """
        results: list[Result] = []

        def act() -> bool:
            results.append(action())
            return True

        deadline = time.monotonic() + max(step.start_timeout_s for step in self._spec.steps)
        while not self._record.attempt(what, act, False):
            if time.monotonic() > deadline:
                raise JobExit("start_timeout", f"{what}: {self._record.fault(what)}")
            self._tick()
        return results[0]

    def _begin(self) -> None:
        self._record.run.update(of_files(self._spec))
        self._record.begin()

    def _check_bundle(self) -> None:
        """It is still what the operator submitted, for a successor days later too."""
        if wanted := os.environ.get(state.BUNDLE_DIGEST):
            check = functools.partial(bundle_error, self._spec, wanted)
            if wrong := self._until_done("bundle", check):
                raise JobExit("not_admitted", f"bundle {self._spec.bundle}: {wrong}")

    def _check_network(self) -> None:
        """What each node has for transfers, before servers load. Raises `JobExit` for errors."""
        wanted = self._spec.raw.get("network")
        if not wanted:
            return
        nodes = network.read_nodes(self._cluster, self._auxiliary, self._spec.folder)
        rows = []
        for node, (check, found, severity, what) in network.findings(wanted["checks"], nodes):
            rows.append(
                {"node": node, "check": check, "state": found, "severity": severity, "what": what}
            )
        self._record.write(state.NETWORK, {"nodes": nodes, "checks": rows})
        failed = [row for row in rows if row["state"] == "failed"]
        unread = sum(row["state"] == "not read" for row in rows)
        self._record.event("network", checks=len(rows), failed=len(failed), not_read=unread)
        for row in failed:
            state.log(f"{row['severity']}: {row['node']}: {row['check']}: {row['what']}")
        if errors := [row for row in failed if row["severity"] == "error"]:
            shown = [f"{row['node']}: {row['what']}" for row in errors[:MOST_ERRORS]]
            raise JobExit("not_admitted", f"network: {'; '.join(shown)}")

    def _smoke_suite(self) -> tuple[list[str], float]:
        """The bundle's, else the canary request alone; and how long it may take."""
        if chosen := self._spec.raw.get("smoke"):
            return chosen["argv"], float(chosen["timeout_s"])
        argv = own_argv("smoke", self._spec.folder, "{host}", "{port:http}")
        return argv, self._spec.canary_request.timeout_s + 30

    def _await_promotion(self) -> None:
        """A canary is published when its operator promotes it."""
        promote = self._record.job.path / state.PROMOTE
        while os.environ.get(state.CANARY) and not state.is_there(promote):
            self._tick()

    def _publish(self) -> None:
        """As soon as the endpoint can be written."""
        self._record.update(state="admitted")
        self._until_done("listeners", lambda: self._steps.check_listeners(self._auxiliary))
        frontend = self._steps.frontend
        while not self._record.attempt(
            "endpoint", lambda: self._publication.publish(frontend), False
        ):
            self._tick()
        self._record.update(state="serving", published=state.timestamp())
        self._record.event("published", endpoint=str(self._spec.service.endpoint_file))
        self._successor.release_lock()
        if self._spec.generation and self._canary is None:
            self._canary = self._start_canary()

    def _start_canary(self) -> Probe:
        frontend, request = self._steps.frontend, self._spec.canary_request
        check = functools.partial(canary_error, frontend.address, frontend.ports["http"], request)
        canary = Probe(check, request.period_s, request.failures, is_ready=True)
        canary.start()
        return canary

    def _serve(self) -> str:
        """Until another job, the one returned, has the endpoint. The end comes as `JobExit`."""
        lead_s = self._spec.limits.successor_lead_s
        while (owner := self._owner()) == self._cluster.job_id:
            if self._allocation.is_near_end or self._allocation.left_s < lead_s:
                self._successor.prepare()
            self._tick()
        self._record.event("handover", to=owner)
        return owner

    def _owner(self) -> str:
        """The job that clients are sent to; unchanged while that cannot be read."""
        frontend = self._steps.frontend
        owner = functools.partial(self._publication.owner_or_own, frontend)
        return self._record.attempt("endpoint", owner, self._cluster.job_id)

    def _drain(self) -> None:
        """Until no client is connected, or the time for it is over."""
        self._record.update(state="draining")
        began = time.monotonic()
        is_idle = self._idle_check()
        while (waited_s := time.monotonic() - began) < self._spec.limits.drain_s:
            is_settled = waited_s > self._spec.limits.settle_s
            if is_settled and self._record.attempt("connections", is_idle, False):
                break
            self._tick(ending=True)
        self._record.event("drained", seconds=round(waited_s, 1))

    def _idle_check(self) -> Callable[[], bool]:
        """Whether no client is connected to the frontend, checked on its own node."""
        frontend = self._steps.frontend
        port, node = frontend.ports["http"], frontend.nodes[0]
        if node == self._cluster.node:
            return lambda: count_connections(port) == 0
        argv = own_argv("idle", port, self._spec.limits.drain_s)
        try:
            process, _ = self._auxiliary.start("idle", [node], argv)
        except OSError:  # the whole time of a drain, then
            return lambda: False
        return lambda: process.poll() == 0

    def _must_resume(self, owner: str) -> bool:
        """A successor that does not serve any more leaves the clients to this job again."""
        is_left: bool | None
        while (
            is_left := self._record.attempt("endpoint", self._publication.is_left, None)
        ) is None:
            self._tick(ending=True)
        if not is_left:
            return False
        self._record.event("resumed", after=owner)
        self._publish()
        return True

    def _finish(self, job_exit: JobExit) -> int:
        """Record the reason, withdraw the endpoint, stop the steps, and submit a new job last."""
        outcome, why = job_exit.outcome, job_exit.why
        code = OUTCOMES[outcome]
        self._record.update(state="stopping", outcome=outcome, why=why, exit_code=code)
        self._record.event("ending", outcome=outcome, why=why)
        self._publication.end()
        if self._canary:
            self._canary.stop()
        self._steps.stop(SLURM_GRACE_S if self._allocation.is_terminating else math.inf)
        self._steps.record_state(state="ended", ended=state.timestamp())
        may_do_better = outcome in RESTARTABLE and self._record.run["admitted"]
        is_with_another = self._publication.is_with_another
        if may_do_better and not self._stop_file:
            has_handed_over = self._record.attempt("endpoint", is_with_another, False)
            if not has_handed_over:
                self._successor.restart()
        self._record.event("ended", outcome=outcome, exit_code=code)
        if code:
            state.log(f"to find the cause: python -m launch diagnose {self._cluster.job_id}")
        self._record.close()
        return code

    def _tick(self, ending: bool = False) -> None:
        """One round of all checks; raises `JobExit` where the job must end."""
        self._record.heartbeat()
        self._allocation.handle_signal()
        self._steps.poll()
        self._check_canary()
        if not ending:
            if file := self._stop_file:
                self._stop_serving(JobExit("stopped", f"{file} is there"))
            self._check_time()
        time.sleep(TICK_S)

    def _check_canary(self) -> None:
        if self._canary and self._canary.error:
            raise self._canary.error
        if self._canary and self._canary.is_lost:
            why = f"generation: {self._canary.last}"
            if self._silent_nodes:
                raise JobExit("node_lost", f"{', '.join(self._silent_nodes)} is lost; {why}")
            raise JobExit("health_lost", why)

    @property
    def _stop_file(self) -> Path | None:
        files = (self._spec.service.stop_file, self._record.job.path / state.DRAIN)
        return next(filter(state.is_there, files), None)

    def _check_time(self) -> None:
        self._check_job()
        last_s = self._spec.limits.drain_s + self._spec.stop_timeout_s + END_MARGIN_S
        if self._allocation.left_s < last_s:
            tried = ", ".join(self._record.run["successors"]) or "none"
            why = f"no successor took over; submitted: {tried}"
            if not self._record.run["published"]:
                why = f"too little time to serve: ending alone may take {last_s:.0f} s"
            self._stop_serving(JobExit("time_limit", why))

    def _check_job(self) -> None:
        self._allocation.poll()
        self._check_silent_nodes()
        until = state.timestamp(self._allocation.until)
        if until != self._record.run["until"]:
            self._record.update(until=until)

    def _check_silent_nodes(self) -> None:
        """A node that Slurm does not hear of is not lost while the service generates.

        Slurm's daemon alone may be away, and Slurm itself ends the job where it gives the node up.
        """
        silent = self._allocation.silent_nodes
        if silent == self._silent_nodes:
            return
        self._record.event("node_silent" if silent else "nodes_answer", nodes=silent)
        if silent and not self._record.run["published"]:
            raise JobExit("node_lost", f"{', '.join(silent)} is lost")
        if silent and self._canary is None:
            self._canary = self._start_canary()
        elif self._canary and not silent and not self._spec.generation:
            self._canary.stop()
            self._canary = None
        self._silent_nodes = silent

    def _stop_serving(self, job_exit: JobExit) -> None:
        """Without a successor: what is in flight is answered, new requests find no endpoint."""
        if self._record.run["state"] == "serving":
            self._publication.withdraw()
            self._record.event("withdrawn", why=job_exit.why)
            self._drain()
        raise job_exit


def smoke_summary(output: str) -> str:
    """The errors that a suite printed, else its last lines, else those of srun."""
    lines = output.splitlines()
    own = [line for line in lines if not line.startswith("srun: ")]
    errors = [line for line in own if line.startswith("error: ")]
    return "\n".join((errors or own or lines)[-SMOKE_LINES:])


def initial_run(spec: Spec, allocation: Allocation) -> Json:
    """run.json of a job that starts, but for what only files say."""
    later = ("ready", "admitted", "published", "ended", "outcome", "exit_code", "why")
    return {
        "format": state.FORMAT,
        "job_id": allocation.cluster.job_id,
        "service": spec.name,
        "generation": 1,
        "bundle": str(spec.bundle),
        "bundle_digest": None,
        "nodes": allocation.cluster.nodes,
        "state": "starting",
        "started": state.timestamp(),
        "until": state.timestamp(allocation.until),
        **dict.fromkeys(later),
        "steps": [],
        "successor": None,
        "successors": [],
        "predecessor": os.environ.get(state.PREDECESSOR) or None,
        "restarts": 0,
    }


def of_files(spec: Spec) -> Json:
    """What run.json says of the service's other jobs and of the bundle. Raises `OSError`."""
    earlier = []
    for job in spec.service.jobs:
        with suppress(OSError):  # one that cannot be read counts as none
            earlier += [run["generation"]] if (run := job.run) else []
    digest = file_digest(spec.manifest) if spec.manifest.is_file() else None
    generation = min(1 + max(earlier, default=0), LAST_GENERATION)
    return {"generation": generation, "bundle_digest": digest}
