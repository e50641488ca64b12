"""Every string of a deployment file takes harmless letters only, or any text as a mere value."""

from __future__ import annotations

import functools
import json
import re
from typing import Annotated, Any

import pytest

from builder import pipeline
from builder.errors import BadInput
from builder.schema import Bounds, Strict, fields_of
from tests.security.hostile import MODELS, Text, names, texts

COUNT, SOME = 10_000, 200

# Strings that take any text; test_injection puts hostile ones into each of them, but for those that
# must be one of a list.
FREE = {
    *("checkpoint", "notes[]", "environment.*", "draft.checkpoint", "accepted_advisories[].reason"),
    *("targets.slurm.site.checkpoints{}", "targets.slurm.site.environment.*"),
    *("choice.reason", "choice.source", "accepted_warnings[].reason"),
    *("measured.checkpoint", "measured.source"),
    *(
        "targets.kubernetes.model.csi.attributes.*",
        "targets.kubernetes.draft_model.csi.attributes.*",
    ),
}
ONE_OF_A_LIST = {
    *("hardware.gpu", "engine.name", "engine.release", "images{}", "targets{}"),
    *(f"targets.{name}.server" for name in ("compose", "kubernetes", "monitoring", "slurm")),
    *("accepted_advisories[].product", "price_per_gpu_hour_usd{}"),
    "targets.slurm.site.container.images{}",
    *(f"targets.{name}.prefill.deployment" for name in ("kubernetes", "slurm")),
}
NESTED = {"engine_config"}  # judged by its own tables
# Rules that let more through, each with what: they are rendered as words, quoted where it matters.
WIDER = {
    "targets.slurm.site.constraint": "&|*()[]",
    "targets.slurm.site.sbatch[]": "[]&|*%",
    "targets.slurm.site.srun[]": "[]&|*%",
    "targets.monitoring.runbook_url": "?&~",
    "targets.monitoring.alertmanager": "[]",
    "targets.monitoring.blackbox": "[]",
    "targets.slurm.site.container.images.*": "#",
}
OPTIONS = ("targets.slurm.site.sbatch[]", "targets.slurm.site.srun[]")
# Strings that are never a word of a command of their own: those may begin with a dash.
NO_WORDS = ("targets.kubernetes.", "targets.monitoring.")
HARMLESS = r"A-Za-z0-9._/:@+=,%\-"

CONSTRAINED = sorted(
    {row for row in texts() if row.path not in FREE | ONE_OF_A_LIST},
    key=lambda row: (row.path, row.pattern or ""),
)


@functools.cache
def fuzzed() -> list[str]:
    return names(COUNT)


@functools.cache
def accepted(pattern: str | None, longest: int | None) -> list[str]:
    """The texts that a rule lets through; a deployment file takes no other of the first ones."""
    found = [text for text in fuzzed() if re.fullmatch(pattern or ".*", text, re.S)]
    found = [text for text in found if len(text) <= (longest or len(text))]
    rule: Any = Annotated[str, Bounds(pattern=pattern, max_length=longest)]
    part: Any = type("Part", (Strict,), {"__module__": __name__, "__annotations__": {"text": rule}})
    assert {text for text in fuzzed()[:SOME] if part.read({"text": text})[0]} <= set(found)
    return found


def test_the_strings_of_a_deployment_file_are_all_known() -> None:
    free = {row.path for row in texts() if row.pattern in (None, r"^[^\x00]*$", "^[ -~]*$")}
    assert free - NESTED == (FREE | ONE_OF_A_LIST) - NESTED


@pytest.mark.parametrize("row", CONSTRAINED, ids=lambda row: row.path)
def test_ten_thousand_names_find_no_way_past_a_rule(row: Text) -> None:
    """What passes has no letter that a shell, YAML, HTML or a template would act on."""
    letters = HARMLESS + re.escape(WIDER.get(row.path, ""))
    for text in accepted(row.pattern, row.longest):
        assert re.fullmatch(f"[{letters}]*", text), text
        may_lead = row.path in OPTIONS or row.path.startswith(NO_WORDS)
        assert may_lead or not text.startswith("-"), text


@pytest.mark.parametrize("setting", ["engine.name", "targets.compose.server"])
def test_a_name_that_is_not_in_its_list_is_refused(setting: str) -> None:
    for text in fuzzed()[:10]:
        with pytest.raises(BadInput):
            pipeline.plan("llama-tiny", [f"{setting}={json.dumps(text)}"])


def test_some_of_the_names_pass() -> None:
    """Else the test above would say nothing."""
    counts = {row.path: len(accepted(row.pattern, row.longest)) for row in CONSTRAINED}
    assert counts["name"] > 500 and counts["targets.triton.model_name"] > 500
    assert sum(count == 0 for count in counts.values()) < len(counts) / 2


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_unknown_keys_are_refused_everywhere(model: type[Strict]) -> None:
    given = {"no such key": 1, **({"site": {}} if "site" in fields_of(model) else {})}
    _, found = model.read(given)
    assert "unknown key" in {row.message for row in found}
