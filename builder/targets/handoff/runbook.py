"""The runbook: what another team has to know and to type, in the order in which it needs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...facts.images import Image
from ...site import TARGET
from .. import START_TIMEOUT_S, Request
from ..kubernetes.names import object_name
from . import alerting, assurance, capacity, decisions, network, prose, servers
from .document import Block, Bullets, Command, Document, Facts, Note, Section, Text, code, plain
from .servers import Server

# Where a deployment can run, in the order of its sections.
RUNS_ON = ("node", "slurm", "kubernetes", "compose")
KINDS = {"agg": "Inference service", "prefill": "Prefill server", "decode": "Decode server"}


def runbook(request: Request) -> Document:
    found = servers.of(request)
    known = _known(request, found)
    values = _values(request, found)
    made = {"servers": _settings(found)}

    def chapter(name: str) -> Section:
        return prose.section(name, values, *prose.procedures(name, values, known, made))

    sections = [
        _overview(request, found, values),
        network.ports(request, found),
        network.secrets(request, found),
        capacity.capacity(request, found),
        capacity.figures(request),
        chapter("setup"),
        chapter("verify"),
        *(chapter(name) for name in RUNS_ON if name in known),
        prose.section("slo", values),
        alerting.alerts(request, found, prose.procedures("alerts", values, known, made)),
        decisions.decisions(request),
        chapter("evidence"),
        assurance.terms(request),
        assurance.vulnerabilities(request),
        prose.section("air-gap", values),
    ]
    return Document(
        f"Runbook of {request.deployment.name}", "Runbook", _subject(request), tuple(sections)
    )


def _subject(request: Request) -> tuple[str, ...]:
    facts, hardware = request.plan.facts, request.deployment.hardware
    return (
        f"{facts.checkpoint.name}, {facts.checkpoint.precision}",
        f"{hardware.num_gpus}x {facts.gpu.product}",
        f"TensorRT-LLM {request.release.name}",
    )


def _known(request: Request, found: Sequence[Server]) -> frozenset[str]:
    """The words that procedures and commands may ask for."""
    deployment = request.deployment
    words = {
        "node": bool(found) and _runs_alone(request),
        "state_folder": _state_folder(request) is not None,
        "no_state_folder": _state_folder(request) is None,
        "one_node": request.nodes == 1,
        "several_nodes": request.nodes > 1,
        "one_instance": deployment.instances == 1,
        "several_instances": deployment.instances > 1,
        "streams": all(server.settings.get("decoupled", True) for server in found),
    }
    return frozenset({*deployment.targets, *(word for word, holds in words.items() if holds)})


def _runs_alone(request: Request) -> bool:
    """Whether one node serves by itself: not a server of several, nor one side of a service."""
    return request.nodes == 1 and request.deployment.role == "agg"


def _state_folder(request: Request) -> str | None:
    """Where services of a Slurm cluster keep their state, if the site's profile says it."""
    slurm = request.deployment.targets.get(TARGET) or {}
    folder: str | None = (slurm.get("site") or {}).get("state_folder")
    return folder


def _values(request: Request, found: Sequence[Server]) -> dict[str, object]:
    """What the words of the data have blanks for."""
    deployment, facts = request.deployment, request.plan.facts
    concurrency = deployment.workload.concurrency
    drains = [server.settings["drain_timeout_s"] for server in found if server.settings]
    return {
        "name": deployment.name,
        "object": object_name(deployment.name),
        "model": facts.checkpoint.name,
        "state": _state_folder(request),
        "where": _where(request, found),
        "weights_gb": f"{facts.checkpoint.nbytes / 1e9:,.3g}",
        "start_timeout_s": START_TIMEOUT_S,
        "drain_timeout_s": max(drains, default=0),
        "concurrency": concurrency,
        "concurrencies": ",".join(map(str, dict.fromkeys((1, concurrency)))),
        "twice": 2 * concurrency,
        "step": servers.canary_step(found),
    }


def _where(request: Request, found: Sequence[Server]) -> str:
    images = [(server.title, request.image(server.target)) for server in found]
    named = [f"{image.reference} for {title}" for title, image in images if image]
    return " or ".join(named) or "no image of this release is known"


def _overview(request: Request, found: Sequence[Server], values: Mapping[str, object]) -> Section:
    deployment, budget = request.deployment, request.plan.budget
    glance = (
        ("GPUs", plain(f"{deployment.hardware.num_gpus}x {deployment.hardware.gpu.upper()}")),
        ("Weights", plain(f"{values['weights_gb']} GB")),
        ("Requests at once", plain(f"{budget.max_concurrency:,}")),
        ("KV tokens per GPU", plain(f"{budget.kv_tokens:,}")),
    )
    blocks: list[Block] = [Facts(glance, glance=True), Facts(tuple(_identity(request, found)))]
    if not _runs_alone(request) and not deployment.targets.keys() & {*RUNS_ON}:
        words = "needs several nodes, or another side: render it with slurm or kubernetes as well"
        blocks.append(Note("warning", "No instructions to start it", plain(f"It {words}.")))
    if deployment.notes:
        notes = Bullets(tuple(map(plain, deployment.notes)))
        blocks.append(Section("notes", "Notes of the deployment", (notes,)))
    return prose.section("overview", values, *blocks)


def _identity(request: Request, found: Sequence[Server]) -> Iterator[tuple[str, Text]]:
    deployment, checkpoint = request.deployment, request.plan.facts.checkpoint
    workload = deployment.workload
    yield "Name", code(deployment.name)
    yield "Does", plain(KINDS[deployment.role])
    yield "Checkpoint", (*code(deployment.checkpoint), *plain(f"; {checkpoint.source}"))
    if deployment.draft:
        yield "Draft model", code(deployment.draft.checkpoint)
    yield "Engine", plain(f"TensorRT-LLM {request.release.name}")
    for server in found:
        image = request.image(server.target)
        named = _image(image) if image else plain("none of this release is known")
        yield f"Image of {server.title}", named
    yield (
        "Planned for",
        plain(
            f"{workload.concurrency:,} requests at a time, of {workload.isl:,} prompt and "
            f"{workload.osl:,} answer tokens"
        ),
    )
    words = "`sha256sum manifest.json` in the bundle; `builder verify` prints it"
    yield "Digest of the bundle", prose.fill(words, {})


def _image(image: Image) -> Text:
    if image.digest:
        return code(image.reference)
    words = "; without a digest, the tag may come to name another: pin one under `images`"
    return (*code(image.reference), *prose.fill(words, {}))


def _settings(found: Sequence[Server]) -> tuple[Command, ...]:
    """The blocks that set a shell up, one for each server."""
    return tuple(
        Command(f"Settings for {server.title}", servers.settings(server), ()) for server in found
    )
