"""The chosen deployment as a file, and the reason that its bundle's manifest carries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import pipeline
from ..deployment import Document, Objective
from ..diagnostics import Diagnostic
from ..documents import dump_yaml
from ..errors import BadInput, ToolkitError
from ..estimates import Interval
from ..estimates.question import rows_text
from ..files import whole_file
from .candidates import taken, with_settings
from .request import ChoiceRequest, closed
from .selection import Option, Selection

AIMS: Mapping[Objective, str] = {
    "output_tokens_per_s_per_gpu": "the most output tokens/s for each GPU",
    "cost": "the least cost of a token",
    "latency": "the shortest time to the last token",
}
SHORT_NAMES = {"ttft_ms": "TTFT", "itl_ms": "ITL", "e2e_ms": "E2E"}
_WORDS = {
    **{name: (short, " ms") for name, short in SHORT_NAMES.items()},
    "output_tokens_per_s_per_user": ("a user's output tokens/s", ""),
    "output_tokens_per_s_per_gpu": ("a GPU's", ""),
    "usd_per_million_output_tokens": ("USD per million", ""),
}


def chosen(selection: Selection) -> tuple[Option, Document] | None:
    """The best option whose whole deployment the toolkit plans, and that deployment."""
    for option in () if selection.untold else selection.kept:
        document = chosen_document(selection, option)
        try:
            pipeline.plan_document(document)
        except ToolkitError:
            continue
        return option, document
    return None


def chosen_document(selection: Selection, option: Option) -> Document:
    """The deployment file with the open choices closed as the option has them."""
    request, candidate = selection.request, option.candidate
    base, forecast = candidate.base, option.forecast
    assert forecast is not None
    settings = candidate.settings()
    own = taken(settings, base.overrides)
    load = (forecast.running + forecast.waiting) * candidate.instances
    record = {
        "objective": request.objective,
        "reason": reason(selection, option),
        "source": source(option),
        "settings": own,
        "estimate": {name: _rounded(found) for name, found in figures(option, request).items()},
    }
    values: dict[str, Any] = {
        "hardware": {"gpu": candidate.gpu, "num_gpus": candidate.num_gpus},
        "instances": candidate.instances if candidate.instances > 1 else None,
        "workload.concurrency": request.workload.concurrency or load,
        "workload.request_rate": None,
        "engine_config": with_settings(base.deployment.engine_config, base.overrides, settings),
        "choice": record,
    }
    if base.facts.checkpoint.path is not None:  # a folder, whose name was relative to the file
        values["checkpoint"] = str(base.facts.checkpoint.path)
    return closed(request.document, values)


def figures(option: Option, request: ChoiceRequest) -> dict[str, Interval]:
    """What is promised, by names that have their units."""
    found = option.forecast
    assert found is not None
    named = {
        "ttft_ms": found.ttft_ms,
        "itl_ms": found.itl_ms,
        "e2e_ms": found.e2e_ms,
        "output_tokens_per_s": found.output_tok_s,
        "output_tokens_per_s_per_user": found.tok_s_per_user,
        "output_tokens_per_s_per_gpu": found.tok_s_per_gpu,
    }
    if (price := request.prices_usd.get(option.candidate.gpu)) is not None:
        named["usd_per_million_output_tokens"] = found.usd_per_million_tokens(price)
    return named


def reason(selection: Selection, option: Option) -> str:
    """Why this one, with the figures that decided it."""
    found = option.forecast
    assert found is not None
    request = selection.request
    limits = [f"{SHORT_NAMES[n]} within {limit:g} ms" for n, limit in request.slo.limits_ms.items()]
    kept = (
        f", {len(selection.kept)} keep {' and '.join(limits)} up to the promised end"
        if limits
        else ""
    )
    named = figures(option, request)
    shown = ", ".join(
        f"{words} {named[name]}{unit}" for name, (words, unit) in _WORDS.items() if name in named
    )
    return (
        f"Of {len(selection.estimated)} candidates that fit and have an estimate{kept}; of these, "
        f"{servers_text(option)} has {AIMS[request.objective]}: {shown}."
    )


def source(option: Option) -> str:
    """The measured rows behind an option."""
    assert option.forecast is not None
    estimate = option.forecast.estimate
    first = f"; the nearest: {estimate.nearest[0]}" if estimate.nearest else ""
    return f"{rows_text(estimate.rows)}{first}"[:1000]


def servers_text(option: Option) -> str:
    """The servers in a few words: 2 x TP4/EP4 on b200."""
    candidate = option.candidate
    several = f"{candidate.instances} x " if candidate.instances > 1 else ""
    batch = f", batches of {candidate.max_batch_size}" if candidate.max_batch_size else ""
    return f"{several}{candidate.title} on {candidate.num_gpus} {candidate.gpu}{batch}"


def write(document: Document, file: Path) -> None:
    """The deployment file. Raises `BadInput` if it cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(file) as new:
            new.write_text(dump_yaml(document.data), encoding="utf-8")
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise BadInput(Diagnostic(str(file), what, "choose another file with -o")) from None


def _rounded(found: Interval) -> dict[str, float]:
    values = {"low": found.low, "value": found.value, "high": found.high}
    return {name: float(f"{value:.4g}") for name, value in values.items()}
