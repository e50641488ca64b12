"""What the supervisor knows without a cluster: files, answers, ports and its own words."""

from __future__ import annotations

import ast
import errno
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor import checks, handover, ports, preflight, slurm, spec, state, steps
from supervisor import lock as lock_file
from supervisor import record as records
from tests.conftest import ROOT
from tests.tables import by_table


def write(path: Path, **content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


RUN = {"state": "ended", "heartbeat": state.timestamp(1000)}
MODULES = sorted((ROOT / "supervisor").glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_it_runs_with_the_python_of_old_distributions(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))
    with pytest.raises(SyntaxError):  # so that newer forms are seen at all
        ast.parse("match 1:\n    case _: pass", feature_version=(3, 9))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_it_needs_no_package(path: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.add(node.module or ".")
    own = {"__future__", "supervisor"}
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names | own


@by_table
def test_an_answer_generates_if_it_has_text(answer: Any, is_text: bool) -> None:
    assert checks.has_text(json.dumps(answer).encode()) == is_text


def test_an_answer_that_is_no_json_has_no_text() -> None:
    assert not checks.has_text(b"<html>")


def test_times_are_read_as_they_are_written() -> None:
    assert state.parse_time(state.timestamp(1000.125)) == 1000.125


def test_ports_are_looked_at_in_one_go() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        taken = other.getsockname()[1]
        found = checks.check_ports("node1", [taken, 0, 0])
    assert found["taken"] == [taken]
    assert len(set(found["free"])) == 2
    assert taken not in found["free"]
    # A client may take one of its own range before the server comes.
    assert max(found["free"]) < int(ports.CLIENTS.read_text().split()[0])


def test_a_port_that_is_wanted_twice_is_not_taken_by_itself() -> None:
    port = ports.free_ports(1, "")[0]
    assert checks.check_ports("node1", [port, port])["taken"] == []


def test_a_connected_client_is_counted_until_it_leaves() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert checks.count_connections(port) == 0
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0]:
            assert checks.count_connections(port) == 1
            client.close()
        assert checks.count_connections(port) == 0


def service_in(folder: Path) -> state.ServiceFolder:
    return state.ServiceFolder(folder.parent, folder.name)


def test_the_owner_withdraws_its_endpoint(tmp_path: Path) -> None:
    write(tmp_path / "endpoint.json", job_id="1")
    service_in(tmp_path).withdraw_endpoint("1")
    assert list(tmp_path.iterdir()) == []


def test_an_endpoint_of_another_job_stays(tmp_path: Path) -> None:
    write(tmp_path / "endpoint.json", job_id="2")
    service_in(tmp_path).withdraw_endpoint("1")
    assert service_in(tmp_path).owner == "2"


def test_an_endpoint_that_is_replaced_while_it_is_withdrawn_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "endpoint.json", job_id="2")
    with monkeypatch.context() as patch:  # what the job read just before
        patch.setattr(state.ServiceFolder, "owner", "1")
        service_in(tmp_path).withdraw_endpoint("1")
    assert service_in(tmp_path).owner == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["endpoint.json"]


def test_an_endpoint_that_is_written_while_one_is_put_back_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two looks of job 1 its successor publishes itself, and after the second look a
    third one does."""
    write(tmp_path / "endpoint.json", job_id="1")
    real = state.read_json

    def read(path: Path, *limits: int) -> state.Json | None:
        found = real(path, *limits)
        if path.name == "endpoint.json" and found and found["job_id"] == "1":
            write(path, job_id="2")
        if path.name != "endpoint.json":
            write(tmp_path / "endpoint.json", job_id="3")
        return found

    monkeypatch.setattr(state, "read_json", read)
    service_in(tmp_path).withdraw_endpoint("1")
    monkeypatch.undo()
    assert service_in(tmp_path).owner == "3"
    assert [path.name for path in tmp_path.iterdir()] == ["endpoint.json"]


@pytest.mark.parametrize("newer", ["2", "18"])
def test_an_endpoint_that_is_written_between_two_looks_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: str
) -> None:
    write(tmp_path / "endpoint.json", job_id="1")
    real = state.read_json

    def read(path: Path, *limits: int) -> state.Json | None:
        found = real(path, *limits)
        if found and found["job_id"] == "1":
            write(path, job_id=newer)
        return found

    monkeypatch.setattr(state, "read_json", read)
    service_in(tmp_path).withdraw_endpoint("1")
    monkeypatch.undo()
    assert service_in(tmp_path).owner == newer
    assert [path.name for path in tmp_path.iterdir()] == ["endpoint.json"]


@pytest.mark.parametrize(
    ("job_state", "silent_s", "is_live"),
    [("serving", 0, True), ("ended", 0, False), ("serving", 3600, False)],
    ids=["serving", "ended", "silent"],
)
def test_an_endpoint_is_live_while_its_job_is(
    tmp_path: Path, job_state: str, silent_s: float, is_live: bool
) -> None:
    run = {"state": job_state, "heartbeat": state.timestamp(time.time() - silent_s)}
    until, heartbeat = state.timestamp(time.time() + 60), "jobs/1/run.json"
    endpoint = {"job_id": "1", "until": until, "heartbeat": heartbeat, "lease_s": 60}
    write(tmp_path / "endpoint.json", **endpoint)
    assert service_in(tmp_path).live_endpoint() is None  # without a record
    write(tmp_path / "jobs/1/run.json", **run)
    found = service_in(tmp_path).live_endpoint()
    assert (found is not None and endpoint.items() <= found.items()) == is_live
    write(tmp_path / "endpoint.json", **{**endpoint, "until": state.timestamp(1000)})
    assert service_in(tmp_path).live_endpoint() is None


def lock(folder: Path, owner: str, alive: Sequence[str] = ()) -> lock_file.SuccessorLock:
    return lock_file.SuccessorLock(service_in(folder), owner, lambda job: job in alive)


def test_one_job_at_a_time_may_submit_a_successor(tmp_path: Path) -> None:
    first, second = lock(tmp_path, "1"), lock(tmp_path, "2", alive=["1", "3"])
    assert first.acquire() and not second.acquire()
    first.name_successor("3")
    assert not second.acquire()
    first.release()
    assert second.acquire()


def test_a_lock_whose_successor_is_gone_is_broken(tmp_path: Path) -> None:
    first = lock(tmp_path, "1")
    assert first.acquire()
    first.name_successor("3")
    assert lock(tmp_path, "2", alive=["1"]).acquire()
    first.release()  # it is not the first owner's any more
    assert service_in(tmp_path).lock_file.exists()


def test_a_successor_that_serves_removes_the_lock_that_names_it(tmp_path: Path) -> None:
    first = lock(tmp_path, "1")
    assert first.acquire()
    first.name_successor("3")
    lock(tmp_path, "2").release_as_successor()
    assert service_in(tmp_path).lock_file.exists()
    lock(tmp_path, "3").release_as_successor()
    assert not service_in(tmp_path).lock_file.exists()


def record_in(folder: Path, **first: Any) -> records.Record:
    """Of job 1 of the service in that folder."""
    own = records.Record(service_in(folder).job("1"), first)
    own.begin()
    return own


def test_a_full_disk_has_room_for_the_last_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = record_in(tmp_path, state="serving")

    def write_on_full_disk() -> None:
        if (record.job.path / "reserve").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        (tmp_path / "written").touch()

    record.attempt("file", write_on_full_disk, None)
    assert (tmp_path / "written").exists()
    assert "No space left" in capsys.readouterr().err


@pytest.mark.parametrize("content", [{"restarts": 0, "outcome": "preempted"}, {}])
def test_a_requeued_job_keeps_its_earlier_record(tmp_path: Path, content: Any) -> None:
    job = service_in(tmp_path).job("1").path
    write(job / "run.json", **content)
    (job / "drain").touch()
    own = record_in(tmp_path, restarts=0)
    assert own.run["restarts"] == 1
    assert state.read_json(job / "run-0.json") == content
    assert not (job / "drain").exists()
    assert record_in(tmp_path, restarts=0).run["restarts"] == 2


def test_failures_are_counted_within_the_window(tmp_path: Path) -> None:
    """On both sides of now: of nodes with other clocks, and none for ever."""
    now = time.time()
    rows = (("1", -900, 70), ("2", -400, 70), ("3", -300, 0), ("4", 90, 71), ("7", 86400, 70))
    for name, after_s, code in rows:
        path = tmp_path / "jobs" / name / "run.json"
        write(path, **RUN, ended=state.timestamp(now + after_s), exit_code=code)
    write(tmp_path / "jobs/5/run.json", **RUN, ended=None)
    write(tmp_path / "jobs/6/run.json", **RUN, ended="yesterday", exit_code=70)
    assert handover.recent_failures(service_in(tmp_path), window_s=600) == ["2", "4"]


def test_a_probe_counts_misses_only_after_the_first_good_answer() -> None:
    answers = iter(["starting", "starting", None, "gone", "gone"])
    probe = checks.Probe(lambda: next(answers), period_s=0, failure_threshold=2)
    probe.run()  # until the answers are over, which is an error that it keeps
    assert (probe.is_ready, probe.failures, probe.is_lost) == (True, 2, True)
    assert isinstance(probe.error, StopIteration)


def test_misses_count_in_a_row_only() -> None:
    answers = iter([None, "slow", None, "slow", None, "slow"])
    probe = checks.Probe(lambda: next(answers), period_s=0, failure_threshold=2)
    probe.run()
    assert (probe.failures, probe.is_lost) == (1, False)


def test_an_admitted_server_that_never_answers_again_is_lost() -> None:
    answers = iter(["mute", "mute"])
    probe = checks.Probe(lambda: next(answers), period_s=0, failure_threshold=2, is_ready=True)
    probe.run()
    assert probe.is_lost


def test_a_server_that_was_never_ready_is_not_lost() -> None:
    answers = iter(["starting", "starting", "starting"])
    probe = checks.Probe(lambda: next(answers), period_s=0, failure_threshold=2)
    probe.run()
    assert (probe.is_ready, probe.is_lost) == (False, False)


def test_a_probe_waits_for_the_rest_of_its_period_and_less_until_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float | None] = []
    clock = iter([10.0, 10.25, 20.0, 20.5, 30.0, 37.0, 40.0])
    monkeypatch.setattr(checks, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    answers = iter(["starting", None, None])
    probe = checks.Probe(lambda: next(answers), period_s=5, failure_threshold=2)
    monkeypatch.setattr(probe._stopped, "wait", waits.append)
    probe.run()
    assert waits == [checks.START_PERIOD_S - 0.25, 4.5, 0.0]


def said(*ends: str) -> str:
    """What srun says, with what it adds once it has told Slurm to end the others."""
    first, *others = [f"srun: error: {end}" for end in ends]
    return "\n".join([first, "srun: launch/slurm: _step_signal: Terminating StepId=1.0", *others])


@pytest.mark.parametrize(
    ("says", "rank"),
    [
        (said("n1: task 0: Killed"), 0),
        (said("n1: task 0: Exited with exit code 9", "n1: tasks 1-3: Terminated"), 0),
        (said("n2: task 3: Killed", "n1: task 0: Exited with exit code 1"), 3),
        # A node says at once what ended within a moment, by rank.
        (said("n1: task 0: Exited with exit code 1", "n1: task 3: Killed"), 3),
        (
            said(
                "n1: task 0: Exited with exit code 1",
                "n1: task 3: Exited with exit code 5",
                "n1: tasks 1-2: Terminated",
            ),
            3,
        ),
        (said("n1: tasks 0,3: Exited with exit code 1", "n1: tasks 1-2: Terminated"), 3),
        # All failed alike, or gave way to Slurm in their own manner.
        (said("n1: tasks 0-3: Exited with exit code 1", "n2: tasks 4-7: Terminated"), 0),
        (said("n1: task 0: Exited with exit code 9", "n1: tasks 1-3: Exited with exit code 4"), 0),
        (said("n1: tasks 0-2: Killed", "n1: task 3: Exited with exit code 1"), 0),
        (said("n1: tasks 0-1: Killed", "n1: task 3: Exited with exit code 1"), 1),
    ],
)
def test_the_rank_that_ended_first_is_told_from_those_that_followed(says: str, rank: int) -> None:
    assert steps.first_failed_rank(steps.task_failures(says), per_node=4) == rank


def test_ranks_are_read_as_slurm_lists_them() -> None:
    assert steps.ranks_of("0,2-4,7") == [0, 2, 3, 4, 7]


@pytest.mark.parametrize("ranks", ["-", ",", "1-", "1,,2", "0-99999999999", "\u0661", ""])
def test_what_slurm_does_not_write_is_no_failure_of_a_task(ranks: str) -> None:
    assert steps.task_failures(said(f"n1: tasks {ranks}: Killed")) == []


def test_a_node_may_print_more_than_the_command_that_runs_there() -> None:
    output = '{ welcome to node1\n{"foreign": null}\n["x"]\n' + "{" * 300_000 + '\n{"free": [1]}\n'
    assert state.json_lines(output) == [{"foreign": None}, {"free": [1]}]


@pytest.mark.parametrize("name", ["SLURM_NTASKS_PER_NODE", "SLURM_GPUS_PER_NODE", "SLURM_NNODES"])
def test_a_step_does_not_inherit_the_shape_of_the_job(name: str) -> None:
    assert slurm.SRUN_INPUT.match(name)


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "SLURM_CONF", "SLURM_JOB_NODELIST"])
def test_a_step_knows_its_job(name: str) -> None:
    assert not slurm.SRUN_INPUT.match(name)


def test_every_outcome_has_its_own_exit_code() -> None:
    failures = [code for code in spec.OUTCOMES.values() if code]
    assert len(set(failures)) == len(failures)
    assert set(spec.OUTCOMES) >= spec.RESTARTABLE


def safetensors(path: Path, length: int) -> None:
    """A header for 4 bytes, and that many bytes after it."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"0" * length)


def test_a_whole_checkpoint_has_no_faults(tmp_path: Path) -> None:
    write(tmp_path / "config.json")
    safetensors(tmp_path / "model.safetensors", 4)
    assert preflight.checkpoint_errors(tmp_path) == []


def test_all_faults_of_a_checkpoint_are_found(tmp_path: Path) -> None:
    write(tmp_path / "config.json")
    weights = {"a": "one.safetensors", "b": "two.safetensors", "c": "three.safetensors"}
    write(tmp_path / "model.safetensors.index.json", weight_map=weights)
    safetensors(tmp_path / "one.safetensors", 3)
    (tmp_path / "two.safetensors").write_bytes(b"\xff" * 9)
    one, three, two = preflight.checkpoint_errors(tmp_path)
    assert one.endswith("bytes, not 72")
    assert three.endswith("three.safetensors is missing")
    assert two.endswith("two.safetensors is cut off: 9 bytes")
