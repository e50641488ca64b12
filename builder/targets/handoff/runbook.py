"""Writes the runbook: what an operating team must know and type, in that order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...facts.images import Image
from ...observability.alerts import Alert
from ...servers import START_TIMEOUT_S, RenderContext
from ...site import TARGET
from .. import disaggregated
from ..kubernetes.options import TARGET as KUBERNETES
from ..kubernetes.workload import object_name
from ..monitoring.monitored import TARGET as MONITORING
from ..monitoring.monitored import MonitoringOptions
from ..monitoring.rules import Rules
from . import cluster, plan_sections, shell_settings
from .document import (
    Block,
    Document,
    Section,
    Text,
    bullets,
    code,
    command,
    errors,
    facts,
    fill,
    note,
    paragraph,
    procedures,
    remedies,
    section,
)

# Places where a deployment can run, in the order of their sections.
RUNS_ON = ("node", "slurm", "kubernetes", "compose")
KINDS = {"agg": "Inference service", "prefill": "Prefill server", "decode": "Decode server"}
SIDES = "Inference service of prefill and decode servers behind a router"


def runbook(context: RenderContext) -> Document:
    known = _known(context)
    values = _values(context)
    made = {"servers": _settings(context)}

    def chapter(name: str) -> Section:
        return section(name, values, *procedures(name, values, known, made))

    sections = [
        _overview(context, values),
        cluster.ports(context),
        cluster.secrets(context),
        plan_sections.capacity(context),
        plan_sections.figures(context),
        chapter("setup"),
        chapter("verify"),
        *(chapter(name) for name in RUNS_ON if name in known),
        section("errors", values, errors()),
        section("slo", values),
        alerts(context, procedures("alerts", values, known, made)),
        plan_sections.decisions(context),
        chapter("evidence"),
        plan_sections.terms(context),
        plan_sections.vulnerabilities(context),
        section("air-gap", values),
    ]
    return Document(
        f"Runbook of {context.deployment.name}", "Runbook", _subject(context), tuple(sections)
    )


_ROLLING = ("upgrade", "replace", "roll-back")
_SIDE_BY_SIDE = "beside"


def rolling(context: RenderContext, old: RenderContext) -> tuple[Section, ...]:
    """How this bundle takes the place of an old one and how to go back, wherever it can run.

    With another name, it starts beside the old one, which is stopped at the end.
    """
    known, values = _known(context), _values(context)
    endings: tuple[str, ...] = _ROLLING
    if old.deployment.name != context.deployment.name:
        known, endings = known | {_SIDE_BY_SIDE}, (_SIDE_BY_SIDE,)
        stop_s = _values(old)["cluster_stop_timeout_s"]
        values |= {"old_name": old.deployment.name, "old_stop_timeout_s": stop_s}
        values["old_object"] = object_name(old.deployment.name)
    found: list[Section] = []
    for name in RUNS_ON:
        if name in known:
            parts = procedures(name, values, known, {"servers": _settings(context)})
            own = tuple(part for part in parts if part.id.endswith(endings))
            found.append(Section(name, f"{section(name, values).title}: the commands", own))
    return tuple(found)


def _subject(context: RenderContext) -> tuple[str, ...]:
    facts, hardware = context.plan.facts, context.deployment.hardware
    own = f"{hardware.num_gpus}x {facts.gpu.product}"
    return (
        f"{facts.checkpoint.name}, {facts.checkpoint.precision}",
        cluster.gpus(context) if context.prefill else own,
        f"{context.engine_record.title} {context.release.name}",
    )


def _known(context: RenderContext) -> frozenset[str]:
    """The conditions that hold; procedures and commands in the data name them."""
    deployment = context.deployment
    words = {
        "node": bool(context.servers) and _runs_alone(context),
        "state_folder": _state_folder(context) is not None,
        "no_state_folder": _state_folder(context) is None,
        "kubernetes_sides": _has_sides(context),
        "kubernetes_alike": not _has_sides(context),
        "one_node": context.nodes == 1,
        "several_nodes": context.nodes > 1,
        "one_instance": deployment.instances == 1,
        "several_instances": deployment.instances > 1,
        "unary_model": any(server.unary_model for server in context.servers.values()),
        "streams": all(
            server.settings.get("decoupled", True) for server in context.servers.values()
        ),
    }
    found = {*deployment.targets, *(word for word, holds in words.items() if holds)}
    for name, server in context.servers.items():
        for port in server.ports:
            found |= {f"{name}_{port}", f"{server.record.api}_{port}"}
    return frozenset(found)


def _first(names: Iterable[str | None]) -> str | None:
    return next(filter(None, names), None)


def _runs_alone(context: RenderContext) -> bool:
    """Whether one node runs the whole service."""
    return context.nodes == 1 and context.deployment.role == "agg"


def _has_sides(context: RenderContext) -> bool:
    """Whether Kubernetes runs prefill and decode servers."""
    return disaggregated.named(context.deployment.targets, KUBERNETES) is not None


def _state_folder(context: RenderContext) -> str | None:
    """The folder for the state of services on a Slurm cluster, if the site profile names it."""
    slurm = context.deployment.targets.get(TARGET) or {}
    folder: str | None = (slurm.get("site") or {}).get("state_folder")
    return folder


def _values(context: RenderContext) -> dict[str, object]:
    """The values of the placeholders in the data."""
    deployment, facts = context.deployment, context.plan.facts
    concurrency = deployment.workload.concurrency
    settings = [server.settings for server in context.servers.values()]
    objects = cluster.objects(context)
    return {
        "name": deployment.name,
        "object": object_name(deployment.name),
        "model": facts.checkpoint.name,
        "engine": context.engine_record.title,
        "triton_model": _first(row.entry.get("model_name") for row in context.servers.values()),
        "unary_model": _first(row.unary_model for row in context.servers.values()),
        "state": _state_folder(context),
        "where": _where(context),
        "weights_gb": f"{facts.checkpoint.nbytes / 1e9:,.3g}",
        "start_timeout_s": START_TIMEOUT_S,
        "cluster_start_timeout_s": cluster.start_timeout_s(objects, START_TIMEOUT_S),
        "cluster_stop_timeout_s": cluster.stop_timeout_s(objects, START_TIMEOUT_S),
        "drain_timeout_s": max((row["drain_timeout_s"] for row in settings if row), default=0),
        "concurrency": concurrency,
        "concurrencies": ",".join(map(str, dict.fromkeys((1, concurrency)))),
        "twice": 2 * concurrency,
        "step": shell_settings.canary_step(context),
    }


def _where(context: RenderContext) -> str:
    images = [
        (server.record.title, context.image(server.record.name))
        for server in context.servers.values()
    ]
    named = [f"{image.reference} for {title}" for title, image in images if image]
    return " or ".join(named) or "no image is known for this release"


def _overview(context: RenderContext, values: Mapping[str, object]) -> Section:
    deployment, budget = context.deployment, context.plan.budget
    of_one = ", per decode server" if context.prefill else ""
    glance = (
        ("GPUs", cluster.gpus(context)),
        ("Weights", f"{values['weights_gb']} GB"),
        (f"Concurrent requests{of_one}", f"{budget.max_concurrency:,}"),
        ("KV tokens per GPU", f"{budget.kv_tokens:,}"),
    )
    blocks: list[Block] = [facts(glance), facts(_identity(context))]
    if not _runs_alone(context) and not deployment.targets.keys() & {*RUNS_ON}:
        words = "needs several nodes, or another side: also render slurm or kubernetes"
        blocks.append(note("No instructions to start it", f"It {words}."))
    accepted = deployment.accepted_warnings or []
    if deployment.notes or accepted:
        warnings = (f"Accepted warning of {row.path}: {row.reason}" for row in accepted)
        notes = bullets([*deployment.notes, *warnings])
        blocks.append(Section("notes", "Notes of the deployment", (notes,)))
    return section("overview", values, *blocks)


def _identity(context: RenderContext) -> Iterator[tuple[str, str]]:
    deployment, checkpoint = context.deployment, context.plan.facts.checkpoint
    workload = deployment.workload
    yield "Name", code(deployment.name)
    yield "Does", SIDES if context.prefill else KINDS[deployment.role]
    yield "Checkpoint", code(deployment.checkpoint) + f"; {checkpoint.source}"
    if deployment.draft:
        yield "Draft model", code(deployment.draft.checkpoint)
    yield "Engine", f"{context.engine_record.title} {context.release.name}"
    for server in context.servers.values():
        image = context.image(server.record.name)
        named = _image(image, deployment.name) if image else "none is known for this release"
        yield f"Image of {server.record.title}", named
    yield (
        "Planned for",
        (
            f"{workload.concurrency:,} concurrent requests of {workload.isl:,} prompt and "
            f"{workload.osl:,} output tokens"
        ),
    )
    words = "`sha256sum manifest.json` in the bundle; `builder verify` prints it"
    yield "Digest of the bundle", fill(words, {})


def _image(image: Image, name: str) -> Text:
    if image.digest:
        return code(image.reference)
    words = (
        "; without a digest, the tag may later name another image. On a machine that reaches "
        "@{host}, `python -m builder pin @{name} -o @{name}.yaml` writes a deployment file with "
        "the digest; render that one"
    )
    host = image.name.partition("/")[0]
    return code(image.reference) + fill(words, {"name": name, "host": host})


def _settings(context: RenderContext) -> tuple[str, ...]:
    """The blocks that set shell variables, one for each server."""
    return tuple(
        command(f"Settings for {server.record.title}", shell_settings.settings(context, server), "")
        for server in context.servers.values()
    )


# Stands for the value of an alert, which is known when it fires.
VALUE = "shown in the alert"


def alerts(context: RenderContext, before: Sequence[Section]) -> Section:
    """A section for each alert, with the id that its rule links to."""
    parts: dict[str, Section] = {}
    for rules in _rules(context):
        parts |= {alert.anchor: _part(alert, rules) for alert in rules.alerts}
    return section("alerts", {}, *before, *parts.values())


def _rules(context: RenderContext) -> Iterator[Rules]:
    """The alerts of the target `monitoring`, or those it would have for each server."""
    given = context.deployment.targets.get(MONITORING)
    if given is not None:
        yield Rules(context, MonitoringOptions.of(given))
        return
    for server in context.servers.values():
        yield Rules(context, MonitoringOptions.of({"server": server.record.name}))


def _part(alert: Alert, rules: Rules) -> Section:
    said = rules.annotations(alert, VALUE)
    words = f"{alert.severity.capitalize()}. {said['summary']} {said['description']}"
    causes = tuple(
        (fill(one.symptom, {}), fill(one.cause, {}), "".join(f"{line}\n" for line in one.commands))
        for one in alert.causes
    )
    return Section(alert.anchor, alert.name, (paragraph(words), remedies(causes)))
