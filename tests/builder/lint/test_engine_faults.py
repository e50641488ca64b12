"""A fault that has nothing to do with an engine is found for every engine, at its line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from builder import lint, pipeline
from tests.tables import by_table, tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))


@dataclass(frozen=True)
class Engine:
    """How a file starts an engine: `serve` with a model, a worker of Dynamo, and its flags."""

    serve: str
    worker: str
    image: str
    options: str
    file_flag: str = "--config"
    size_flag: str = "--tensor-parallel-size"


ENGINES = {
    "tensorrt_llm": Engine(
        "trtllm-serve m/m --host 0.0.0.0",
        "python3 -m dynamo.trtllm --model-path m/m",
        "registry.local/llm:1",
        "max_batch_size: 64",
        size_flag="--tensor_parallel_size",
    ),
    "vllm": Engine(
        "vllm serve m/m --host 0.0.0.0",
        "python3 -m dynamo.vllm --model m/m",
        "registry.local/llm:1",
        "max-num-seqs: 64",
    ),
}

POD = TABLES["POD"]
# Its command says all that the server gets; an option file of vLLM may set ports and sizes.
PLAIN = TABLES["PLAIN"]
COMPOSE = TABLES["COMPOSE"]
GRAPH = TABLES["GRAPH"]
SCRIPT = TABLES["SCRIPT"]
DOCKER = TABLES["DOCKER"]

ALONE = TABLES["ALONE"]

# What is put in the place of what, and the rule with the line that finds it.
FAULTS = TABLES["FAULTS"]


def written(text: str, engine: Engine) -> str:
    for word, meant in (
        ("SERVE", engine.serve),
        ("WORKER", engine.worker),
        ("IMAGE", engine.image),
        ("OPTIONS", engine.options),
        ("CONFIG", engine.file_flag),
        ("SIZE", engine.size_flag),
    ):
        text = text.replace(word, meant)
    return text


def findings(folder: Path, file: str, text: str, engine: Engine) -> set[tuple[str, int]]:
    (folder / file).write_text(written(text, engine))
    (folder / "options.yaml").write_text(f"{engine.options}\n")
    report = lint.check([folder / file], lint.CheckOptions(), pipeline.deployment_diagnostics)
    ignored = ("unknown-model", "vulnerable-version", "unknown-version")
    return {(row.rule, row.location.line) for row in report.findings if row.rule not in ignored}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_for_each_engine(fault: str, engine: str, tmp_path: Path) -> None:
    file, text, old, new, rule, line = FAULTS[fault]
    assert text.count(old) == 1
    assert (rule, line) in findings(tmp_path, file, text.replace(old, new), ENGINES[engine])


@pytest.mark.parametrize("engine", ENGINES)
@by_table
def test_a_file_without_the_fault_has_no_finding(
    file: str, text: str, engine: str, tmp_path: Path
) -> None:
    assert findings(tmp_path, file, text, ENGINES[engine]) == set()
