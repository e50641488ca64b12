"""What a deployment promises and is chosen by: objectives, prices, and the record of a choice."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any, Literal

from .diagnostics import Diagnostic
from .documents import value_at
from .strict import Bounds, Strict

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
USUAL_PERCENTILE = "p95"

Objective = Literal["output_tokens_per_s_per_gpu", "cost", "latency"]
_Positive = Bounds(gt=0, exact=False, finite=True)
Milliseconds = Annotated[float, _Positive]
Price = Annotated[float, _Positive]


class Slo(Strict):
    """Latency targets of requests at a percentile: the 95th where none is named.

    `itl_ms` bounds the mean time between the tokens of a request, `e2e_ms` its whole time.
    """

    other_names = MappingProxyType({"tpot_ms": "itl_ms", "tbt_ms": "itl_ms", "e2el_ms": "e2e_ms"})

    ttft_ms: Milliseconds | None = None
    itl_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None
    percentile: Literal["p50", "p90", "p95", "p99"] | None = None

    @property
    def share(self) -> float:
        """The share of requests that must keep the targets."""
        return PERCENTILES[self.percentile or USUAL_PERCENTILE]

    @property
    def limits_ms(self) -> dict[str, float]:
        """The targets that are set, by name."""
        found = {"ttft_ms": self.ttft_ms, "itl_ms": self.itl_ms, "e2e_ms": self.e2e_ms}
        return {name: value for name, value in found.items() if value is not None}


FigureName = Annotated[str, Bounds(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]


class Choice(Strict):
    """How the values of a deployment were chosen, as `choose` writes it.

    `settings` are the engine options that the choice decided, `reason` is that of each, `source`
    names the measured rows behind it. `estimate` has the interval of each figure.
    """

    objective: Objective
    reason: Annotated[str, Bounds(min_length=1, max_length=4000)]
    source: Annotated[str, Bounds(min_length=1, max_length=1000)]
    settings: dict[str, Any]
    estimate: dict[FigureName, dict[Literal["low", "value", "high"], float]]


def open_choices(data: dict[str, Any], file: str) -> dict[str, Diagnostic]:
    """What a deployment file leaves to `choose`, each by its path."""
    found = {
        "hardware.gpu": isinstance(value_at(data, "hardware.gpu"), list),
        "hardware.num_gpus": isinstance(value_at(data, "hardware.num_gpus"), dict),
        "workload.request_rate": value_at(data, "workload.request_rate") is not None,
    }
    left = {
        "hardware.gpu": "names several GPUs",
        "hardware.num_gpus": "gives a range",
        "workload.request_rate": "does not say how many requests run at once",
    }
    remedy = f"run `python -m builder choose {file} -o FILE` first, and plan what it writes"
    return {
        path: Diagnostic(path, f"{left[path]}: a choice is still open", remedy)
        for path, is_open in found.items()
        if is_open
    }
