"""The life of a job: what its supervisor does and leaves, from its start to its end.

Slurm's commands are scripts, the servers real processes; `tests/slurm` has a real Slurm.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from supervisor import handover, record, service, state, steps
from supervisor.preflight import file_digest
from supervisor.spec import CanaryRequest, Spec
from tests.supervisor.one_node import NODE, Job, free_port, until
from tests.tables import by_table

# --- From start to stop ---------------------------------------------------------------------------


def test_a_job_starts_its_server_admits_it_and_publishes_it_until_it_is_told_to_stop(
    job: Job,
) -> None:
    published = {}
    job.once("published", lambda: published.update(job.endpoint or {}))
    job.once("published", job.stop)
    assert job.run() == 0
    assert job.events == [
        *("step_started", "step_ready", "admitting", "admitted", "published"),
        *("withdrawn", "drained", "ending", "ended"),
    ]
    assert published["job_id"] == "7"
    assert published["ports"] == {"http": job.port}
    assert published["urls"] == {"http": f"http://127.0.0.1:{job.port}"}
    assert published["step"].startswith("7.")
    assert job.endpoint is None
    assert not (job.path / "endpoint.json").exists()


def test_each_event_of_a_life_says_what_an_operator_asks(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And run.json has the state of that moment."""
    states: list[str] = []
    write = state.write_json

    def watched(path: Path, value: Any) -> None:
        if path.name == state.RUN and value["state"] not in states[-1:]:
            states.append(value["state"])
        write(path, value)

    monkeypatch.setattr(state, "write_json", watched)
    job.once("published", job.stop)
    job.run()
    assert states == [
        "starting",
        "admitting",
        "admitted",
        "serving",
        "draining",
        "stopping",
        "ended",
    ]
    rows = [{key: row[key] for key in row if key not in ("time", "seconds")} for row in job.rows]
    why, step = f"{job.service.stop_file} is there", job.record["steps"][0]["step_id"]
    assert rows == [
        {"event": "step_started", "step": "server0", "nodes": [NODE]},
        {"event": "step_ready", "step": "server0", "step_id": step},
        {"event": "admitting"},
        {"event": "admitted"},
        {"event": "published", "endpoint": str(job.service.endpoint_file)},
        {"event": "withdrawn", "why": why},
        {"event": "drained"},
        {"event": "ending", "outcome": "stopped", "why": why},
        {"event": "ended", "outcome": "stopped", "exit_code": 0},
    ]
    times = [state.parse_time(row["time"]) for row in job.rows]
    assert times == sorted(times)
    seconds = {row["event"]: row["seconds"] for row in job.rows if "seconds" in row}
    assert 0 < seconds["admitted"] < 10
    assert 0 <= seconds["drained"] < 10
    smoke = state.read_json(job.path / state.SMOKE) or {}
    assert smoke == {"ok": True, "exit_code": 0, "seconds": seconds["admitted"], "what": ""}


def test_the_record_of_a_job_that_was_stopped_says_when_and_why(job: Job) -> None:
    job.once("published", job.stop)
    job.run()
    run = job.record
    assert (run["state"], run["outcome"], run["exit_code"]) == ("ended", "stopped", 0)
    assert run["why"] == f"{job.service.stop_file} is there"
    moments = [run[name] for name in ("started", "ready", "admitted", "published", "ended")]
    assert moments == sorted(moments)
    assert state.parse_time(run["until"]) - state.parse_time(run["started"]) == pytest.approx(
        3600, abs=5
    )
    assert (run["service"], run["job_id"], run["nodes"]) == ("svc", "7", [NODE])
    assert run["bundle"] == str(job.bundle)
    assert (run["predecessor"], run["generation"]) == (None, 1)
    [step] = run["steps"]
    assert job.given("scancel") == [f"--signal TERM {step['step_id']}"], "asked, and not killed"
    assert step["exit_code"] == 128 + signal.SIGTERM
    assert (step["name"], step["role"], step["nodes"]) == ("server0", "agg", [NODE])
    assert (step["state"], step["ports"]) == ("ended", {"http": job.port})
    assert step["step_id"].startswith("7.")


def test_each_job_of_a_service_is_a_generation_of_its_own(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = job.folder / "state" / "svc" / "jobs"
    fresh = {"state": "ended", "heartbeat": state.timestamp(1000), "exit_code": 0}
    state.write_json(earlier / "3" / state.RUN, {**fresh, "generation": 4})
    state.write_json(earlier / "5" / state.RUN, {**fresh, "generation": 2})
    monkeypatch.setenv(state.PREDECESSOR, "5")
    job.once("published", job.stop)
    job.run()
    assert (job.record["generation"], job.record["predecessor"]) == (5, "5")
    assert (job.record["restarts"], job.record["successor"], job.record["successors"]) == (
        *(0, None, []),
    )


def test_a_job_after_the_last_generation_that_a_record_holds_is_of_the_last(job: Job) -> None:
    fresh = {"state": "ended", "heartbeat": state.timestamp(), "generation": 2**53 - 1}
    state.write_json(job.path.with_name("3") / state.RUN, fresh)
    job.once("published", job.stop)
    assert job.run() == 0
    found = state.ServiceFolder(job.path.parent.parent.parent, job.path.parent.parent.name)
    assert (found.job("7").run or {})["generation"] == 2**53 - 1


def test_a_drain_file_of_the_job_ends_it_like_one_of_the_service(job: Job) -> None:
    drain = job.path / state.DRAIN
    job.once("published", drain.touch)
    assert job.run() == 0
    assert job.record["why"] == f"{drain} is there"
    told = {row["event"]: row.get("why") for row in job.rows}
    assert told["withdrawn"] == told["ending"] == f"{drain} is there"


def test_a_server_that_does_not_end_is_killed_after_its_time(job: Job) -> None:
    stubborn = "trap '' TERM; touch trapped; while :; do sleep 0.05; done"
    job.document["steps"].append(job.idle("stubborn", "sh", "-c", stubborn, stop_timeout_s=0.3))
    job.document["steps"][0]["stop_timeout_s"] = 0.3
    trapped = job.bundle / "trapped"
    job.once("published", lambda: until(trapped.exists))
    job.once("published", job.stop)
    assert job.run() == 0
    [killed] = [row["step"] for row in job.rows if row["event"] == "step_killed"]
    assert killed == "stubborn"
    ended = {step["name"]: step["exit_code"] for step in job.record["steps"]}
    assert ended["stubborn"] == 128 + signal.SIGKILL


# --- Admission and promotion ----------------------------------------------------------------------


def test_a_job_whose_smoke_suite_fails_is_never_published(job: Job) -> None:
    suite = "echo passed: one; echo error: no text; echo error: no metrics; exit 3"
    job.document["smoke"]["argv"] = ["sh", "-c", suite]
    assert job.run() == 77
    assert "published" not in job.events
    assert (job.record["outcome"], job.record["why"]) == (
        *("not_admitted", "smoke: error: no text\nerror: no metrics"),
    )
    result = state.read_json(job.path / state.SMOKE) or {}
    assert (result["ok"], result["exit_code"]) == (False, 3)
    assert result["what"] == "error: no text\nerror: no metrics"
    assert job.given("sbatch") == []


def test_a_smoke_suite_that_does_not_end_is_a_failure(job: Job) -> None:
    job.document["smoke"] = {"argv": ["sleep", "60"], "timeout_s": 0.2}
    assert job.run() == 77
    result = state.read_json(job.path / state.SMOKE) or {}
    assert (result["ok"], result["exit_code"]) == (False, None)
    assert result["what"].startswith("no end in 0 s")
    assert 0.2 <= result["seconds"] < 60


def test_the_smoke_suite_is_told_where_the_frontend_is(job: Job) -> None:
    asked = job.folder / "asked"
    words = 'echo "$1 $2 $3 $4" >"$0"'
    given = ["sh", "-c", words, str(asked), "{host}", "{port:http}", "{bundle}", "{job}"]
    job.document["smoke"]["argv"] = given
    job.once("published", job.stop)
    job.run()
    assert asked.read_text().split() == ["127.0.0.1", str(job.port), str(job.bundle), str(job.path)]
    assert (state.read_json(job.path / state.SMOKE) or {})["ok"] is True


def test_without_a_suite_the_canary_request_is_the_admission(job: Job) -> None:
    del job.document["smoke"]
    job.once("published", job.stop)
    assert job.run() == 0
    result = state.read_json(job.path / state.SMOKE) or {}
    assert (result["ok"], result["what"]) == (True, "it generates")


def test_the_canary_request_is_that_of_the_bundle_and_goes_to_the_frontend(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job.folder / "asked"

    def argv(*words: object) -> list[str]:
        return ["sh", "-c", 'echo "$@" >"$0"', str(asked), *map(str, words)]

    del job.document["smoke"]
    monkeypatch.setattr(service, "own_argv", argv)
    job.once("published", job.stop)
    job.run()
    folder = str(job.bundle / "slurm")
    assert asked.read_text().split() == ["smoke", folder, "127.0.0.1", str(job.port)]


def test_a_server_that_is_ready_but_generates_nothing_is_not_admitted(job: Job) -> None:
    del job.document["smoke"]
    job.answer(completions=500)
    assert job.run() == 77
    assert job.record["why"] == "smoke: /v1/completions: HTTP 500 {}"


@pytest.mark.parametrize(
    ("output", "summary"),
    [
        ("srun: error: a\nfine\nerror: b\nerror: c\nend\n", "error: b\nerror: c"),
        ("srun: error: a\none\ntwo\n", "one\ntwo"),
        ("srun: error: a\n", "srun: error: a"),
        ("", ""),
        ("".join(f"{row}\n" for row in range(30)), "\n".join(map(str, range(10, 30)))),
    ],
    ids=["errors", "own lines", "srun alone", "nothing", "last lines"],
)
def test_the_summary_of_a_suite_is_what_helps_most(output: str, summary: str) -> None:
    assert service.smoke_summary(output) == summary


def test_a_canary_waits_for_its_promotion(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state.CANARY, "1")
    endpoints, real = [], state.is_there
    looks: list[Path] = []

    def is_there(path: Path) -> bool:
        looks.append(path)
        return real(path)

    monkeypatch.setattr(state, "is_there", is_there)

    def promote() -> None:
        until(lambda: looks.count(job.path / state.PROMOTE) > 2)
        endpoints.append(job.endpoint)
        (job.path / state.PROMOTE).touch()

    job.once("admitted", promote)
    job.once("published", job.stop)
    assert job.run() == 0
    assert endpoints == [None]


def failing_twice(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[OSError]:
    """The faults that are left of a function that then works."""
    faults = [OSError(errno.ESTALE, os.strerror(errno.ESTALE), "state") for _ in range(2)]
    real = getattr(owner, name)

    def fail(*arguments: Any) -> Any:
        if faults:
            raise faults.pop()
        return real(*arguments)

    patch.setattr(record, "RETRY_S", 0.0)
    patch.setattr(owner, name, fail)
    return faults


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (service, "of_files"),
        (record.Record, "begin"),
        (service, "bundle_error"),
        (handover.Publication, "begin"),
        (steps, "ports_of_nodes"),
        (steps.Step, "start"),
    ],
)
def test_files_that_cannot_be_had_for_a_while_only_delay_a_start(
    job: Job, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    (job.bundle / "manifest.json").write_text("{}")
    monkeypatch.setenv(state.BUNDLE_DIGEST, file_digest(job.bundle / "manifest.json"))
    faults = failing_twice(monkeypatch, owner, name)
    job.once("published", job.stop)
    assert job.run() == 0
    assert faults == []
    assert job.record["bundle_digest"] == os.environ[state.BUNDLE_DIGEST]


@pytest.mark.parametrize(
    ("owner", "name", "what"),
    [
        (record.Record, "begin", "job"),
        (steps.Step, "start", "server0"),
        (steps, "foreign_listener", "listeners"),
    ],
)
def test_files_that_cannot_be_had_for_as_long_as_a_start_may_take_are_named(
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    owner: Any,
    name: str,
    what: str,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ESTALE, "stale", "state")

    monkeypatch.setattr(record, "RETRY_S", 0.0)
    monkeypatch.setattr(owner, name, fail)
    job.document["steps"] = [job.server(start_timeout_s=2 if what == "listeners" else 0.05)]
    assert job.run() == 74
    assert f"outcome=start_timeout why={what}: state: stale" in capsys.readouterr().err


def test_a_job_that_is_stopped_before_it_serves_withdraws_and_drains_nothing(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(state.CANARY, "1")
    job.once("admitted", job.stop)
    assert job.run() == 0
    assert not {"published", "withdrawn", "drained"} & set(job.events)


def test_a_bundle_that_is_another_than_was_submitted_does_not_start(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(state.BUNDLE_DIGEST, "0" * 64)
    (job.bundle / "manifest.json").write_text("{}")
    assert job.run() == 77
    assert job.record["why"].startswith(f"bundle {job.bundle}: ")
    assert job.given("srun") == []


# --- Handover and drain ---------------------------------------------------------------------------


def test_a_job_whose_endpoint_another_took_drains_and_ends(job: Job) -> None:
    job.once("published", lambda: job.publish_as("8"))
    assert job.run() == 0
    assert job.events[-5:] == ["published", "handover", "drained", "ending", "ended"]
    assert (job.record["outcome"], job.record["why"]) == ("handed_over", "to job 8")
    assert (job.endpoint or {})["job_id"] == "8"
    [handover] = [row["to"] for row in job.rows if row["event"] == "handover"]
    assert handover == "8"


def test_a_job_that_handed_over_ends_where_the_record_of_the_other_is_damaged(job: Job) -> None:
    job.once("published", lambda: job.publish_as("8"))
    job.once("handover", lambda: os.truncate(job.service.job("8").path / state.RUN, 0))
    assert job.run() == 0
    assert job.record["outcome"] == "handed_over"


@pytest.mark.parametrize("state_of_8", ["gone", "starting", "draining", "stopping"])
def test_clients_of_a_successor_that_left_them_during_the_drain_come_back(
    job: Job, state_of_8: str
) -> None:
    def leave() -> None:
        if state_of_8 == "gone":
            job.slurm(state="NODE_FAIL\n")
            return
        path = job.service.job("8").path / state.RUN
        state.write_json(path, {**(state.read_json(path) or {}), "state": state_of_8})

    job.once("published", lambda: job.publish_as("8"))
    job.once("handover", leave)
    job.once("resumed", job.stop)
    assert job.run() == 0
    assert job.events.count("published") == 2
    assert [row["after"] for row in job.rows if row["event"] == "resumed"] == ["8"]


def test_a_job_that_handed_over_ends_only_when_it_knows_who_serves(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor died in the drain, when nothing could be read."""

    def harm() -> None:
        job.slurm(state="NODE_FAIL\n")
        failing_twice(monkeypatch, handover.Publication, "is_left")

    job.once("published", lambda: job.publish_as("8"))
    job.once("handover", harm)
    job.once("resumed", job.stop)
    assert job.run() == 0
    assert "resumed" in job.events


def test_a_drain_whose_clients_cannot_be_counted_takes_its_whole_time() -> None:
    """On another node, where no step can be started for it."""

    def refused(*_: object) -> None:
        raise OSError("no more processes")

    frontend = SimpleNamespace(ports={"http": 1}, nodes=["other"])
    job: Any = SimpleNamespace(
        _steps=SimpleNamespace(frontend=frontend),
        _cluster=SimpleNamespace(node=NODE),
        _spec=SimpleNamespace(limits=SimpleNamespace(drain_s=9)),
        _auxiliary=SimpleNamespace(start=refused),
    )
    assert service.Service._idle_check(job)() is False


def test_new_requests_find_no_endpoint_while_the_last_ones_are_answered(job: Job) -> None:
    endpoints = []
    job.once("published", job.stop)
    job.once("withdrawn", lambda: endpoints.append(job.endpoint))
    job.run()
    assert endpoints == [None]


def test_a_drain_waits_until_the_last_client_has_left(job: Job) -> None:
    job.document["time"]["drain_s"] = 10
    held: list[socket.socket] = []
    job.once("published", lambda: held.append(socket.create_connection(("127.0.0.1", job.port))))
    job.once("published", job.stop)

    def leave() -> None:
        assert "drained" not in job.events
        held[0].close()

    job.document["health"] = {"period_s": 60}
    job.once("withdrawn", leave)
    assert job.run() == 0
    [drained] = [row for row in job.rows if row["event"] == "drained"]
    assert drained["seconds"] < 5


def test_a_drain_lasts_no_longer_than_its_time(job: Job) -> None:
    held: list[socket.socket] = []
    job.once("published", lambda: held.append(socket.create_connection(("127.0.0.1", job.port))))
    job.once("published", job.stop)
    job.document["health"] = {"period_s": 60}
    assert job.run() == 0
    [drained] = [row for row in job.rows if row["event"] == "drained"]
    assert drained["seconds"] < 30  # the connection is held until the test ends it
    held[0].close()


def test_a_drain_leaves_clients_time_to_learn_of_the_new_endpoint(job: Job) -> None:
    job.document["limits"]["settle_s"] = 0.2
    job.document["time"]["drain_s"] = 5
    job.once("published", job.stop)
    assert job.run() == 0
    [drained] = [row for row in job.rows if row["event"] == "drained"]
    assert 0.2 <= drained["seconds"] < job.document["time"]["drain_s"]


# --- Why a job ends -------------------------------------------------------------------------------


def test_a_server_that_stops_to_answer_has_lost_its_health(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SRUN_REPORT_S", 0.05)
    job.once("published", lambda: job.answer(health=503))
    assert job.run() == 73
    assert job.record["outcome"] == "health_lost"
    assert re.fullmatch(
        r"server0: \d+ misses in a row: /health: HTTP 503", str(job.record["why"])
    ), job.record["why"]
    assert job.endpoint is None


def test_a_server_that_is_ready_but_no_longer_generates_has_lost_its_health(job: Job) -> None:
    request: dict[str, Any] = {
        "path": "/v1/completions",
        "body": {},
        "period_s": 0.02,
        "failures": 2,
    }
    job.document["health"]["generation"] = request
    job.once("published", lambda: job.answer(completions=500))
    assert job.run() == 73
    assert job.record["why"] == "generation: /v1/completions: HTTP 500 {}"


@pytest.mark.parametrize(
    ("code", "exit_code", "outcome"), [(0, 71, "server_exited_0"), (3, 72, "server_failed")]
)
def test_a_server_that_ends_by_itself_ends_the_job(
    job: Job, code: int, exit_code: int, outcome: str
) -> None:
    job.once("published", lambda: job.answer(health=f"exit {code}"))
    assert job.run() == exit_code
    assert job.record["outcome"] == outcome
    assert job.record["why"] == f"server0: srun ended with exit code {code}"
    assert job.record["steps"][0]["exit_code"] == code


def test_a_server_that_is_never_ready_has_a_limit(job: Job) -> None:
    job.answer(health=503)
    job.document["steps"][0]["start_timeout_s"] = 0.3
    assert job.run() == 74
    assert job.record["why"] == "server0: not ready after 0 s: /health: HTTP 503"


def test_a_start_that_falls_silent_is_reported_with_its_last_line(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "SILENT_S", 0.2)
    argv = ["sh", "-c", "echo 'Loading weights: 48%'; exec sleep 60"]
    job.document["steps"] = [job.server(argv=argv, start_timeout_s=2)]
    assert job.run() == 74
    [silent] = [row for row in job.rows if row["event"] == "step_silent"]
    assert (silent["step"], silent["last"]) == ("server0", "Loading weights: 48%")
    assert job.record["why"].endswith("s after: Loading weights: 48%")
    assert "to find the cause: python -m launch diagnose 7" in capsys.readouterr().err


def test_a_port_that_is_taken_is_named_before_a_server_starts(job: Job) -> None:
    with socket.create_server(("", job.port)):
        assert job.run() == 80
    assert job.record["why"] == f"already in use: {NODE}:{job.port}"
    assert job.given("srun") == []


def test_free_ports_are_found_where_they_are_asked_for(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(state.FREE_PORTS, "1")
    job.once("published", job.stop)
    with socket.create_server(("", job.port)):
        assert job.run() == 0
    assert job.record["steps"][0]["ports"]["http"] not in (0, job.port)


def test_another_process_that_answers_on_the_port_is_not_taken_for_the_server(job: Job) -> None:
    """Loading takes long: somebody may take the port meanwhile."""
    job.document["steps"] = [job.server(argv=["sleep", "60"])]
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def impostor() -> None:
        one.bind(("", job.port))
        one.listen()
        one.settimeout(10)
        while True:
            try:
                connection, _ = one.accept()
            except OSError:
                return
            with connection:
                connection.recv(9999)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            if "step_ready" in job.events:
                return

    job.once("step_started", impostor)
    try:
        assert job.run() == 80
    finally:
        one.close()
    assert job.record["why"].startswith(f"server0: process {os.getpid()} (")
    assert job.record["why"].endswith(f" answers on {NODE}:{job.port} in its place")


def test_nothing_is_published_until_a_look_at_who_listens_has_succeeded(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "foreign_listener", lambda *_: "process 1 (nc)")
    faults = failing_twice(monkeypatch, steps, "foreign_listener")
    assert job.run() == 80
    assert (faults, "published" in job.events) == ([], False)


def test_a_time_that_is_too_short_to_serve_is_told(job: Job) -> None:
    job.document["time"] = {"limit_s": 8, "successor_lead_s": 1, "drain_s": 60}
    assert job.run() == 79
    assert job.record["why"].startswith("too little time to serve: ending alone may take 6")


def test_the_end_of_the_time_is_told_with_the_successors_that_did_not_come(job: Job) -> None:
    # Less is left than the lead time of a successor, and soon than what an orderly end takes.
    job.document["time"] = {"limit_s": 8, "successor_lead_s": 600, "drain_s": 0.3}
    assert job.run() == 79
    assert job.record["why"] == "no successor took over; submitted: 8"
    assert job.record["successors"] == ["8"]
    given = job.given("sbatch")
    assert given[0].endswith(str(job.bundle / "slurm" / "serve.sbatch"))
    assert given[1:3] == ["7", str(job.bundle)]
    assert job.events.index("successor_submitted") < job.events.index("withdrawn")


def test_no_successor_is_submitted_while_there_is_time(job: Job) -> None:
    job.once("published", job.stop)
    job.run()
    assert job.given("sbatch") == []


def test_slurms_signal_before_the_end_asks_for_a_successor(job: Job) -> None:
    job.once("published", lambda: os.kill(os.getpid(), signal.SIGUSR1))
    job.once("successor_submitted", job.stop)
    assert job.run() == 0
    assert job.record["successor"] == "8"


@by_table
def test_a_job_that_slurm_ends_says_why(job: Job, shown: str, exit_code: int, why: str) -> None:
    job.slurm(job=f"{shown}\n")
    job.once("published", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert job.run() == exit_code
    assert job.record["why"] == why


@pytest.mark.parametrize(("restarts", "exit_code"), [("2", 78), ("1", 130)])
def test_a_job_that_slurm_has_put_back_into_the_queue_was_preempted(
    job: Job, monkeypatch: pytest.MonkeyPatch, restarts: str, exit_code: int
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    job.slurm(job=f"JobState=PENDING Restarts={restarts}\n")
    job.once("published", lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert job.run() == exit_code


def test_what_srun_said_of_an_earlier_run_of_the_job_is_no_failure_of_this_one(job: Job) -> None:
    """A job that Slurm has put back into the queue finds the logs that it left."""
    job.path.mkdir(parents=True)
    (job.path / state.RUN).write_text('{"outcome": "preempted"}')
    for name in ("server0.srun", "smoke"):
        said = f"srun: error: {NODE}: task 0: Terminated\nerror: of the earlier run\n"
        (job.path / f"{name}.log").write_text(said)
    job.once("published", job.stop)
    assert job.run() == 0
    assert (job.record["outcome"], job.record["restarts"]) == ("stopped", 1)
    assert state.read_json(job.path / state.SMOKE)["what"] == ""  # type: ignore[index]


def test_a_lost_node_ends_the_job(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    job.once("published", lambda: job.slurm(nodes="node2 down*\n"))
    assert job.run() == 75
    assert job.record["why"] == "node2 is lost"


def test_a_silent_node_ends_no_service_that_answers(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    job.once("published", lambda: job.slurm(nodes="node2 alloc*\n"))

    def answer_after_a_failure() -> None:
        job.answer(completions=500)
        job.slurm(nodes="node2 alloc\n")

    job.once("node_silent", answer_after_a_failure)
    job.once("nodes_answer", job.stop)
    assert (job.run(), job.record["outcome"]) == (0, "stopped")
    told = [row for row in job.rows if row["event"] in ("node_silent", "nodes_answer")]
    assert [row["nodes"] for row in told] == [["node2"], []]  # on change, not at every poll


@pytest.mark.parametrize("has_generation", [True, False])
def test_a_silent_node_is_lost_where_generation_fails_as_often_as_it_may(
    job: Job, monkeypatch: pytest.MonkeyPatch, has_generation: bool
) -> None:
    request: dict[str, Any] = {
        "path": "/v1/completions",
        "body": {},
        "period_s": 0.02,
        "failures": 2,
    }
    if has_generation:
        job.document["health"]["generation"] = request
    monkeypatch.setattr(Spec, "canary_request", CanaryRequest(**request))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    job.once("published", lambda: job.slurm(nodes="node2 alloc*\n"))
    job.once("node_silent", lambda: job.answer(completions=500))
    assert job.run() == 75
    assert job.record["why"] == "node2 is lost; generation: /v1/completions: HTTP 500 {}"


def test_a_node_whose_slurm_daemon_is_away_is_not_lost_to_what_runs_on_it(job: Job) -> None:
    job.slurm(nodes=f"{NODE} down*\n")
    job.once("published", job.stop)
    assert (job.run(), job.record["outcome"]) == (0, "stopped")


@pytest.mark.parametrize("restart", [True, False])
def test_a_job_that_failed_is_replaced_where_its_service_wants_that(
    job: Job, restart: bool
) -> None:
    job.document["limits"]["restart"] = restart
    job.once("published", lambda: job.answer(health="exit 3"))
    assert job.run() == 72
    assert ("successor_submitted" in job.events) is restart
    assert job.record["successors"] == (["8"] if restart else [])
    assert len(job.given("sbatch")) == (3 if restart else 0)


@pytest.mark.parametrize("request_of", ["the service", "the job"])
def test_a_job_that_fails_while_it_is_stopped_is_not_replaced(job: Job, request_of: str) -> None:
    job.document["limits"].update(restart=True, settle_s=20)
    job.document["time"]["drain_s"] = 20
    drain = job.path / state.DRAIN
    job.once("published", job.stop if request_of == "the service" else drain.touch)
    job.once("withdrawn", lambda: job.answer(health="exit 3"))
    assert job.run() == 72
    assert job.given("sbatch") == []


def test_a_service_whose_jobs_fail_in_a_row_is_given_up(job: Job) -> None:
    job.document["limits"].update(restart=True, attempts=2)
    for one in ("3", "5"):
        ended = {"state": "ended", "ended": state.timestamp(), "exit_code": 72}
        row = {**ended, "heartbeat": state.timestamp(), "generation": 1}
        state.write_json(job.folder / "state" / "svc" / "jobs" / one / state.RUN, row)
    job.once("published", lambda: job.answer(health="exit 3"))
    assert job.run() == 72
    [given_up] = [row["why"] for row in job.rows if row["event"] == "gave_up"]
    assert given_up == "3 jobs failed in 600 s: 3, 5, 7"
    assert job.given("sbatch") == []


def test_a_new_job_is_submitted_where_this_one_was(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = job.folder / "submitted-from"
    place.mkdir()
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(place))
    job.command("sbatch", 'pwd >"$FOLDER/sbatch"; echo 8')
    job.document["limits"]["restart"] = True
    job.once("published", lambda: job.answer(health="exit 3"))
    assert job.run() == 72
    assert job.given("sbatch") == [str(place)]


def test_a_job_that_had_handed_over_is_not_replaced(job: Job) -> None:
    job.document["time"]["drain_s"] = job.document["limits"]["settle_s"] = 20
    job.document["limits"]["restart"] = True
    job.once("published", lambda: job.publish_as("8"))
    job.once("handover", lambda: job.answer(health="exit 3"))
    assert job.run() == 72
    assert job.given("sbatch") == []
    assert (job.endpoint or {})["job_id"] == "8"


def test_a_job_that_never_was_admitted_is_not_replaced(job: Job) -> None:
    job.document["limits"]["restart"] = True
    job.document["smoke"]["argv"] = ["sh", "-c", "exec sleep 20"]
    job.once("admitting", lambda: job.answer(health="exit 3"))
    assert job.run() == 72
    assert job.given("sbatch") == []


def test_a_part_of_the_bundle_that_is_missing_is_named(job: Job) -> None:
    job.document["steps"] = [job.server(files={"config.yaml": "missing.yaml"})]
    assert job.run() == 72
    assert job.record["why"] == f"server0: {job.bundle}/missing.yaml is missing"


def test_a_fault_of_the_supervisor_itself_still_ends_in_order(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps.Steps, "start_next", lambda _: os.environ["NOTHING"])
    assert job.run() == 1
    assert job.record["outcome"] == "supervisor_bug"
    assert job.record["why"].startswith("KeyError: ")
    assert "Traceback" in capsys.readouterr().err
    assert job.events[-2:] == ["ending", "ended"]
    assert job.record["state"] == "ended"


# --- Several steps --------------------------------------------------------------------------------


def test_a_step_starts_once_those_before_it_are_ready(job: Job) -> None:
    job.document["steps"] = [job.idle("router", start_after=["server0"]), job.server()]
    job.once("published", job.stop)
    assert job.run() == 0
    told = [(row["event"], row["step"]) for row in job.rows if "step" in row]
    assert told[:4] == [
        *(("step_started", "server0"), ("step_ready", "server0")),
        *(("step_started", "router"), ("step_ready", "router")),
    ]


def test_files_and_variables_of_a_step_hold_what_only_the_job_knows(job: Job) -> None:
    (job.bundle / "router.yaml").write_text("servers: [{server0}:{port:server0:http}]\n{other}\n")
    show = (
        f'cp "$CONFIG" {job.folder}/shown; echo "$SERVICE_STEP" >>{job.folder}/shown; exec sleep 60'
    )
    router = job.idle("router", "sh", "-c", show, start_after=["server0"])
    router["files"] = {"router.yaml": "router.yaml"}
    router["environment"] = {"CONFIG": "{job}/router.yaml"}
    job.document["steps"].append(router)
    shown = job.folder / "shown"
    job.once("published", lambda: until(lambda: "router" in _text(shown)))
    job.once("published", job.stop)
    assert job.run() == 0
    assert shown.read_text() == f"servers: [127.0.0.1:{job.port}]\n{{other}}\n7/router\n"


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_worker_that_is_not_critical_may_end_while_another_lives(job: Job) -> None:
    ends = job.idle("worker0", "sh", "-c", f"while [ ! -e {job.folder}/end ]; do sleep 0.05; done")
    workers = [ends, job.idle("worker1")]
    for worker in workers:
        worker.update(role="worker", critical=False)
    job.document["steps"] = [job.server(), *workers]
    job.once("published", (job.folder / "end").touch)
    job.once("step_ended", job.stop)
    assert job.run() == 0
    [ended] = [row for row in job.rows if row["event"] == "step_ended"]
    assert (ended["step"], ended["exit_code"]) == ("worker0", 0)


def test_the_last_of_its_role_is_needed_even_if_it_is_not_critical(job: Job) -> None:
    ends = job.idle("worker0", "sh", "-c", f"while [ ! -e {job.folder}/end ]; do sleep 0.05; done")
    ends.update(role="worker", critical=False)
    job.document["steps"] = [job.server(), ends]
    job.once("published", (job.folder / "end").touch)
    assert job.run() == 71
    assert job.record["why"] == "worker0: srun ended with exit code 0"


def test_the_end_of_a_router_is_named_as_that(job: Job) -> None:
    router = job.idle("router", "sh", "-c", f"while [ ! -e {job.folder}/end ]; do sleep 0.05; done")
    router["role"] = "router"
    job.document["steps"].append(router)
    job.once("published", (job.folder / "end").touch)
    assert job.run() == 76
    assert job.record["outcome"] == "router_died"


def test_a_silent_worker_that_is_not_critical_is_killed(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "SRUN_REPORT_S", 0.05)
    silent = job.folder / "silent"
    silent.write_text("200 200")
    worker = job.server("worker0", ports={"http": free_port()}, role="worker", critical=False)
    worker["argv"][-1] = str(silent)
    other = {**job.idle("worker1"), "role": "worker", "critical": False}
    job.document["steps"] = [job.server(), worker, other]

    def be_silent() -> None:
        (job.folder / "new").write_text("503 200")
        (job.folder / "new").replace(silent)

    job.once("published", be_silent)
    job.once("step_ended", job.stop)
    assert job.run() == 0
    [lost] = [row for row in job.rows if row["event"] == "step_lost"]
    assert lost["step"] == "worker0"
    assert "misses in a row: /health: HTTP 503" in lost["why"]


def test_ranks_that_srun_reports_are_the_reason(job: Job) -> None:
    job.document["steps"][0]["ntasks"] = 2
    job.document["steps"][0]["ntasks_per_node"] = 2
    report = "srun: error: node1: task 1: Killed\nsrun: error: node1: task 0: Terminated\n"

    def fail() -> None:
        log = job.path / "server0.srun.log"
        with log.open("a") as file:
            file.write(report)

    job.once("published", fail)
    assert job.run() == 70
    assert job.record["outcome"] == "rank_died"
    assert job.record["why"] == "server0: node1: task 1: Killed"


def test_a_node_failure_that_only_srun_reports_is_one(job: Job) -> None:
    report = "srun: error: Node failure on node1\nsrun: error: node1: task 0: Killed\n"

    def fail() -> None:
        with (job.path / "server0.srun.log").open("a") as file:
            file.write(report)

    job.once("published", fail)
    assert job.run() == 75
    assert job.record["why"] == "server0: a node is lost; node1: task 0: Killed"
