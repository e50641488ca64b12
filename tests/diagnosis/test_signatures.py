"""Signatures of failures: each names its own example, and nothing where it must not."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from builder.credentials import mask
from builder.diagnosis import judgement, signatures, watch
from builder.diagnosis.judgement import LONGEST_TEXT, Diagnosis
from builder.diagnosis.signatures import Pattern, Signature
from builder.diagnosis.state import flat

ROWS = signatures.signatures()


def diagnosed(text: str, row: Signature) -> Diagnosis:
    seen = watch.watch(io.BytesIO(text.encode()), "server.log")
    return judgement.judge([seen], flat(row.example_state or {}))


@pytest.mark.parametrize("row", [row for row in ROWS if row.example], ids=lambda row: row.id)
def test_an_example_has_its_cause_and_no_other_first(row: Signature) -> None:
    assert row.example
    found = diagnosed(row.example, row)
    assert [cause.signature.id for cause in found.causes[:1]] == [row.id]
    [cause, *_] = found.causes
    lines = row.example.splitlines()
    for each in cause.evidence:
        assert each.text == mask(lines[each.line - 1].strip()[:LONGEST_TEXT])


@pytest.mark.parametrize("row", [row for row in ROWS if row.counterexample], ids=lambda row: row.id)
def test_a_counterexample_has_not_its_cause(row: Signature) -> None:
    assert row.counterexample
    found = diagnosed(row.counterexample, row)
    assert row.id not in [cause.signature.id for cause in found.causes]


def test_a_cause_names_only_what_every_line_captures() -> None:
    row = replace(
        ROWS[0],
        cause="{a} and {b}",
        fix="none",
        patterns=(Pattern(("lost {a} of {b}", "gone {a}")),),
    )
    assert [what for _, what in row.inconsistencies()] == [
        "names b, which not every line of a pattern captures"
    ]


def test_each_failure_has_its_own_name() -> None:
    names = [row.id for row in ROWS]
    assert len(names) == len(set(names))
