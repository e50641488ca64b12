"""Rules that need more than options hold for files of others: a recipe that names a model, a GPU
and a workload breaks every row of the rules that such facts can break."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from builder import lint, pipeline
from builder.documents import load_yaml
from builder.facts import checkpoint, hardware, model_names, release
from builder.rules.context import RuleContext

CASES: list[Mapping[str, Any]] = load_yaml(
    Path(__file__).parents[1].joinpath("rule_cases.yaml").read_text(encoding="utf-8")
)
MAIN = "main-00043967"
REACHED = 0.95
_SECTIONS = {"agg": "aggregated", "prefill": "prefill", "decode": "decode"}


def _models(facts: Mapping[str, Any]) -> Iterator[str]:
    """Known models that have the facts of a case."""
    if "checkpoint" in facts:
        yield facts["checkpoint"]
        return
    asked = ("precision", "mtp_layers", "num_experts", "kv_dtype")
    for name in model_names.known_names():
        model = checkpoint.gather(name)
        known = RuleContext.of(release.load("1.2.1"), model)
        same = all(getattr(known, key) == facts[key] for key in asked if key in facts)
        if same and facts.get("architecture") in (None, model.architecture.name):
            yield name


def _gpus(facts: Mapping[str, Any]) -> list[str]:
    if "gpu" in facts:
        return [facts["gpu"]]
    same = [name for name in hardware.known() if hardware.load(name).sm.value == facts.get("sm")]
    return same or hardware.known()[:1]


def _asks_model(case: Mapping[str, Any]) -> bool:
    asked = {"checkpoint", "architecture", "precision", "mtp_layers", "num_experts", "kv_dtype"}
    return bool(asked & {*case.get("context", {})})


def _reported(case: Mapping[str, Any], folder: Path) -> bool:
    """Whether check reports the rule of a case for a recipe that states its facts."""
    facts = case.get("context", {})
    name = facts.get("release", "1.2.1")
    options = lint.CheckOptions((MAIN if name == "main" else name,), facts.get("role"))
    for model in [*_models(facts)][:6] if _asks_model(case) else [""]:
        for gpu in _gpus(facts)[:3] if {"sm", "gpu"} & {*facts} else [""]:
            recipe = {
                "model": {"path": model},
                "resources": {"gpu_type": gpu},
                "backend": {"trtllm_config": {_SECTIONS[facts.get("role", "agg")]: case["breaks"]}},
                "benchmark": {key: facts[key] for key in ("isl", "osl") if key in facts},
            }
            remark = ""
            if "num_gpus" in facts:  # only a remark tells them without the nodes
                del recipe["resources"]
                remark = f"# on {facts['num_gpus']}x {gpu}\n"
            path = folder / "recipe.yaml"
            path.write_text(remark + yaml.safe_dump(recipe), encoding="utf-8")
            found = lint.check([path], options, pipeline.deployment_diagnostics).findings
            if case["rule"] in {row.rule for row in found}:
                return True
    return False


def test_nearly_every_rule_is_broken_by_a_recipe_that_states_its_facts(tmp_path: Path) -> None:
    """Models whose facts ship have the facts of all rows but of some architectures."""
    known = [case for case in CASES if not _asks_model(case) or any(_models(case["context"]))]
    assert len(known) >= REACHED * len(CASES)
    assert [case["rule"] for case in known if not _reported(case, tmp_path)] == []
