"""Quality: results of lm-eval with their intervals, held against a reference."""

from __future__ import annotations

import json
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


# What lm-eval is started as here: it says how it was asked, and writes two results.
LM_EVAL = """
import json, os, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--output_path") + 1])
(folder / "asked.json").write_text(json.dumps([sys.argv[1:], dict(os.environ)]))
for name in ("results_2026-01-01.json", "results_2026-01-02.json"):
    (folder / name).write_text(pathlib.Path(os.environ["RESULTS"]).read_text())
print("evaluated", sys.stdin.read())
sys.exit(int(os.environ.get("STATUS", "0")))
"""


@pytest.fixture
def evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python that has lm-eval."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "lm_eval.py").write_text(LM_EVAL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setenv("RESULTS", str(RESULTS))
    return Path(sys.executable)


@pytest.mark.parametrize(("given", "key"), [(None, "none"), ("secret", "secret")])
def test_lm_eval_is_run_and_its_newest_results_are_read(
    evaluator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, key: str
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if given:
        monkeypatch.setenv("OPENAI_API_KEY", given)
    asked = options(quality_python=evaluator, quality_reference={"sums": 0.9})
    for _ in range(2):  # also where an earlier run has left its folder
        found = quality.run(asked, "http://x", "m", False, tmp_path)
    assert found["file"] == str(tmp_path / "quality" / "results_2026-01-02.json")
    assert found["level"] == 0.95
    assert quality.below(found) == ["sums"]
    argv, environment = json.loads((tmp_path / "quality" / "asked.json").read_text())
    assert environment["OPENAI_API_KEY"] == key
    assert environment["RESULTS"] == str(RESULTS)
    assert argv == quality.command(asked, "http://x", "m", False, tmp_path / "quality")[3:]
    assert (tmp_path / "quality.log").read_text() == "evaluated \n"


def test_results_of_a_run_that_failed_are_not_taken(
    evaluator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATUS", "3")
    with pytest.raises(NotReady, match=r"ended with status 3; its log .*evaluated"):
        quality.run(options(quality_python=evaluator), "http://x", "m", False, tmp_path)


def test_the_command_has_what_is_asked_for_and_no_more(tmp_path: Path) -> None:
    arguments = {
        "model": "m",
        "base_url": "http://x/v1/completions",
        "num_concurrent": 8,
        "max_retries": 3,
        "tokenized_requests": False,
        "tokenizer_backend": "None",
    }
    plain = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--tasks", "sums"]
    plain += ["--output_path", str(tmp_path), "--model_args"]
    words = quality.command(options(), "http://x", "m", False, tmp_path)
    assert words == [*plain, ",".join(f"{name}={value}" for name, value in arguments.items())]
    words = quality.command(options(tokenizer="/models/t"), "http://x", "m", True, tmp_path)
    assert words[-1] == "--apply_chat_template"
    assert words[-2].endswith("tokenizer_backend=huggingface,tokenizer=/models/t")


def results(**scores: dict[str, object]) -> dict[str, object]:
    """A document of lm-eval, of ten items a task."""
    counts = {
        task: {"original": 20, "effective": values.pop("items", 10)}
        for task, values in scores.items()
    }
    return {"results": scores, "n-samples": counts}


def test_tasks_without_items_or_a_score_that_is_known_are_left_out(tmp_path: Path) -> None:
    document = results(
        empty={"items": 0, "acc,none": 0.5},
        words={"alias": "words", "perplexity,none": 7.0, "acc,none": "none"},
        both={"acc_norm,none": 0.2, "acc,none": 0.4, "acc_stderr,none": 0.1},
        whole={"exact_match,strict": 1, "acc,none": 0.4},
    )
    (tmp_path / "results.json").write_text(json.dumps(document))
    found = quality.read(tmp_path / "results.json", {"both": 0.95, "whole": 0.1})
    rows = [(one["task"], one["metric"], one["score"], one["items"]) for one in found["tasks"]]
    assert rows == [("both", "acc,none", 0.4, 10), ("whole", "exact_match,strict", 1, 10)]
    verdicts = [(one["reference"], one["verdict"]) for one in found["tasks"]]
    assert verdicts == [(0.95, "below the reference"), (0.1, "above the reference")]
    assert found["version"] is None


def test_the_command_names_own_tasks_and_the_way_of_asking(tmp_path: Path) -> None:
    asked = options(quality_include=tmp_path, quality_limit=9)
    words = quality.command(asked, "http://x", "m", True, tmp_path)
    assert words[words.index("--model") + 1] == "local-chat-completions"
    assert words[words.index("--include_path") + 1] == str(tmp_path)
    assert words[words.index("--limit") + 1] == "9"
    assert "base_url=http://x/v1/chat/completions" in words[words.index("--model_args") + 1]
