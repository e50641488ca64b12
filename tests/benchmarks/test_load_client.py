"""The benchmark of the load clients measures all of them alike and judges what must hold."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import load_client, load_install
from benchmarks.load_client import FIELDS, MUST_HOLD, ClientCase
from benchmarks.load_program import OURS
from benchmarks.reference_server.accuracy import AccuracyTest
from builder.errors import ChecksFailed

SMALL = ClientCase("accuracy", "openai_chat", AccuracyTest(2, 4, 20, 5))
BOUND = load_client.Bound("accuracy", "openai_chat", 64, "ttft_error_ms", "at most", 1.0)


@pytest.mark.parametrize("client", [OURS, "httpx"])
def test_a_client_is_compared_with_the_reference_server(client: str) -> None:
    found = load_client.measure(SMALL, client)
    assert set(found) == set(FIELDS)
    pace = 2 * 20 / 0.145  # the server's; a client on a busy machine falls behind it
    assert 0.1 * pace < found["tokens_per_s"] < 1.1 * pace
    assert found["ttft_error_ms"] > 0
    assert found["cpu_s_per_1k_tokens"] > 0
    assert found["start_s"] > 0.05


def test_grpc_is_compared_with_the_reference_server() -> None:
    found = load_client.measure(dataclasses.replace(SMALL, api="grpc"), OURS)
    assert found["ttft_error_ms"] > 0


def test_a_client_that_fails_fails_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ChecksFailed, match="no-such-client"):
        load_client.measure(SMALL, "no-such-client")


def row(**fields: Any) -> dict[str, Any]:
    return {"row": "accuracy", "api": "openai_chat", "streams": 64, "client": OURS, **fields}


def test_a_bound_is_missed_on_either_side_of_zero() -> None:
    assert BOUND.violation([row(ttft_error_ms=0.5)]) is None
    for error in (1.5, -1.5):
        missed = BOUND.violation([row(ttft_error_ms=error)])
        assert missed is not None
        assert "must be at most 1" in str(missed)


def test_a_bound_is_on_our_own_rows_that_were_measured() -> None:
    others = row(ttft_error_ms=30, client="httpx")
    assert BOUND.violation([others, {"row": "install", "client": OURS, "mb": 1}]) is None


def test_every_bound_names_a_row_of_the_benchmark() -> None:
    rows: set[tuple[str, str | None, int | None]]
    rows = {(case.name, case.api, case.test.streams) for case in load_client.CASES}
    rows |= {("reached", "openai_chat", 64), ("install", None, None), ("traps", None, None)}
    assert {(one.row, one.api, one.streams) for one in MUST_HOLD} <= rows


def test_a_bound_that_is_missed_ends_with_6(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = [row(ttft_error_ms=2, ttft_error_percent=4, peak_mib=30, more_cpu_s_per_1k_tokens=0.01)]
    table[0] |= {"tpot_error_percent": 0.0, "throughput_error_percent": 0.0}
    monkeypatch.setattr(load_client, "rows", lambda *_: table)
    file = tmp_path / "rows.json"
    assert load_client.main(["--json", str(file)]) == 0
    assert json.loads(file.read_text()) == table
    assert load_client.main(["--check"]) == 6
    assert "ttft_error_ms is 2; it must be at most 1" in capsys.readouterr().err


def test_the_extra_adds_its_own_packages_only() -> None:
    added = load_install.closure("trtllm-deployment-toolkit", {"launch"})
    assert {"httpx", "tritonclient", "grpcio", "protobuf", "numpy"} <= added
    assert not {"torch", "pytest"} & added
    assert 50 < load_install.megabytes() < 400
