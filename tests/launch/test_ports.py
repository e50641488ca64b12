"""Free ports: different ones, which no client gets before the server that they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor import ports


def test_free_ports_differ_and_can_be_listened_on() -> None:
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    for port in found:
        ports.listen("127.0.0.1", port).close()


def test_clients_get_none_of_them() -> None:
    first_of_clients = int(ports.CLIENTS.read_text().split()[0])
    assert all(ports.LOWEST <= port < first_of_clients for port in ports.free_ports(50))


def test_a_port_that_is_taken_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    taken, free = ports.free_ports(2)
    monkeypatch.setattr(ports, "_candidates", lambda: iter((taken, free)))
    with ports.listen("127.0.0.1", taken):
        assert ports.free_ports(1) == [free]


def test_where_clients_get_all_ports_the_kernel_chooses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "range").write_text("1024\t60999\n")
    monkeypatch.setattr(ports, "CLIENTS", tmp_path / "range")
    assert len(set(ports.free_ports(3))) == 3


def test_a_host_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="Cannot assign"):
        ports.free_ports(1, "192.0.2.1")
