"""A new bundle takes over a service under load, or the old one stays as it is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.launch.slurm.conftest import TIMES, MakeBundle, Slurm
from tests.slurm.service import FOLLOW_S, Clients, wait_until

# Clients may ask an old endpoint for a while.
SETTLED = {**TIMES, "settle_s": 2 * FOLLOW_S}


def test_a_new_bundle_takes_over_without_a_failed_request(
    slurm: Slurm, make_bundle: MakeBundle
) -> None:
    old, new = make_bundle("old", time=SETTLED), make_bundle("new", "--answer-s", "0.01")
    slurm("submit", old.folder, "--wait")
    before = slurm.endpoint()
    with Clients(slurm.endpoint) as clients:
        clients.wait_for(100)
        slurm("replace", "svc", new.folder, "--stand-by", "1")
        clients.wait_for(100)
    after = slurm.endpoint()
    assert after["bundle_digest"] == new.digest != before["bundle_digest"]
    assert after["generation"] == before["generation"] + 1
    assert clients.failures == [] and len(clients.answers) >= 200
    assert set(clients.answers) == {before["job_id"], after["job_id"]}
    run = json.loads((slurm.state / "svc" / "jobs" / before["job_id"] / "run.json").read_text())
    assert (run["outcome"], run["exit_code"]) == ("handed_over", 0)
    assert not (slurm.state / "svc" / "successor.lock").exists()


@pytest.mark.parametrize(
    ("options", "timeout_s", "reason"),
    [
        (["--fail"], "60", "ended as server_failed: server0: "),
        (["--start-s", "60"], "3", "is not admitted after 3 s"),
    ],
)
def test_a_broken_bundle_leaves_the_old_one_serving(
    slurm: Slurm, make_bundle: MakeBundle, options: list[str], timeout_s: str, reason: str
) -> None:
    old, new = make_bundle("old"), make_bundle("new", *options)
    slurm("submit", old.folder, "--wait")
    before = slurm.endpoint()
    with Clients(slurm.endpoint) as clients:
        clients.wait_for(100)
        done = slurm("replace", "svc", new.folder, "--timeout", timeout_s, code=6)
        clients.wait_for(100)
    assert reason in done.stderr
    assert f"is not replaced; job {before['job_id']} still serves" in done.stderr
    assert slurm.endpoint() == before
    assert clients.failures == [] and set(clients.answers) == {before["job_id"]}
    (row,) = slurm.status()
    assert (row["state"], row["successor"]) == ("serving", None)
    assert not (slurm.state / "svc" / "successor.lock").exists()


def test_only_one_replacement_at_a_time(slurm: Slurm, make_bundle: MakeBundle) -> None:
    old, slow = make_bundle("old"), make_bundle("slow", "--start-s", "60")
    slurm("submit", old.folder, "--wait")
    command = [sys.executable, "-m", "launch", "slurm", "replace", "svc", str(slow.folder)]
    environment = {**slurm.cluster.environment, **slurm.variables}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as first:
        wait_until((slurm.state / "svc" / "successor.lock").exists)
        second = slurm("replace", "svc", slow.folder, code=5)
        assert "service svc: has a successor under way" in second.stderr
        first.terminate()
        assert first.wait(20) == 128 + 15
    (row,) = slurm.status()
    assert row["state"] == "serving"
    wait_until(lambda: slurm.status()[0]["successor"] is None)


def test_a_bundle_of_another_service_replaces_nothing(
    slurm: Slurm, make_bundle: MakeBundle
) -> None:
    old, other = make_bundle("old"), make_bundle("other", name="other")
    slurm("submit", old.folder, "--wait")
    done = slurm("replace", "svc", other.folder, code=2)
    assert "is of the service other, not of svc" in done.stderr
    assert "--set name=svc" in done.stderr


def test_a_service_that_nobody_reaches_is_not_replaced(
    slurm: Slurm, make_bundle: MakeBundle
) -> None:
    bundle = make_bundle("bundle", "--start-s", "60")
    slurm("submit", bundle.folder)
    done = slurm("replace", "svc", bundle.folder, code=5)
    assert "has no live endpoint; start the new bundle with" in done.stderr
