"""`tune` on real processes: failed starts, kills, interruptions, and what it leaves behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from builder import pipeline
from builder.estimates import own_runs
from launch.cli.main import main
from tests.launch.conftest import Launch, marked_processes
from tests.launch.tune.conftest import Planted

pytestmark = pytest.mark.usefixtures("nothing_left")

FASTEST = {"tensor_parallel_size=4": {"tpot_ms": 30}, "tensor_parallel_size=2": {"tpot_ms": 3}}


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("memory_at_load", "memory_at_load", "The weights do not fit"),
        ("memory_at_graphs", "memory_at_graphs", "graph"),
        ("refused_option", "refused_option", "does not accept"),
        ("timeout", "timeout", "not ready after"),
        ("died_under_load", "died_under_load", "failed"),
        ("wrong_answer", "wrong_answer", "P7"),
        ("unknown", "unknown", "something went wrong"),
    ],
)
def test_a_failed_start_is_an_observation_of_a_kind(
    planted: Planted, capsys: pytest.CaptureFixture[str], fault: str, kind: str, words: str
) -> None:
    planted.plant({"tensor_parallel_size=4": {"fail": fault}})
    limit = "1" if fault == "timeout" else "60"
    assert main(planted.arguments("--starts", "1", "--timeout", limit)) == 5
    [ended] = planted.lines("ended")
    assert ended["kind"] == kind, ended
    assert words in ended["cause"]
    assert ended["option"] == ("tensor_parallel_size" if fault == "refused_option" else "")
    assert "no server could be measured" in capsys.readouterr().err


def measured(planted: Planted) -> int:
    """How many loads were measured to their end."""
    files = planted.output.glob("*/load-*/bench.json")
    return sum('"outcome": "complete"' in file.read_text() for file in files)


def kill_once(launch: Launch, planted: Planted, is_so: Callable[[], Any]) -> None:
    launcher = launch(*planted.arguments(), **planted.environment)
    wait_for(lambda: is_so() or launcher.process.poll() is not None)
    assert launcher.process.poll() is None, launcher.errors.read_text()
    launcher.process.kill()
    launcher.process.wait()


def test_a_tuner_that_is_killed_at_every_step_repeats_no_start(
    planted: Planted, launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    planted.plant(FASTEST)
    started, ended = (partial(planted.lines, event) for event in ("started", "ended"))
    kill_once(launch, planted, planted.lines)
    kill_once(launch, planted, started)
    kill_once(launch, planted, lambda: measured(planted))
    kill_once(launch, planted, lambda: len([row for row in ended() if row["loads"]]) == 2)
    kill_once(launch, planted, lambda: started()[-1]["role"] == "winner" and measured(planted) > 3)
    kill_once(launch, planted, lambda: started()[-1]["role"] == "untuned")
    assert main(planted.arguments()) == 0
    assert [row["kind"] for row in ended()].count("cut") >= 2
    done = [(row["role"], row["candidate"]) for row in ended() if row["kind"] != "cut"]
    searched = [candidate for role, candidate in done if role == "search"]
    assert len(searched) == len(set(searched))
    assert {("winner", "tp2"), ("untuned", "tp4")} <= set(done)

    check_results(planted)
    before = planted.lines()
    capsys.readouterr()
    assert main(planted.arguments()) == 0
    assert planted.lines() == before
    printed = capsys.readouterr().out
    assert "TP2 is better than TP4, the untuned plan" in " ".join(printed.split())
    assert max(map(len, printed.splitlines()[:-3])) <= 80

    assert main(planted.arguments("--set", "workload.osl=9")) == 2
    assert "workload: was {'isl': 64, 'osl': 8, 'concurrency': 4}, now" in capsys.readouterr().err


def check_results(planted: Planted) -> None:
    """The tuned deployment can be planned, its rows are read, and the page names every start."""
    tuned = pipeline.plan(str(planted.output / "tuned.yaml")).plan
    graded = {row.path: row for row in tuned.decisions}
    assert graded["tensor_parallel_size"].value == 2
    assert graded["tensor_parallel_size"].evidence == "measured"
    assert tuned.deployment.instances == 2
    rows = own_runs.read(planted.output / "rows")
    assert {(row.tp, row.concurrency) for row in rows} >= {(2, 2), (4, 4)}
    page = (planted.output / "tune.html").read_text()
    assert page.count('<th scope="row">') == len(planted.lines("ended"))


def wait_for(is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_interruption_leaves_no_server_and_the_same_command_goes_on(
    planted: Planted, launch: Launch
) -> None:
    planted.plant({**FASTEST, "tensor_parallel_size=2": {"fail": "unknown"}})
    launcher = launch(*planted.arguments("--starts", "1"), **planted.environment)
    wait_for(lambda: planted.lines("started") and marked_processes())
    launcher.signal(signal.SIGINT)
    assert launcher.end() == 130
    assert not marked_processes()
    errors = launcher.errors.read_text()
    assert "the same command goes on from here" in errors
    assert "Traceback" not in errors
    assert main(planted.arguments("--starts", "1")) == 0
    assert [row["candidate"] for row in planted.lines("ended")][-1] == "tp4"


def test_a_dry_run_prints_candidates_and_cost_and_starts_nothing(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(planted.arguments("--dry-run")) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[1:4]] == ["1.", "2.", "3."]
    assert "GPU hours (at most 9)" in printed
    assert not planted.output.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gpu-hours", "0.1"), "0.1 allows no start"),
        (("--set", "slo.itl_ms=0.01"), "slo.itl_ms: 0.01 ms is impossible"),
    ],
)
def test_what_no_start_can_reach_is_refused(
    planted: Planted, capsys: pytest.CaptureFixture[str], words: tuple[str, str], says: str
) -> None:
    assert main(planted.arguments(*words)) == 2
    assert says in capsys.readouterr().err
    assert not planted.output.exists()


def test_an_allocation_of_several_nodes_is_refused(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    assert main(planted.arguments()) == 2
    assert "salloc --nodes=1" in capsys.readouterr().err
    assert planted.lines() == []
