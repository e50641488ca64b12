"""Quality beside speed: tasks of lm-eval asked through the endpoint, with confidence intervals.

lm-eval is none of this toolkit's packages: it runs with a Python of the user's that has it, as a
process of its own, and its results file is read.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from builder.diagnostics import Diagnostic
from builder.errors import BadInput, NotReady

Verdict = Literal["as the reference", "below the reference", "above the reference"]

TOOL = "lm-eval"
# The standard normal's quantile of a two-sided interval of 95 %.
Z = 1.959964
LEVEL = 0.95
DIGITS = 4
LAST_LINES = 5
# Metrics that lm-eval gives of an item as right or wrong, the one that is reported first.
METRICS = ("exact_match", "acc", "acc_norm")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """`references` are scores between 0 and 1 to hold against, by task."""

    python: Path
    tasks: tuple[str, ...]
    base_url: str
    model: str
    include: Path | None = None
    limit: int | None = None
    tokenizer: Path | None = None
    chat: bool = False
    concurrency: int = 8
    references: Mapping[str, float] = field(default_factory=dict)


def run(evaluation: Evaluation, folder: Path) -> dict[str, Any]:
    """Evaluate, and give what the document says of it. Raises `NotReady` if lm-eval fails."""
    output = folder / "quality"
    output.mkdir(exist_ok=True)
    log = folder / "quality.log"
    with log.open("wb") as lines:
        environment = {**os.environ, "OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY", "none")}
        try:
            status = subprocess.run(
                command(evaluation, output),
                stdout=lines,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                check=False,
            ).returncode
        except OSError as error:
            what = f"cannot be run: {(error.strerror or str(error)).lower()}"
            raise BadInput(
                Diagnostic(str(evaluation.python), what, "name a Python with lm-eval")
            ) from None
    files = sorted(output.rglob("results_*.json"))
    if status or not files:
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        words = "".join(f"\n    {line}" for line in last)
        raise NotReady(Diagnostic(TOOL, f"ended with status {status}; its log {log} ends:{words}"))
    return read(files[-1], evaluation.references)


def command(evaluation: Evaluation, output: Path) -> list[str]:
    """Completions unless a chat is wanted; lm-eval counts with the tokenizer, if one is named."""
    path, name = (
        ("chat/", "local-chat-completions") if evaluation.chat else ("", "local-completions")
    )
    arguments = {
        "model": evaluation.model,
        "base_url": f"{evaluation.base_url}/v1/{path}completions",
        "num_concurrent": evaluation.concurrency,
        "max_retries": 3,
        "tokenized_requests": False,
        "tokenizer_backend": "huggingface" if evaluation.tokenizer else "None",
        **({"tokenizer": evaluation.tokenizer} if evaluation.tokenizer else {}),
    }
    words: list[object] = [evaluation.python, "-m", "lm_eval"]
    words += ["--model", name, "--tasks", ",".join(evaluation.tasks), "--output_path", output]
    words += ["--model_args", ",".join(f"{key}={value}" for key, value in arguments.items())]
    words += ["--include_path", evaluation.include] if evaluation.include else []
    words += ["--limit", evaluation.limit] if evaluation.limit else []
    words += ["--apply_chat_template"] if evaluation.chat else []
    return [str(word) for word in words]


def read(file: Path, references: Mapping[str, float]) -> dict[str, Any]:
    """A results file of lm-eval as the document holds it. Raises `BadInput`."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        scores = list(_scores(document, references))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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
        known = [(name, value) for name, value in values.items() if _is_score(name, value)]
        order = {metric: place for place, metric in enumerate(METRICS)}
        known.sort(key=lambda pair: order[pair[0].partition(",")[0]])
        if not known or not items:
            continue
        metric, value = known[0]
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


def _is_score(name: str, value: object) -> bool:
    return name.partition(",")[0] in METRICS and isinstance(value, int | float)


def wilson(share: float, items: int) -> tuple[float, float]:
    """The score interval of a binomial share, which is right for few items and near 0 and 1.

    >>> [round(bound, 3) for bound in wilson(0.5, 100)]
    [0.404, 0.596]
    """
    centre = (share + Z**2 / (2 * items)) / (1 + Z**2 / items)
    spread = share * (1 - share) / items + Z**2 / (4 * items**2)
    half = Z * math.sqrt(spread) / (1 + Z**2 / items)
    return max(0.0, centre - half), min(1.0, centre + half)


def _verdict(reference: float | None, low: float, high: float) -> Verdict | None:
    """Whether the reference is a score that these items could have had by chance."""
    if reference is None:
        return None
    if reference > high:
        return "below the reference"
    return "above the reference" if reference < low else "as the reference"


def below(found: Mapping[str, Any]) -> Sequence[str]:
    """Tasks whose score is below its reference by more than chance."""
    return [one["task"] for one in found["tasks"] if one["verdict"] == "below the reference"]
