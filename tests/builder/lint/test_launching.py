"""Scripts that start a server as it is written: nothing that keeps one from starting is in them.

What is found, and where, is among the rows of `semantic_faults.yaml`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lint, pipeline
from tests.tables import tables

TABLES = tables(Path(__file__).with_suffix(".yaml"))

RIGHT = TABLES["RIGHT"]


@pytest.mark.parametrize("case", RIGHT)
def test_nothing_is_found_where_nothing_is_wrong(case: str, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"#!/bin/bash\n{RIGHT[case]}trtllm-serve m/m --port 9000\n")
    report = lint.check([path], lint.CheckOptions(("1.2.1",)), pipeline.deployment_diagnostics)
    assert report.checked == 1
    assert [str(row) for row in report.findings if row.rule != "unknown-model"] == []


def test_an_address_in_a_file_beside_the_script_is_one_that_the_script_serves(
    tmp_path: Path,
) -> None:
    urls = 'context_servers: {urls: ["localhost:8001"]}\n'
    urls += 'generation_servers: {urls: ["localhost:%d"]}\n'
    (tmp_path / "run.sh").write_text(
        "trtllm-serve m/m --port 8001 &\ntrtllm-serve m/m --port 8002 &\n"
        "trtllm-serve disaggregated -c both.yaml\n"
    )
    for port, expected in ((8002, []), (8003, [(3, "give 8001 or 8002 there")])):
        (tmp_path / "both.yaml").write_text(urls % port)
        options = lint.CheckOptions(("1.2.1",))
        rows = lint.check([tmp_path], options, pipeline.deployment_diagnostics).findings
        found = [(row.location.line, row.fix) for row in rows if row.rule == "port-unreached"]
        assert found == expected
