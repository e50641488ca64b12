"""Progress of a point: how far it is and what time is left, on a terminal and in lines."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import pytest

from launch.bench.progress import WIDTH, Progress
from tests.launch.bench.records import failed, seen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now_s = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: found.now_s)
    return found


def shown(stream: io.StringIO) -> str:
    """What is on the terminal's line at last."""
    return stream.getvalue().rpartition("\r")[2].rstrip()


def test_a_terminal_shows_the_time_left_of_a_point_and_which_it_is(clock: Clock) -> None:
    stream = Terminal()
    progress = Progress(stream)
    progress.begin("c4", 40, of="3 of 7")
    for number in range(10):
        progress.on_request(failed(number) if number == 9 else seen(number))
    clock.now_s += 20
    progress.on_look()
    assert shown(stream) == (
        "c4: 10/40 requests, 1 failed, 20 s, 60 s left, 2.2 tokens/s, point 3 of 7"
    )


def test_the_time_goes_on_while_no_request_ends(clock: Clock) -> None:
    stream = Terminal()
    progress = Progress(stream)
    progress.begin("c4", None, duration_s=30.0)
    assert shown(stream).startswith("c4: 0 requests, 0 s, 30 s left")
    clock.now_s += 12
    progress.on_look()
    assert shown(stream).startswith("c4: 0 requests, 12 s, 18 s left")


def test_without_an_end_that_is_known_none_is_told(clock: Clock) -> None:
    stream = Terminal()
    progress = Progress(stream)
    progress.begin("c4", 40)
    assert "left" not in shown(stream)


def test_a_terminal_loses_the_least_of_a_long_line(clock: Clock) -> None:
    stream = Terminal()
    progress = Progress(stream)
    progress.begin("trace x0.125 warm-up", 10_000, of="100 of 100")
    progress.on_request(failed())
    clock.now_s += 1000
    progress.on_look()
    assert len(shown(stream)) <= WIDTH
    assert "about 166650 min left" in shown(stream)


def test_a_log_gets_readable_lines(clock: Clock) -> None:
    stream = io.StringIO()
    progress = Progress(stream)
    progress.begin("trace x0.125 warm-up", 10_000, of="100 of 100")
    progress.on_request(failed())
    clock.now_s += 1000
    progress.on_look()
    progress.end({"output_tokens_per_s": 1234567.8})
    begins, runs, ended = stream.getvalue().splitlines()
    assert begins.startswith("trace x0.125 warm-up: begins, 0/10000 requests, 0 s")
    assert runs == (
        "trace x0.125 warm-up: 1/10000 requests, 1 failed, 1000 s, about 166650 min left, "
        "0.0 tokens/s, point"
    )
    assert ended.endswith(
        "ended, 1/10000 requests, 1 failed, 1000 s, 1,234,567.8 tokens/s, point 100 of "
    )


def test_where_lines_are_not_wanted_only_a_terminal_gets_any(clock: Clock) -> None:
    for stream, is_told in ((io.StringIO(), False), (Terminal(), True)):
        Progress(stream, form="none").begin("c1", 4)
        assert bool(stream.getvalue()) == is_told


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_a_program_gets_the_same_in_json(kind: type[io.StringIO], clock: Clock) -> None:
    stream = kind()
    progress = Progress(stream, form="json")
    progress.begin("c1", 4)
    progress.on_request(seen())
    clock.now_s += 6
    progress.on_look()
    progress.end(None)
    rows: list[dict[str, Any]] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(row["state"], row["left_s"]) for row in rows] == [
        ("begins", None),
        ("runs", 18.0),
        ("ended", None),
    ]
