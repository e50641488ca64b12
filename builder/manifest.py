"""The content of a manifest: tool, inputs with digests, decisions with reasons, memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import __version__
from .diagnostics import Diagnostic
from .documents import DATA
from .engines import EngineConfig
from .estimates import alternatives, fits, measurements, models, plan_estimate
from .facts import advisories, hardware, published_results, servers
from .facts.engines import Engine
from .planning import Facts, Plan
from .rules import heuristics, vulnerability_policy

# What every estimate rests on, and every refusal of one.
_MEASURED = (measurements.AGGREGATED, fits.FACTORS, models.MODELS)


def facts_of(
    plan: Plan,
    engine: EngineConfig,
    warnings: Sequence[Diagnostic],
    accepted: Sequence[tuple[Diagnostic, str]] = (),
) -> dict[str, Any]:
    """What the manifest and `plan --json` say of a plan and its spelling for the release."""
    facts, request = plan.facts, plan.deployment
    return {
        "tool": {"name": "trtllm-deployment-toolkit", "version": __version__},
        "engine": request.engine.identity,
        "inputs": {
            "checkpoint": {"name": facts.checkpoint.name, "source": facts.checkpoint.source},
            "files": dict(_inputs(facts)),
        },
        "decisions": [asdict(row) for row in (*engine.decisions, *plan.flags, *plan.environment)],
        "engine_defaults": [asdict(row) for row in plan.engine_defaults],
        "differences": [asdict(row) for row in plan.differences],
        "warnings": [
            {"where": row.where, "what": row.message, "remedy": row.fix} for row in warnings
        ],
        **({"accepted_warnings": list(map(_accepted, accepted))} if accepted else {}),
        "accepted_advisories": vulnerability_policy.record(request, facts.release.name),
        "limits": asdict(plan.limits),
        "memory": memory(plan),
        "estimate": plan_estimate.document(plan) | _disagreement(plan),
        "published": [_published(row) for row in facts.published],
        **({"choice": request.choice.data()} if request.choice else {}),
    }


def _accepted(row: tuple[Diagnostic, str]) -> dict[str, str]:
    warning, reason = row
    return {"where": warning.where, "what": warning.message, "reason": reason}


def _disagreement(plan: Plan) -> dict[str, str]:
    found = alternatives.disagreement(plan)
    return {"disagreement": f"{found}; published practice decides"} if found else {}


def _published(row: published_results.Published) -> dict[str, Any]:
    return {key: value for key, value in asdict(row).items() if key != "file"}


def _inputs(facts: Facts) -> Iterator[tuple[str, str]]:
    """The digests of the files that the result rests on, by names that no folder here is in."""
    models = {"checkpoint": facts.checkpoint, "draft": facts.draft}
    shipped = [model.file for model in models.values() if model and model.file]
    for folder, model in models.items():
        for name, digest in model.digests.items() if model else ():
            yield f"{folder}/{name}", digest
    for path in (
        *shipped,
        hardware.HARDWARE / f"{facts.gpu.name}.yaml",
        *(facts.release.files if facts.release.ships else ()),  # else the bundle holds it
        *sorted({row.file for row in facts.published}),
        *heuristics.files(facts.release.engine),
        DATA / facts.release.engine.rules,
        *_MEASURED,
    ):
        yield path.relative_to(Path(__file__).parent).as_posix(), _sha256(path)
    for path in _advisories(facts.release.engine):  # which may be newer than those that ship
        yield f"data/advisories/{path.name}", _sha256(path)


def _advisories(engine: Engine) -> Iterator[Path]:
    """The advisories of an engine and of the servers that it may be behind."""
    carriers = [row for row in map(servers.load, servers.names()) if engine.name in row.engines]
    products = {engine.product, *(row.image["product"] for row in carriers)}
    return (path for path in advisories.files() if path.stem in products)


def memory(plan: Plan) -> dict[str, Any]:
    """The memory budget in GiB, rounded to what the estimate is worth."""
    budget = plan.budget
    return {
        "per_gpu": {
            "total_gib": round(budget.total_gib, 2),
            "weights_gib": round(budget.weights_gib, 2),
            "kv_cache_gib": round(budget.kv_cache_gib, 2),
            "activations_gib": round(budget.activations_gib, 2),
            "cuda_graphs_gib": round(budget.cuda_graphs_gib, 2),
            "other_gib": round(budget.other_gib, 2),
        },
        "total_source": plan.facts.gpu.memory_cuda_mib.source,
        "total_verified": plan.facts.gpu.memory_cuda_mib.verified,
        "kv_bytes_per_token": budget.kv_bytes_per_token,
        "kv_tokens": budget.kv_tokens,
        "max_concurrency": budget.max_concurrency,
        "fits": budget.fits,
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
