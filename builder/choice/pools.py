"""Chooses prefill and decode servers: their numbers and layouts within the GPUs.

Candidates have layouts that were measured. TPOT and tokens/s per GPU count at their conservative
ends and TTFT as likely. The numbers of the first candidates are computed without intervals, which
take longer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nlargest
from math import ceil, inf
from typing import Any

from .. import pipeline
from ..deployment import Document
from ..diagnostics import Diagnostic
from ..errors import BadFacts, BadInput, ToolkitError
from ..estimates import Question, Refusal, batch, pools
from ..estimates.cells import key_of
from ..estimates.names import in_row_names, layout_of
from ..estimates.pools import PoolCell, PoolEstimate, Pools
from ..estimates.question import rows_text
from ..facts.memory import Sharding
from ..facts.published_results import flatten
from ..number_format import number
from ..planning.choices import layouts
from ..targets import disaggregated
from .candidates import Candidate, with_settings
from .report import AIMS
from .request import Base, ChoiceRequest, closed

SIDES = (1, 2, 3, 4, 6, 8, 12)  # numbers of servers of one side that are tried
ESTIMATED = 24  # of the candidates with the best values, that get intervals
PLANNED = 6  # of the best, until one can be planned
MTP_WITHOUT_DEPTH = 1  # draft tokens where the nearest measurements do not say how many
Missed = tuple[Pools, float, float]  # a question, its TPOT and TTFT in ms
COUNTS = {"slurm": "servers", "kubernetes": "replicas"}  # options with the number of servers


@dataclass(frozen=True, slots=True)
class PoolOption:
    """A candidate with its layouts and estimate."""

    base: Base
    prefill: Sharding
    decode: Sharding
    found: PoolEstimate

    @property
    def asked(self) -> Pools:
        return self.found.question

    @property
    def title(self) -> str:
        return _title(self.asked)


def _title(asked: Pools) -> str:
    drafts = " MTP" if asked.server.mtp else ""
    return f"{asked.title}{drafts} on {pools.num_gpus(asked)} {asked.server.gpu}"


def select(request: ChoiceRequest) -> list[PoolOption]:
    """The options that meet the targets, the best first.

    Raises `BadFacts` without measurements, `BadInput` if no candidate meets the targets.
    """
    if request.workload.concurrency is None:
        what = "prefill and decode servers are chosen for a number of concurrent requests"
        raise BadInput(Diagnostic("workload.request_rate", what, "give workload.concurrency"))
    found: list[PoolOption] = []
    refusals: list[str] = []
    missed: list[Missed] = []
    for base in request.bases:
        cell = pools.cell(key_of(_server(base, Sharding(1), None, 1)))
        if cell is None:
            model, gpu = base.model, base.facts.gpu.name
            refusals.append(f"no measurements of prefill and decode servers for {model} on {gpu}")
            continue
        found += _options(request, base, cell, refusals, missed)
    if not found and not missed:
        _refuse(request, refusals)
    met = [option for option in found if _meets(request, option.found)]
    if not met:
        for option in found:
            missed.append((option.asked, option.found.tpot_ms.value, option.found.ttft_ms.value))
        _miss(request, missed)
    return sorted(met, key=lambda option: _worth(request, option.found), reverse=True)


def _server(base: Base, layout: Sharding, mtp: int | None, concurrency: int) -> Question:
    question = Candidate(base, layout, mtp, 1).question(concurrency)
    return in_row_names(question)


def _candidates(
    request: ChoiceRequest, base: Base, cell: PoolCell
) -> Iterator[tuple[Sharding, Sharding, Pools]]:
    """Measured layouts of both sides, and numbers of servers within the GPUs."""
    load, limits = request.workload.concurrency or 1, request.num_gpus
    own_drafts = layout_of(base.overrides)[-1]
    decided = any(path.startswith("speculative_config") for path in base.overrides)
    modes = (own_drafts,) if decided else (0, MTP_WITHOUT_DEPTH)
    sides = []
    for measured in (
        {row.prefill_layout for row in cell.own},
        {row.server.layout for row in cell.own},
    ):
        sizes = sorted({tp * attention_dp for tp, attention_dp, _ in measured})
        every = (way for size in sizes for way in layouts(base.facts.checkpoint, size))
        sides.append([way for way in every if way.layout in measured])
    for decode in sides[1]:
        for mtp in modes:
            server = _server(base, decode, mtp, load)
            for prefill in sides[0]:
                for asked in _numbers(server, prefill, limits.at_least, limits.at_most):
                    yield prefill, decode, asked


def _numbers(server: Question, prefill: Sharding, least: int, most: int) -> Iterator[Pools]:
    for several in SIDES:
        for count in SIDES:
            asked = Pools(server, several, count, *prefill.layout)
            if least <= pools.num_gpus(asked) <= most:
                yield asked


def _options(
    request: ChoiceRequest, base: Base, cell: PoolCell, refusals: list[str], missed: list[Missed]
) -> list[PoolOption]:
    """The candidates whose values come nearest to what is wanted, with intervals.

    If no value meets the targets, the nearest is added to `missed`.
    """
    ranked: list[tuple[tuple[bool, float], int, Sharding, Sharding, Pools]] = []
    modes = {pools.drafts(row) for row in cell.own}
    for prefill, decode, asked in _candidates(request, base, cell):
        if (reason := cell.outside(asked)) or pools.drafts(asked) not in modes:
            refusals.append(reason or "no measurements with these draft tokens")
            continue
        tpot, ttft = cell.values(asked)
        ranked.append((_rank(request, asked, tpot, ttft), len(ranked), prefill, decode, asked))
    best = nlargest(ESTIMATED, ranked)
    if best and not best[0][0][0]:
        asked = best[0][-1]
        missed.append((asked, *cell.values(asked)))
        return []
    found = []
    for _, _, prefill, decode, asked in best:
        answer = pools.estimate_in(cell, asked)
        if isinstance(answer, Refusal):
            refusals.append(answer.reason.partition(": ")[0])
        else:
            found.append(PoolOption(base, prefill, decode, answer))
    return found


def _rank(
    request: ChoiceRequest, asked: Pools, tpot_ms: float, ttft_ms: float
) -> tuple[bool, float]:
    """Whether the values meet the targets, and more of what is wanted, or nearer to the targets."""
    if (excess := _excess(request, asked, tpot_ms, ttft_ms)) > 1:
        return False, -excess
    one = asked.server
    e2e_ms = ttft_ms + (one.osl - 1) * tpot_ms
    speed = one.concurrency * one.osl * 1000 / e2e_ms / pools.num_gpus(asked)
    return True, -e2e_ms if request.objective == "latency" else speed


def _excess(request: ChoiceRequest, asked: Pools, tpot_ms: float, ttft_ms: float) -> float:
    """The largest of the times, each as a multiple of its target; 0 without targets."""
    e2e_ms = ttft_ms + (asked.server.osl - 1) * tpot_ms
    values = {"itl_ms": tpot_ms, "ttft_ms": ttft_ms * pools.LIKELY, "e2e_ms": e2e_ms}
    limits = request.slo.limits_ms
    return max((values[name] / limit for name, limit in limits.items()), default=0.0)


def _meets(request: ChoiceRequest, found: PoolEstimate) -> bool:
    limits = request.slo.limits_ms
    tpot, ttft = limits.get("itl_ms", inf), limits.get("ttft_ms", inf)
    return pools.likely(found, tpot, ttft) and found.e2e_ms.value <= limits.get("e2e_ms", inf)


def _worth(request: ChoiceRequest, found: PoolEstimate) -> float:
    """At the conservative end."""
    speed = found.tok_s_per_gpu.low
    if request.objective == "latency":
        return -found.e2e_ms.high
    if request.objective == "cost":
        return speed / request.prices_usd[found.question.server.gpu]
    return speed


def _refuse(request: ChoiceRequest, refusals: list[str]) -> None:
    """Raises why there is no estimate, the commonest reason first."""
    reasons = sorted(set(refusals), key=refusals.count, reverse=True)[:3]
    reasons = reasons or ["no measured layouts of both sides within these GPUs"]
    remedy = "measure one pair of servers with `python -m launch bench` first"
    name = request.document.name
    raise BadFacts(
        Diagnostic(name, f"no candidate has an estimate: {one}", remedy) for one in reasons
    )


def _miss(request: ChoiceRequest, missed: list[Missed]) -> None:
    """Raises that no candidate meets the targets, with the nearest."""
    asked, tpot_ms, ttft_ms = min(missed, key=lambda one: _excess(request, *one))
    what = (
        f"no candidate meets the targets; the nearest, {_title(asked)}, has a TPOT of "
        f"{number(tpot_ms)} ms and a TTFT of {number(ttft_ms)} ms"
    )
    raise BadInput(Diagnostic("slo", what, "raise the limits, or allow more GPUs"))


def chosen(request: ChoiceRequest, options: list[PoolOption]) -> tuple[PoolOption, Document]:
    """The first option that can be planned, and its deployment.

    Raises `BadInput` with the reason for the best one if none can.
    """
    found: list[ToolkitError] = []
    for option in options[:PLANNED]:
        document = chosen_document(request, option)
        try:
            pipeline.plan_document(document)
        except ToolkitError as error:
            found.append(error)
            continue
        return option, document
    raise found[0]


def chosen_document(request: ChoiceRequest, option: PoolOption) -> Document:
    """The deployment of the decode servers, which names the prefill servers."""
    base, asked, document = option.base, option.asked, request.document
    depth: int | None = asked.server.mtp
    if depth:
        known = (near.row.server.mtp for near in option.found.nearest)
        depth = next(filter(None, known), depth)
    decided = any(path.startswith("speculative_config") for path in base.overrides)
    depth = None if decided or not base.facts.checkpoint.mtp_layers else depth
    decode = Candidate(base, option.decode, depth, 1)
    prefill = Candidate(base, option.prefill, depth, 1)
    settings, given = decode.settings(), flatten(base.overrides)
    first = option.found.ttft_ms.value / option.found.e2e_ms.value
    load = asked.server.concurrency
    shares = load / asked.decode_workers, load * first / asked.prefill_workers
    data = document.data
    other: dict[str, Any] = {
        "name": f"{data['name']}-prefill"[-63:].lstrip(".-"),
        "checkpoint": data["checkpoint"],
        "engine": data["engine"],
        "hardware": {"gpu": decode.gpu, "num_gpus": prefill.num_gpus},
        "workload": {**data["workload"], "concurrency": ceil(shares[1])},
        "role": "prefill",
        "engine_config": _config(base, prefill),
    }
    record = {
        "objective": request.objective,
        "reason": reason(request, option),
        "source": source(option),
        "settings": {path: value for path, value in settings.items() if path not in given},
        "estimate": {
            "itl_ms": batch.interval(option.found.tpot_ms, digits=4),
            "ttft_ms": batch.interval(option.found.ttft_ms, digits=4),
            "output_tokens_per_s": batch.interval(option.found.output_tok_s, digits=4),
            "output_tokens_per_s_per_gpu": batch.interval(option.found.tok_s_per_gpu, digits=4),
        },
    }
    targets = {}
    for name, options in document.targets().items():
        targets[name] = dict(options or {})
        if name in disaggregated.TARGETS:
            side = {"deployment": copy.deepcopy(other), "servers": asked.prefill_workers}
            targets[name] |= {COUNTS[name]: asked.decode_workers, "prefill": side}
    values = {
        "hardware": {"gpu": decode.gpu, "num_gpus": decode.num_gpus},
        "instances": None,
        "role": "decode",
        "workload.concurrency": ceil(shares[0]),
        "engine_config": _config(base, decode),
        "targets": targets,
        "choice": record,
    }
    return closed(document, values)


def _config(base: Base, candidate: Candidate) -> dict[str, Any]:
    return with_settings(base.deployment.engine_config, base.overrides, candidate.settings())


def reason(request: ChoiceRequest, option: PoolOption) -> str:
    found = option.found
    return (
        f"{option.title} has {AIMS[request.objective]} at the conservative end: TPOT "
        f"{found.tpot_ms} ms, per GPU {found.tok_s_per_gpu}; TTFT is likely {found.ttft_ms} ms, "
        f"without a promise. The {found.limit} servers limit it (prefill {found.prefill_use:.0%} "
        f"busy, {found.decode_use:.0%} of a request's time in decode)."
    )


def source(option: PoolOption) -> str:
    return f"{rows_text(option.found.rows)}; the nearest: {option.found.nearest[0]}"[:1000]


def ratio_runs(option: PoolOption) -> list[Pools]:
    """Two to four runs around the choice: one server of a side more or less."""
    asked, found = option.asked, []
    for step in (1, -1):
        found.append(asked._replace(prefill_workers=asked.prefill_workers + step))
        found.append(asked._replace(decode_workers=asked.decode_workers + step))
    return [one for one in found if one.prefill_workers and one.decode_workers]
