"""Who has the endpoint, and who submits the next job: by records and by what Slurm answers."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor import handover, state
from supervisor.allocation import Allocation
from supervisor.handover import Publication, Successor
from supervisor.record import Record
from supervisor.service import initial_run
from supervisor.slurm import Cluster
from supervisor.spec import Health, JobExit, Limits, Spec, StepSpec
from supervisor.steps import Step
from tests.supervisor.conftest import ADDRESSES, NOTHING, Commands
from tests.tables import by_table

HOUR_AGO = state.timestamp(time.time() - 3600)
IN_AN_HOUR = state.timestamp(time.time() + 3600)
LIMITS = Limits(limit_s=3600, successor_lead_s=600, drain_s=5, attempts=2, retry_s=0)
RUNNING, PENDING, GONE = (
    f"echo {word} ${{3#--jobs=}}" for word in ("RUNNING", "PENDING", "COMPLETED")
)
SILENT = "exit 1"
NO_SUCH_JOB = "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1"


class Job:
    """Job 7 of a service, with Slurm's commands of its own."""

    def __init__(
        self, folder: Path, cluster: Cluster, predecessor: str | None, limits: Limits
    ) -> None:
        raw = {"state_folder": str(folder / "state")}
        step = StepSpec("server0", ["true"], ports={"http": 8000})
        parts: tuple[Any, ...] = ("svc", "model", [step], "server0", Health(), None, limits)
        self.spec = Spec(folder / "bundle" / "slurm", raw, *parts)
        self.service = self.spec.service
        first: dict[str, Any] = {"generation": 2, "bundle_digest": None}
        first |= {
            "predecessor": predecessor,
            "state": "serving",
            "successors": [],
            "published": None,
        }
        self.record = Record(self.service.job("7"), first)
        self.record.begin()
        self.allocation = Allocation(cluster, 3600)
        self.publication = Publication(self.spec, self.allocation, self.record)
        self.frontend = Step(step, cluster, self.spec.bundle, self.record.job)
        self.successor = Successor(self.spec, cluster, self.record)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What was recorded, without its times."""
        lines = (self.record.job.path / "events.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        return [{key: row[key] for key in row if key != "time"} for row in rows]

    @property
    def events(self) -> list[str]:
        return [row["event"] for row in self.rows]

    def leave(self, job: str, **run: Any) -> None:
        """What another job has written."""
        fresh = {"state": "serving", "heartbeat": state.timestamp(), "until": IN_AN_HOUR}
        state.write_json(self.service.job(job).path / "run.json", {**fresh, **run})

    def publish_as(self, job: str) -> None:
        content = {"job_id": job, "until": IN_AN_HOUR}
        state.write_json(self.service.endpoint_file, content)


MakeJob = Callable[..., Job]


@pytest.fixture
def make_job(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeJob:
    monkeypatch.delenv(state.STATE_FOLDER, raising=False)
    monkeypatch.delenv(state.SUBMIT_OPTIONS, raising=False)

    def make(predecessor: str | None = None, limits: Limits = LIMITS, **scripts: str) -> Job:
        return Job(tmp_path, commands(**scripts), predecessor, limits)

    return make


# --- The endpoint ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("squeue", "run", "is_orphaned"),
    [
        (RUNNING, {}, False),
        (RUNNING, {"heartbeat": HOUR_AGO}, False),  # by the clock of this node
        (RUNNING, {"state": "ended"}, True),
        (GONE, {}, True),
        ("echo COMPLETING ${3#--jobs=}", {}, True),
        (SILENT, {}, False),
        (SILENT, {"heartbeat": HOUR_AGO}, True),
        (SILENT, {"state": "ended"}, True),
    ],
)
def test_slurm_says_whether_the_job_with_the_endpoint_lives(
    make_job: MakeJob, squeue: str, run: dict[str, Any], is_orphaned: bool
) -> None:
    job = make_job(squeue=squeue)
    assert job.publication.is_orphaned()  # there is none yet
    job.publish_as("5")
    job.leave("5", **run)
    assert job.publication.is_orphaned() is is_orphaned
    assert job.publication.is_with_another() is not is_orphaned
    job.publish_as("7")
    assert not job.publication.is_with_another()


@pytest.mark.parametrize(
    ("run", "is_orphaned"),
    [({}, False), ({"heartbeat": HOUR_AGO}, True), ({"state": "ended"}, True)],
)
def test_a_job_of_another_user_may_be_hidden(
    make_job: MakeJob, run: dict[str, Any], is_orphaned: bool
) -> None:
    """Its record alone says that it lives."""
    job = make_job(squeue=NO_SUCH_JOB, sbatch=TAKES)
    state.write_json(job.service.lock_file, {"owner": "5", "successor": None})
    job.publish_as("5")
    job.leave("5", **run)
    assert job.publication.is_orphaned() is is_orphaned
    job.successor.prepare()
    assert job.events == ["successor_submitted" if is_orphaned else "successor_blocked"]


@by_table
def test_a_number_may_be_that_of_a_job_of_something_else(
    make_job: MakeJob, silent_s: float, theirs: str, is_orphaned: bool
) -> None:
    """In a state folder that was copied from another cluster."""
    shown = "[ $4 = 7 ] && echo JobId=7 JobState=RUNNING JobName=svc Command=/home/a/own.sh || "
    shown += f"echo JobId=9 JobState=RUNNING {theirs}"
    job = make_job(squeue=RUNNING, scontrol=f"{ADDRESSES}; {shown}")
    job.publish_as("9")
    job.leave("9", heartbeat=state.timestamp(time.time() - silent_s))
    assert job.publication.is_orphaned() is is_orphaned
    job.service.endpoint_file.unlink()
    state.write_json(job.service.lock_file, {"owner": "5", "successor": "9"})
    owner = job.publication.owner_or_own(job.frontend)
    job.successor.prepare()
    assert owner == ("7" if is_orphaned else "9")
    assert ("successor_blocked" in job.events) is not is_orphaned


def test_a_job_is_of_something_else_only_beside_what_this_one_is(make_job: MakeJob) -> None:
    """Where Slurm does not show this job there is nothing to compare another one with."""
    shown = "[ $4 = 7 ] || echo JobId=9 JobState=RUNNING JobName=svc Command=/home/a/own.sh"
    job = make_job(squeue=RUNNING, scontrol=f"{ADDRESSES}; {shown}")
    job.publish_as("9")
    job.leave("9", heartbeat=HOUR_AGO)
    assert not job.publication.is_orphaned()


@pytest.mark.parametrize(
    ("owner", "squeue", "run", "is_left"),
    [
        ("8", RUNNING, {"state": "starting"}, True),
        ("8", RUNNING, {"state": "admitting"}, True),
        ("8", RUNNING, {"state": "admitted"}, False),  # about to say that it serves
        ("8", RUNNING, {"state": "serving"}, False),
        ("8", RUNNING, {"state": "draining"}, True),
        ("8", RUNNING, {"state": "stopping"}, True),
        ("8", RUNNING, {"state": "ended"}, True),
        ("8", GONE, {"state": "serving"}, True),
        ("8", SILENT, {"state": "serving"}, False),
        ("8", SILENT, {"state": "draining"}, True),
        ("8", SILENT, {"heartbeat": HOUR_AGO}, True),
        ("8", RUNNING, "", False),  # damaged, which says nothing
        ("8", RUNNING, None, True),  # waits in the queue
        ("8", GONE, "", True),
        ("7", RUNNING, {}, True),  # led back by a hand
        (None, RUNNING, {}, True),
    ],
)
def test_clients_are_left_to_a_job_that_drained_where_no_other_serves(
    make_job: MakeJob,
    owner: str | None,
    squeue: str,
    run: dict[str, Any] | str | None,
    is_left: bool,
) -> None:
    """It takes them back then, and ends as handed over where another has come meanwhile."""
    job = make_job(squeue=squeue, sinfo="true")
    job.record.update(state="draining", published=state.timestamp())
    if owner == "8":
        (job.service.job("8").path).mkdir()
        if isinstance(run, dict):
            job.leave("8", **run)
        elif run is not None:
            (job.service.job("8").path / "run.json").write_text(run)
    if owner is not None:
        job.publish_as(owner)
    assert job.publication.is_left() is is_left
    if is_left:
        assert job.publication.publish(job.frontend)
        assert job.service.owner == "7"
    else:
        with pytest.raises(JobExit, match="handed_over: to job 8"):
            job.publication.publish(job.frontend)
    if run == {"state": "stopping"}:
        assert (job.service.job("8").run or {})["state"] == "stopping", "it ends by itself"


@pytest.mark.parametrize("owner", [None, "5", "7"])
def test_clients_are_not_left_to_an_older_job_while_a_newer_one_serves(
    make_job: MakeJob, owner: str | None
) -> None:
    """An endpoint that is lost, or an old copy, is written anew by the newer one."""
    job = make_job(squeue=RUNNING)
    job.leave("10")
    job.leave("5", state="draining")
    if owner is not None:
        job.publish_as(owner)
    assert not job.publication.is_left()


@pytest.mark.parametrize("answer", [*NOTHING, NO_SUCH_JOB])
def test_a_fresh_heartbeat_wins_where_slurm_says_nothing_of_a_job(
    make_job: MakeJob, later: Callable[[float], None], answer: str
) -> None:
    """No second job serves beside the first, none changes its endpoint or its record, and its
    successor is not submitted twice."""
    job = make_job(squeue=answer, sbatch=TAKES)
    job.publish_as("5")
    job.leave("5")
    with pytest.raises(JobExit, match="not_admitted: job 5 serves svc"):
        job.publication.begin()
    assert job.publication.owner_or_own(job.frontend) == "5"
    assert job.publication.is_with_another() and not job.publication.is_left()
    assert (job.service.job("5").run or {})["state"] == "serving"
    job.successor.prepare()
    job.leave("9", state="starting")
    later(6)
    job.successor.prepare()
    assert job.events == ["successor_submitted"]
    job.leave("5", heartbeat=HOUR_AGO)
    job.publication.begin()
    assert job.publication.owner_or_own(job.frontend) == "7"


def test_a_job_that_writes_on_lives_whatever_slurm_shows(make_job: MakeJob) -> None:
    """Slurm is believed first; each of two jobs then sees that the other one writes."""
    job = make_job(squeue=GONE)
    job.publish_as("8")
    job.leave("8", heartbeat=state.timestamp(time.time() - 5))
    before = job.record.run["heartbeat"]
    assert job.publication.owner_or_own(job.frontend) == "7"
    assert job.record.run["heartbeat"] > before
    job.leave("8")
    job.publish_as("8")
    for _ in range(3):
        assert job.publication.owner_or_own(job.frontend) == "8"
    assert job.events == ["endpoint_restored"]


def test_a_job_that_was_requeued_and_ended_again_is_dead(make_job: MakeJob, tmp_path: Path) -> None:
    """Between two ends it lived: what it wrote then disproves nothing."""
    job = make_job(squeue=f"cat {tmp_path}/state_of_8")
    job.publish_as("8")
    for ended_s_ago in (20, 10):
        job.leave("8", heartbeat=state.timestamp(time.time() - ended_s_ago))
        (tmp_path / "state_of_8").write_text("RUNNING 8")
        assert not job.publication.is_orphaned()
        (tmp_path / "state_of_8").write_text("NODE_FAIL 8")
        assert job.publication.is_orphaned()


def test_a_second_job_is_refused_while_another_lives(make_job: MakeJob) -> None:
    job = make_job(squeue=RUNNING)
    job.publish_as("5")
    job.leave("5")
    with pytest.raises(JobExit, match="not_admitted: job 5 serves svc; stop or replace it"):
        job.publication.publish(job.frontend)
    assert job.service.owner == "5"


@pytest.mark.parametrize("predecessor", [None, "5"])
def test_a_dead_job_and_the_predecessor_are_followed(
    make_job: MakeJob, predecessor: str | None
) -> None:
    job = make_job(predecessor, squeue=GONE if predecessor is None else RUNNING, sinfo="true")
    job.publish_as("5")
    job.leave("5", nodes=["node1"])
    assert job.publication.publish(job.frontend)
    assert job.service.owner == "7"
    closed = job.service.job("5").run or {}
    found = {key: closed.get(key) for key in ("state", "outcome", "why")}
    if predecessor:
        assert found == {"state": "serving", "outcome": None, "why": None}
    else:
        why = "found dead by job 7"
        assert found == {"state": "ended", "outcome": "killed", "why": why}
        assert job.rows == [{"event": "dead_endpoint", "job_id": "5"}]


def test_a_dead_job_whose_node_is_lost_was_lost_with_it(make_job: MakeJob) -> None:
    job = make_job(squeue=GONE, sinfo="echo node1 down")
    job.publish_as("5")
    job.leave("5", nodes=["node1"])
    job.publication.publish(job.frontend)
    assert (job.service.job("5").run or {})["outcome"] == "node_lost"
    job.leave("6", state="ended", outcome="stopped", nodes=["node1"])
    job.publish_as("6")
    job.publication.refuse_second()
    assert (job.service.job("6").run or {})["outcome"] == "stopped", "it said so itself"


def test_a_job_that_never_had_an_endpoint_ends_without_a_word(
    make_job: MakeJob, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(squeue=RUNNING)
    capsys.readouterr()
    job.publication.end()
    assert capsys.readouterr().err == ""


def test_an_endpoint_says_all_that_clients_go_by(make_job: MakeJob) -> None:
    job = make_job(squeue=RUNNING)
    job.frontend.ports["grpc"] = 8001
    job.frontend.step_id = "7.0"
    job.publication.publish(job.frontend)
    content = job.service.endpoint or {}
    address = job.frontend.address
    assert state.parse_time(content.pop("since")) == pytest.approx(time.time(), abs=5)
    assert content == {
        "format": state.FORMAT,
        "service": "svc",
        "generation": 2,
        "job_id": "7",
        "step": "7.0",
        "host": address,
        "ports": {"http": 8000, "grpc": 8001},
        "urls": {"http": f"http://{address}:8000", "grpc": f"grpc://{address}:8001"},
        "model": "model",
        "bundle_digest": None,
        "until": state.timestamp(job.allocation.until),
        "state": "serving",
        "heartbeat": "jobs/7/run.json",
        "lease_s": state.LEASE_S,
    }


def test_what_an_earlier_run_of_a_requeued_job_published_is_withdrawn(make_job: MakeJob) -> None:
    """It names the node and the ports of a server that is gone, in the name of a job that lives."""
    job = make_job(squeue=RUNNING)
    job.publication.draft(job.frontend)
    job.publication.publish(job.frontend)
    job.publication.begin()
    assert job.service.endpoint is None
    assert not (job.record.job.path / "endpoint.json").exists()


def test_no_job_is_published_that_others_cannot_see_to_serve(make_job: MakeJob) -> None:
    job = make_job(squeue=RUNNING)
    shutil.rmtree(job.record.job.path)
    job.record.job.path.touch()  # its record cannot be written
    with pytest.raises(OSError, match="Not a directory"):
        job.publication.publish(job.frontend)
    assert job.service.endpoint is None


def test_a_lost_endpoint_is_written_again(make_job: MakeJob) -> None:
    job = make_job(squeue=RUNNING)
    assert job.publication.owner_or_own(job.frontend) == "7"
    assert job.service.owner == "7"
    assert job.events == ["endpoint_restored"]
    assert job.publication.owner_or_own(job.frontend) == "7"
    assert job.events == ["endpoint_restored"]


@pytest.mark.parametrize(
    ("newer", "run", "squeue", "owner"),
    [
        ("9", {}, RUNNING, "9"),
        ("9", {}, SILENT, "9"),  # who may know
        ("9", {}, GONE, "7"),
        ("9", {"state": "admitted"}, RUNNING, "7"),
        ("5", {}, RUNNING, "7"),
    ],
)
def test_a_lost_endpoint_is_left_to_a_newer_job_that_serves(
    make_job: MakeJob, newer: str, run: dict[str, Any], squeue: str, owner: str
) -> None:
    job = make_job(squeue=squeue)
    job.leave(newer, **run)
    job.leave("12", state="starting")
    assert job.publication.owner_or_own(job.frontend) == owner
    assert job.service.owner == (None if owner == "9" else "7")


@by_table
def test_an_endpoint_that_sends_clients_elsewhere_in_its_name_is_written_again(
    make_job: MakeJob, key: str, value: Any
) -> None:
    job = make_job(squeue=RUNNING)
    job.publication.publish(job.frontend)
    before = job.service.endpoint or {}
    state.write_json(job.service.endpoint_file, {**before, key: value})
    assert job.publication.owner_or_own(job.frontend) == "7"
    assert (job.service.endpoint or {})[key] == before[key] != value
    assert job.events == ["endpoint_restored"]


def test_an_endpoint_follows_the_time_limit_of_its_job(make_job: MakeJob) -> None:
    job = make_job(squeue=RUNNING)
    job.publication.publish(job.frontend)
    job.allocation.until += 3600
    job.publication.owner_or_own(job.frontend)
    assert (job.service.endpoint or {})["until"] == state.timestamp(job.allocation.until)


@pytest.mark.parametrize(
    ("other", "run", "squeue"),
    [
        ("9", {}, GONE),
        ("9", {"state": "ended"}, RUNNING),
        ("9", None, RUNNING),  # a job of something else
        ("9", {"state": "starting"}, RUNNING),  # by a hand that was too early
        ("9", {"state": "admitting"}, RUNNING),
        ("5", {"state": "draining"}, RUNNING),  # by an old copy
        ("9", {"state": "stopping"}, RUNNING),
        ("9" * 18, None, SILENT),
        ("9", {"heartbeat": HOUR_AGO}, SILENT),
    ],
)
def test_an_endpoint_of_a_job_that_does_not_serve_is_written_again(
    make_job: MakeJob, other: str, run: dict[str, Any] | None, squeue: str
) -> None:
    job = make_job(squeue=squeue)
    if run is not None:
        job.leave(other, **run)
    job.publish_as(other)
    assert job.publication.owner_or_own(job.frontend) == "7"
    assert (job.service.owner, job.events) == ("7", ["endpoint_restored"])


@pytest.mark.parametrize(("newer", "owner"), [("9", "9"), ("8", "7")])
def test_an_endpoint_of_a_dead_job_is_left_to_a_newer_one_that_serves(
    make_job: MakeJob, newer: str, owner: str
) -> None:
    """Of two newer ones, the record of one cannot be read."""
    job = make_job(squeue=RUNNING)
    job.leave("5", state="ended")
    job.leave(newer)
    (job.service.job("8").path / "run.json").unlink(missing_ok=True)
    (job.service.job("8").path / "run.json").mkdir(parents=True)
    job.publish_as("5")
    assert job.publication.owner_or_own(job.frontend) == owner
    assert job.service.owner == ("5" if owner == "9" else "7")


def test_the_record_of_a_job_that_starts_has_every_field(make_job: MakeJob) -> None:
    """Readers of the file need no other version of it."""
    job = make_job(squeue=RUNNING)
    assert state.RUN_FIELDS.keys() - initial_run(job.spec, job.allocation).keys() == {"heartbeat"}


def test_the_endpoint_of_another_job_is_not_touched(make_job: MakeJob) -> None:
    job = make_job(squeue=RUNNING)
    job.leave("9")
    job.publish_as("9")
    assert job.publication.owner_or_own(job.frontend) == "9"
    job.publication.end()
    assert job.service.owner == "9"


def test_the_own_endpoint_is_withdrawn_at_the_end(make_job: MakeJob) -> None:
    job = make_job(squeue=RUNNING)
    job.publication.draft(job.frontend)
    job.publication.publish(job.frontend)
    content = job.service.endpoint or {}
    assert content["urls"] == {"http": f"http://{job.frontend.address}:8000"}
    assert (content["generation"], content["heartbeat"]) == (2, "jobs/7/run.json")
    job.publication.end()
    assert job.service.endpoint is None
    assert not (job.record.job.path / "endpoint.json").exists()


# --- The successor --------------------------------------------------------------------------------

TAKES = "echo 9"
REFUSES = "echo no controller >&2; exit 1"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass."""
    passed = [0.0]
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + passed[0])

    def go(seconds: float) -> None:
        passed[0] += seconds

    return go


def test_a_successor_is_submitted_once(
    make_job: MakeJob, later: Callable[[float], None], tmp_path: Path
) -> None:
    job = make_job(sbatch=f"env >{tmp_path}/seen; {TAKES}", squeue=PENDING)
    for _ in range(5):
        job.successor.prepare()
        later(60)
    assert job.events == ["successor_submitted"]
    assert (job.record.run["successor"], job.record.run["successors"]) == ("9", ["9"])
    assert state.read_json(job.service.lock_file) is not None
    seen = (tmp_path / "seen").read_text().splitlines()
    assert {"SERVICE_PREDECESSOR=7", "SERVICE_CANARY=", f"BUNDLE={job.spec.bundle}"} <= set(seen)
    assert f"{state.STATE_FOLDER}={tmp_path}/state" in seen


def test_a_refused_submission_is_tried_again_ever_more_rarely(
    make_job: MakeJob, later: Callable[[float], None]
) -> None:
    """Over an hour, whatever the number of attempts for jobs that fail."""
    job = make_job(sbatch=REFUSES, squeue="true")
    for _ in range(3600):
        job.successor.prepare()
        later(1)
    waits = [row["next_try_s"] for row in job.rows]
    script = job.spec.folder / "serve.sbatch"
    why = f"sbatch {script}: no controller"
    assert job.rows[0] == {"event": "submission_failed", "why": why, "next_try_s": 5}
    assert set(job.events) == {"submission_failed"}
    assert waits[:6] == [5, 10, 20, 40, 60, 60] and len(waits) > 50
    assert not job.service.lock_file.exists()  # others may try meanwhile


def test_a_submission_whose_answer_was_lost_is_found_in_the_queue(
    make_job: MakeJob, later: Callable[[float], None], tmp_path: Path
) -> None:
    job = make_job(sbatch=REFUSES, squeue=f"cat {tmp_path}/queue")
    script = job.spec.folder / "serve.sbatch"
    own = f"7 {script}\n"
    (tmp_path / "queue").write_text(f"{own}9 {script}\n10 /another/slurm/serve.sbatch\n")
    job.successor.prepare()
    later(6)
    job.successor.prepare()
    assert job.events == ["submission_failed", "successor_submitted"]
    assert job.record.run["successor"] == "9"


def test_a_queue_that_does_not_answer_is_asked_again_before_a_second_submission(
    make_job: MakeJob, later: Callable[[float], None], tmp_path: Path
) -> None:
    job = make_job(sbatch=f"echo x >>{tmp_path}/tries; {REFUSES}", squeue=SILENT)
    for _ in range(100):
        job.successor.prepare()
        later(1)
    assert set(job.events) == {"submission_failed"}
    assert (tmp_path / "tries").read_text().split() == ["x"]


def test_a_lock_of_others_is_told_once(
    make_job: MakeJob, later: Callable[[float], None], tmp_path: Path
) -> None:
    job = make_job(sbatch=TAKES, squeue=f"cat {tmp_path}/state_of_8")
    (tmp_path / "state_of_8").write_text("PENDING 8")
    row = {"owner": "6", "successor": "8"}
    state.write_json(job.service.lock_file, row)
    for _ in range(200):
        job.successor.prepare()
        later(1)
    lock = str(job.service.lock_file)
    by = {"owner": "6", "successor": "8"}
    assert [
        {**row, "by": row["by"] and {key: row["by"][key] for key in by}} for row in job.rows
    ] == [{"event": "successor_blocked", "lock": lock, "by": by}]
    (tmp_path / "state_of_8").write_text("CANCELLED 8")
    later(6)
    job.successor.prepare()
    assert job.events == ["successor_blocked", "successor_submitted"]


@pytest.mark.parametrize("content", ["", "{}", "[]", "7", '{"owner": 7}'])
def test_a_lock_of_nothing_blocks_no_hand_over(
    make_job: MakeJob, later: Callable[[float], None], content: str
) -> None:
    job = make_job(sbatch=TAKES, squeue=PENDING)
    job.service.lock_file.write_text(content)
    job.successor.prepare()
    submitted = (job.record.job.path / "events.jsonl").exists()
    assert submitted is bool(content)  # an empty one may be about to be written
    later(6)
    job.successor.prepare()
    assert job.events == ["successor_submitted"]


def test_a_job_that_fails_is_replaced_past_an_empty_lock(
    make_job: MakeJob, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(limits=replace(LIMITS, restart=True), sbatch=TAKES, squeue=GONE)
    job.service.lock_file.touch()
    monkeypatch.setattr(time, "sleep", later)
    job.successor.restart()
    assert job.events == ["successor_submitted"]


def test_a_successor_that_fails_is_replaced_so_often(
    make_job: MakeJob, later: Callable[[float], None]
) -> None:
    job = make_job(sbatch=TAKES, squeue=PENDING)
    for _ in range(20):
        job.successor.prepare()
        job.leave("9", state="ended", why="broken")
        later(10)
    pair = [
        {"event": "successor_submitted", "job_id": "9"},
        {"event": "successor_failed", "job_id": "9", "why": "broken"},
    ]
    assert job.rows == [*pair, *pair, {"event": "gave_up", "why": "2 successors failed"}]
    assert job.record.run["successor"] is None
    assert not job.service.lock_file.exists()


def test_a_successor_that_left_the_queue_has_failed(
    make_job: MakeJob, later: Callable[[float], None]
) -> None:
    job = make_job(sbatch=TAKES, squeue=GONE)
    job.successor.prepare()
    later(6)
    job.successor.prepare()
    failed = {"event": "successor_failed", "job_id": "9", "why": "gone from the queue"}
    assert job.rows == [{"event": "successor_submitted", "job_id": "9"}, failed]


def test_a_state_folder_that_takes_no_lock_is_no_end(
    make_job: MakeJob, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(sbatch=TAKES, squeue=PENDING)
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> None:
            raise OSError(errno.EIO, "no")

        patch.setattr(os, "link", refuse)
        job.successor.prepare()
    assert job.record.run["successors"] == []
    later(10)
    job.successor.prepare()
    assert job.record.run["successors"] == ["9"]


@pytest.fixture
def restarting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "RESTART_POLL_S", 0.0)


class Clock:
    """Of the module alone: a command that is waited for sleeps as well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
        self.now = 1000.0
        self._then = then
        self.time = time.time
        monkeypatch.setattr(handover, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _: float) -> None:
        self.now += 1
        self._then()


def test_a_failed_job_tries_for_two_minutes_to_be_replaced(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(limits=replace(LIMITS, restart=True), sbatch=REFUSES, squeue="echo 7 -")
    clock = Clock(monkeypatch, lambda: None)
    job.successor.restart()
    assert job.events == ["submission_failed"] * 5  # after 0, 5, 15, 35 and 75 s
    assert clock.now == 1120


def test_failures_count_for_the_length_of_the_window(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those whose node's clock is ahead."""
    job, now = make_job(), 1_700_000_000.0
    for name, ended in (("1", -599.9), ("2", -600), ("3", 599.9), ("4", 600), ("5", -30)):
        row = {"state": "ended", "ended": state.timestamp(now + ended), "exit_code": 70}
        job.leave(name, **row, heartbeat=row["ended"])
    job.leave("6", state="ended", ended=state.timestamp(now), exit_code=0)
    monkeypatch.setattr(time, "time", lambda: now)
    assert handover.recent_failures(job.service, 600.0) == ["1", "3", "5"]


def test_a_failed_job_is_not_replaced_once_its_service_is_stopped(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a submission is tried again, too."""
    job = make_job(limits=replace(LIMITS, restart=True), sbatch=REFUSES, squeue="echo 7 -")
    Clock(monkeypatch, job.service.stop_file.touch)
    job.successor.restart()
    job.successor.restart()
    assert job.events == ["submission_failed"]


@pytest.mark.usefixtures("restarting")
@pytest.mark.parametrize(
    ("restart", "failed", "events"),
    [(False, 0, None), (True, 1, ["successor_submitted"]), (True, 2, ["gave_up"])],
)
def test_a_failed_job_is_replaced_unless_they_fail_in_a_row(
    make_job: MakeJob, restart: bool, failed: int, events: list[str] | None
) -> None:
    job = make_job(limits=replace(LIMITS, restart=restart), sbatch=TAKES, squeue=GONE)
    for number in range(failed):
        job.leave(str(number), state="ended", ended=state.timestamp(), exit_code=70)
    job.successor.restart()
    found = job.events if (job.record.job.path / "events.jsonl").exists() else None
    assert found == events
