"""The quick bench: a few small requests, to see that a server can be measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import clients, config, prompts, results, system_under_test, workload
from .config import BenchConfig
from .progress import Progress
from .runner import Runner
from .system_under_test import SystemUnderTest

CONCURRENCIES = (1, 2, 4)
REQUESTS = 12  # as many as three waves of the largest concurrency
ISL, OSL = 32, 8


def run(system: SystemUnderTest, folder: Path) -> Mapping[str, Any]:
    """The document, whose files are left in a run folder."""
    api = clients.offered(system.endpoint)[0]
    checkpoint = system.checkpoint
    made_of = prompts.from_tokenizer(checkpoint) if checkpoint else prompts.from_word_list()
    quick = BenchConfig(
        workload=workload.fixed(made_of, ISL, OSL, workload.TEMPLATE),
        levels=config.closed("concurrency", CONCURRENCIES),
        prompts=made_of,
        api=api,
        requests=REQUESTS,
        warmup=0,
    )
    reported = system_under_test.reported(system.endpoint)
    about = system_under_test.described(system.endpoint, system.bundle, system.run, reported)
    files = results.create(folder, "quick")
    try:
        facts = config.facts(quick, about)
        runner = Runner(quick, system.endpoint, files, Progress(lines=False), facts)
        runner.run()
    finally:
        files.close()
    return runner.document


def failures(found: Mapping[str, Any]) -> list[str]:
    """What failed, by point and kind, in words."""
    return [
        f"{point['label']}: {one['count']} requests failed, {kind}: {one['example']}"
        for point in found["points"]
        for kind, one in point["errors"].items()
    ]
