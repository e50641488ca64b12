"""The pipeline: reads a deployment, gathers its facts, plans, translates, renders and bundles it.

The manifest holds the tool, the inputs with their digests, the decisions with their reasons and the
memory budget.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from . import __version__, bundle, deployment, engines, planning, site
from . import targets as target_table
from .bundle import Bundle, File
from .deployment import Deployment, Document
from .diagnosis.state import State
from .diagnostics import Diagnostic
from .documents import DATA, dump_yaml
from .engines import EngineConfig
from .errors import BadInput, ToolkitError
from .estimates import fits, measurements, names, plan_estimate
from .facts import advisories, checkpoint, hardware, release, servers
from .facts import engines as known_engines
from .facts.checkpoint import Checkpoint
from .facts.engines import Engine
from .facts.release import Release
from .general_rules import RELEASE_WITHOUT_TABLE
from .planning import Facts, Plan
from .resolve import IMPORTED_RELEASE, Known, for_engine, gather, with_release
from .rules import constraints, defects, heuristics, vulnerability_policy
from .rules.context import RuleContext
from .rules.options import set_option
from .rules.rule_inputs import RuleInputs
from .rules.vulnerability_policy import Trial
from .servers import RenderContext
from .targets import disaggregated

# The target whose bundles get a bill of materials.
HANDOFF = "handoff"

KnownDefect = constraints.KnownDefect


@dataclass(frozen=True)
class ServicePlan:
    """The plan of a deployment in the options of its release, with that of its prefill servers.

    With `trial`, which tries other releases, warnings name one that works.
    """

    document: Document
    plan: Plan
    engine: EngineConfig
    prefill: ServicePlan | None = None
    trial: Trial | None = None

    @cached_property
    def context(self) -> RenderContext:
        """What servers and targets render from; it renders each server once."""
        prefill = self.prefill.context if self.prefill else None
        return RenderContext(self.plan, self.engine, prefill)

    @cached_property
    def warnings(self) -> list[Diagnostic]:
        """The warnings that the deployment does not accept.

        An acceptance that matches no warning is reported, unless overrides changed the plan.
        """
        rows = self.plan.deployment.accepted_warnings or []
        kept = [one for one in self._warnings if not any(row.is_for(one) for row in rows)]
        for index, row in enumerate(() if self.document.overridden else rows):
            if not any(row.is_for(one) for one in self._warnings):
                what = f"{row.path} has no {f'{row.rule} ' if row.rule else ''}warning here"
                where = f"accepted_warnings.{index}"
                kept.append(Diagnostic(where, what, "remove it", severity="warning"))
        return kept

    @property
    def accepted_warnings(self) -> list[tuple[Diagnostic, str]]:
        found: list[tuple[Diagnostic, str]] = []
        for row in self.plan.deployment.accepted_warnings or []:
            found += ((one, row.reason) for one in self._warnings if row.is_for(one))
        return found

    @cached_property
    def _warnings(self) -> list[Diagnostic]:
        """The warnings of the plan, its targets and its versions.

        Prefill servers have the same versions, so theirs are left out.
        """
        targets = target_table.warnings(self.context)
        planned = self.plan.deployment, self.plan.facts.release.name
        versions = (
            *vulnerability_policy.other_releases(*planned),
            *vulnerability_policy.diagnostics(*planned, self.trial),
        )
        standing = _standing(self.plan.facts.release)
        engine = known_engines.load(self.plan.deployment.engine.name).product
        of_servers = [
            row.problem for row in known_defects(self) if row.is_certain and row.product != engine
        ]
        engine_warnings = (*self.plan.warnings, *self.engine.warnings, *of_servers)
        own = [*standing, *engine_warnings, *targets, *versions]
        if self.prefill is None:
            return own
        where = next(iter(_named_prefill(self.plan.deployment.targets)))
        return own + [
            replace(row, where=f"{where}.{row.where}")
            for row in self.prefill.warnings
            if row.rule not in (advisories.RULE, advisories.UNKNOWN_RULE, RELEASE_WITHOUT_TABLE)
        ]


def known_defects(planned: ServicePlan, state: State | None = None) -> list[KnownDefect]:
    """The known defects of all products of a deployment, on a machine in this state."""
    request, table = planned.plan.deployment, planned.plan.facts.release
    inputs = RuleInputs(planned.engine.options, planned.plan.facts.rule_context(request))
    found: list[KnownDefect] = []
    for use in vulnerability_policy.references(request, table.judged_name):
        found += constraints.known_defects(use.product, use.version, inputs, state)
    return found


def known_defects_in(state: State) -> list[KnownDefect]:
    """The known defects of an engine that the state of a machine names, without a plan."""
    found: list[KnownDefect] = []
    for engine in map(known_engines.load, known_engines.names()):
        version = state.get(f"pip.{engine.package}", "")
        try:
            table = release.load(version, engine=engine).judges[0]
        except BadInput:  # not installed, or too old to be known
            continue
        options: dict[str, Any] = {}
        for path, value in state.items():
            if path.startswith("options."):
                set_option(options, path.removeprefix("options."), value)
        name = hardware.named(state.get("gpu", "").replace(" ", "_"))
        gpu = hardware.load(name) if name in hardware.known() else None
        inputs = RuleInputs(options, RuleContext(table, gpu=gpu))
        found += constraints.known_defects(engine.product, version, inputs, state)
    return found


def _standing(table: Release) -> Iterator[Diagnostic]:
    """The warning for a release without a table, planned from the neighbouring releases."""
    if table.statement:
        both = len(table.neighbours) == 2
        planned = "planned by what both accept" if both else "planned by that table"
        remedy = "start it with the real engine before you rely on this plan, or import its table"
        what, rule = f"{table.statement}; {planned}", RELEASE_WITHOUT_TABLE
        yield Diagnostic("engine.release", what, remedy, rule, rule.severity)


def plan(
    reference: str, overrides: Iterable[str] = (), more_targets: Sequence[str] = ()
) -> ServicePlan:
    """Plan a deployment file or preset, and the prefill servers that it names.

    Raises `BadInput` or `BadFacts` with every independent error, each at its file and line.
    """
    document = for_engine(deployment.read(reference, overrides, more_targets))
    return plan_document(site.with_profile(document))


def plan_document(document: Document) -> ServicePlan:
    """Plan a document that was already read."""
    return _checked(_plan(document, {}))


def _checked(planned: ServicePlan) -> ServicePlan:
    """A plan with a `trial` of other releases. Raises `BadInput` for variables that its start
    scripts set."""
    document, facts = planned.document, planned.plan.facts
    own = {"checkpoint": facts.checkpoint, "draft.checkpoint": facts.draft}
    known = {str(document.get(path)): row for path, row in own.items() if row}

    def trial(name: str) -> list[Diagnostic]:
        try:
            _plan(document, known, name)
        except ToolkitError as error:
            return error.diagnostics
        return []

    planned = replace(planned, trial=trial)
    for each in filter(None, (planned.prefill, planned)):
        if diagnostics := list(_taken_variables(each)):
            raise BadInput(each.document.locate_all(diagnostics))
    return planned


def _plan(document: Document, known: Known, trial: str | None = None) -> ServicePlan:
    """The plan of a document, or of the same document with another release on trial."""
    if trial:
        document = with_release(document, trial)
    request, facts = gather(document, known, trial is not None)
    if (other := _prefill_document(document)) is None:
        return _plan_role(document, request, facts)
    if trial:
        other = with_release(other, trial)
    prefill = _plan_role(other, *gather(other, known, trial is not None))
    own = _plan_role(document, _with_prefill(request, prefill.plan.deployment), facts, prefill)
    if diagnostics := list(_disagreements(prefill, own)):
        raise BadInput(document.locate_all(diagnostics))
    return own


def _plan_role(
    document: Document, request: Deployment, facts: Facts, prefill: ServicePlan | None = None
) -> ServicePlan:
    try:
        decided = plan_estimate.adjust(planning.plan(request, facts))
        return ServicePlan(document, decided, engines.translate(decided), prefill)
    except BadInput as error:
        raise BadInput(document.locate_all(error.diagnostics)) from None


def _named_prefill(targets: Mapping[str, Any]) -> dict[str, Any]:
    prefill = {name: disaggregated.named(targets, name) or {} for name in disaggregated.TARGETS}
    return {
        disaggregated.path(name): given["deployment"]
        for name, given in prefill.items()
        if given.get("deployment") is not None
    }


def _prefill_document(document: Document) -> Document | None:
    """The prefill servers of a deployment, from a file, a preset or an inline mapping.

    A file name is relative to the deployment file, or to the current folder if given as an
    override. Raises `BadInput` if two targets name different ones.
    """
    if not (named := _named_prefill(document.targets())):
        return None
    found = {path: _prefill_name(document, path, given) for path, given in named.items()}
    (where, given), *others = found.items()
    if different := [
        Diagnostic(
            other, f"is not what {where} names", "name the same: a bundle has one prefill side"
        )
        for other, value in others
        if _real(value) != _real(given)
    ]:
        raise BadInput(document.locate_all(different))
    if isinstance(given, str):
        other = deployment.read(given)
    else:
        other = Document(f"{document.name}: {where}", given, folder=document.home(where))
    served = {name: other.get(f"targets.{name}") or {} for name in servers.with_role("prefill")}
    return replace(other, data={**other.data, "targets": served})


def _prefill_name(document: Document, path: str, given: Any) -> Any:
    """The preset or file of prefill servers from the current folder, or the inline mapping."""
    if not isinstance(given, str) or given in deployment.preset_names():
        return given
    return str(document.home(path) / given)


def _real(named: Any) -> Any:
    """A unique spelling of each file."""
    return os.path.realpath(named) if isinstance(named, str) else named


def _with_prefill(request: Deployment, prefill: Deployment) -> Deployment:
    """The request with the resolved prefill deployment instead of its name."""
    other = {name: value for name, value in prefill.data().items() if value is not None}
    changed = {
        name: {**options, "prefill": {**options["prefill"], "deployment": other}}
        for name, options in request.targets.items()
        if options.get("prefill")
    }
    return request.replaced(targets=request.targets | changed)


def _disagreements(prefill: ServicePlan, decode: ServicePlan) -> Iterator[Diagnostic]:
    """Values that both sides of a service must share and do not."""
    one, two = prefill.plan.deployment, decode.plan.deployment
    where = next(iter(_named_prefill(two.targets)))
    if one.role != "prefill":
        yield Diagnostic(f"{where}.role", f"is {one.role}", "name a deployment of role prefill")
    if one.instances > 1:
        remedy = "give 1, and the number by prefill.servers"
        yield Diagnostic(f"{where}.instances", f"is {one.instances}", remedy)
    for path, values in {
        "checkpoint": (one.checkpoint, two.checkpoint),
        "engine.release": (one.engine.release, two.engine.release),
        "hardware.gpu": (one.hardware.gpu, two.hardware.gpu),
    }.items():
        if values[0] != values[1]:
            what = f"is {values[0]}, the decode servers have {values[1]}"
            yield Diagnostic(f"{where}.{path}", what, "give both the same")
    yield from target_table.prefill_diagnostics(two, one)
    context = decode.plan.facts.rule_context(two)
    for diagnostic in constraints.disagreements(
        prefill.engine.options, decode.engine.options, context
    ):
        yield replace(diagnostic, where=f"engine_config.{diagnostic.where}")


def _taken_variables(planned: ServicePlan) -> Iterator[Diagnostic]:
    if not (given := planned.plan.deployment.environment):
        return
    taken = planned.context.reserved_environment
    for name in given.keys() & taken.keys():
        what = f"is set by the start script of {taken[name]}"
        remedy = "remove it here: set it when you start the script, or as an option of the target"
        yield Diagnostic(f"environment.{name}", what, remedy)


def render(
    reference: str,
    folder: Path,
    overrides: Iterable[str] = (),
    force: bool = False,
    more_targets: Sequence[str] = (),
) -> Bundle:
    return write(plan(reference, overrides, more_targets), folder, force)


def write(planned: ServicePlan, folder: Path, force: bool = False) -> Bundle:
    """The bundle of a plan, written to a folder."""
    return bundle.write(folder, _files(planned), manifest_facts(planned), force)


def render_again(folder: Path, with_facts: bool = True) -> dict[str, File]:
    """The files of a bundle, rendered only from the request and the facts inside it.

    They are the same bytes if this toolkit made the bundle. Without its facts, the checkpoint must
    be known here.
    """
    planned = plan_bundle(folder, deployment.read(str(folder / "deployment.yaml")), with_facts)
    return bundle.complete(_files(planned), manifest_facts(planned))


def plan_bundle(folder: Path, document: Document, with_facts: bool = True) -> ServicePlan:
    """The plan of a bundle's request, or of a change to it, from the facts inside the bundle."""
    facts = checkpoint.in_bundle(folder) if with_facts else {}
    return _checked(_plan(site.with_profile(document), _by_reference(document, facts)))


def _by_reference(document: Document, facts: Mapping[str, Checkpoint]) -> Known:
    """Facts that were read from a folder, by its name in the request; other facts ship."""
    named = {name: document.get(path) for name, path in checkpoint.REFERENCES.items()}
    return {str(named[name]): row for name, row in facts.items() if row.listing.files}


def _files(planned: ServicePlan) -> dict[str, File]:
    """The files of a bundle; prefill servers are a bundle inside it."""
    request, facts = planned.plan.deployment, planned.plan.facts
    files = target_table.render(planned.context)
    if planned.prefill:
        inner = bundle.complete(_files(planned.prefill), manifest_facts(planned.prefill))
        files |= {f"{disaggregated.PREFILL_FOLDER}/{path}": file for path, file in inner.items()}
    files |= {
        "deployment.yaml": File(dump_yaml(request.data(exclude_none=True)).encode()),
        "checkpoint.json": File(bundle.to_json(_checkpoints(facts))),
        "launch.json": File(bundle.to_json(_launch(planned.context))),
    }
    if not facts.release.ships:
        files[IMPORTED_RELEASE] = File(facts.release.path.read_bytes())
    if HANDOFF in request.targets:
        files |= _bills(planned, files)
    return files


def _bills(planned: ServicePlan, files: Mapping[str, File]) -> dict[str, File]:
    """The mirror list, and the bill of materials of all files."""
    from .targets import components  # only bundles that are rendered need them

    found, request = components.of(planned.context, files), planned.plan.deployment
    lists = components.render_mirror(found)
    accepted = vulnerability_policy.accepted(request, planned.plan.facts.release.name)
    bill = components.render_bill(request.name, found, {**files, **lists}, accepted)
    return {**lists, components.BILL_FILE: bill}


def _checkpoints(facts: Facts) -> dict[str, Any]:
    """The facts of the model, with those of a draft model that was read from a folder."""
    document = checkpoint.to_document(facts.checkpoint)
    if facts.draft and facts.draft.listing.files:
        document["draft"] = checkpoint.to_document(facts.draft)
    return document


def _launch(context: RenderContext) -> dict[str, Any]:
    """`launch.json`: how each server is started, reached and checked for readiness."""
    deployment = context.deployment
    return {
        "format": bundle.FORMAT,
        "name": deployment.name,
        "checkpoint": deployment.checkpoint,
        "engine": deployment.engine.identity,
        "environment": context.environment,
        "targets": {name: server.entry for name, server in context.servers.items()},
    }


def deployment_diagnostics(path: Path, overrides: Iterable[str] = ()) -> list[Diagnostic]:
    """All problems of a deployment file: why it cannot be planned, or the plan's warnings.

    The `path` of each is its path in the file.
    """
    try:
        planned = plan(str(path), overrides)
    except ToolkitError as error:
        return error.diagnostics
    return planned.document.locate_all(planned.warnings)


# What every estimate rests on, and every refusal of one.
_MEASURED = (measurements.AGGREGATED, fits.FACTORS, names.MODELS)


def manifest_facts(planned: ServicePlan) -> dict[str, Any]:
    """What the manifest and `plan --json` contain of a plan and its spelling for the release."""
    plan, engine = planned.plan, planned.engine
    accepted = [
        {"where": row.where, "what": row.message, "reason": reason}
        for row, reason in planned.accepted_warnings
    ]
    facts, request, estimate = plan.facts, plan.deployment, plan_estimate.document(plan)
    if disagreement := plan_estimate.disagreement(plan):
        estimate |= {"disagreement": f"{disagreement}; published practice decides"}
    published = [asdict(row) for row in facts.published]
    for row in published:
        del row["file"]
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
            {"where": row.where, "what": row.message, "remedy": row.fix} for row in planned.warnings
        ],
        **({"accepted_warnings": accepted} if accepted else {}),
        "accepted_advisories": vulnerability_policy.record(request, facts.release.name),
        "limits": asdict(plan.limits),
        "memory": memory(plan),
        "estimate": estimate,
        "published": published,
        **({"choice": request.choice.data()} if request.choice else {}),
    }


def _inputs(facts: Facts) -> Iterator[tuple[str, str]]:
    """The digests of the files that the result depends on, by names without local folders."""
    models = {"checkpoint": facts.checkpoint, "draft": facts.draft}
    shipped = [model.file for model in models.values() if model and model.file]
    for folder, model in models.items():
        if model:
            yield from ((f"{folder}/{name}", digest) for name, digest in model.digests.items())
    for path in (
        *shipped,
        hardware.HARDWARE / f"{facts.gpu.name}.yaml",
        *(facts.release.files if facts.release.ships else ()),  # else the bundle holds it
        *sorted({row.file for row in facts.published}),
        *heuristics.files(facts.release.engine),
        DATA / facts.release.engine.rules,
        *_of_products(facts.release.engine, sorted(defects.FOLDER.iterdir())),
        *_MEASURED,
    ):
        yield path.relative_to(Path(__file__).parent).as_posix(), _sha256(path)
    for path in _of_products(
        facts.release.engine, advisories.files()
    ):  # which may be newer than those that ship
        yield f"data/advisories/{path.name}", _sha256(path)


def _of_products(engine: Engine, files: Iterable[Path]) -> Iterator[Path]:
    """The files that have the name of an engine or of a server that can run it."""
    carriers = [row for row in map(servers.load, servers.names()) if engine.name in row.engines]
    products = {engine.product, *(row.image["product"] for row in carriers)}
    return (path for path in files if path.stem in products)


def memory(plan: Plan) -> dict[str, Any]:
    """The memory budget in GiB, rounded to the estimate's precision."""
    budget = plan.budget
    parts = ("total", "weights", "kv_cache", "activations", "cuda_graphs", "other")
    sizes = {f"{part}_gib": getattr(budget, f"{part}_gib") for part in parts}
    return {
        "per_gpu": {name: round(size_gib, 2) for name, size_gib in sizes.items()},
        "total_source": plan.facts.gpu.memory_cuda_mib.source,
        "total_verified": plan.facts.gpu.memory_cuda_mib.verified,
        "kv_bytes_per_token": budget.kv_bytes_per_token,
        "kv_tokens": budget.kv_tokens,
        "max_concurrency": budget.max_concurrency,
        "fits": budget.fits,
        **({"evidence": "measured", "source": budget.measured} if budget.measured else {}),
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
