"""The kernels of the experts: those of published configurations, or those the release lists."""

from __future__ import annotations

from ..facts import heuristics as practice
from .case import Case

_PATH = "moe_config.backend"


def moe(case: Case) -> None:
    """The MoE backend for this quantization on this GPU, and how its results travel."""
    checkpoint, gpu, release = case.facts.checkpoint, case.facts.gpu, case.facts.release
    if checkpoint.architecture.experts_field is None:
        return
    (rule,) = practice.rules("moe.backend")
    usual = [row for row in rule.fitting(case.situation()) if case.accepts(_PATH, row.value)]
    known = [
        row
        for row in release.moe_backends(checkpoint.quantization.quant_algo, gpu.sm.value)
        if case.accepts(_PATH, row.name)
    ]
    names = list(dict.fromkeys([row.value for row in usual] + [backend.name for backend in known]))
    for published in case.published:
        used = published.options.get(_PATH)
        if used is not None and used not in names:
            case.refused[_PATH] = (
                f"{used} is not made for {checkpoint.precision} on {gpu.name}, whose compute "
                f"capability is {gpu.sm.value / 10}; known to work there: {', '.join(names)}."
            )
    without = f"Without this key the engine uses {release.moe_when_missing}."
    if usual:
        row = usual[0]
        case.decide(_PATH, row.value, f"{row.reason} {without}", case.grade(row), row.source)
    elif known:
        reason = f"The first choice of those with kernels for {checkpoint.precision} on {gpu.name}."
        backend = known[0]
        case.decide(_PATH, backend.name, f"{reason} {without}", backend.evidence, backend.source)
    case.follow("moe.combine")
