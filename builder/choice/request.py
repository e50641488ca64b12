"""A deployment file with open choices: which GPUs, how many, requests at a time or their rate."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from .. import deployment, resolve, site
from ..deployment import MAX_REQUESTS, AnyGpu, Deployment, Document, NumGpus, Objective, Slo, Tokens
from ..diagnostics import Diagnostic
from ..errors import BadInput, ToolkitError
from ..estimates.names import of_checkpoint
from ..facts.published_results import flatten
from ..planning import Facts
from ..rules.options import normalise
from ..schema import Before, Bounds, Strict
from ..targets import disaggregated

USUAL_OBJECTIVE: Objective = "output_tokens_per_s_per_gpu"
MAX_REQUESTS_PER_S = 1e6
SERVING = ("aggregated", "disaggregated")
CHOSEN_BY_SIZE = "pipeline_parallel_size"


class NumGpusRange(Strict):
    """How many GPUs the whole deployment may use."""

    at_most: NumGpus
    at_least: NumGpus = 1

    def check(self) -> None:
        if self.at_least > self.at_most:
            raise ValueError(f"at_least {self.at_least} is above at_most {self.at_most}; swap them")


def _gpus(given: Any) -> Any:
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise ValueError("is not a GPU or a list of GPUs; name one, or [ONE, OTHER]")
    return found


def _range(given: Any) -> Any:
    if isinstance(given, dict):
        return given
    if type(given) is not int:
        raise ValueError("is not a number of GPUs; write a whole one, or {at_most: N}")
    return {"at_least": given, "at_most": given}


class OpenHardware(Strict):
    """One GPU or several to choose from, and their number or a range of it."""

    gpu: Annotated[
        list[AnyGpu],
        Before(_gpus),
        Bounds(max_length=16),
    ]
    num_gpus: Annotated[
        NumGpusRange,
        Before(_range),
    ]


class OpenWorkload(Strict):
    """Requests at the same time, or how many arrive in a second, evenly in the mean."""

    isl: Tokens
    osl: Tokens
    concurrency: Annotated[int, Bounds(ge=1, le=MAX_REQUESTS)] | None = None
    request_rate: Annotated[float, Bounds(gt=0, le=MAX_REQUESTS_PER_S, exact=False)] | None = None

    def check(self) -> None:
        if (self.concurrency is None) == (self.request_rate is None):
            raise ValueError("has not one load; give either concurrency or request_rate")


@dataclass(frozen=True, slots=True)
class Base:
    """The request for one kind of GPU, with the open choices closed in some way, and its facts.

    `overrides` are the options that the user set, by their paths; `model` is the checkpoint's name
    among the measured rows, or its own.
    """

    deployment: Deployment
    facts: Facts
    overrides: Mapping[str, Any]
    model: str


@dataclass(frozen=True, slots=True)
class ChoiceRequest:
    """What is to be chosen, and by what. Prices are USD per GPU hour, by kind of GPU."""

    document: Document
    bases: tuple[Base, ...]
    num_gpus: NumGpusRange
    workload: OpenWorkload
    slo: Slo
    objective: Objective
    prices_usd: Mapping[str, float]
    is_disaggregated: bool = False


def read(
    reference: str,
    overrides: list[str] | tuple[str, ...] = (),
    more_targets: tuple[str, ...] = (),
    with_draft: bool = False,
) -> ChoiceRequest:
    """A deployment file or preset as a request to choose, `with_draft` also with a draft model.

    Raises `BadInput` or `BadFacts` with every independent error, each at its file and line.
    """
    document = site.with_profile(deployment.read(reference, overrides, more_targets))
    document, is_disaggregated = _serving(document)
    hardware, workload = _open_parts(document)
    bases = tuple(_base(document, gpu, hardware, workload) for gpu in dict.fromkeys(hardware.gpu))
    request = bases[0].deployment
    found = ChoiceRequest(
        document,
        bases,
        hardware.num_gpus,
        workload,
        request.slo or Slo(),
        request.objective or USUAL_OBJECTIVE,
        _prices(request, hardware.gpu),
        is_disaggregated,
    )
    if diagnostics := list(_diagnostics(found, with_draft)):
        raise BadInput(document.locate_all(diagnostics))
    return found


def _serving(document: Document) -> tuple[Document, bool]:
    """The document without `serving`, and whether it asks for separate prefill servers."""
    given = document.data.get("serving", SERVING[0])
    if given not in SERVING:
        what = f"{given!r} is neither {' nor '.join(SERVING)}"
        raise BadInput(document.locate_all([Diagnostic("serving", what, "give one of them")]))
    is_disaggregated = given == SERVING[1]
    if is_disaggregated and not set(document.targets()) & {*disaggregated.TARGETS}:
        what = "needs a target that runs prefill and decode servers"
        fix = f"add {' or '.join(disaggregated.TARGETS)} to targets"
        raise BadInput(document.locate_all([Diagnostic("serving", what, fix)]))
    return closed(document, {"serving": None}), is_disaggregated


def closed(document: Document, values: Mapping[str, Any]) -> Document:
    """The document with values at dotted paths, which are no overrides of the command line."""
    data = copy.deepcopy(document.data)
    for path, value in values.items():
        *parents, last = path.split(".")
        place = data
        for name in parents:
            place = place.setdefault(name, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return replace(document, data=data)


def _open_parts(document: Document) -> tuple[OpenHardware, OpenWorkload]:
    diagnostics: list[Diagnostic] = []
    parts: dict[str, Any] = {}
    models: dict[str, type[Strict]] = {"hardware": OpenHardware, "workload": OpenWorkload}
    for name, model in models.items():
        parts[name], found = model.read(document.data.get(name), name)
        diagnostics += found
    if diagnostics:
        raise BadInput(document.locate_all(diagnostics))
    return parts["hardware"], parts["workload"]


def _base(document: Document, gpu: str, hardware: OpenHardware, workload: OpenWorkload) -> Base:
    values = {
        "hardware.gpu": gpu,
        "workload.concurrency": workload.concurrency or 1,
        "workload.request_rate": None,
        "choice": None,
    }
    request, facts = _gathered(closed(document, values), hardware.num_gpus)
    given = flatten(normalise(facts.release, request.engine_config))
    measured = of_checkpoint(facts.checkpoint) or facts.checkpoint.name
    return Base(request, facts, given, measured)


def _gathered(document: Document, num_gpus: NumGpusRange) -> tuple[Deployment, Facts]:
    """The request of the most GPUs, or of half as many and so on where its targets cannot have
    them. Raises what is wrong with the most where fewer do not help."""
    sizes = [num_gpus.at_most]
    found: list[ToolkitError] = []
    while sizes[-1] > num_gpus.at_least:
        sizes.append(max(sizes[-1] // 2, num_gpus.at_least))
    for size in sizes:
        try:
            return resolve.gather(closed(document, {"hardware.num_gpus": size}), {})
        except ToolkitError as error:
            found.append(error)
            if str(error) == str(found[0]) and len(found) > 1:
                break  # it is not their number
    raise found[0]


def _prices(request: Deployment, gpus: list[str]) -> dict[str, float]:
    given = request.price_per_gpu_hour_usd
    if given is None:
        return {}
    return dict(given) if isinstance(given, dict) else dict.fromkeys(gpus, given)


def _diagnostics(found: ChoiceRequest, with_draft: bool) -> list[Diagnostic]:
    """What no measured row can answer, and prices that a cost needs."""
    request, rows = found.bases[0].deployment, []
    if request.role != "agg":
        what = f"is {request.role}: only servers that read prompts and answer them are chosen"
        rows.append(Diagnostic("role", what, "remove it, or plan both sides yourself"))
    if (request.targets.get(site.TARGET) or {}).get("prefill"):
        what = "has servers of their own for prompts, which no row was measured with"
        rows.append(Diagnostic(f"targets.{site.TARGET}.prefill", what, "remove it"))
    if request.draft is not None and not with_draft:
        what = "names a draft model, which no row was measured with"
        rows.append(Diagnostic("draft", what, "remove it, and add it to the chosen deployment"))
    if found.bases[0].overrides.get(CHOSEN_BY_SIZE, 1) != 1:
        what = "asks for stages, which no row was measured with"
        rows.append(Diagnostic(f"engine_config.{CHOSEN_BY_SIZE}", what, "remove it"))
    gpus = [base.deployment.hardware.gpu for base in found.bases]
    where = "price_per_gpu_hour_usd"
    if found.objective == "cost" and (missing := [g for g in gpus if g not in found.prices_usd]):
        what = f"has no price of {', '.join(missing)}, which objective cost needs"
        rows.append(Diagnostic(where, what, f"write {where}: {{{missing[0]}: USD}}"))
    if found.prices_usd and (others := sorted(found.prices_usd.keys() - {*gpus})):
        what = f"prices {', '.join(others)}, which hardware.gpu does not name"
        rows.append(Diagnostic(where, what, f"name {', '.join(gpus)}"))
    return rows
