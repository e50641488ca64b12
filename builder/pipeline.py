"""The phases of a deployment in order: read, gather, plan, translate, render, bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import yaml

from . import (
    __version__,
    bundle,
    checkpoint,
    deployment,
    engine,
    hardware,
    practice,
    release,
    results,
)
from . import plan as planning
from . import targets as target_table
from .bundle import Bundle, File
from .checkpoint import Checkpoint
from .constraints.rules import RULES
from .deployment import Deployment, Document
from .engine import EngineConfig
from .errors import BadFacts, BadInput, Problem, ToolkitError
from .options import problems as judge
from .plan import Facts, Plan
from .release import Release

T = TypeVar("T")

# Where a bundle keeps the option table of a release that does not ship with the toolkit.
IMPORTED_RELEASE = "release.json"


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and its spelling for the release."""

    document: Document
    plan: Plan
    engine: EngineConfig


def plan(reference: str, overrides: Iterable[str] = ()) -> Planned:
    """Plan a deployment file or preset.

    Raises `BadInput` or `BadFacts` with every independent fault, each at its file and line.
    """
    document = deployment.read(reference, overrides)
    request, facts = _gather(document)
    try:
        decided = planning.plan(request, facts)
        planned = Planned(document, decided, engine.translate(decided))
        if problems := list(_taken_variables(planned)):
            raise BadInput(problems)
        return planned
    except BadInput as fault:
        raise BadInput(document.locate_all(fault.problems)) from None


def _taken_variables(planned: Planned) -> Iterator[Problem]:
    """Variables of the deployment that a start script sets itself, over them."""
    if not (given := planned.plan.deployment.environment):
        return
    taken = target_table.own_variables(_request(planned))
    for name in given.keys() & taken.keys():
        what = f"is set by the start script of {taken[name]}"
        remedy = "drop it here: set it when you start the script, or as an option of the target"
        yield Problem(f"environment.{name}", what, remedy)


def _request(planned: Planned) -> target_table.Request:
    plan = planned.plan
    return target_table.Request(
        plan.deployment, plan.facts.release, planned.engine, plan.flags, plan.environment
    )


def render(
    reference: str, folder: Path, overrides: Iterable[str] = (), force: bool = False
) -> Bundle:
    """Plan, render every target and write the bundle."""
    planned = plan(reference, overrides)
    files, launch = _render_targets(planned)
    facts = manifest_facts(planned)
    files |= {
        "deployment.yaml": File(_deployment_yaml(planned.plan.deployment)),
        "checkpoint.json": File(
            bundle.to_json(checkpoint.to_document(planned.plan.facts.checkpoint))
        ),
        "launch.json": File(bundle.to_json(launch)),
    }
    if not (table := planned.plan.facts.release).ships:
        files[IMPORTED_RELEASE] = File(table.path.read_bytes())
    return bundle.write(folder, files, facts, force)


def _gather(document: Document) -> tuple[Deployment, Facts]:
    """The valid request and its facts, or all faults of the file and of its facts together."""
    request, problems = document.validate(target_table.options())
    kinds: list[ToolkitError] = [BadInput(problems)] if problems else []

    def attempt(path: str, load: Callable[[str], T]) -> T | None:
        """Facts for a field of the file, if the field itself can be read."""
        value = document.get(path)
        if not isinstance(value, str) or not value:
            return None
        try:
            return load(value)
        except ToolkitError as fault:
            kinds.append(fault)
            return None

    gpu = attempt("hardware.gpu", hardware.load)
    home = Path() if "engine.release" in document.overridden else document.folder
    table = attempt("engine.release", lambda name: release.load(name, home))
    folder = Path() if "checkpoint" in document.overridden else document.folder
    facts = attempt("checkpoint", lambda reference: _gather_checkpoint(reference, folder))
    if table and isinstance(overrides := document.get("engine_config"), dict):
        kinds.append(BadInput(_wrong_overrides(table, overrides)))
    if request:
        kinds.append(BadInput(_half_servers(request)))
    found = document.locate_all(problem for fault in kinds for problem in fault.problems)
    if found:
        only_facts = all(isinstance(fault, BadFacts) for fault in kinds if fault.problems)
        raise BadFacts(found) if only_facts else BadInput(found)
    assert request and gpu and table and facts  # a missing one has left a fault
    published = results.published(facts, gpu.name, request.hardware.num_gpus, request.role)
    if facts.path is not None:
        request = request.model_copy(update={"checkpoint": str(facts.path)})
    if not table.ships:
        engine_request = request.engine.model_copy(update={"release": IMPORTED_RELEASE})
        request = request.model_copy(update={"engine": engine_request})
    home = Path() if "draft.checkpoint" in document.overridden else document.folder
    draft = _gather_draft(request, home)
    if draft and draft.path is not None and request.draft:
        given = request.draft.model_copy(update={"checkpoint": str(draft.path)})
        request = request.model_copy(update={"draft": given})
    return request, Facts(facts, gpu, table, published, draft)


def _gather_draft(request: Deployment, folder: Path) -> Checkpoint | None:
    """The facts of a draft model; `None` where they are not known here, which is no fault."""
    if request.draft is None:
        return None
    try:
        return checkpoint.gather(request.draft.checkpoint, folder)
    except BadFacts:
        return None


def _half_servers(request: Deployment) -> Iterator[Problem]:
    """Targets that cannot serve one side of disaggregated serving."""
    for name in request.targets if request.role != "agg" else ():
        if name not in target_table.ONE_SIDE:
            what = f"{name} does not serve the {request.role} side of disaggregated serving"
            remedy = f"name {', '.join(target_table.ONE_SIDE)} only, or give role agg"
            yield Problem("targets", what, remedy)


def _wrong_overrides(table: Release, overrides: dict[str, Any]) -> Iterator[Problem]:
    """Overrides that the release rejects; what is only missing may come from a rule."""
    for problem in judge(table, overrides):
        if problem.severity == "error" and problem.rule != "missing-key":
            yield replace(problem, where=f"engine_config.{problem.where}")


def _gather_checkpoint(reference: str, folder: Path) -> Checkpoint:
    """The facts of a checkpoint; faults inside its folder keep their own place."""
    try:
        return checkpoint.gather(reference, folder)
    except BadFacts as fault:
        raise BadFacts(
            Problem("checkpoint", f"{p.where}: {p.what}", p.remedy) for p in fault.problems
        ) from None


def _render_targets(planned: Planned) -> tuple[dict[str, File], dict[str, Any]]:
    plan, request = planned.plan, _request(planned)
    files: dict[str, File] = {}
    entries = {}
    for name, options in plan.deployment.targets.items():
        target = target_table.load(name)
        rendered = target.render(request, target.Options.model_validate(options))
        files |= rendered.files
        entries[name] = rendered.launch
    launch = {
        "format": bundle.FORMAT,
        "name": plan.deployment.name,
        "checkpoint": plan.deployment.checkpoint,
        "engine": plan.deployment.engine.model_dump(),
        "environment": target_table.variables(plan.environment),
        "targets": entries,
    }
    return files, launch


def _deployment_yaml(request: Deployment) -> bytes:
    document = request.model_dump(exclude_none=True)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()


def manifest_facts(planned: Planned) -> dict[str, Any]:
    """What the manifest and `plan --json` say of a plan."""
    facts, request = planned.plan.facts, planned.plan.deployment
    return {
        "tool": {"name": "trtllm-deployment-toolkit", "version": __version__},
        "engine": request.engine.model_dump(),
        "inputs": {
            "checkpoint": {"name": facts.checkpoint.name, "source": facts.checkpoint.source},
            "files": {name: _sha256(path) for name, path in _inputs(facts)},
        },
        "decisions": [
            asdict(row)
            for row in (*planned.engine.decisions, *planned.plan.flags, *planned.plan.environment)
        ],
        "differences": [asdict(row) for row in planned.plan.differences],
        "warnings": [
            {"where": row.where, "what": row.what, "remedy": row.remedy}
            for row in (*planned.plan.warnings, *planned.engine.warnings)
        ],
        "memory": memory_document(planned.plan),
        "published": [_published(row) for row in facts.published],
    }


def _published(row: results.Published) -> dict[str, Any]:
    return {key: value for key, value in asdict(row).items() if key != "file"}


def _inputs(facts: Facts) -> Iterator[tuple[str, Path]]:
    """The files that the result rests on, by names that depend on no folder of this machine."""
    models = {"checkpoint": facts.checkpoint, "draft": facts.draft}
    for folder, model in models.items():
        for path in model.files if model else ():
            yield _input_name(path, folder), path
    for path in (
        hardware.HARDWARE / f"{facts.gpu.name}.yaml",
        *([facts.release.path] if facts.release.ships else ()),  # else the bundle holds it
        *sorted({row.file for row in facts.published}),
        *practice.files(),
        RULES,
    ):
        yield _input_name(path, ""), path


def _input_name(path: Path, folder: str) -> str:
    package = Path(__file__).parent
    if path.is_relative_to(package):
        return path.relative_to(package).as_posix()
    return f"{folder}/{path.name}"


def memory_document(plan: Plan) -> dict[str, Any]:
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
        "total_source": plan.facts.gpu.memory_source,
        "total_verified": plan.facts.gpu.memory_verified,
        "kv_bytes_per_token": budget.kv_bytes_per_token,
        "kv_tokens": budget.kv_tokens,
        "max_concurrency": budget.max_concurrency,
        "fits": budget.fits,
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def deployment_problems(path: Path, overrides: Iterable[str] = ()) -> list[Problem]:
    """Everything against a deployment file: why it cannot be planned, or what the plan warns of.

    `path` of each is the one in the file.
    """
    try:
        planned = plan(str(path), overrides)
    except ToolkitError as fault:
        return fault.problems
    return planned.document.locate_all((*planned.plan.warnings, *planned.engine.warnings))
