"""Signatures of failures: each names its own example, and nothing where it must not."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from builder.credentials import mask
from builder.diagnosis import judgement, signatures, templates, watch
from builder.diagnosis.judgement import LONGEST_TEXT, Diagnosis
from builder.diagnosis.signatures import Pattern, Signature
from builder.diagnosis.state import flat
from builder.facts.memory import Budget
from launch import diagnosis_text

ROWS = signatures.signatures()


def diagnosed(text: str, row: Signature) -> Diagnosis:
    seen = watch.watch(io.BytesIO(text.encode()), "server.log")
    return judgement.judge([seen], flat(row.example_state or {}))


@pytest.mark.parametrize("row", [row for row in ROWS if row.example], ids=lambda row: row.id)
def test_an_example_has_its_cause_and_no_other_first(row: Signature) -> None:
    assert row.example
    found = diagnosed(row.example, row)
    [cause, *_] = found.causes if row.cause else [found.symptom]
    assert cause and cause.signature.id == row.id
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


REFUSED = "OSError: [Errno 28] No space left on device\n"
READY = "INFO:     Application startup complete.\n"
SERVED = 'INFO:     10.0.0.1:7 - "POST /v1/completions HTTP/1.1" 200 OK\n'
LATER = "error: something else\n"
TRITON = "I0914 10:02:11.120183 9 http_server.cc:1] Started HTTPService at 0.0.0.0:8000\n"


@pytest.mark.parametrize(
    ("text", "verdict", "causes"),
    [
        (REFUSED, "failed", 1),
        (REFUSED + READY, "healthy", 0),
        (REFUSED + READY + LATER, "failed", 1),
        (REFUSED + READY + LATER + SERVED, "healthy", 0),
        (REFUSED + TRITON, "failed", 1),
    ],
)
def test_a_start_that_served_afterwards_had_no_failure(
    text: str, verdict: str, causes: int
) -> None:
    found = diagnosed(text, ROWS[0])
    assert (found.verdict, len(found.causes)) == (verdict, causes)


def test_an_echo_is_the_first_error_where_there_is_no_other() -> None:
    ended = "ERROR 09-14 12:49:41 [core.py:1] EngineCore failed to start.\n"
    found = [diagnosed(text, ROWS[0]) for text in (ended, ended + LATER)]
    assert [(each.verdict, each.first_error and each.first_error.line) for each in found] == [
        ("failed", 1),
        ("failed", 2),
    ]


FRAME = '  File "/opt/venv/lib/python3.12/site-packages/vllm/v1/core.py", line 236, in popleft\n'


@pytest.mark.parametrize("bare", ["AssertionError", "AssertionError: "])
def test_an_exception_without_words_tells_where_it_was_raised(bare: str) -> None:
    head = "(EngineCore pid=7) ERROR 08-01 10:00:00 [core.py:1100] "
    lines = ["Traceback (most recent call last):\n", FRAME, f"{bare}\n"]
    found = diagnosed("".join(head + line for line in lines), ROWS[0])
    assert found.first_error is not None
    place = "(raised at vllm/v1/core.py:236, in popleft)"
    assert found.first_error.text == f"{head}AssertionError {place}"


GENERIC = "ValueError: mm_tensor_ipc='torch_shm' is not supported\n"


@pytest.mark.parametrize(
    ("before", "causes"),
    [("", 1), ("error: x9 is odd\n", 0), ("RuntimeError: x9 failed, because:\n", 1)],
)
def test_a_generic_cause_has_the_first_error(before: str, causes: int) -> None:
    assert len(diagnosed(before + GENERIC, ROWS[0]).causes) == causes


def test_a_line_of_several_causes_is_assumed_and_names_the_others() -> None:
    row = next(row for row in ROWS if row.otherwise and row.cause)
    found = diagnosed(row.example or "", row)
    assert (found.causes[0].confidence, found.causes[0].otherwise) == ("assumed", row.otherwise)
    shown = diagnosis_text.text(diagnosis_text.document(found))
    assert "one of several causes: " in shown
    assert shown.count("\nor: ") == len(row.otherwise or {})


def test_a_mere_symptom_is_no_cause_and_gives_way_to_one() -> None:
    row = next(row for row in ROWS if not row.cause)
    text = f"{row.example}"
    found = diagnosed(text, row)
    assert (found.verdict, found.causes) == ("failed", ())
    assert found.symptom and found.symptom.signature.id == row.id
    shown = diagnosis_text.text(diagnosis_text.document(found))
    assert shown.count("\nperhaps: ") == len(row.otherwise or {})
    assert "The cause is unknown." in shown
    assert diagnosed(REFUSED + text, row).symptom is None


def test_what_the_same_line_proves_is_said_once() -> None:
    line = "sbatch: error: Batch job submission failed: Unspecified error\n"
    found = diagnosed(line, ROWS[0])
    assert [cause.signature.id for cause in found.causes] == ["slurm-submission-refused"]


@pytest.mark.parametrize("code", ["137", "-9"])
def test_a_killed_process_is_known_by_its_exit_code_alone(code: str) -> None:
    for text, ids in ((b"", ["process-ended-with-137"]), (LATER.encode(), [])):
        seen = watch.watch(io.BytesIO(b"starting\n" + text), "server.log")
        found = judgement.judge([seen], {"exit_code": code})
        assert [cause.signature.id for cause in found.causes] == ids


def test_each_failure_has_its_own_name() -> None:
    names = [row.id for row in ROWS]
    assert len(names) == len(set(names))


OUT_OF_MEMORY = """
[TensorRT-LLM][INFO] Estimated max memory in KV cache : {wanted} GiB
[09/14/2026-12:10:42] [TRT-LLM] [E] Failed to initialize executor on rank 0: Executor creation failed due to insufficient GPU memory.

The following component could not be created: KV cache
Total GPU memory (GiB): 79.11
Free GPU memory before component creation attempt (GiB): 40.20

Previously created components and free GPU memory before/after creation (GiB):
Model: {before} / 41.00
"""  # noqa: E501
FRACTION = "fraction is set 0.90, kv size is 65536.\n"
BUDGET = {"budget.kv_cache_gib": 61.0, "kv_cache_config.free_gpu_memory_fraction": 0.62}
WANTED = "The engine wanted 61 GiB for it, 20.8 GiB more than were free."
PLANNED = "The plan gives it 61 GiB, 20.8 GiB more than were free."
HELD = "19.1 of 79.1 GiB were taken before the model was loaded: another process holds them."
SHARE = "free_gpu_memory_fraction in force is 0.90, 0.28 above the plan's 0.62."


@pytest.mark.parametrize(
    ("log", "plan", "details"),
    [
        (OUT_OF_MEMORY.format(wanted=61, before=60), {}, [WANTED, HELD]),
        (OUT_OF_MEMORY.format(wanted=20, before=60), BUDGET, [PLANNED, HELD]),
        (FRACTION + OUT_OF_MEMORY.format(wanted=20, before=78.5), BUDGET, [PLANNED, SHARE]),
        (OUT_OF_MEMORY.format(wanted=20, before=78.5), {"budget.kv_cache_gib": 30.0}, []),
    ],
)
def test_the_numbers_of_a_failure_are_compared_with_the_plan(
    log: str, plan: dict[str, float], details: list[str]
) -> None:
    seen = watch.watch(io.BytesIO(log.encode()), "server.log")
    [cause] = judgement.judge([seen], {}, plan).causes
    _, found = cause.cause.split("other buffers.")
    assert found.strip() == " ".join(details)


def test_the_details_of_a_row_name_what_a_log_or_a_plan_has() -> None:
    quantities = signatures.readings().quantities
    budget = {f"budget.{field.name}" for field in dataclasses.fields(Budget)}
    known = {*quantities, *budget}.union(*(row.planned for row in quantities.values()))
    for row in ROWS:
        captured = {name for one in row.patterns for line in one.lines for name in _names(line)}
        for detail in row.details:
            terms = re.findall(r"\{([^}]+)\}", detail.text)
            named = {name for term in terms for name in term.split(" - ")}
            assert named <= known | captured, row.id


def _names(line: str) -> Iterator[str]:
    yield from templates.compiled(line).pattern.groupindex
