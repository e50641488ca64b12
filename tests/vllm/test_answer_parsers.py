"""Rows about tool parsers against the parsers themselves."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from builder.facts import data_file, release
from builder.facts.chat_turns import ARGUMENTS, NAME, Parsers, Turn
from builder.rules import answer_parsers
from launch import cpu_build
from tests.vllm.conftest import ENGINE

PROGRAM = Path(__file__).parent / "parse_calls.py"
AS_IN_A_STREAM = {"llama3_json", "llama4_json"}  # the rows; whole answers are searched anywhere


def test_rows_find_the_calls_that_the_parsers_find() -> None:
    turns = data_file.shipped("parsers/turns.yaml", tuple[Turn, ...])
    texts = [turn.text.rpartition("</think>")[2] for turn in turns]
    rows = data_file.shipped("parsers/vllm.yaml", Parsers).tools
    names = sorted({name for row in rows for name in row.names} - AS_IN_A_STREAM)
    types = {key: {"type": "integer" if key == "days" else "string"} for key in ARGUMENTS}
    function = {"name": NAME, "parameters": {"type": "object", "properties": types}}
    asked = {
        "parsers": names,
        "texts": texts,
        "tools": [{"type": "function", "function": function}],
    }
    environment, build = cpu_build.folder(ENGINE), ENGINE.cpu_build
    assert environment and build
    done = subprocess.run(
        [str(environment / "bin" / "python"), str(PROGRAM)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    table = release.load("0.32.0", engine=ENGINE)
    for name in names:
        read = []
        for text in texts:
            finding = answer_parsers.finding(table, "tools", name, Turn(text, "a test"))
            read.append(finding == answer_parsers.GOOD)
        assert read == found[name], name
