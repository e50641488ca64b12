"""Candidates: servers that a tuning run may start, each valid and within the memory.

Layouts are those of `choose` for the GPUs of the deployment. Variants are a layout with one option
changed from the planner's value, by the rows of `data/tuning`. Each is planned by the real planner;
what it refuses is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .. import engines, planning, targets
from ..choice import candidates as choice
from ..choice import request as choice_request
from ..choice.request import Base, ChoiceRequest, closed
from ..deployment import Document
from ..diagnostics import Diagnostic
from ..documents import DATA
from ..errors import BadInput
from ..estimates import plan_estimate
from ..estimates.question import Question
from ..facts import data_file, published_results
from ..facts.plain_data import TUNING_FILE
from ..planning import Plan
from ..rules.evaluation import all_hold, evaluate
from ..rules.options import set_option
from ..rules.rule_inputs import RuleInputs, words

DEPTHS = (None, 0, 1, 3)  # draft tokens per step; `None` if the model has no MTP layer
UNTUNED = "untuned"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One server to start.

    `id` is stable and `title` says the layout and the changed option. `question` is about the
    server under its largest load; `loads` are the concurrent requests that may be measured,
    ascending. `settings` are engine options by path, over those of the user; `options` are all
    options of the plan, and `values` replace fields of the deployment. `instances` such servers
    fill its GPUs. A GPU needs `used_gib` besides the KV cache, which takes `kv_share`.

    Of a variant, `layout` is the id of its layout, and `effect` the assumed standard deviation of
    the changed option's effect on the log of times.
    """

    id: str
    title: str
    question: Question
    loads: tuple[int, ...]
    settings: Mapping[str, Any] = field(compare=False)
    values: Mapping[str, Any] = field(compare=False)
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    instances: int = 1
    used_gib: float = 0.0
    kv_share: float = 0.0
    layout: str = ""
    effect: float = 0.0


def read(reference: str, overrides: tuple[str, ...] = ()) -> ChoiceRequest:
    """A deployment file or preset to tune, whose number of GPUs may be open.

    Raises `BadInput` or `BadFacts` with every independent error; several kinds of GPUs and a
    request rate are errors.
    """
    request = choice_request.read(reference, overrides, with_draft=True)
    found = []
    if len(request.bases) > 1:
        what = "names several GPUs, and a run has one kind"
        found.append(Diagnostic("hardware.gpu", what, "name the GPU of this machine"))
    if request.workload.concurrency is None:
        what = "is a rate, and tuning measures concurrent requests"
        found.append(Diagnostic("workload.request_rate", what, "give workload.concurrency"))
    if found:
        raise BadInput(request.document.locate_all(found))
    return request


def layouts(request: ChoiceRequest) -> tuple[list[Candidate], list[str]]:
    """The layouts that can be planned, and why each other one cannot."""
    found: dict[str, Candidate] = {}
    refused: dict[str, str] = {}
    for way in choice.candidates(request):
        name = re.sub(r"[^a-z0-9]+", "-", way.title.lower())
        if way.mtp_draft_tokens == 0:
            name += "-mtp0"
        if way.mtp_draft_tokens not in DEPTHS or name in {*found, *refused}:
            continue  # the most servers of a layout come first
        share = -(-(request.workload.concurrency or 1) // way.instances)
        question = way.question(share)
        title = f"{way.title} without MTP" if way.mtp_draft_tokens == 0 else way.title
        new = Candidate(name, title, question, (), way.settings(), {}, instances=way.instances)
        try:
            found[name] = _completed(request, new)
        except BadInput as error:
            refused[name] = f"{title}: {error.diagnostics[0].message}"
    return list(found.values()), list(refused.values())


def untuned(request: ChoiceRequest) -> Candidate:
    """The server as planned without tuning. Raises `BadInput` if it cannot be planned."""
    request_of = request.bases[0].deployment
    share = -(-(request.workload.concurrency or 1) // request_of.instances)
    num_gpus = request_of.hardware.num_gpus // request_of.instances
    plan = _planned(request.bases[0], num_gpus, share, {})
    question = plan_estimate.question_of(plan)
    new = Candidate(UNTUNED, UNTUNED, question, (), {}, {}, instances=request_of.instances)
    return _completed(request, new)


def variants(request: ChoiceRequest, layout: Candidate) -> list[Candidate]:
    """The layout with one option changed each, the largest expected effect first."""
    base = request.bases[0]
    release = base.facts.release
    plan = _plan_of(request, layout)
    planned = _options(plan)
    nested: dict[str, Any] = {}
    for path, value in planned.items():
        set_option(nested, path, value)
    inputs = RuleInputs(nested, base.facts.rule_context(plan.deployment))
    found = []
    for row in rows(release.engine.name):
        path = row["option"]
        if not release.has(path) or _is_set(base.overrides, path):
            continue
        if not all_hold(row.get("when", {}), inputs):
            continue
        own = planned.get(path, release.default(path))
        for value in _values(row, own, inputs):
            text = _text(value)
            new = replace(
                layout,
                id=f"{layout.id}+{path}={text}",
                title=f"{layout.title}, {row['title']} {text}",
                settings={**layout.settings, path: value},
                layout=layout.id,
                effect=row["effect"],
            )
            try:
                found.append(_completed(request, new))
            except BadInput:
                continue
    return found


def document(request: ChoiceRequest, candidate: Candidate) -> Document:
    """The deployment of one such server under its largest load."""
    return closed(request.document, candidate.values)


def rows(engine: str) -> Sequence[Mapping[str, Any]]:
    """The options that tuning changes on an engine; none if it has no file."""
    path = DATA / "tuning" / f"{engine}.yaml"
    rows = data_file.load(path, TUNING_FILE)["options"] if path.is_file() else []
    return sorted(rows, key=lambda row: -row["effect"])


def _is_set(overrides: Mapping[str, Any], path: str) -> bool:
    """Whether the user set the option, a mapping above it or one below it."""
    return any(f"{path}.".startswith(f"{o}.") or o.startswith(f"{path}.") for o in overrides)


def _values(row: Mapping[str, Any], own: Any, inputs: RuleInputs) -> Iterator[Any]:
    """Values to try, without the planner's own."""
    tried = [own]
    for value in row.get("values", ()):
        is_word = isinstance(value, str) and value in words()
        listed = inputs.value(value) if is_word else None
        tried += listed if isinstance(listed, list) else [evaluate(value, inputs)]
    if isinstance(own, int | float) and not isinstance(own, bool):
        tried += [type(own)(max(1, own * times)) for times in row.get("times", ())]
        tried += [round(own + row["plus"], 4)] if "plus" in row else []
    for place, value in enumerate(tried[1:], 1):
        if value not in tried[:place]:
            yield value


def _text(value: Any) -> str:
    """A value in an id and a title: lists by their size."""
    return f"1..{value[-1]}" if isinstance(value, list) else str(value).lower()


def _completed(request: ChoiceRequest, new: Candidate) -> Candidate:
    """The candidate with its loads, its memory and the fields of its deployment.

    Raises `BadInput` if it cannot be planned or holds too few requests.
    """
    plan = _plan_of(request, new)
    share, holds = new.question.concurrency, plan.budget.max_concurrency
    if request.objective == "latency" and holds < share:
        what = f"its memory holds {holds} of {share} requests"
        raise BadInput(Diagnostic("workload.concurrency", what))
    if 0 < holds < share:
        asked = replace(new.question, concurrency=holds)
        return _completed(request, replace(new, question=asked))
    one_load = request.objective == "latency" or not request.slo.limits_ms
    given = plan.deployment
    values: dict[str, Any] = {
        "hardware": {"gpu": given.hardware.gpu, "num_gpus": given.hardware.num_gpus},
        "instances": None,
        "workload.concurrency": share,
        "engine_config": dict(given.engine_config),
    }
    return replace(
        new,
        loads=(share,) if one_load else tuple(_loads(share)),
        values=values,
        options=_options(plan),
        used_gib=round(plan.budget.used_gib, 3),
        kv_share=plan.load.free_gpu_memory_fraction,
    )


def _options(plan: Plan) -> dict[str, Any]:
    spell = plan.facts.release.option_path
    return {spell(row.path): row.value for row in plan.decisions}


def _loads(most: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12 and so on, and the largest load."""
    size = 1
    while size < most:
        yield size
        if size > 1 and size * 3 // 2 < most:
            yield size * 3 // 2
        size *= 2
    yield most


def _plan_of(request: ChoiceRequest, one: Candidate) -> Plan:
    asked = one.question
    return _planned(request.bases[0], asked.num_gpus, asked.concurrency, one.settings)


def _planned(base: Base, num_gpus: int, concurrency: int, settings: Mapping[str, Any]) -> Plan:
    """The plan of one server with these options, checked against the release."""
    given, facts = base.deployment, base.facts
    asked = given.replaced(
        hardware=given.hardware.replaced(num_gpus=num_gpus),
        workload=given.workload.replaced(concurrency=concurrency),
        instances=1,
        engine_config=choice.with_settings(given.engine_config, base.overrides, settings),
    )
    if objections := list(targets.diagnostics(asked)):
        raise BadInput(objections)
    known = published_results.published(facts.checkpoint, facts.gpu.name, num_gpus, asked.role)
    plan = planning.plan(asked, replace(facts, published=known))
    engines.translate(plan)
    return plan
