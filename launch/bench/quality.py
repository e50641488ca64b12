"""Quality in addition to speed: lm-eval tasks through the endpoint, with confidence intervals.

lm-eval is not a dependency: it runs as a separate process with a Python of the user that has it,
and its results file is read.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady
from builder.files import load_json_mapping, reported

from .samples import LEVEL, wilson

Verdict = Literal["as the reference", "below the reference", "above the reference"]

TOOL = "lm-eval"
DIGITS = 4
LAST_LINES = 5
CONCURRENCY = 8
# Metrics of lm-eval that rate an item as right or wrong, the preferred one first.
METRICS = ("exact_match", "acc", "acc_norm")


def run(
    options: argparse.Namespace, base_url: str, model: str, chat: bool, folder: Path
) -> dict[str, Any]:
    """Run lm-eval by the options `--quality...` and `--tokenizer`, and return its part of the
    document. Without `chat` it uses completions. Raises `NotReady` if lm-eval fails."""
    output = folder / "quality"
    output.mkdir(exist_ok=True)
    log = folder / "quality.log"
    with log.open("wb") as lines:
        environment = {**os.environ, "OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY", "none")}
        with reported(options.quality_python, "cannot be run", "name a Python with lm-eval"):
            status = subprocess.run(
                command(options, base_url, model, chat, output),
                stdout=lines,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                check=False,
            ).returncode
    files = sorted(output.rglob("results_*.json"))
    if status or not files:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        words = "".join(f"\n    {line}" for line in last)
        raise NotReady(Diagnostic(TOOL, f"ended with status {status}; its log {log} ends:{words}"))
    return read(files[-1], options.quality_reference)


def command(
    options: argparse.Namespace, base_url: str, model: str, chat: bool, output: Path
) -> list[str]:
    """The command line of lm-eval; a named tokenizer counts its tokens."""
    path, name = ("chat/", "local-chat-completions") if chat else ("", "local-completions")
    arguments = {
        "model": model,
        "base_url": f"{base_url}/v1/{path}completions",
        "num_concurrent": CONCURRENCY,
        "max_retries": 3,
        "tokenized_requests": False,
        "tokenizer_backend": "huggingface" if options.tokenizer else "None",
        **({"tokenizer": options.tokenizer} if options.tokenizer else {}),
    }
    words: list[object] = [options.quality_python, "-m", "lm_eval"]
    words += ["--model", name, "--tasks", options.quality_tasks, "--output_path", output]
    words += ["--model_args", ",".join(f"{key}={value}" for key, value in arguments.items())]
    words += ["--include_path", options.quality_include] if options.quality_include else []
    words += ["--limit", options.quality_limit] if options.quality_limit else []
    words += ["--apply_chat_template"] if chat else []
    return [str(word) for word in words]


def read(file: Path, references: Mapping[str, float]) -> dict[str, Any]:
    """A results file of lm-eval as the document holds it. Raises `BadInput`."""
    try:
        document = load_json_mapping(file, BadInput)
        scores = list(_scores(document, references))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"is not a results file of {TOOL}: {type(error).__name__}: {error}"
        raise BadInput(Diagnostic(str(file), what)) from None
    return {
        "tool": TOOL,
        "version": document.get("lm_eval_version"),
        "file": str(file),
        "level": LEVEL,
        "tasks": scores,
    }


def _scores(
    document: Mapping[str, Any], references: Mapping[str, float]
) -> Iterator[dict[str, Any]]:
    """For each task, the share of `items` that are right, with Wilson's interval."""
    for task, values in document["results"].items():
        items = int(document["n-samples"][task]["effective"])
        # As `METRIC,FILTER`, next to their standard errors and the name of the task.
        scores = {name: v for name, v in values.items() if isinstance(v, int | float)}
        order = {metric: place for place, metric in enumerate(METRICS)}
        known = [name for name in scores if name.partition(",")[0] in order]
        if not known or not items:
            continue
        metric = min(known, key=lambda name: order[name.partition(",")[0]])
        value = scores[metric]
        low, high = wilson(value, items)
        reference = references.get(task)
        yield {
            "task": task,
            "metric": metric,
            "score": round(value, DIGITS),
            "items": items,
            "low": round(low, DIGITS),
            "high": round(high, DIGITS),
            "reference": reference,
            "verdict": _verdict(reference, low, high),
        }


def _verdict(reference: float | None, low: float, high: float) -> Verdict | None:
    if reference is None:
        return None
    if reference > high:
        return "below the reference"
    return "above the reference" if reference < low else "as the reference"


def below(found: Mapping[str, Any]) -> Sequence[str]:
    return [one["task"] for one in found["tasks"] if one["verdict"] == "below the reference"]
