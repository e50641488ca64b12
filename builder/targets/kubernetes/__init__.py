"""Target `kubernetes`: another target of the deployment as objects of a cluster, ready to apply.

No chart tool is needed: the folders are kustomize's, which kubectl knows. `options` is what a
deployment file says, `workload` what the objects are called and made of, `pod` the pod of a server,
`objects` everything else, also for KServe, `gateway` what receives requests: the router of prefill
and decode servers, and the gateway for clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from ...bundle import File
from ...files import resource_root
from ...render import plain, yaml_document
from ...servers import RenderContext
from ..container import Container, container
from ..disaggregated import PREFILL_FOLDER
from . import gateway, objects
from .gateway import Router
from .options import KubernetesOptions as Options
from .options import diagnostics, domain_is_on, prefill_diagnostics, warnings
from .workload import DECODE, PREFILL, SERVER, Workload

__all__ = ["Options", "all_objects", "diagnostics", "prefill_diagnostics", "render", "warnings"]


FOLDER = "kubernetes"
# What starts the ranks of a server on several nodes, and what makes the Secret for it.
GROUP_SCRIPTS = ("group.sh", "rank.sh", "remote.py")
SECRET_SCRIPT = "secret.sh"
PICKER_CHART = "oci://ghcr.io/llm-d/charts/llm-d-router-standalone"

Documents = Mapping[str, Sequence[Mapping[str, Any]]]


def all_objects(context: RenderContext, options: Options) -> list[Mapping[str, Any]]:
    """The objects of all folders as plain data, for targets that refer to them."""
    found: list[Mapping[str, Any]] = []
    for files in _folders(*_components(context, options)).values():
        for rows in files.values():
            found += map(plain, rows)
    return found


def render(context: RenderContext, options: Options) -> dict[str, File]:
    """A folder for each part, and one file that joins them."""
    name = context.deployment.name
    workloads, router = _components(context, options)
    rendered: dict[str, File] = router.files if router else {}
    for workload in workloads:
        rendered |= {**workload.scripts, **workload.lists}
        if options.endpoint_picker:
            title = (
                f"{name}: helm install {workload.picker} -f this file, with the chart "
                f"{PICKER_CHART}, in your namespace."
            )
            values = yaml_document(title, objects.picker_values(workload))
            rendered[f"{FOLDER}/llm-d/{workload.component}.yaml"] = values
    if any(workload.scripts for workload in workloads):
        rendered |= dict(_scripts(SECRET_SCRIPT))
    folders = _folders(workloads, router)
    for folder, documents in folders.items():
        for file, content in documents.items():
            title = f"{folder} of {name}: {file.replace('-', ' ')}."
            rendered[f"{FOLDER}/{folder}/{file}.yaml"] = yaml_document(title, *content)
    rendered |= dict(_kustomizations(name, folders))
    return rendered


def _components(context: RenderContext, options: Options) -> tuple[list[Workload], Router | None]:
    """The servers, and the router before them if there are two sides."""
    found = list(workloads(context, options))
    return found, Router(*found) if len(found) > 1 else None


def workloads(context: RenderContext, options: Options) -> Iterator[Workload]:
    """The servers, or those of both sides, prefill first."""
    deployment, served = context.deployment, container(context, options)
    replicas = options.replicas or deployment.instances
    has_domain = domain_is_on(context, options)

    def workload(one: Container, replicas: int, component: str) -> Workload:
        scripts = dict(_scripts(*GROUP_SCRIPTS)) if one.is_started_from_first_node else {}
        return Workload(deployment, one, options, replicas, scripts, has_domain, component)

    if not (context.prefill and options.prefill):
        yield workload(served, replicas, SERVER)
        return
    server = context.prefill.servers[served.server.record.name]
    folder = f"{PREFILL_FOLDER}/"
    other = replace(served, context=context.prefill, server=server, folder=folder)
    yield workload(other, options.prefill.servers, PREFILL)
    yield workload(served, replicas, DECODE)


def _scripts(*names: str) -> Iterator[tuple[str, File]]:
    root = resource_root("templates") / FOLDER
    for name in names:
        yield f"{FOLDER}/{name}", File((root / name).read_bytes(), executable=True)


def _folders(workloads: Sequence[Workload], router: Router | None) -> dict[str, Documents]:
    """The documents of every file, by folder and file."""
    front = workloads[-1]
    options = front.options
    runners = [objects.runner(one) for one in workloads]
    services = list(chain.from_iterable(map(objects.services, workloads)))
    if router:
        runners, services = [router.deployment(), *runners], [*router.services(), *services]
    folders: dict[str, Documents] = {
        "shared": _shared(workloads, router),
        "base": {"workload": runners, "services": services},
    }
    if options.download:
        folders["weights"] = {"weights": list(objects.weights(front, options.download))}
    if options.autoscaling:
        folders["autoscaling"] = {"autoscaler": [objects.autoscaler(front, options.autoscaling)]}
    if options.gateway:
        folders["gateway"] = {"gateway": list(gateway.objects(front, options.gateway))}
    if options.kserve:
        folders["kserve"] = {"inference-service": list(objects.kserve(front))}
    return folders


def _shared(workloads: Sequence[Workload], router: Router | None) -> Documents:
    """What is there whatever runs the servers."""
    maps: list[Mapping[str, Any]] = []
    for one in workloads:
        maps += (objects.config_map(one, *row) for row in one.maps.items())
    policies = [objects.network_policy(one) for one in workloads]
    budgets = [objects.disruption_budget(one) for one in workloads]
    if router:
        maps = [*router.config_maps(), *maps]
        policies = [router.network_policy(), *policies]
        budgets = [router.disruption_budget(), *budgets]
    front = workloads[-1]
    parts: Documents = {
        "files": maps,
        "model-volumes": list(objects.model_volumes(workloads)),
        "compute-domain": [objects.compute_domain(front)] if front.has_domain else [],
        "network-policy": policies,
        "disruption-budget": budgets,
    }
    return {name: documents for name, documents in parts.items() if documents}


def _kustomizations(
    deployment: str, folders: Mapping[str, Documents]
) -> Iterator[tuple[str, File]]:
    """What belongs to each folder, and what `kubectl apply -k` of the whole takes."""
    parents = {"base": ["../shared"], "kserve": ["../shared"]}
    components = [name for name in ("autoscaling", "gateway") if name in folders]
    for folder, documents in folders.items():
        is_component = folder in components
        resources = [*parents.get(folder, []), *(f"{name}.yaml" for name in documents)]
        yield (
            f"{FOLDER}/{folder}/kustomization.yaml",
            yaml_document(f"{folder} of {deployment}.", _joined(resources, is_component)),
        )
    title = f"{deployment}: kubectl apply -k of this folder, in your namespace."
    whole = {**_joined(["base"]), **({"components": components} if components else {})}
    yield f"{FOLDER}/kustomization.yaml", yaml_document(title, whole)


def _joined(resources: list[str], is_component: bool = False) -> dict[str, Any]:
    kind, version = ("Component", "v1alpha1") if is_component else ("Kustomization", "v1beta1")
    return {
        "apiVersion": f"kustomize.config.k8s.io/{version}",
        "kind": kind,
        "resources": resources,
    }
