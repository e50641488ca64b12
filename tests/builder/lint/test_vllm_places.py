"""Faults of vLLM's files where users write them, each found in its line with its rule and remedy.

The line that is wrong ends with `<<< RULE: words of the remedy`, which is taken off before.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder import lint as check
from builder import pipeline
from tests.tables import tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

IMAGE = "vllm/vllm-openai:v0.32.0"
POD = f"""apiVersion: v1
kind: Pod
metadata: {{name: one}}
spec:
  containers:
  - image: {IMAGE}
"""
WRONG = TABLES["WRONG"]
SUFFIXES = {"#!": ".sh", "from": ".py", "import": ".py"}
_FAULT = re.compile(r" <<< (?P<rule>[\w-]+): (?P<remedy>.*)$", re.MULTILINE)


def findings(folder: Path, **files: str) -> list[tuple[str, int, str, str]]:
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_text(text)
    report = check.check([folder], check.CheckOptions(), pipeline.deployment_diagnostics)
    rows = (row for row in report.findings if row.rule != "vulnerable-version")
    return [(Path(row.where).name, row.location.line, row.rule, row.fix) for row in rows]


@pytest.mark.parametrize("case", WRONG)
def test_a_fault_is_found_in_its_line(case: str, tmp_path: Path) -> None:
    text = WRONG[case]
    suffix = next((end for begin, end in SUFFIXES.items() if text.startswith(begin)), ".yaml")
    found = findings(tmp_path, **{f"file_{suffix[1:]}": _FAULT.sub("", text)})
    [(_, line, rule, fix)] = found
    [wanted] = _FAULT.finditer(text)
    assert (line, rule) == (text.count("\n", 0, wanted.start()) + 1, wanted["rule"])
    assert wanted["remedy"] in fix


RIGHT = TABLES["RIGHT"]


def test_nothing_is_found_in_what_looks_alike(tmp_path: Path) -> None:
    assert not findings(tmp_path, **RIGHT)


@pytest.mark.parametrize(("pin", "severity"), [("", "warning"), ("# vllm==0.32.0\n", "error")])
def test_what_ray_hands_to_a_release_that_nobody_names_may_be_right(
    pin: str, severity: str, tmp_path: Path
) -> None:
    text = (
        f"{pin}from ray.serve.llm import LLMConfig\nLLMConfig(engine_kwargs=dict(task='embed'))\n"
    )
    (tmp_path / "serve.py").write_text(text)
    report = check.check([tmp_path], check.CheckOptions(), pipeline.deployment_diagnostics)
    assert [(row.rule, row.severity) for row in report.findings] == [("unknown-key", severity)]


SERVE = "#!/bin/sh\n# vllm==0.20.0\nvllm serve meta-llama/Llama-3.3-70B-Instruct --config"


def test_a_configuration_file_is_of_the_command_that_reads_it(tmp_path: Path) -> None:
    """It alone would be a file of no engine, and know neither release nor model."""
    options = "port: 9000\nseed: 1\ndtype: bfloat\ntensor_parallel_size: 3\n"
    started = f"{SERVE} /etc/vllm/small.yaml\n"
    found = findings(tmp_path, small_yaml=options, serve_sh=started)
    assert [row[:3] for row in found] == [
        ("small.yaml", 3, "unknown-value"),
        ("small.yaml", 4, "heads-per-rank"),
    ]
