"""The times of a job: what fits into what, and what happens on the very boundary."""

from __future__ import annotations

import math
import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor import allocation as allocations
from supervisor import lock, service, slurm, spec, state, steps
from supervisor.allocation import Allocation
from supervisor.spec import CanaryRequest, JobExit
from tests.supervisor.conftest import Commands
from tests.supervisor.one_node import Job, until

KILL_WAIT_S = 30.0  # what Slurm gives a job that it ends, unless a site sets it otherwise
LEFT = "JobState=CANCELLED PreemptTime=None Restarts=0"


def test_the_times_that_depend_on_each_other_fit() -> None:
    beat_s = state.HEARTBEAT_S + slurm.COMMAND_TIMEOUT_S
    assert 2 * beat_s <= state.LEASE_S, "a command that hangs, twice, costs no lease"
    assert lock.UNNAMED_LOCK_S > 2 * slurm.COMMAND_TIMEOUT_S, "whoever submits names the job later"
    assert allocations.JOB_PERIOD_S <= state.LEASE_S / 2, "a limit that was changed is seen"
    assert 0 < allocations.TERMINATING_TIMEOUT_S + service.SLURM_GRACE_S < KILL_WAIT_S
    assert 2 * service.TICK_S < spec.END_MARGIN_S < KILL_WAIT_S
    assert steps.SRUN_REPORT_S > 2 * service.TICK_S


def test_a_record_is_kept_fresh_while_slurm_is_asked(job: Job) -> None:
    """Also where several slow answers follow each other."""
    cluster = slurm.Cluster()
    one = service.Service(job.write(), cluster)
    one._record.begin()
    (job.path / state.RUN).unlink()
    cluster.job_state("8")
    assert job.record["state"] == "starting"


@pytest.mark.parametrize(("age_s", "is_silent"), [(59.9, False), (60.0, False), (60.1, True)])
def test_a_job_is_silent_once_its_lease_is_over(
    monkeypatch: pytest.MonkeyPatch, age_s: float, is_silent: bool
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000 + age_s)
    assert state.is_silent({"heartbeat": state.timestamp(1_700_000_000)}) is is_silent


@pytest.mark.parametrize(("left_s", "ends"), [(965.0, False), (964.9, True), (0.0, True)])
def test_a_job_ends_while_draining_stopping_and_a_margin_fit_into_what_is_left(
    left_s: float, ends: bool
) -> None:
    ended: list[JobExit] = []
    job: Any = SimpleNamespace(
        _check_job=lambda: None,
        _spec=SimpleNamespace(limits=SimpleNamespace(drain_s=900.0), stop_timeout_s=60.0),
        _allocation=SimpleNamespace(left_s=left_s),
        _record=SimpleNamespace(run={"successors": [], "published": "now"}),
        _stop_serving=ended.append,
    )
    service.Service._check_time(job)
    assert [one.outcome for one in ended] == (["time_limit"] if ends else [])


@pytest.mark.parametrize(("is_terminating", "most_s"), [(False, math.inf), (True, 10.0)])
def test_servers_get_their_own_time_to_stop_unless_slurm_kills_them_soon(
    job: Job, monkeypatch: pytest.MonkeyPatch, is_terminating: bool, most_s: float
) -> None:
    stop, given = steps.Steps.stop, []

    def note(self: steps.Steps, seconds: float) -> None:
        given.append(seconds)
        stop(self, seconds)

    monkeypatch.setattr(steps.Steps, "stop", note)
    end = (lambda: os.kill(os.getpid(), signal.SIGTERM)) if is_terminating else job.stop
    job.once("published", end)
    job.run()
    assert given == [most_s]


def test_servers_that_do_not_end_are_killed_before_slurm_kills_the_supervisor(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SLURM_GRACE_S", 0.2)
    stubborn = "trap '' TERM; touch trapped; while :; do sleep 0.05; done"
    job.document["steps"].append(job.idle("stubborn", "sh", "-c", stubborn, stop_timeout_s=15))
    job.once("published", lambda: until((job.bundle / "trapped").exists))
    job.once("published", lambda: os.kill(os.getpid(), signal.SIGTERM))
    job.run()
    times = {row["event"]: state.parse_time(row["time"]) for row in job.rows}
    assert times["step_killed"] - times["ending"] < 10


def test_an_admission_by_the_canary_request_alone_has_time_to_start_its_step() -> None:
    request = CanaryRequest("/v1/completions", {}, timeout_s=60.0)
    job: Any = SimpleNamespace(_spec=SimpleNamespace(raw={}, folder="f", canary_request=request))
    argv, timeout_s = service.Service._smoke_suite(job)
    assert argv[-4:] == ["smoke", "f", "{host}", "{port:http}"]
    assert timeout_s - request.timeout_s > slurm.COMMAND_TIMEOUT_S


@pytest.mark.parametrize(("left_s", "outcome"), [(1.0, "time_limit"), (1.1, "cancelled")])
def test_a_job_that_slurm_ends_in_its_last_second_is_at_its_limit(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, left_s: float, outcome: str
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    found = Allocation(commands(scontrol=f"echo {LEFT}"), left_s).exit_by_slurm()
    assert found and found.outcome == outcome


def test_a_time_of_the_controller_may_be_cut_to_its_second(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is asked for in its first second seems to have begun a little too early."""
    now, steady = int(time.time()), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: now + 90)  # the clock of this node
    monkeypatch.setattr(time, "monotonic", lambda: steady)
    times = f"echo JobState=RUNNING StartTime={now} EndTime={now + 600}"
    clock = f"echo Configuration data as of {now}"
    shown = f'[ "$2" = job ] && {times} || {clock}'
    allocation = Allocation(commands(scontrol=shown, sinfo="true"), 3600)
    monkeypatch.setattr(time, "monotonic", lambda: steady + 0.9)
    for _ in range(3):
        allocation.poll()
    assert allocation.left_s == pytest.approx(600, abs=0.01)


@pytest.mark.parametrize(("end_s", "left_s"), [(600, 600), (3600, 3600), (7200, 3600)])
def test_a_job_ends_at_its_own_limit_or_at_slurms_whichever_comes_first(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, end_s: int, left_s: float
) -> None:
    now, steady = int(time.time()), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: steady)
    times = f"echo JobState=RUNNING StartTime={now} EndTime={now + end_s}"
    clock = f"echo Configuration data as of {now}"
    allocation = Allocation(
        commands(scontrol=f'[ "$2" = job ] && {times} || {clock}', sinfo="true"), 3600
    )
    for _ in range(3):
        allocation.poll()
    assert allocation.left_s == pytest.approx(left_s)
