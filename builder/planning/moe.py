"""The MoE backend: that of published configurations if the release has kernels for it here."""

from __future__ import annotations

from collections.abc import Iterator

from ..facts import heuristics as practice
from ..facts.heuristics import Row
from ..facts.release.support import compute_capability
from .case import Case

_PATH = "moe_config.backend"


def moe(case: Case) -> None:
    """The MoE backend for this quantization on this GPU, and how its results travel.

    Where neither published configurations nor the release name one that is known to work here, the
    engine's own choice stays; a rule of the release warns of it.
    """
    checkpoint, gpu, release = case.facts.checkpoint, case.facts.gpu, case.facts.release
    if checkpoint.architecture.experts_field is None:
        return
    usual = list(_usual(case))
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
                f"capability is {compute_capability(gpu.sm.value)}; known to work there: "
                f"{', '.join(names) or 'none'}."
            )
    without = f"Without this key the engine uses {release.moe_engine_default}."
    if usual:
        row = usual[0]
        case.decide(_PATH, row.value, f"{row.reason} {without}", case.grade(row), row.source)
    elif known:
        reason = f"The first choice of those with kernels for {checkpoint.precision} on {gpu.name}."
        backend = known[0]
        case.decide(_PATH, backend.name, f"{reason} {without}", backend.evidence, backend.source)
    case.follow("moe.combine")


def _usual(case: Case) -> Iterator[Row]:
    """Rows of published configurations whose backend the release supports on this GPU."""
    quant_algo, sm = case.facts.checkpoint.quantization.quant_algo, case.facts.gpu.sm.value
    (rule,) = practice.rules("moe.backend")
    for row in rule.fitting(case.situation()):
        support = case.facts.release.moe_backend_support(row.value, quant_algo, sm)
        if support.state == "supported" and case.accepts(_PATH, row.value):
            yield row
