"""Slurm's commands as the supervisor reads them, by programs that print what real ones print."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from supervisor import allocation as allocations
from supervisor import slurm
from supervisor.allocation import Allocation
from supervisor.spec import JobExit
from tests.supervisor.conftest import NOTHING, Commands
from tests.tables import by_table


@by_table
def test_a_node_that_is_down_or_silent_is_lost(
    commands: Commands, shown: str, lost: list[str]
) -> None:
    assert commands(sinfo=f"echo {shown}").lost_nodes(["node1", "node2"]) == lost


@pytest.mark.parametrize(
    ("squeue", "state"),
    [
        ("echo RUNNING 8", "RUNNING"),
        ("echo PENDING 8", "PENDING"),
        ("echo COMPLETING 8", "COMPLETING"),
        ("echo NODE_FAIL 8", "NODE_FAIL"),
        ("echo slurm_load_jobs error: Invalid job id specified >&2; exit 1", ""),
        ("echo Unable to contact slurm controller >&2; exit 1", None),
        ("exec sleep 60", None),
        (r"printf 'RUNNING 8\n'; printf 'gr\374n\n' >&2", "RUNNING"),  # Latin-1
        ("echo '*** Maintenance ***'; echo RUNNING 8", "RUNNING"),
        ("echo '*** Maintenance ***'; echo COMPLETED 8", "COMPLETED"),
        ("echo '*** Maintenance ***'", None),
        ("echo MAINTENANCE; echo FAILED 8", "FAILED"),
        ("echo MAINTENANCE", None),
        ("echo RUNNING 9; echo FAILED 8", "FAILED"),  # tasks of an array
        ("echo FAILED 9; echo RUNNING 8", "RUNNING"),
        ("echo FAILED 8; echo RUNNING 8", "RUNNING"),
        ("echo A_STATE_OF_A_NEWER_SLURM 8", None),
        *((answer.replace("${3#--jobs=}", "8"), None) for answer in NOTHING),
    ],
)
def test_a_job_has_the_state_that_slurm_shows(
    commands: Commands, squeue: str, state: str | None
) -> None:
    cluster = commands(squeue=squeue)
    cluster.timeout_s = 1.0
    assert cluster.job_state("8") == state


def test_the_states_of_a_job_are_told_apart() -> None:
    assert {"PENDING", "RUNNING", "SUSPENDED", "REQUEUED", "RESIZING"} <= slurm.ALIVE
    assert {"COMPLETED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"} <= slurm.ENDED
    assert not slurm.ALIVE & slurm.ENDED
    assert {"COMPLETING", *slurm.ALIVE, *slurm.ENDED} == slurm.STATES


# scontrol writes times as it is told, else in the zone of the node.
END = """
case $SLURM_TIME_FORMAT in
  %s) end=1700000000 ;;
  relative) end=22:13:20 ;;
  *) end=2023-11-14T22:13:20 ;;
esac
echo "JobId=7 JobName=svc JobState=RUNNING EndTime=$end WorkDir=/a EndTime=5"
"""


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_the_end_of_a_job_is_the_same_in_every_zone(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    time.tzset()
    try:
        assert commands(scontrol=END).times() == (None, 1_700_000_000)
    finally:
        monkeypatch.undo()
        time.tzset()


@by_table
def test_an_end_that_slurm_does_not_say_is_unknown(commands: Commands, shown: str) -> None:
    assert commands(scontrol=f"echo JobId=7 {shown}").times() == (None, None)


@by_table
def test_why_slurm_ends_the_job(commands: Commands, info: str, outcome: str | None) -> None:
    found = Allocation(commands(scontrol=f"echo {info}"), 3600).exit_by_slurm()
    assert (found.outcome if found else None) == outcome
    if outcome == "preempted" and found and "1700000000" in info:
        assert found.why == "by Slurm at 2023-11-14T22:13:20.000Z"


@by_table
def test_a_job_whose_node_is_down_ends(
    commands: Commands, node: str, is_lost: bool, silent: list[str]
) -> None:
    allocation = Allocation(commands(sinfo=f"echo node2 {node}", scontrol="true"), 3600)
    with pytest.raises(JobExit, match="node_lost: node2 is lost") if is_lost else nullcontext():
        poll(allocation)
    assert allocation.silent_nodes == silent


def poll(allocation: Allocation) -> None:
    """All that a poll reads: the controller's clock, the job's times, its nodes."""
    for _ in range(3):
        allocation.poll()


@pytest.mark.parametrize(
    "sbatch",
    ["exit 1", "echo Submitted batch job 9", "true", "exec sleep 60", "kill -9 $$"],
    ids=["refused", "odd", "silent", "hangs", "killed"],
)
def test_a_submission_without_a_job_is_an_error(commands: Commands, sbatch: str) -> None:
    cluster = commands(sbatch=sbatch)
    cluster.timeout_s = 1.0
    with pytest.raises(OSError, match="sbatch"):
        cluster.submit(Path("serve.sbatch"), [], {})


def test_a_submission_gets_no_options_of_the_shell(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SBATCH_PARTITION", "SLURM_TIME_FORMAT", "SLURM_NTASKS"):
        monkeypatch.setenv(name, "5")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    cluster = commands(sbatch=f"env >{tmp_path}/seen; echo '9;other'")
    assert cluster.submit(Path("serve.sbatch"), [], {"BUNDLE": "/b"}) == "9"
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    assert (seen["BUNDLE"], seen["SLURM_CONF"]) == ("/b", "/etc/slurm.conf")
    assert not {"SBATCH_PARTITION", "SLURM_TIME_FORMAT", "SLURM_NTASKS", "SLURM_JOB_ID"} & set(seen)


# What people set for their own lists and commands; a job that was submitted by hand has it all.
OF_A_SHELL = (
    *("SLURM_CLUSTERS", "SLURM_EXIT_ERROR", "SLURM_BITSTR_LEN", "SCONTROL_ALL"),
    *("SQUEUE_STATES", "SINFO_FORMAT", "SBATCH_CLUSTERS", "SCANCEL_STATE"),
)


@pytest.mark.parametrize("name", OF_A_SHELL)
def test_no_command_and_no_step_asks_what_the_shell_would(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "other")
    cluster = commands(squeue=f"env >{tmp_path}/seen")
    cluster.command("squeue")
    assert f"{name}=" not in (tmp_path / "seen").read_text()
    assert name not in cluster.environment()


OWN = "/bundle/slurm/serve.sbatch"


@by_table
def test_a_job_of_the_same_script_that_was_submitted_after_this_one_is_found(
    commands: Commands, listed: list[str], newer: str | None
) -> None:
    rows = " ".join(f"'{row}'" for row in [f"7 {OWN}", *listed])
    assert commands(squeue=f"printf '%s\\n' {rows}").newer_job(Path(OWN)) == newer


@pytest.mark.parametrize("squeue", ["true", "echo JOBID COMMAND", f"echo 8 {OWN}", "exit 1"])
def test_a_queue_without_this_job_is_not_the_whole_queue(commands: Commands, squeue: str) -> None:
    """Whether a submission that seemed to fail went through, it cannot tell."""
    with pytest.raises(OSError, match="squeue: does not list this job"):
        commands(squeue=squeue).newer_job(Path(OWN))


def test_a_command_that_is_away_answers_nothing(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = commands()
    monkeypatch.setenv("PATH", "/nowhere")
    assert cluster.command("squeue").returncode == 127
    assert (cluster.job_state("8"), cluster.lost_nodes(["n"])) == (None, [])
    assert cluster.times() == (None, None)


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
def test_what_is_put_in_the_place_of_a_log_holds_nobody_up(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    """Each of them would be read for ever."""
    (tmp_path / "log").write_text("srun: error: of an earlier run\n")
    output = slurm.Output(tmp_path / "log")
    with output.path.open("a") as log:
        log.write("of this one\n")
    assert output.read() == "of this one\n"
    output.path.unlink()
    make(output.path)
    found: list[int] = []

    def read() -> None:
        try:
            found.append(len(output.read()))
        except OSError:
            found.append(0)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    assert found[0] <= slurm.OUTPUT_BYTES


def test_an_address_that_slurm_does_not_tell_is_asked_for_again(commands: Commands) -> None:
    cluster = commands(scontrol="echo Unable to contact slurm controller >&2; exit 1")
    for _ in range(2):
        with pytest.raises(OSError, match="scontrol show node: Unable to contact"):
            cluster.address("no-such-node.invalid")


@pytest.mark.parametrize(
    "shown", ["", "NodeName=gpu1 MyNodeAddr=10.0.0.7", "NodeName=gpu10 Arch=x86_64 NodeAddr=n"]
)
def test_an_answer_without_the_nodes_address_is_none(commands: Commands, shown: str) -> None:
    with pytest.raises(OSError, match="scontrol show node: no NodeAddr"):
        commands(scontrol=f"echo {shown}").address("gpu1")


def test_a_node_whose_name_means_nothing_here_is_reached_by_its_address(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = [f"NodeName=gpu{one} Arch=x86_64 NodeAddr=10.0.0.{one} Port=1" for one in (10, 1)]
    shown = "\n".join(rows)

    def unknown(host: str, port: None) -> None:
        assert (host, port) == ("gpu1", None)
        raise socket.gaierror(-2, "Name or service not known")

    cluster = commands(scontrol=f'echo "$*" >>{tmp_path}/asked; echo "{shown}"')
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert [cluster.address("gpu1") for _ in range(2)] == ["10.0.0.1"] * 2
    assert (tmp_path / "asked").read_text().splitlines() == ["show node -o gpu1"]


def test_a_node_whose_name_is_known_is_reached_by_it(commands: Commands, tmp_path: Path) -> None:
    cluster = commands(scontrol=f"echo NodeAddr=10.0.0.7; echo >{tmp_path}/asked")
    assert cluster.address("localhost") == "localhost"
    assert not (tmp_path / "asked").exists()


def test_a_job_has_the_nodes_of_all_its_parts(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands()
    monkeypatch.setenv("SLURM_HET_SIZE", "2")
    for part, job in enumerate(("7", "8")):
        monkeypatch.setenv(f"SLURM_JOB_ID_HET_GROUP_{part}", job)
        monkeypatch.setenv(f"SLURM_JOB_NODELIST_HET_GROUP_{part}", "node[1-2]")
    cluster = slurm.Cluster()
    assert cluster.job_ids == ["7", "8"]
    assert cluster.groups == [["node1", "node2"]] * 2
    assert cluster.nodes == ["node1", "node2"] * 2


@by_table
def test_the_nodes_of_a_job_are_those_of_slurms_list(listed: str, names: list[str]) -> None:
    assert slurm.node_names(listed) == names


@pytest.mark.parametrize(
    ("printed", "job"),
    [
        *(("8", "8"), ("8;cluster2", "8"), ("*** Maintenance ***\n8\n", "8")),
        *(("", None), ("Submitted batch job 8", None), ("-1", None), ("\u0667", None)),
    ],
)
def test_a_submitted_job_is_the_number_alone_in_a_line(printed: str, job: str | None) -> None:
    assert slurm.submitted_job(printed) == job


def test_why_a_command_gave_nothing_is_its_error(commands: Commands) -> None:
    cluster = commands(squeue="exec sleep 60")
    cluster.timeout_s = 0.2
    late = cluster.command("squeue")
    assert (late.returncode, late.stdout, late.stderr) == (124, "", "no answer in 0 s")
    missing = cluster.command("no-such-command")
    assert (missing.returncode, missing.stdout) == (127, "")
    assert missing.stderr == "no-such-command: No such file or directory"


def test_a_job_is_shown_by_the_first_value_of_each_key(commands: Commands) -> None:
    """Paths and comments at its end may hold anything."""
    line = "JobId=7 JobState=RUNNING Comment=a=b JobState=FAILED word\nJobId=8 JobState=PENDING"
    info = commands(scontrol=f"printf '{line}'").job_info("7")
    assert info == {"JobId": "7", "JobState": "RUNNING", "Comment": "a=b"}


def test_a_task_of_an_array_is_told_from_the_others(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of the last one, Slurm's commands show them all."""
    for name, value in (("JOB", "7"), ("TASK", "1")):
        monkeypatch.setenv(f"SLURM_ARRAY_{name}_ID", value)
    steps = "echo '7_0.0|server0'; echo '7_1.0|server0'; echo '7_10.0|server0'"
    shown = "echo JobId=6 JobState=FAILED; echo JobId=7 JobState=RUNNING"
    cluster = commands(squeue=steps, scontrol=shown)
    assert cluster.step_ids() == {"server0": "7_1.0"}
    assert cluster.job_info("7")["JobState"] == "RUNNING"


IGNORED = (
    *(signal.SIGHUP, signal.SIGUSR2, signal.SIGXCPU, signal.SIGALRM, signal.SIGVTALRM),
    *(signal.SIGPROF, signal.SIGIO, signal.SIGPWR, signal.SIGSTKFLT, signal.SIGRTMIN),
)


@pytest.mark.parametrize(
    ("number", "near_end", "terminating"),
    [
        (signal.SIGUSR1, True, False),
        *((number, False, True) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)),
        *((number, False, False) for number in IGNORED),
    ],
)
def test_slurms_signals_are_told_apart(
    commands: Commands, number: signal.Signals, near_end: bool, terminating: bool
) -> None:
    allocation = Allocation(commands(scontrol="echo JobState=RUNNING", sinfo="true"), 3600)
    allocation.handle_signal()
    signal.raise_signal(number)
    assert (allocation.is_near_end, allocation.is_terminating) == (near_end, terminating)
    if terminating:
        with pytest.raises(JobExit, match="cancelled: Slurm shows it as RUNNING"):
            allocation.handle_signal()
        assert allocation.cluster.timeout_s == allocations.TERMINATING_TIMEOUT_S


def test_the_time_limit_is_looked_at_now_and_then(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, end = time.monotonic(), int(time.time()) + 600
    monkeypatch.setattr(time, "monotonic", lambda: now)
    times = f"StartTime={end - 600} EndTime={end}"
    clock = f"echo Configuration data as of $(cat {tmp_path}/now); echo x >>{tmp_path}/asked"
    allocation = Allocation(commands(scontrol=CLOCK.format(clock, times), sinfo="true"), 3600)
    for seconds, asked in (
        (0, 1),
        (allocations.JOB_PERIOD_S - 1, 1),
        (allocations.JOB_PERIOD_S + 1, 2),
    ):
        monkeypatch.setattr(time, "monotonic", lambda later=seconds: now + later)
        (tmp_path / "now").write_text(f"{end - 600 + seconds:.0f}")
        poll(allocation)
        assert len((tmp_path / "asked").read_text().split()) == asked
    assert allocation.until == end
    assert allocation.left_s == pytest.approx(600 - allocations.JOB_PERIOD_S - 1)


CLOCK = 'if [ "$2" = config ]; then {}; else echo "JobState=RUNNING {}"; fi'
JOB_LIMIT_S = 8 * 3600


@pytest.mark.parametrize("prolog_s", [0, 300, 1200, 2400])
@pytest.mark.parametrize(
    ("ahead_s", "set_later_s"),
    [(0, 0), (0, 7200), (0, -7200), (7200, -7200), (-7200, 7200), (90, 0), (-600, 0), (1200, 0)],
)
def test_what_is_left_of_a_job_is_the_controllers_time_whatever_this_nodes_clock(
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    ahead_s: float,
    set_later_s: float,
    prolog_s: int,
) -> None:
    now, steady = int(time.time()), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: now + ahead_s)
    monkeypatch.setattr(time, "monotonic", lambda: steady)
    start = now - prolog_s
    times = f"StartTime={start} EndTime={start + JOB_LIMIT_S}"
    clock = f"echo Configuration data as of {now + 600}"
    allocation = Allocation(
        commands(scontrol=CLOCK.format(clock, times), sinfo="true"), JOB_LIMIT_S
    )
    monkeypatch.setattr(time, "time", lambda: now + ahead_s + set_later_s + 600)
    monkeypatch.setattr(time, "monotonic", lambda: steady + 600)
    poll(allocation)
    assert allocation.left_s == pytest.approx(JOB_LIMIT_S - prolog_s - 600)
    assert allocation.until == start + JOB_LIMIT_S


@pytest.mark.parametrize(
    ("ahead_s", "prolog_s", "left_s"),
    [
        (0, 0, JOB_LIMIT_S),
        (0, 2400, JOB_LIMIT_S - 2400),
        (1200, 300, JOB_LIMIT_S - 1500),  # early
        (-3600, 300, JOB_LIMIT_S),
        (JOB_LIMIT_S, 0, JOB_LIMIT_S),  # and not at once
    ],
)
def test_without_the_controllers_time_a_job_ends_early_rather_than_late(
    commands: Commands,
    monkeypatch: pytest.MonkeyPatch,
    ahead_s: float,
    prolog_s: int,
    left_s: float,
) -> None:
    now, steady = int(time.time()), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: now + ahead_s)
    monkeypatch.setattr(time, "monotonic", lambda: steady)
    times = f"StartTime={now - prolog_s} EndTime={now - prolog_s + JOB_LIMIT_S}"
    allocation = Allocation(commands(scontrol=CLOCK.format("exit 1", times), sinfo="true"), 1e6)
    poll(allocation)
    assert allocation.left_s == pytest.approx(left_s)


@by_table
def test_a_time_that_cannot_be_moves_no_end(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, clock: str, times: str
) -> None:
    now, steady = int(time.time()), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(time, "monotonic", lambda: steady)
    known = {"now": now, "start": now - 60, "end": now - 60 + JOB_LIMIT_S}
    script = CLOCK.format(f"echo Configuration data as of {clock}", times).format(**known)
    allocation = Allocation(commands(scontrol=script, sinfo="true"), JOB_LIMIT_S)
    poll(allocation)
    assert allocation.left_s == pytest.approx(JOB_LIMIT_S, abs=61)


def test_the_steps_of_other_jobs_are_none_of_this_one(commands: Commands) -> None:
    """A scheduler may list more than it was asked for; a step is signalled by its id."""
    listed = ["6.0|server0", "77.0|server0", "7.0|server0", "7.1|serv", "7+1.2|server1", "7.x|a"]
    cluster = commands(squeue="printf '%s\\n' " + " ".join(f"'{row}'" for row in listed))
    assert cluster.step_ids() == {"server0": "7.0", "serv": "7.1", "server1": "7+1.2"}


def test_a_heartbeat_is_written_before_each_command(commands: Commands) -> None:
    """So that a lease outlives several slow answers in a row."""
    cluster, beats = commands(squeue="true"), list[str]()
    cluster.before_command = lambda: beats.append("beat")
    cluster.job_state("8")
    cluster.step_ids()
    assert len(beats) == 2


def test_the_controllers_time_is_kept_while_it_does_not_answer(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now, steady = int(time.time()), time.monotonic()
    clock = f"[ -e {tmp_path}/away ] || echo Configuration data as of {now + 40}"
    monkeypatch.setattr(time, "monotonic", lambda: steady)
    script = CLOCK.format(clock, f"StartTime={now} EndTime={now + 600}")
    allocation = Allocation(commands(scontrol=script, sinfo="true"), 600)
    poll(allocation)
    (tmp_path / "away").touch()
    monkeypatch.setattr(time, "monotonic", lambda: steady + allocations.JOB_PERIOD_S)
    poll(allocation)
    assert allocation.left_s == pytest.approx(560 - allocations.JOB_PERIOD_S)


def test_a_poll_runs_one_command_at_a_time(commands: Commands, tmp_path: Path) -> None:
    """Between two of them a heartbeat is written, and a signal is handled."""
    note = f"echo x >>{tmp_path}/asked"
    allocation = Allocation(commands(scontrol=note, sinfo=f"{note}; echo node2 alloc*"), 3600)
    (tmp_path / "asked").unlink(missing_ok=True)
    for asked in (1, 2, 3, 3):
        allocation.poll()
        assert len((tmp_path / "asked").read_text().split()) == asked
    assert allocation.silent_nodes == ["node2"]


SAY = 'echo "$0 $*" >>"$(dirname "$0")/said"'


def said(commands: Commands, tmp_path: Path, ask: Callable[[slurm.Cluster], object]) -> list[str]:
    """The commands that Slurm gets."""
    cluster = commands(squeue=SAY, sinfo=SAY, scancel=SAY, sbatch=f"{SAY}; echo 8")
    ask(cluster)
    lines = (tmp_path / "bin" / "said").read_text().splitlines()
    return [line.removeprefix(f"{tmp_path}/bin/") for line in lines]


def said_nothing(ask: Callable[[], object]) -> None:
    with pytest.raises(OSError, match="squeue"):
        ask()


@pytest.mark.parametrize(
    ("ask", "line"),
    [
        (
            lambda cluster: cluster.lost_nodes(["node1", "node2"]),
            "sinfo --noheader --Node --nodes=node1,node2 --format=%N %t",
        ),
        (lambda cluster: cluster.step_ids(), "squeue --steps --noheader --jobs=7 --format=%i|%j"),
        (
            lambda cluster: cluster.job_state("5"),
            "squeue --noheader --states=all --jobs=5 --format=%T %A",
        ),
        (
            lambda cluster: said_nothing(lambda: cluster.newer_job(Path("/b/serve.sbatch"))),
            "squeue --noheader --me --format=%A %o",
        ),
        (lambda cluster: cluster.signal_step("7.1", "TERM"), "scancel --signal TERM 7.1"),
        (lambda cluster: cluster.kill_step("7.1"), "scancel 7.1"),
        (
            lambda cluster: cluster.submit(Path("/b/serve.sbatch"), ["--qos=high"], {}),
            "sbatch --parsable --qos=high /b/serve.sbatch",
        ),
    ],
)
def test_slurm_is_asked_in_a_form_that_its_answers_are_read_in(
    commands: Commands, tmp_path: Path, ask: Callable[[slurm.Cluster], object], line: str
) -> None:
    assert said(commands, tmp_path, ask) == [line]


def test_a_job_is_submitted_where_this_one_was_while_that_folder_is_there(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bundle" / "serve.sbatch"
    script.parent.mkdir()
    (folder := tmp_path / "submitted").mkdir()
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(folder))
    cluster = commands(sbatch=f"pwd >{tmp_path}/where; echo 8")
    assert cluster.submit(script, [], {}) == "8"
    assert (tmp_path / "where").read_text().strip() == str(folder)
    folder.rmdir()
    assert cluster.submit(script, [], {}) == "8"
    assert (tmp_path / "where").read_text().strip() == str(script.parent)
    folder.touch()
    assert cluster.submit(script, [], {}) == "8"


def test_steps_of_a_job_of_several_parts_are_asked_for_at_once(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(cluster: slurm.Cluster) -> None:
        cluster.job_ids = ["7", "8"]
        cluster.step_ids()

    [line] = said(commands, tmp_path, ask)
    assert "--jobs=7,8 " in line


def test_a_step_is_on_exactly_its_nodes(commands: Commands) -> None:
    cluster = commands()
    assert cluster.srun("server0", ["node1", "node2"], "--mpi=pmix") == [
        *("srun", "--job-name=server0", "--nodes=2", "--nodelist=node1,node2"),
        *("--overlap", "--kill-on-bad-exit=1", "--mpi=pmix"),
    ]
    assert cluster.auxiliary_step("ports", ["node1", "node2"], "true") == [
        *("srun", "--job-name=ports", "--nodes=2", "--nodelist=node1,node2"),
        *("--overlap", "--kill-on-bad-exit=1", "--ntasks=2", "--ntasks-per-node=1"),
        *("--gres=none", "--mpi=none", "true"),
    ]
    cluster.groups = [["node1"], ["node2", "node3"]]
    assert "--het-group=1" in cluster.srun("server1", ["node2"])
    assert "--het-group=0" in cluster.srun("server1", ["node2"], het_group=0)
