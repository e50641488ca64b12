"""Which state folder a command about a service means, without one being named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builder.errors import BadInput
from launch.slurm import services
from supervisor import state
from supervisor.state import ServiceFolder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An operator without any service, in a folder of their own."""
    monkeypatch.delenv(state.STATE_FOLDER, raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "desk").mkdir()
    monkeypatch.chdir(tmp_path / "desk")
    return tmp_path / "home"


def leave(root: Path, name: str) -> ServiceFolder:
    """A service that has had a job."""
    service = ServiceFolder(root, name)
    fresh = {"state": "serving", "heartbeat": state.timestamp()}
    state.write_json(service.job("7").path / state.RUN, fresh)
    return service


def submit(root: Path, name: str) -> ServiceFolder:
    service = leave(root, name)
    services.remember(service)
    newest = max((file.stat().st_mtime_ns for file in _files()), default=0)
    [own] = [file for file in _files() if state.read_json(file) == {"folder": str(service.path)}]
    os.utime(own, ns=(newest + 1, newest + 1))  # whatever the resolution of the clock
    return service


def _files() -> list[Path]:
    return list(services._own_folder().glob("*.json"))


def test_a_service_is_found_where_it_was_submitted_last(tmp_path: Path) -> None:
    first, other = submit(tmp_path / "a", "svc"), submit(tmp_path / "b", "other")
    assert services.find(None, "svc") == first
    assert services.find(None, "other") == other
    second = submit(tmp_path / "b", "svc")
    assert services.find(None, "svc") == second
    submit(tmp_path / "a", "other")
    assert services.find(None, "svc") == second, "that of another service counts for that one"
    assert submit(tmp_path / "a", "svc") == services.find(None, "svc") == first
    assert len(_files()) == 4


def test_a_named_folder_alone_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(tmp_path / "a", "svc")
    theirs = leave(tmp_path / "b", "svc")
    assert services.find(tmp_path / "b", "svc") == theirs
    monkeypatch.setenv(state.STATE_FOLDER, str(tmp_path / "b"))
    assert services.find(None, "svc") == theirs
    assert services.roots(None) == [tmp_path / "b"]
    monkeypatch.setenv(state.STATE_FOLDER, str(tmp_path / "c"))
    with pytest.raises(BadInput, match=f"has no state in {tmp_path}/c; it was submitted with its"):
        services.find(None, "svc")


def test_services_of_others_in_a_folder_that_one_used_are_found(tmp_path: Path) -> None:
    submit(tmp_path / "a", "svc")
    theirs = leave(tmp_path / "a", "theirs")
    here = leave(tmp_path / "desk" / "runs", "here")
    assert services.find(None, "theirs") == theirs
    assert services.find(None, "here") == here
    found = services.every_in(services.roots(None))
    assert [one.name for one in found] == ["svc", "theirs", "here"]


def test_a_folder_that_was_moved_is_asked_for(tmp_path: Path) -> None:
    submit(tmp_path / "a", "svc")
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(BadInput) as fault:
        services.find(None, "svc")
    [diagnostic] = fault.value.diagnostics
    assert diagnostic.message.startswith(f"has no state in {tmp_path}/a, {tmp_path}/desk/runs")
    assert f"was submitted with its state in {tmp_path}/a/svc" in str(diagnostic)
    assert services.find(tmp_path / "b", "svc").root == tmp_path / "b"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"folder": 7}', '{"folder": "svc"}', "\0"])
def test_a_damaged_memory_is_none(tmp_path: Path, text: str) -> None:
    service = submit(tmp_path / "a", "svc")
    (services._own_folder() / "odd.json").write_text(text)
    assert services.remembered() == [service]


def test_without_a_home_nothing_is_remembered(tmp_path: Path, home: Path) -> None:
    home.touch()
    with pytest.raises(OSError, match="Not a directory"):
        services.remember(ServiceFolder(tmp_path / "a", "svc"))
    assert services.remembered() == []
    assert services.roots(None) == [tmp_path / "desk" / "runs"]


def test_a_folder_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = submit(tmp_path / "a", "svc")
    services.remember(ServiceFolder(tmp_path / "b", "svc2"))
    (tmp_path / "b").touch()
    assert services.every_in(services.roots(None)) == [service]
    with pytest.raises(BadInput, match="cannot be read"):
        services.every_in([tmp_path / "b"])
