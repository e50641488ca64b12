"""What service.json means, and what a step is by it: options, places, names of its log, reasons."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from supervisor import checks, slurm, state
from supervisor.allocation import Allocation
from supervisor.slurm import AuxiliarySteps, Cluster
from supervisor.spec import CanaryRequest, Health, JobExit, Limits, Spec, StepSpec
from supervisor.steps import Step, Steps
from tests.supervisor.conftest import Commands
from tests.tables import by_table

DOCUMENT: dict[str, Any] = {
    "format": state.FORMAT,
    "name": "svc",
    "model": "model",
    "steps": [{"name": "server0", "argv": ["serve"]}],
    "front": "server0",
    "time": {"limit_s": 3600, "successor_lead_s": 600, "drain_s": 5},
}


def spec(tmp_path: Path, **changes: Any) -> Spec:
    folder = tmp_path / "bundle" / "slurm"
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**DOCUMENT, **changes}, ensure_ascii=False)
    (folder / "service.json").write_text(text, encoding="utf-8")
    return Spec.read(folder)


# --- service.json ---------------------------------------------------------------------------------


def test_what_is_not_said_is_the_usual(tmp_path: Path) -> None:
    found = spec(tmp_path)
    assert (found.name, found.model, found.frontend) == ("svc", "model", "server0")
    assert found.steps == [StepSpec("server0", ["serve"])]
    assert (found.health, found.generation) == (Health(5.0, 5.0, 6), None)
    assert found.limits == Limits(3600, 600, 5, 2.0, 3, 600.0, 60.0, restart=False)
    assert found.bundle == tmp_path / "bundle"
    assert found.manifest == tmp_path / "bundle" / "manifest.json"
    assert found.stop_timeout_s == 60
    body = {"model": "model", "prompt": "One, two, three,", "max_tokens": 8}
    assert found.canary_request == CanaryRequest("/v1/completions", body, 60.0, 60.0, 2)


def test_what_is_said_counts(tmp_path: Path) -> None:
    generation = {"path": "/g", "body": {}, "period_s": 9, "timeout_s": 8, "failures": 7}
    steps = [
        {"name": "a", "argv": [], "stop_timeout_s": 3},
        {"name": "b", "argv": [], "stop_timeout_s": 7},
    ]
    found = spec(
        tmp_path,
        health={"period_s": 1, "timeout_s": 2, "failures": 3, "generation": generation},
        limits={"attempts": 9, "restart": True},
        steps=steps,
        bundle_digest_file="other.json",
        model="modèle",
    )
    assert found.health == Health(1, 2, 3)
    assert found.canary_request == found.generation == CanaryRequest("/g", {}, 9, 8, 7)
    assert (found.limits.attempts, found.limits.restart) == (9, True)
    assert found.stop_timeout_s == 7
    assert found.manifest == tmp_path / "bundle" / "other.json"
    assert found.model == "modèle"


def test_another_format_is_refused_with_both(tmp_path: Path) -> None:
    for given, shown in ((state.FORMAT + 1, str(state.FORMAT + 1)), (None, "None")):
        with pytest.raises(ValueError) as refused:
            spec(tmp_path, format=given)
        place = tmp_path / "bundle" / "slurm" / "service.json"
        assert str(refused.value) == f"{place}: format {shown}, not {state.FORMAT}"


def test_a_service_keeps_its_state_where_it_was_submitted_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(state.STATE_FOLDER, raising=False)
    monkeypatch.setenv("SLURM_SUBMIT_DIR", "/submitted")
    assert spec(tmp_path).service.path == Path("/submitted/runs/svc")
    assert spec(tmp_path, state_folder="/own").service.path == Path("/own/svc")
    monkeypatch.delenv("SLURM_SUBMIT_DIR")
    assert spec(tmp_path).service.path == Path("runs/svc")


def test_an_end_says_its_outcome_and_why() -> None:
    end = JobExit("stopped", "because")
    assert (end.outcome, end.why, str(end)) == ("stopped", "because", "stopped: because")


# --- A step ---------------------------------------------------------------------------------------


def step(cluster: Cluster, tmp_path: Path, **row: Any) -> Step:
    found = StepSpec(**{"name": "server0", "argv": ["serve"], **row})
    return Step(found, cluster, tmp_path, state.ServiceFolder(tmp_path, "svc").job("7"))


def test_a_step_is_placed_on_its_nodes_or_says_how_many_it_needs(
    commands: Commands, tmp_path: Path
) -> None:
    cluster = commands()
    assert step(cluster, tmp_path).nodes == ["node1"]
    assert step(cluster, tmp_path, first_node=1).nodes == ["node2"]
    assert step(cluster, tmp_path, nodes=2).nodes == ["node1", "node2"]
    with pytest.raises(ValueError, match=r"^step server0 needs 3 nodes; the job has 2$"):
        step(cluster, tmp_path, nodes=2, first_node=1)


def test_a_part_of_a_job_has_nodes_of_its_own(commands: Commands, tmp_path: Path) -> None:
    cluster = commands()
    cluster.groups = [["a"], ["b", "c"]]
    assert step(cluster, tmp_path, het_group=1, first_node=1).nodes == ["c"]
    assert step(cluster, tmp_path, het_group=0).nodes == ["a"]
    assert cluster.srun("x", ["c"])[-1] == "--het-group=1"
    assert cluster.srun("x", ["c"], het_group=0)[-1] == "--het-group=0"
    cluster.groups = [["b", "c"]]
    assert cluster.srun("x", ["c"])[-1] == "--kill-on-bad-exit=1"


def test_srun_starts_each_task_with_the_files_of_the_bundle_by_their_whole_path(
    commands: Commands, tmp_path: Path
) -> None:
    (tmp_path / "serve.sh").touch()
    one = step(
        commands(),
        tmp_path,
        argv=["serve.sh", "other"],
        launcher=["numactl"],
        srun=["--mpi=pmix"],
        ntasks=4,
        ntasks_per_node=2,
    )
    log = f"--output={tmp_path}/svc/jobs/7/server0.log"
    assert one._argv() == [
        *("--ntasks=4", "--ntasks-per-node=2", log, "--open-mode=append", "--label"),
        *("--mpi=pmix", "numactl", str(tmp_path / "serve.sh"), "other"),
    ]
    assert one.mark == "SERVICE_STEP=7/server0"


def test_a_single_task_has_no_label_and_a_percent_sign_is_none_of_slurms(
    commands: Commands, tmp_path: Path
) -> None:
    folder = tmp_path / "50%"
    folder.mkdir()
    words = step(commands(), folder)._argv()
    assert "--label" not in words
    assert words[2] == f"--output={tmp_path}/50%%/svc/jobs/7/server0.log"


def test_a_step_that_has_not_begun_is_neither_ready_nor_over(
    commands: Commands, tmp_path: Path
) -> None:
    one = step(commands(), tmp_path, ports={"http": 8000}, role="worker")
    assert (one.exit_code, one.is_running, one.is_ready, one.is_settled) == (
        *(None, False, False, False),
    )
    assert one.row() == {
        "name": "server0",
        "role": "worker",
        "step_id": None,
        "nodes": ["node1"],
        "state": "waiting",
        "exit_code": None,
        "ports": {"http": 8000},
    }


class Ended:
    """A process with this exit code, or one that runs."""

    def __init__(self, code: int | None) -> None:
        self._code = code

    def poll(self) -> int | None:
        return self._code


TASKS = "srun: error: node1: task {}: {}\n"


@pytest.mark.parametrize(
    ("code", "role", "said", "reason"),
    [
        (3, "agg", "", ("server_failed", "srun ended with exit code 3")),
        (-9, "agg", "", ("server_failed", "srun ended with exit code 137")),
        (0, "agg", "", ("server_exited_0", "srun ended with exit code 0")),
        (0, "router", "", ("router_died", "srun ended with exit code 0")),
        (1, "agg", TASKS.format(0, "Killed"), ("server_failed", "node1: task 0: Killed")),
        (
            1,
            "agg",
            TASKS.format(1, "Killed") + TASKS.format(0, "Terminated"),
            ("rank_died", "node1: task 1: Killed"),
        ),
        (
            1,
            "agg",
            "".join(TASKS.format(rank, f"Exited with exit code {rank}") for rank in range(1, 9)),
            (
                "rank_died",
                "; ".join(f"node1: task {n}: Exited with exit code {n}" for n in range(1, 5)),
            ),
        ),
    ],
)
def test_a_step_ends_for_a_reason(
    commands: Commands, tmp_path: Path, code: int, role: str, said: str, reason: tuple[str, str]
) -> None:
    one: Any = step(commands(), tmp_path, role=role, ntasks_per_node=8)
    one.process = Ended(code)
    one.log.parent.mkdir(parents=True)
    one.log.with_name("server0.srun.log").write_text(said)
    assert one.exit_reason() == reason


def test_a_silent_step_ends_for_its_misses(commands: Commands, tmp_path: Path) -> None:
    one: Any = step(commands(), tmp_path)
    one.process = Ended(None)
    one.probe = checks.Probe(lambda: None, 1, 1)
    one.probe.failures, one.probe.last = 6, "/health: timed out"
    assert one.exit_reason() == ("health_lost", "6 misses in a row: /health: timed out")


# --- All of them ----------------------------------------------------------------------------------


@pytest.fixture
def steps(commands: Commands, tmp_path: Path) -> Steps:
    """A router in front of two servers, of which the second is on the other node."""
    rows = [
        {"name": "router", "argv": [], "ports": {"http": 8000}},
        {"name": "server0", "argv": [], "ports": {"http": 8001, "grpc": 8002}},
        {"name": "server1", "argv": [], "ports": {"http": 8001}, "first_node": 1},
    ]
    cluster = commands(srun="echo srun: error: no >&2; exit 1", sinfo="true")
    cluster._addresses = {"node1": "10.0.0.1", "node2": "10.0.0.2"}
    one = spec(tmp_path, steps=rows, front="router")
    job = state.ServiceFolder(tmp_path, "svc").job("7")
    record: Any = type("Recorded", (), {"job": job, "event": lambda *_, **__: None})()
    found = Steps(one, Allocation(cluster, 3600), record)
    found.create()
    return found


@by_table
def test_a_text_is_filled_with_what_only_the_job_knows(
    steps: Steps, tmp_path: Path, text: str, own: str | None, filled: str
) -> None:
    by_name: dict[str | None, Step] = {one.spec.name: one for one in steps.all}
    expected = filled.replace("BUNDLE", str(tmp_path / "bundle"))
    expected = expected.replace("JOB", str(tmp_path / "svc" / "jobs" / "7"))
    assert steps.fill(text, by_name.get(own)) == expected


def auxiliary(steps: Steps, tmp_path: Path) -> AuxiliarySteps:
    (tmp_path / "logs").mkdir(exist_ok=True)
    return AuxiliarySteps(steps._cluster, tmp_path, tmp_path / "logs", lambda: time.sleep(0.01))


def test_ports_of_a_node_that_cannot_be_looked_at_end_the_job(steps: Steps, tmp_path: Path) -> None:
    with pytest.raises(JobExit) as ended:
        steps.assign_ports(auxiliary(steps, tmp_path))
    assert ended.value.outcome == "server_failed"
    nodes = "['node1', 'node2']"
    assert ended.value.why == f"cannot check the ports of {nodes}: srun: error: no\n"


class Answers:
    """Stands in for the small steps: each ends with that code after those rows."""

    def __init__(self, code: int, *rows: state.Json) -> None:
        self._answer = code, "".join(f"{json.dumps(row)}\n" for row in rows)

    def run(self, *call: Any) -> tuple[int, str]:
        self.argv = call[2]
        return self._answer


ROWS: list[state.Json] = [{"node": node, "taken": [], "free": []} for node in ("node1", "node2")]


@pytest.mark.parametrize(("code", "rows"), [(1, ROWS), (0, ROWS[:1]), (0, [])])
def test_ports_are_known_of_all_nodes_or_of_none(
    steps: Steps, code: int, rows: list[state.Json]
) -> None:
    answers: Any = Answers(code, *rows)
    with pytest.raises(JobExit, match="cannot check the ports"):
        steps.assign_ports(answers)
    sound: Any = Answers(0, *ROWS)
    steps.assign_ports(sound)


def test_a_process_of_another_node_that_answers_in_a_servers_place_is_named(steps: Steps) -> None:
    """The first row may be of a daemon that prints before; the last one is the answer."""
    server = steps.all[2]
    server.spec = replace(server.spec, ready={"port": "http"})
    free: Any = Answers(0, {"foreign": None})
    steps.check_listeners(free)
    assert free.argv[-3:] == ["listener", "8001", server.mark]
    taken: Any = Answers(0, {"foreign": None}, {"foreign": "nc (7)"})
    with pytest.raises(JobExit) as ended:
        steps.check_listeners(taken)
    assert ended.value.outcome == "ports_taken"
    assert ended.value.why == "server1: nc (7) answers on node2:8001 in its place"
    unknown: Any = Answers(1, {"error": "busy"})
    with pytest.raises(OSError, match="who listens there is not known") as failed:
        steps.check_listeners(unknown)
    assert failed.value.filename == "node2:8001"


def test_a_small_step_has_an_exit_code_and_an_output(steps: Steps, tmp_path: Path) -> None:
    small = auxiliary(steps, tmp_path)
    assert small.run("try", ["node1"], ["true"], 10) == (1, "srun: error: no\n")
    assert (tmp_path / "logs" / "try.log").read_text() == "srun: error: no\n"
    assert small.run("try", ["node1"], ["true"], 10) == (1, "srun: error: no\n"), "of this run"


def test_a_small_step_that_does_not_end_has_no_code(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[int] = []
    monkeypatch.setattr(slurm, "KILL_WAIT_S", 5)
    cluster = commands(srun="echo begun; exec sleep 60")
    small = AuxiliarySteps(cluster, tmp_path, tmp_path, lambda: ticks.append(1))
    assert small.run("try", ["node1"], ["true"], 0.3) == (None, "begun\n")
    assert ticks


def test_a_small_step_whose_output_is_lost_says_why(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = AuxiliarySteps(commands(srun="exit 3"), tmp_path, tmp_path, lambda: None)

    def lost(_: slurm.Output) -> str:
        raise OSError("stale")

    monkeypatch.setattr(slurm.Output, "read", lost)
    assert small.run("try", ["node1"], ["true"], 10) == (3, "stale")


def test_a_small_step_that_cannot_be_started_says_why(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = commands()
    monkeypatch.setenv("PATH", "/nowhere")
    code, why = AuxiliarySteps(cluster, tmp_path, tmp_path, lambda: None).run("a", ["b"], [], 1)
    assert (code, why) == (127, "[Errno 2] No such file or directory: 'srun'")
