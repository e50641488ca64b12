"""What to measure so that a question is answered: the loads that tell most of its curve first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp, log2

from .kriging import FAR, Kernel
from .question import Question

MEASUREMENTS = 4  # a few runs of some minutes each
LOADS = (1, 4, 16, 64, 256)


def plan(question: Question, kernel: Kernel) -> tuple[Question, ...]:
    """Loads of the asked deployment, the one that tells most first.

    Each takes most of what is not known of the curve at all its loads, after those before it. The
    asked load counts as often as all others together.
    """
    loads = sorted({*LOADS, question.concurrency})
    unknown = _covariances(kernel, loads)
    shares = [len(loads) if load == question.concurrency else 1 for load in loads]
    chosen: list[int] = []
    while len(chosen) < min(MEASUREMENTS, len(loads)):
        gains = [_gain(unknown, shares, index, kernel) for index in range(len(loads))]
        best = max(
            (index for index in range(len(loads)) if loads[index] not in chosen),
            key=gains.__getitem__,
        )
        chosen.append(loads[best])
        unknown = _after(unknown, best, kernel)
    return tuple(replace(question, concurrency=load) for load in chosen)


def command(isl: int, osl: int, loads: Sequence[int]) -> str:
    """What measures loads of a bundle, in their order."""
    concurrency = ",".join(map(str, loads))
    sizes = f"--isl {isl} --osl {osl} --concurrency {concurrency}"
    return f"python -m launch bench BUNDLE {sizes}"


def _covariances(kernel: Kernel, loads: Sequence[int]) -> list[list[float]]:
    """For the loads of one curve without any measurement."""
    return [
        [
            kernel.far * exp(-distance / FAR) + kernel.near * exp(-distance)
            for other in loads
            for distance in [kernel.slope * abs(log2(load / other))]
        ]
        for load in loads
    ]


def _gain(
    unknown: Sequence[Sequence[float]], shares: Sequence[int], index: int, kernel: Kernel
) -> float:
    """By how much a measurement there lowers the variances of all loads."""
    measured = unknown[index][index] + kernel.scales.noise**2
    gains = (share * cell**2 for share, cell in zip(shares, unknown[index], strict=True))
    return sum(gains) / measured


def _after(unknown: Sequence[Sequence[float]], index: int, kernel: Kernel) -> list[list[float]]:
    """The covariances once that load is measured."""
    row, measured = unknown[index], unknown[index][index] + kernel.scales.noise**2
    return [
        [cell - row[i] * row[j] / measured for j, cell in enumerate(line)]
        for i, line in enumerate(unknown)
    ]
