"""What is wrong with the words that start a worker: flags that are misspelt, a side that is not
that of its service, an option file that nothing beside it gives."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ..diagnostics import Diagnostic, closest, is_misspelling, located
from . import workers
from .workers import FILE_FLAGS, MODE_FLAG, MODEL_FLAGS, WORKER, Worker

_FLAGS = (
    *MODEL_FLAGS,
    *FILE_FLAGS,
    MODE_FLAG,
    "--served-model-name",
    "--modality",
    "--max-num-tokens",
    "--max-batch-size",
    "--max-seq-len",
    "--tensor-parallel-size",
    "--publish-events-and-metrics",
)


def diagnostics(
    servers: Sequence[Worker], options: Mapping[str, Mapping[str, Any]], in_job: bool = False
) -> Iterator[Diagnostic]:
    """That, and what is wrong with their GPUs and models. `options` are those of each file that is
    given beside them, by the last part of its name."""
    yield from workers.diagnostics(servers, options, in_job)
    for worker in servers:
        if any(word.endswith(WORKER) for word, _ in worker.words):
            yield from _misspelt(worker)
            yield from _other_side(worker)
        yield from _missing_file(worker, options)


def _misspelt(worker: Worker) -> Iterator[Diagnostic]:
    for word, place in worker.words:
        name = word.partition("=")[0]
        if not name.startswith("--") or name in _FLAGS:
            continue
        near = next((flag for flag in _FLAGS if is_misspelling(name, flag)), None)
        if near:
            what = f"{name} is no flag of {WORKER}"
            yield located(place, worker.path, what, f"did you mean {near}?", "unknown-flag")


def _other_side(worker: Worker) -> Iterator[Diagnostic]:
    """A side that is given twice, and differently."""
    given = worker.flag((MODE_FLAG,))
    side = given[0].strip("\"'") if given else ""
    if given and {side, worker.role} == {"prefill", "decode"}:
        what = f"{MODE_FLAG} {side}, but the service is one of {worker.role} workers"
        fix = f"give {worker.role}, or correct the service"
        yield located(given[1], worker.path, what, fix, "disagg-mode")


def _missing_file(worker: Worker, files: Collection[str]) -> Iterator[Diagnostic]:
    """A file that nothing gives, where one of almost the same name is given."""
    given = worker.flag(FILE_FLAGS)
    if not given or not worker.file or worker.file in files:
        return
    if near := closest(worker.file, files):
        what = f"{given[0]} is not among the files that are given here"
        fix = f"did you mean {near}?"
        yield located(given[1], worker.path, what, fix, "missing-option-file")
