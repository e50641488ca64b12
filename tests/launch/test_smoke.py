"""The smoke suite: each fault of a server is found by the checks that are there for it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from builder.bundle import Bundle
from launch import target
from launch.smoke import endpoint, rendered, suite
from launch.smoke.client import Fault
from launch.smoke.suite import Result
from tests.launch.faulty_server import running

NEGATIVE = ["unknown_model", "missing_input", "empty_prompt"]
BAD_VALUES = ["temperature", "max_tokens_0", "max_tokens_text"]
STREAMING = ["stream_text", "one_final"]

FAULTS: dict[str, list[str]] = {
    "health": ["ready", "cancel", *NEGATIVE, *BAD_VALUES],
    "empty": [
        *("generate", "max_tokens", "cancel", "concurrent"),
        *(*STREAMING, *NEGATIVE, *BAD_VALUES),
    ],
    "loses_text": ["stream_text"],
    "two_finals": ["one_final"],
    "no_done": STREAMING,
    "more_after_done": STREAMING,
    "max_tokens": ["max_tokens"],
    "stop_word": ["stop_word"],
    "mixes_requests": ["concurrent"],
    "accepts": ["temperature"],
    "breaks_on_bad_value": BAD_VALUES,
    "breaks_on_cancel": ["cancel", "concurrent", *NEGATIVE, *BAD_VALUES],
}


def results(url: str) -> dict[str, Result]:
    return {one.id: one for one in suite.run(endpoint.of_url(url), lambda _: None)}


def test_a_right_server_passes_every_check() -> None:
    with running() as url:
        found = results(url)
    assert {one.id: one.detail for one in found.values() if not one.passed} == {}
    assert len(found) == 15


@pytest.mark.parametrize(("fault", "expected"), FAULTS.items(), ids=FAULTS)
def test_a_fault_is_found(fault: str, expected: list[str]) -> None:
    with running(fault) as url:
        found = results(url)
    assert {one.id for one in found.values() if one.failed} == set(expected)


def test_a_text_that_batching_changes_is_a_warning_only() -> None:
    with running("batching") as url:
        found = results(url)
    assert [one.id for one in found.values() if not one.passed] == ["concurrent_text"]
    assert not found["concurrent_text"].failed
    assert "texts differ from the same request alone" in found["concurrent_text"].detail


def test_a_detail_says_what_was_expected_and_what_came() -> None:
    with running("stop_word") as url:
        detail = results(url)["stop_word"].detail
    assert detail.startswith("stop word '")
    assert "expected it to end before the word" in detail


def smoke(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launch", "smoke", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_prints_a_line_per_check_in_80_columns() -> None:
    with running() as url:
        done = smoke(url)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 16
    assert lines[0].startswith("pass  http  Live and ready")
    assert lines[-1].startswith("15 checks, 0 failed, 0 warnings")
    assert max(map(len, lines)) <= 80


def test_the_command_fails_with_6_and_names_the_faults() -> None:
    with running("accepts") as url:
        done = smoke(url)
    assert done.returncode == 6
    assert "FAIL  http  temperature -1" in done.stdout
    assert done.stderr.startswith("error: check temperature over http: served with text")
    assert "Traceback" not in done.stderr


def test_a_server_that_is_not_there_is_named_once_per_address() -> None:
    done = smoke("triton://127.0.0.1:9?grpc=10")
    assert done.returncode == 5
    assert [line.partition(";")[0] for line in done.stderr.splitlines()] == [
        "error: http://127.0.0.1:9: no server answers: connection refused",
        "error: grpc://127.0.0.1:10: no server answers: connection refused",
    ]


def test_the_command_prints_json() -> None:
    with running("batching") as url:
        done = smoke(url, "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert (document["checks"], document["failed"], document["warnings"]) == (15, 0, 1)
    assert set(document["results"][0]) == {
        *("id", "title", "transport", "level", "passed", "detail", "seconds")
    }


def test_metadata_that_differs_from_the_rendered_one_is_named(
    bundle: Bundle, tmp_path: Path
) -> None:
    one = endpoint.of_target(target.read(bundle, "triton"))
    assert one.model_folder is not None
    text = (one.model_folder / "config.pbtxt").read_text()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.yaml").write_text("triton_config: {max_batch_size: 0}")
    (tmp_path / "config.pbtxt").write_text('input { name: "a" data_type: TYPE_INT32 dims: [ 1 ] }')
    served = {
        "inputs": [{"name": "a", "datatype": "INT64", "shape": ["1"]}],
        "outputs": [{"name": "b", "datatype": "BYTES", "shape": [-1]}],
    }
    with pytest.raises(Fault) as raised:
        rendered.compare_metadata(served, replace(one, model_folder=tmp_path))
    assert str(raised.value) == (
        "input a is ('INT64', [1]), ('INT32', [1]) expected; "
        "output b is ('BYTES', [-1]), none expected"
    )
    assert "text_input" in text


def test_a_configuration_that_differs_from_the_rendered_one_is_named(bundle: Bundle) -> None:
    one = endpoint.of_target(target.read(bundle, "triton"))
    with pytest.raises(
        Fault, match="decoupled is False, True expected; max_batch_size is 8, 0 exp"
    ):
        rendered.compare_config({"max_batch_size": 8}, one)
