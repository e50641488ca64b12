"""The whole benchmark with few tokens: real servers, every variant, and a clean end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import servers, triton_stream
from benchmarks.servers import Running
from launch.process import Interrupts
from launch.triton import SHARED_MEMORY
from tests.conftest import ROOT

TOKENS = 12
PUBLISHED = ROOT.parent / "shared" / "peers" / "triton-llmapi"
FIELDS = {
    "offered_tokens_per_s",
    "tokens_per_s",
    "p50_ms",
    "p99_ms",
    "server_cpu_s_per_1k_tokens",
    "messages_per_token",
}


def measured(folder: Path, peer: Path) -> list[dict[str, Any]]:
    """The rows of a short run beside another model, whose sort of stream the client checks."""
    file = folder / "rows.json"
    few = ["--case", "long", "--rounds", "1", "--tokens", str(TOKENS), "--json", str(file)]
    assert triton_stream.main(["--peer", str(peer), *few]) == 0
    table: list[dict[str, Any]] = json.loads(file.read_text())
    return table


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Of all variants: another model is the published one, or one that sends all text so far with
    each token."""
    folder = tmp_path_factory.mktemp("benchmark")
    if PUBLISHED.exists():
        return measured(folder, PUBLISHED)
    (folder / "peer" / "1").mkdir(parents=True)
    shutil.copy(servers.FOLDER / "per_token" / "config.pbtxt", folder / "peer")
    shutil.copy(servers.FOLDER / "per_token" / "model.py", folder / "peer" / "1")
    return measured(folder, folder / "peer")


def test_a_run_gives_a_row_for_every_case_and_variant(rows: list[dict[str, Any]]) -> None:
    assert [(row["case"], row["streams"], row["variant"]) for row in rows] == [
        ("long", 8, variant) for variant in ("model", "per_token", "floor", "sse", "peer")
    ]


def test_every_row_has_positive_medians_within_their_range(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert set(row) > FIELDS
        for field in FIELDS:
            least, most = row["range"][field]
            assert 0 < least <= row[field] <= most
        assert row["p50_ms"] <= row["p99_ms"]


def test_the_rows_of_the_model_have_ratios_to_all_baselines(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["variant"] == "model":
            assert set(row["ratios"]) == {"per_token", "floor", "sse", "peer"}


@pytest.mark.parametrize("variant", ["per_token", "floor", "sse", "peer"])
def test_the_baselines_send_one_message_per_token(rows: list[dict[str, Any]], variant: str) -> None:
    assert {row["messages_per_token"] for row in rows if row["variant"] == variant} == {1.0}


@pytest.fixture(scope="module")
def per_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("per_token")
    with (
        Interrupts() as interrupts,
        servers.start("per_token", folder / "server", servers.programs(folder), interrupts) as one,
    ):
        yield one


def test_an_interrupt_stops_every_server(tmp_path: Path) -> None:
    words = ["--variant", "sse", "per_token", "--logs", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.triton_stream", *words]
    regions = set(SHARED_MEMORY.glob("benchmark-*"))
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr
        first = next(line for line in run.stderr if line.startswith("round"))
        started = processes(tmp_path)
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 128 + signal.SIGINT
    assert first.startswith("round 1 of 5")
    assert len(started) >= 3  # two of Triton
    assert processes(tmp_path) == []
    assert set(SHARED_MEMORY.glob("benchmark-*")) <= regions


def test_a_folder_that_is_no_model_is_refused_as_peer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert triton_stream.main(["--peer", str(tmp_path)]) == 2
    assert f"--peer: {tmp_path} is not a Triton model" in capsys.readouterr().err


def processes(folder: Path) -> list[int]:
    """Those that were started from files below `folder`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(folder) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return [pid for pid in found if pid not in (os.getpid(), os.getppid())]


def test_streams_that_no_case_has_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert triton_stream.main(["--streams", "65"]) == 2
    assert "--streams: no case has [65]; Known: overload 64," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "path", "what"),
    [
        ("--json", "missing/rows.json", "--json: there is no folder"),
        ("--logs", ".", "is not an empty folder"),
    ],
)
def test_paths_are_checked_before_the_measurement(
    option: str, path: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert triton_stream.main([option, str(tmp_path / path)]) == 2
    assert what in capsys.readouterr().err
