"""What `launch slurm` takes from a bundle before anything is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.errors import BadInput, DamagedBundle
from launch.slurm import scheduler, submission
from supervisor import state
from tests.launch.slurm.conftest import TIMES, MakeBundle
from tests.slurm.service import server

ODD: dict[str, dict[str, Any]] = {
    "a name that leaves the state folder": {"name": "../other"},
    "a whole path as its name": {"name": "/etc"},
    "a hidden name": {"name": ".bench"},
    "no name": {"name": ""},
    "a number as its name": {"name": 7},
    "steps as text": {"steps": "server0"},
    "no steps": {"steps": []},
    "steps without times": {"steps": [{"name": "server0"}]},
    "no times": {"time": {}},
    "times as a list": {"time": []},
    "a time in words": {"time": {"limit_s": "long", "drain_s": 1}},
    "a time below 0": {"time": {**TIMES, "limit_s": -1}},
    "a time without end": {"time": {**TIMES, "limit_s": 1e400}},
    "a limit that ends a job before it serves": {"time": {**TIMES, "drain_s": 300}},
    "another format": {"format": 9},
    "a number as its state folder": {"state_folder": 7},
    "a state folder with a zero byte": {"state_folder": "/a\0b"},
    "a list as its server": {"server": ["triton"]},
    "a front that is no step": {"front": "server7"},
    "two steps of one name": {"steps": [server(), server()]},
    "a step that leaves the job's folder": {"steps": [server("../server0")]},
    "a step that writes elsewhere": {"steps": [server(files={"../x": "manifest.json"})]},
    "a step of text": {"steps": [server(argv="id")]},
    "a step of nothing": {"steps": [server(argv=[])]},
    "a step on no nodes": {"steps": [server(nodes=0)]},
    "a step on less than no nodes": {"steps": [server(nodes=-1)]},
    "a step on a port that is none": {"steps": [server(ports={"http": 99999})]},
    "a key that nothing reads": {"steps": [server(colour="red")]},
    "a step after one that is none": {"steps": [server(start_after=["router"])]},
    "a step after itself": {"steps": [server(start_after=["server0"])]},
    "a front without HTTP": {"steps": [server(ports={"grpc": 8001})]},
    "a probe of a port that is none": {"steps": [server(ready={"port": "web", "path": "/"})]},
    "a port of nobody": {"steps": [server(argv=["serve", "{port:web}"])]},
    "a port of another that is none": {"steps": [server(environment={"A": "{port:gpu:http}"})]},
    "a host of nobody": {"steps": [server(argv=["serve", "{host:router}"])]},
    "a key twice": {"time": {**TIMES, "attempts": 3}, "limits": {"attempts": 2}},
    "a number as its tests": {"smoke": 7},
    "tests of nothing": {"smoke": {"argv": [], "timeout_s": 5}},
    "tests as text": {"smoke": {"argv": "smoke", "timeout_s": 5}},
    "tests without a time": {"smoke": {"argv": ["smoke"]}},
    "a list as its digests": {"bundle_digest_file": ["manifest.json"]},
    "a probe without a pause": {"health": {"period_s": 0}},
    "a probe that fails at once": {"health": {"failures": 0}},
    "a format that is no number": {"format": True},
    "a name longer than that of a file": {"name": "a" * 300},
    "a probe in words": {"health": {"period_s": "often"}},
}


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
def test_an_odd_description_of_a_service_is_refused(
    make_bundle: MakeBundle, tmp_path: Path, changes: dict[str, Any]
) -> None:
    bundle = make_bundle("bundle", **changes)
    with pytest.raises(BadInput, match=r"service\.json: is not the description of a service"):
        submission.read_bundle(bundle.folder, tmp_path / "state")


@pytest.mark.parametrize(
    ("option", "is_fit"),
    [
        *(("--array=0-3", False), ("-a0-3", False), ("--arr=1", False), ("--wait", False)),
        *(("-W", False), ("--test-only", False), ("--wrap=true", False), ("-h", False)),
        *(("--account=a", True), ("-A a", True), ("--wait-all-nodes=1", True), ("--hold", True)),
        *(("-kW", False), ("-HW", False), ("-Ha0-3", False), ("--ar=0-3", False), ("-Qh", False)),
        *(("-kA a", True), ("-HAaW", True), ("-pW", True), ("--requeue", True), ("-sn4", True)),
        *(("-w node1", True), ("--export=ALL,A=B", True), ("--wckey=a", True)),
    ],
)
def test_options_that_start_another_kind_of_job_are_refused(
    make_bundle: MakeBundle, tmp_path: Path, option: str, is_fit: bool
) -> None:
    folder = make_bundle("bundle").folder
    if is_fit:
        assert submission.read_bundle(folder, tmp_path / "state", [option]).options == (option,)
        return
    with pytest.raises(BadInput, match="is not for the jobs of a bundle"):
        submission.read_bundle(folder, tmp_path / "state", [option])


def test_a_checkpoint_that_is_no_folder_is_refused_and_a_relative_one_is_named_whole(
    make_bundle: MakeBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job starts long after it was submitted, and in a folder of its own."""
    folder = make_bundle("bundle").folder
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    monkeypatch.setenv("CHECKPOINT", "weights")
    found = submission.read_bundle(folder, tmp_path / "state")
    assert found.environment["CHECKPOINT"] == str(tmp_path / "weights")
    monkeypatch.setenv("CHECKPOINT", "./wieghts")
    with pytest.raises(BadInput, match=r"CHECKPOINT: ./wieghts: .* did you mean \S+/weights\?"):
        submission.read_bundle(folder, tmp_path / "state")


@pytest.fixture
def order(make_bundle: MakeBundle, tmp_path: Path) -> submission.Submission:
    return submission.read_bundle(make_bundle("bundle").folder, tmp_path / "state")


def test_jobs_run_a_private_copy(order: submission.Submission) -> None:
    copied = order.with_private_copy(())
    assert copied.bundle.folder == order.service.path / "bundles" / order.bundle.digest[:16]
    assert copied.environment["BUNDLE"] == str(copied.bundle.folder)
    assert copied.environment[state.BUNDLE_DIGEST] == order.bundle.digest
    assert copied.script("serve.sbatch").is_relative_to(copied.bundle.folder)
    (order.source / "slurm" / "service.json").write_text("{}")
    assert copied.with_private_copy(()) is copied


def test_a_bundle_that_changes_after_it_was_read_is_not_submitted(
    order: submission.Submission,
) -> None:
    (order.source / "slurm" / "serve.sbatch").write_text("#!/bin/sh\nid\n")
    with pytest.raises(DamagedBundle, match=r"slurm/serve\.sbatch"):
        order.with_private_copy(())


def test_a_state_folder_that_takes_no_files_is_named(
    order: submission.Submission, tmp_path: Path
) -> None:
    (tmp_path / "state").rmdir()
    (tmp_path / "state").touch()
    with pytest.raises(BadInput, match="name another state folder with --state"):
        order.with_private_copy(())


@pytest.mark.parametrize(
    ("name", "is_handed_over"),
    [
        *((name, True) for name in ("PATH", "HOME", "LANG", "LC_ALL", "MODULEPATH")),
        *((name, True) for name in ("NCCL_DEBUG", "UCX_TLS", "SERVE_KEY_FILE", "SLURM_CONF")),
        *((name, False) for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "NVIDIA_API_KEY")),
        *((name, False) for name in ("EDITOR", "SSH_AUTH_SOCK", "LD_PRELOAD", "BASH_ENV")),
        *((name, False) for name in ("SLURM_JOB_ID", "SBATCH_PARTITION", state.PREDECESSOR)),
        *((name, False) for name in ("SLURM_CLUSTERS", "SLURM_EXIT_ERROR", "SCONTROL_ALL")),
    ],
)
def test_a_job_gets_what_servers_need_of_the_environment_and_no_more(
    order: submission.Submission, monkeypatch: pytest.MonkeyPatch, name: str, is_handed_over: bool
) -> None:
    monkeypatch.setenv(name, "theirs")
    assert (order.environment.get(name) == "theirs") is is_handed_over


def test_options_of_this_environment_that_no_job_gets_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SBATCH_PARTITION", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "other")
    assert {"SBATCH_PARTITION", "SLURM_CLUSTERS"} <= set(scheduler.ignored_options())
    assert "SLURM_CLUSTERS" not in scheduler.environment()


def test_an_operators_variable_reaches_the_job(order: submission.Submission) -> None:
    given = order.with_variables({"EDITOR": "ed"})
    assert given.environment["EDITOR"] == "ed"
