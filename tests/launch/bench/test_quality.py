"""Quality: results of lm-eval with their intervals, held against a reference."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from builder.errors import BadInput, NotReady
from launch.bench import quality, samples

# As lm-eval 0.4.13 wrote it of twenty items that a miniature with random weights got wrong.
RESULTS = Path(__file__).parent / "lm_eval_results.json"


def options(**fields: object) -> Namespace:
    values = {
        "quality_python": Path(sys.executable),
        "quality_tasks": "sums",
        "quality_include": None,
        "quality_limit": None,
        "quality_reference": {},
        "tokenizer": None,
    }
    return Namespace(**values | fields)


@pytest.mark.parametrize(
    ("right", "items", "low", "high"),
    # Newcombe (1998), "Two-sided confidence intervals for the single proportion", method 3.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_intervals_are_wilsons(right: int, items: int, low: float, high: float) -> None:
    assert samples.wilson(right / items, items) == pytest.approx((low, high), abs=5e-5)


def test_a_results_file_is_read_with_its_items() -> None:
    found = quality.read(RESULTS, {})
    [score] = found["tasks"]
    assert (found["tool"], found["version"]) == ("lm-eval", "0.4.13")
    assert (score["task"], score["metric"]) == ("sums", "exact_match,none")
    assert (score["score"], score["items"], score["low"], score["high"]) == (0, 20, 0, 0.1611)
    assert score["verdict"] is None


@pytest.mark.parametrize(
    ("reference", "verdict"), [(0.1, "as the reference"), (0.9, "below the reference")]
)
def test_a_score_is_held_against_its_reference(reference: float, verdict: str) -> None:
    found = quality.read(RESULTS, {"sums": reference})
    assert found["tasks"][0]["verdict"] == verdict
    assert quality.below(found) == (["sums"] if verdict == "below the reference" else [])


def test_what_is_no_results_file_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(BadInput, match="is not a results file of lm-eval"):
        quality.read(tmp_path / "results.json", {})


def test_a_python_without_it_is_said_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="No module named lm_eval"):
        quality.run(options(), "http://x", "m", False, tmp_path)


def test_a_python_that_is_none_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be run: no such file"):
        quality.run(options(quality_python=tmp_path / "python"), "http://x", "m", False, tmp_path)


def test_the_command_names_own_tasks_and_the_way_of_asking(tmp_path: Path) -> None:
    asked = options(quality_include=tmp_path, quality_limit=9)
    words = quality.command(asked, "http://x", "m", True, tmp_path)
    assert words[words.index("--model") + 1] == "local-chat-completions"
    assert words[words.index("--include_path") + 1] == str(tmp_path)
    assert words[words.index("--limit") + 1] == "9"
    assert "base_url=http://x/v1/chat/completions" in words[words.index("--model_args") + 1]
