"""Mistakes made from the option tables of every engine: `check` finds them, with the right name."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder import lint as check
from builder import pipeline
from builder.diagnostics import Diagnostic
from builder.facts import engines, release
from builder.facts.release import Release

from .table_mutants import TableMutant, mutants

FOUND = 0.99
COUNT = 300

Write = Callable[[dict[str, Any]], str]


def as_yaml(options: dict[str, Any]) -> str:
    return yaml.safe_dump(options, sort_keys=False)


def with_dashes(options: dict[str, Any]) -> str:
    return as_yaml({key.replace("_", "-"): value for key, value in options.items()})


def as_command(options: dict[str, Any]) -> str:
    words = ["vllm", "serve", options["model"]]
    for key, value in options.items():
        if key != "model":
            words += _flag(f"--{key.replace('_', '-')}", value)
    return f"#!/bin/bash\n{shlex.join(words)}\n"


def _flag(name: str, value: Any) -> list[str]:
    if value is True:
        return [name]
    if isinstance(value, list):
        return [name, *map(str, value)]
    return [name, json.dumps(value) if isinstance(value, dict) else str(value)]


# The forms in which files give an engine options: name of the file, how it is written, and the
# right options that stand beside the wrong one.
RIGHT = {
    "tensorrt_llm": {
        "tensor_parallel_size": 8,
        "max_batch_size": 64,
        "max_num_tokens": 8192,
        "kv_cache_config": {"enable_block_reuse": False},
        "enable_chunked_prefill": True,
    },
    "vllm": {
        "model": "some/model",
        "tensor_parallel_size": 8,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8192,
        "max_model_len": 8192,
        "gpu_memory_utilization": 0.9,
    },
}
FORMS: dict[str, tuple[tuple[str, Write], ...]] = {
    "tensorrt_llm": (("config.yaml", as_yaml),),
    "vllm": (("config.yaml", with_dashes), ("serve.sh", as_command), ("model.json", json.dumps)),
}


def with_mutant(right: dict[str, Any], mutant: TableMutant) -> dict[str, Any]:
    options: dict[str, Any] = json.loads(json.dumps(right))
    *above, name = mutant.path.split(".")
    into = options
    for key in above:
        into = into.setdefault(key, {})
    into[name] = mutant.value
    return options


def words(text: str) -> list[str]:
    """The names in a flag, a path or a sentence as the table spells them."""
    plain = re.findall(r"[\w.-]+", text)
    return [word.lstrip("-").replace("-", "_") for word in plain]


def is_found(row: Diagnostic, mutant: TableMutant) -> bool:
    """Whether a finding blames the option, with the name that was meant."""
    named = not mutant.name or mutant.name.replace("-", "_").lower() in map(
        str.lower, words(row.fix)
    )
    return mutant.path in words(row.path) and named


def findings(folder: Path, engine: str, name: str) -> dict[str, list[Diagnostic]]:
    """By the name of the folder that each file stands in."""
    report = check.check([folder], check.CheckOptions((name,)), pipeline.deployment_diagnostics)
    rows: dict[str, list[Diagnostic]] = {Path(row.file).parent.name: [] for row in report.files}
    for row in report.findings:
        rows[Path(row.where).parent.name].append(row)
    return rows


def form_of(engine: str, mutant: TableMutant, index: int, table: Release) -> tuple[str, Write]:
    """The forms in turn, the last one for what only a Python program or Triton gives."""
    meant = mutant.name if mutant.kind == "misspelt" and "." not in mutant.path else mutant.path
    top = meant.partition(".")[0]
    flags = {flag.name for flag in table.serve_flags}
    only_inside = top in table.top_level and top not in flags
    return FORMS[engine][-1 if only_inside else index % len(FORMS[engine])]


def newest(engine: str) -> str:
    return release.known(engines.load(engine))[-1]


@pytest.mark.parametrize("engine", engines.names())
def test_the_files_are_right_before_they_are_changed(engine: str, tmp_path: Path) -> None:
    for index, (name, write) in enumerate(FORMS[engine]):
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / name).write_text(write(RIGHT[engine]))
    found = findings(tmp_path, engine, newest(engine))
    assert found == {str(index): [] for index in range(len(FORMS[engine]))}


@pytest.mark.parametrize("engine", engines.names())
def test_mistakes_made_from_the_tables_are_found_with_the_right_name(
    engine: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    known = engines.load(engine)
    total, found = Counter[str](), Counter[str]()
    missed = []
    for seed, table in enumerate(release.of_engine(known)[-3:]):
        rows = mutants(table, COUNT // 3, seed)
        folder = tmp_path / table.name
        for index, mutant in enumerate(rows):
            name, write = form_of(engine, mutant, index, table)
            (folder / str(index)).mkdir(parents=True)
            options = with_mutant(RIGHT[engine], mutant)
            (folder / str(index) / name).write_text(write(options))
        by_file = findings(folder, engine, table.name)
        for index, mutant in enumerate(rows):
            total[mutant.kind] += 1
            hit = any(is_found(row, mutant) for row in by_file.get(str(index), ()))
            found[mutant.kind] += hit
            if not hit:
                said = [
                    f"{row.path}: {row.message}; {row.fix}" for row in by_file.get(str(index), ())
                ]
                missed.append((table.name, mutant, said))
    for kind in total:
        record_property(kind, f"{found[kind]} of {total[kind]}")
        print(f"{engine} {kind:<10} {found[kind]:>4} of {total[kind]:>4} found")
    print(*missed, sep="\n")
    assert sum(total.values()) == COUNT
    assert sum(found.values()) >= FOUND * COUNT
