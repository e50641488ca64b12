"""Whatever lies in a state folder: a record is read or counts as missing, no write ends a job."""

from __future__ import annotations

import errno
import json
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import lock, record, state
from supervisor.state import name_new
from tests.tables import by_table

# Years away, so that it does not matter when these tests begin.
LATER = state.timestamp(4e9)
RUN: state.Json = {"state": "serving", "heartbeat": LATER, "until": LATER}
ENDPOINT: state.Json = {"job_id": "7", "until": LATER, "urls": {"http": "http://n:1"}}

Damage = Callable[[Path], object]


def folder_instead(path: Path) -> None:
    path.mkdir()
    (path / "kept").touch()


def large_instead(path: Path) -> None:
    """A record that would be in order, and far longer than any."""
    row = json.dumps({**ENDPOINT, **RUN, "owner": "7"})
    path.write_text(row.ljust(state.RECORD_BYTES + 1))


def content(data: bytes) -> Damage:
    return lambda path: path.write_bytes(data)


def changed(row: state.Json, **values: Any) -> Damage:
    return content(json.dumps({**row, **values}).encode())


# What a disk, a colleague or a broken program can leave in the place of any record.
DAMAGES: dict[str, Damage] = {
    "empty": content(b""),
    "an empty object": content(b"{}"),
    "half": content(b'{"job_id": "7", "sta'),
    "a list": content(b"[]"),
    "a number": content(b"7"),
    "null": content(b"null"),
    "not UTF-8": content(b"\xff\xfe{}"),
    "zeros": content(b"\0" * 4096),
    "deep": content(b"[" * 200_000),
    "a folder": folder_instead,
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a number of 5,000 digits": content(b'{"job_id": ' + b"9" * 5000 + b"}"),
    "large": large_instead,
}
ENDPOINT_DAMAGES: dict[str, Damage] = {
    **DAMAGES,
    "job as a number": changed(ENDPOINT, job_id=7),
    "job as a path": changed(ENDPOINT, job_id="../7"),
    "job as null": changed(ENDPOINT, job_id=None),
    "time as a number": changed(ENDPOINT, until=5),
    "time in words": changed(ENDPOINT, until="tomorrow"),
    "time without a zone": changed(ENDPOINT, until="2030-01-01T00:00:00"),
    "urls as a list": changed(ENDPOINT, urls=[]),
    "ports in words": changed(ENDPOINT, ports={"http": "8000"}),
    "lease that never ends": changed(ENDPOINT, lease_s=float("inf")),
}
RUN_DAMAGES: dict[str, Damage] = {
    **DAMAGES,
    "state as a list": changed(RUN, state=[]),
    "heartbeat as null": changed(RUN, heartbeat=None),
    "heartbeat in words": changed(RUN, heartbeat="now"),
    "nodes as text": changed(RUN, nodes="node1"),
    "steps of text": changed(RUN, steps=["server0"]),
    "successor as a list": changed(RUN, successor=["8"]),
    "generation in words": changed(RUN, generation="two"),
    "exit code in words": changed(RUN, exit_code="70"),
    "ended in words": changed(RUN, ended="yesterday"),
}


@pytest.fixture
def service(tmp_path: Path) -> state.ServiceFolder:
    """A service whose job 7 serves."""
    found = state.ServiceFolder(tmp_path, "svc")
    for path, row in ((found.endpoint_file, ENDPOINT), (found.job("7").path / "run.json", RUN)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(row))
    return found


def put(path: Path, damage: Damage) -> None:
    path.unlink()
    damage(path)


@pytest.mark.parametrize("damage", ENDPOINT_DAMAGES.values(), ids=ENDPOINT_DAMAGES)
def test_a_damaged_endpoint_counts_as_missing(service: state.ServiceFolder, damage: Damage) -> None:
    assert service.owner == "7" and service.live_endpoint()
    put(service.endpoint_file, damage)
    assert service.owner is None
    assert service.live_endpoint() is None


@pytest.mark.parametrize(
    ("lease_s", "is_live"), [({}, True), ({"lease_s": 90.0}, True), ({"lease_s": 10.0}, False)]
)
def test_an_endpoint_is_dead_when_its_job_was_silent_for_its_own_lease(
    service: state.ServiceFolder, lease_s: state.Json, is_live: bool
) -> None:
    put(
        service.job("7").path / "run.json",
        changed(RUN, heartbeat=state.timestamp(time.time() - 30)),
    )
    put(service.endpoint_file, changed(ENDPOINT, **lease_s))
    assert (service.live_endpoint() is not None) == is_live


@pytest.mark.parametrize("damage", RUN_DAMAGES.values(), ids=RUN_DAMAGES)
def test_a_damaged_run_counts_as_missing(service: state.ServiceFolder, damage: Damage) -> None:
    job = service.job("7")
    assert job.run and job.damaged is None
    put(job.path / "run.json", damage)
    assert job.run is None
    assert job.damaged == job.path / "run.json"
    assert service.live_endpoint() is None


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_record_is_written_over_whatever_is_there(
    service: state.ServiceFolder, damage: Damage
) -> None:
    put(service.endpoint_file, damage)
    state.write_json(service.endpoint_file, ENDPOINT)
    assert service.owner == "7"
    beside = [path for path in service.path.iterdir() if path.name.startswith(".")]
    assert len(beside) == (damage is folder_instead)


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = time.monotonic() + seconds
    monkeypatch.setattr(time, "monotonic", lambda: now)


def lock_of(service: state.ServiceFolder, owner: str, *alive: str) -> lock.SuccessorLock:
    return lock.SuccessorLock(service, owner, lambda job: job in alive)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_lock_blocks_nobody(
    service: state.ServiceFolder,
    damage: Damage,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damage(service.lock_file)
    own = lock_of(service, "7", "7")
    is_empty = own.is_empty  # it may be about to be written
    assert own.acquire() is not is_empty
    if is_empty:
        pass_time(monkeypatch, lock.EMPTY_LOCK_S + 1)
        assert own.acquire()
    assert "successor.lock is damaged" in capsys.readouterr().err
    assert not lock_of(service, "8", "7", "8").acquire()


def test_a_lock_is_whole_once_it_is_there(
    service: state.ServiceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner may be killed at any moment: there is a lock with its owner's name, or none."""
    seen: list[state.Json] = []
    link = os.link

    def look_then_link(new: Path, path: Path) -> None:
        assert not path.exists()
        link(new, path)
        seen.append(json.loads(path.read_text()))

    monkeypatch.setattr(os, "link", look_then_link)
    assert lock_of(service, "7", "7").acquire()
    assert [row["owner"] for row in seen] == ["7"]


@pytest.fixture
def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file system without hard links, such as that of a cloud's bucket."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("without_links")
def test_a_lock_is_one_jobs_on_a_file_system_without_hard_links(
    service: state.ServiceFolder,
) -> None:
    assert lock_of(service, "7", "7").acquire()
    other = lock_of(service, "8", "7", "8")
    assert not other.acquire()
    assert other.content["owner"] == "7"
    beside = [path.name for path in service.path.iterdir() if path.name.startswith(".")]
    assert beside == []


@pytest.mark.usefixtures("without_links")
def test_a_lock_that_cannot_be_made_whole_is_none(
    service: state.ServiceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        lock_of(service, "7", "7").acquire()
    assert not service.lock_file.exists()


# What one of two jobs that want the lock is about to do when the other one takes a whole turn.
STEPS = [(os, "lstat"), (os, "rename"), (os, "open"), (Path, "replace"), (os, "link")]
STEPS += [(Path, one) for one in ("lstat", "stat", "read_bytes", "rename", "open", "unlink")]


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("before", ["nothing", "half", "empty"])
@pytest.mark.parametrize(("home", "step"), STEPS)
def test_two_jobs_never_get_one_lock(
    service: state.ServiceFolder,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    home: Any,
    step: str,
    before: str,
    has_links: bool,
) -> None:
    """Wherever the one stands when the other comes, be it at its first such step or a later one."""
    if not has_links:
        request.getfixturevalue("without_links")
    do = getattr(home, step)
    for turn in range(1, 6):
        service.lock_file.unlink(missing_ok=True)
        if before != "nothing":
            DAMAGES[before](service.lock_file)
        first, second = (lock_of(service, one, "7", "8") for one in ("7", "8"))
        if before == "empty":
            assert not first.acquire() and not second.acquire()
            pass_time(monkeypatch, lock.EMPTY_LOCK_S + 1)
        turns = iter([*[0] * (turn - 1), turn])
        got: list[bool] = []

        def with_the_other(
            *given: Any,
            turns: Iterator[int] = turns,
            got: list[bool] = got,
            second: lock.SuccessorLock = second,
            **named: Any,
        ) -> Any:
            if "successor.lock" in str(given[:2]) and next(turns, 0):
                got.append(second.acquire())
            return do(*given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(home, step, with_the_other)
            got.insert(0, first.acquire())
        assert got.count(True) == 1
        assert first.content["owner"] == ("7" if got[0] else "8")


@pytest.mark.usefixtures("without_links")
def test_a_name_that_another_file_has_by_now_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is put back, the endpoint of an older job meets that of a newer one."""
    whole, path = tmp_path / "whole", tmp_path / "endpoint.json"
    whole.write_text("older")
    fstat = os.fstat

    def replaced(number: int) -> os.stat_result:
        (tmp_path / "newer").write_text("newer")
        (tmp_path / "newer").replace(path)
        return fstat(number)

    monkeypatch.setattr(os, "fstat", replaced)
    with pytest.raises(FileExistsError):
        name_new(whole, path)
    assert path.read_text() == "newer"


@by_table
def test_a_lock_that_could_not_be_removed_blocks_no_hand_over(
    service: state.ServiceFolder, held: state.Json, is_free: bool
) -> None:
    state.write_json(service.lock_file, held)
    own = lock_of(service, "7", "5", "7", "8")
    assert own.acquire() is is_free
    assert not lock_of(service, "7", "5", "7", "8").acquire()
    if is_free:
        assert own.acquire()  # its own is still there


def test_a_lock_whose_holder_never_names_a_successor_is_broken(
    service: state.ServiceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lock_of(service, "7", "7").acquire()
    waiting = lock_of(service, "8", "7", "8")
    assert not waiting.acquire()
    pass_time(monkeypatch, lock.UNNAMED_LOCK_S + 1)
    assert waiting.acquire()


def test_the_lock_of_a_successor_that_waits_is_kept(
    service: state.ServiceFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lock_of(service, "7", "7")
    assert first.acquire()
    first.name_successor("9")
    waiting = lock_of(service, "8", "7", "8", "9")
    assert not waiting.acquire()
    pass_time(monkeypatch, 10 * lock.UNNAMED_LOCK_S)
    assert not waiting.acquire()


def test_a_lock_is_kept_where_slurm_does_not_say_whether_its_successor_waits(
    service: state.ServiceFolder,
) -> None:
    first = lock_of(service, "7", "7")
    assert first.acquire()
    first.name_successor("9")
    assert not lock.SuccessorLock(service, "8", lambda _: None).acquire()


# --- What a job writes ----------------------------------------------------------------------------


@pytest.fixture
def own(service: state.ServiceFolder) -> record.Record:
    own = record.Record(service.job("9"), {"state": "serving"})
    own.begin()
    return own


FAULTS = [errno.EPERM, errno.EACCES, errno.EIO, errno.ESTALE, errno.EROFS, errno.ENOSPC]


def test_an_end_that_could_not_be_written_is_written_all_the_same(
    own: record.Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the write before it has just failed."""
    monkeypatch.setattr(record, "RETRY_S", 0.1)
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patch.setattr(state, "write_json", refuse)
        own.update(state="stopping")
    own.update(state="ended")
    own.close()
    assert (own.job.run or {})["state"] == "ended"


@pytest.mark.parametrize("number", FAULTS, ids=errno.errorcode.get)
def test_a_write_that_fails_is_logged_once_and_tried_again(
    own: record.Record,
    number: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(record, "RETRY_S", 0.0)
    own.close()
    own.close()  # without a reserve, which is no fault
    works = False

    def write() -> str:
        if not works:
            raise OSError(number, os.strerror(number), "name")
        return "written"

    assert [own.attempt("file", write, "") for _ in range(3)] == [""] * 3
    works = True
    assert own.attempt("file", write, "") == "written"
    said = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    fault = f"file: name: {os.strerror(number)}; it is tried again"
    assert said == [fault, "file: works again"]


def test_a_disk_that_is_full_from_the_start_is_told_once(
    service: state.ServiceFolder,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the reserve only its name can be written, which frees nothing."""

    def fill(path: Path, _: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_bytes", fill)
    own = record.Record(service.job("9"), {"state": "starting"})
    own.event("before")
    assert not own.job.path.exists()
    own.begin()
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "reserve" in line and "tried again" in line] == lines[1:2]
    assert own.job.run and own.job.run["state"] == "starting"


def test_a_line_of_the_log_is_one_line_that_no_terminal_acts_upon(
    capsys: pytest.CaptureFixture[str],
) -> None:
    state.log("why=a\x1b[31m\n2026 forged\u202e é")
    said = capsys.readouterr().err.partition(" ")[2]
    assert said == "why=a\\x1b[31m\\n2026 forged\\u202e é\n"


def test_what_fails_is_not_tried_at_once(own: record.Record) -> None:
    tries: list[int] = []

    def write() -> None:
        tries.append(1)
        raise PermissionError(errno.EPERM, "no")

    for _ in range(10):
        own.attempt("file", write, None)
    assert len(tries) == 1


def test_a_job_folder_that_was_removed_comes_back_at_once(own: record.Record) -> None:
    for path in own.job.path.iterdir():
        path.unlink()
    own.job.path.rmdir()
    own.heartbeat()
    own.event("serving")
    assert own.job.run and own.job.run["state"] == "serving"
    assert json.loads((own.job.path / "events.jsonl").read_text())["event"] == "serving"


def test_a_heartbeat_is_written_once_the_last_one_is_old(
    own: record.Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.save()
    path, now = own.job.path / "run.json", time.monotonic()
    for later_s, is_written in ((9.0, False), (11.0, True)):
        before = path.stat().st_ino
        monkeypatch.setattr(time, "monotonic", lambda later_s=later_s: now + later_s)
        own.heartbeat()
        assert (path.stat().st_ino != before) is is_written


@pytest.mark.parametrize("content", ["", "{}", '{"state": "ser'])
def test_a_record_that_was_damaged_comes_back_at_once(own: record.Record, content: str) -> None:
    path = own.job.path / "run.json"
    path.write_text(content)
    own.heartbeat()
    assert own.job.run and own.job.run["state"] == "serving"
    before = path.stat().st_ino
    own.heartbeat()
    assert path.stat().st_ino == before, "it is written only now and then"


def somebodys(path: Path) -> None:
    """A link to a file that is not the service's."""
    path.with_name("anybodys").touch()
    path.symlink_to(path.with_name("anybodys"))


IN_THE_PLACE: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to a device": lambda path: path.symlink_to("/dev/full"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("elsewhere"),
    "a link to a file": somebodys,
}


def test_events_that_could_not_be_written_follow_in_their_order(
    own: record.Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RETRY_S", 0.0)
    folder, away = own.job.path, own.job.path.with_name("away")
    own.event("one")
    folder.rename(away)
    folder.touch()  # no folder can be made in its place
    own.event("two")
    own.event("three")
    folder.unlink()
    away.rename(folder)
    own.heartbeat()
    rows = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    assert [row["event"] for row in rows] == ["one", "two", "three"]


@pytest.mark.parametrize("make", IN_THE_PLACE.values(), ids=IN_THE_PLACE)
def test_events_go_to_a_file_of_their_own_whatever_is_in_its_place(
    own: record.Record, make: Callable[[Path], object]
) -> None:
    """A pipe would hold up the service, and a link lead its lines elsewhere."""
    events = own.job.path / "events.jsonl"
    make(events)
    thread = threading.Thread(target=own.event, args=["serving"], daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    assert not events.is_symlink()
    assert json.loads(events.read_text())["event"] == "serving"
    assert not (own.job.path / "elsewhere").exists()


def test_a_run_that_could_not_be_written_is_written_later(
    own: record.Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RETRY_S", 0.0)
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> None:
            raise OSError(errno.EIO, "no")

        patch.setattr(state, "write_json", refuse)
        own.update(state="draining")
    assert own.job.run and own.job.run["state"] == "serving"
    own.heartbeat()
    assert own.job.run and own.job.run["state"] == "draining"


def test_a_line_is_never_left_in_part(
    own: record.Record, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a disk with room for some bytes more."""
    monkeypatch.setattr(record, "RETRY_S", 0.0)
    own.event("one")
    events = own.job.path / "events.jsonl"
    whole = events.read_text()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 5, before[1]))
    try:
        own.close()  # without a reserve
        own.event("two")
        assert events.read_text() == whole
        fault = f"{state.EVENTS}: {events}: No space left on device; it is tried again"
        assert fault in capsys.readouterr().err
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    own.heartbeat()
    rows = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert rows == ["one", "two"]


# --- What a field may hold ------------------------------------------------------------------------

EPOCH = "1970-01-01T00:00:00.000Z"
Values = tuple[list[Any], list[Any]]
TEXT: Values = (["", "a"], [7, None, True, ["a"], {}])
NULL_OR_TEXT: Values = (["", "a", None], [7, True, ["a"], {}])
NULL_OR_TIME: Values = (
    [EPOCH, "2026-01-01T00:00:00+01:00", None],
    ["", "soon", 7, EPOCH[:-1], "1969-12-31T23:59:59Z"],
)
NULL_OR_ID: Values = (["7", None], ["", "x", "-1", 7, "7_1", "9" * 19, "\u0667", "7\n"])
COUNT: Values = ([0, 7], [-1, 1.5, True, None, "7", 2**53])
# Field -> values that it may hold, and values that make the record a damaged one.
RUN_VALUES: dict[str, Values] = {
    "state": TEXT,
    "heartbeat": (NULL_OR_TIME[0][:2], [*NULL_OR_TIME[1], None]),
    **dict.fromkeys(("outcome", "why", "bundle", "bundle_digest"), NULL_OR_TEXT),
    **dict.fromkeys(("until", "ready", "admitted", "published", "ended"), NULL_OR_TIME),
    **dict.fromkeys(("successor", "predecessor"), NULL_OR_ID),
    "generation": COUNT,
    "exit_code": ([0, 7, None], [-1, 1.5, True, "7"]),
    "nodes": ([[], ["a", "b"]], ["a", [7], ["a", None], {}, None]),
    "steps": ([[], [{"name": "a"}]], [[{}], [{"name": 7}], ["a"], {}, None]),
    "successors": ([[], ["7", "8"]], ["7", [7], ["7", "x"], None]),
}
ENDPOINT_VALUES: dict[str, Values] = {
    "job_id": (["7"], ["", "x", 7, None]),
    "until": NULL_OR_TIME,
    "lease_s": ([0, 1, 0.5], [-1, True, None, "1", float("inf"), float("nan")]),
    "host": TEXT,
    "model": TEXT,
    "ports": ([{}, {"http": 0, "grpc": 8001}], [[], {"http": "1"}, {"http": -1}, None]),
    "urls": ([{}, {"http": "http://a:1"}], [[], {"http": 1}, None]),
}
LOCK_VALUES: dict[str, Values] = {"owner": (["7"], ["", "x", 7, None]), "successor": NULL_OR_ID}
KINDS: dict[str, tuple[state.Fields, dict[str, Any], dict[str, Values]]] = {
    "run": (state.RUN_FIELDS, {"state": "serving", "heartbeat": EPOCH}, RUN_VALUES),
    "endpoint": (state.ENDPOINT_FIELDS, {"job_id": "7"}, ENDPOINT_VALUES),
    "lock": (state.LOCK_FIELDS, {"owner": "7"}, LOCK_VALUES),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_is_read_where_every_field_holds_what_it_may(kind: str, tmp_path: Path) -> None:
    fields, least, values = KINDS[kind]
    assert fields.keys() == values.keys()
    path = tmp_path / "record.json"

    def read(**changed: Any) -> Any:
        path.write_text(json.dumps({**least, "more": 1, **changed}))
        return state.read_record(path, fields)

    for name, (may, may_not) in values.items():
        for value in may:
            assert (read(**{name: value}) or {})[name] == value, name
        for value in may_not:
            assert read(**{name: value}) is None, f"{name}: {value!r}"
    for name in least:
        path.write_text(json.dumps({key: least[key] for key in least if key != name}))
        assert state.read_record(path, fields) is None
    path.unlink()
    assert state.read_record(path, fields) is None


def test_what_a_record_leaves_out_is_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"job_id": "7", "more": 1}))
    assert state.read_record(path, state.ENDPOINT_FIELDS) == {
        "job_id": "7",
        "until": None,
        "lease_s": state.LEASE_S,
        "host": "",
        "model": "",
        "ports": {},
        "urls": {},
        "more": 1,
    }
    path.write_text(json.dumps({"state": "x", "heartbeat": EPOCH}))
    run = state.read_record(path, state.RUN_FIELDS) or {}
    assert (run["generation"], run["nodes"], run["steps"], run["successors"]) == (0, (), (), ())
    assert all(run[name] is None for name in ("outcome", "why", "until", "exit_code", "successor"))


@pytest.mark.parametrize(("size", "is_read"), [(0, True), (1, False)])
def test_a_record_has_a_size_that_none_comes_near(size: int, is_read: bool, tmp_path: Path) -> None:
    path, text = tmp_path / "record.json", '{"a": 1}'
    path.write_text(text)
    found = state.read_json(path, most_bytes=len(text) - size)
    assert (found == {"a": 1}) is is_read
    assert (state.read_json(path, most_nested=1 - size) == {"a": 1}) is is_read


def test_a_time_is_written_to_the_millisecond_and_read_with_its_zone() -> None:
    assert state.timestamp(0) == EPOCH
    assert state.timestamp(1.2345) == "1970-01-01T00:00:01.234Z"
    assert state.parse_time("1970-01-01T01:00:00+01:00") == 0
    with pytest.raises(ValueError, match=r"^1970-01-01T00:00:00 has no time zone$"):
        state.parse_time("1970-01-01T00:00:00")


@pytest.mark.parametrize(
    ("age_s", "lease_s", "silent"), [(50, 60, False), (70, 60, True), (70, 80, False)]
)
def test_a_job_is_silent_after_its_lease(age_s: float, lease_s: float, silent: bool) -> None:
    run = {"heartbeat": state.timestamp(time.time() - age_s)}
    assert state.is_silent(run, lease_s) is silent
    if lease_s == 60:
        assert state.is_silent(run) is silent


def test_jobs_are_those_that_serve_in_the_order_of_their_submission(tmp_path: Path) -> None:
    service = state.ServiceFolder(tmp_path, "svc")
    assert service.jobs == []
    for name in ("10", "9", "8", "x", "7_1", "11"):
        (service.path / "jobs" / name).mkdir(parents=True)
    for name, file in (("10", state.RUN), ("9", state.SUBMISSION), ("8", state.PREFLIGHT)):
        (service.path / "jobs" / name / file).write_text("{}")
    assert [job.id for job in service.jobs] == ["9", "10"]
    first = service.jobs[0]
    assert first.log == tmp_path / "svc" / "job-9.log"
    assert first.step_log("server0") == tmp_path / "svc" / "jobs" / "9" / "server0.log"
    assert service.stop_file == tmp_path / "svc" / "stop"
    assert service.lock_file == tmp_path / "svc" / "successor.lock"


def test_state_is_kept_where_the_environment_says_else_the_site(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(state.STATE_FOLDER, raising=False)
    assert state.state_root() == Path("runs")
    assert state.state_root(None, tmp_path) == tmp_path / "runs"
    assert state.state_root("/site", tmp_path) == Path("/site")
    monkeypatch.setenv(state.STATE_FOLDER, "/own")
    assert state.state_root("/site", tmp_path) == Path("/own")
