"""Target `kubernetes`: another target of the deployment as objects of a cluster, ready to apply.

No chart tool is needed: the folders are kustomize's, which kubectl knows. `options` is what a
deployment file says, `workload` what the objects are called and made of, `pod` the pod of a server,
`objects` what is around it, and the same for KServe, `gateway` the door for clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...contents import File
from ...files import resource_root
from ...render import yaml_document
from ...servers import RenderContext
from ..container import container
from . import gateway, objects
from .options import KubernetesOptions as Options
from .options import diagnostics, warnings
from .workload import Workload

__all__ = ["Options", "diagnostics", "render", "warnings"]


FOLDER = "kubernetes"
# What starts the ranks of a server on several nodes.
GROUP_SCRIPTS = ("group.sh", "rank.sh")

Documents = Mapping[str, Sequence[Mapping[str, Any]]]


def render(context: RenderContext, options: Options) -> dict[str, File]:
    """A folder for each part, and one file that joins them."""
    served = container(context, options)
    scripts = dict(_scripts()) if served.is_started_from_first_node else {}
    workload = Workload(served, options, scripts)
    name = context.deployment.name
    rendered: dict[str, File] = {**scripts, **workload.lists}
    folders = _folders(workload)
    for folder, documents in folders.items():
        for file, content in documents.items():
            title = f"{folder} of {name}: {file.replace('-', ' ')}."
            rendered[f"{FOLDER}/{folder}/{file}.yaml"] = yaml_document(title, *content)
    rendered |= dict(_kustomizations(name, folders))
    return rendered


def _scripts() -> Iterator[tuple[str, File]]:
    root = resource_root("templates") / FOLDER
    for name in GROUP_SCRIPTS:
        yield f"{FOLDER}/{name}", File((root / name).read_bytes(), executable=True)


def _folders(workload: Workload) -> dict[str, Documents]:
    """The documents of every file, by folder and file."""
    options = workload.options
    volumes = list(objects.model_volumes(workload))
    shared: Documents = {
        "files": [objects.config_map(workload, *row) for row in workload.maps.items()],
        **({"model-volumes": volumes} if volumes else {}),
        **(
            {"compute-domain": [objects.compute_domain(workload)]} if options.compute_domain else {}
        ),
        "network-policy": [objects.network_policy(workload)],
        "disruption-budget": [objects.disruption_budget(workload)],
    }
    runner = objects.group(workload) if workload.nodes > 1 else objects.deployment(workload)
    folders: dict[str, Documents] = {
        "shared": shared,
        "base": {
            "workload": [runner],
            "services": [objects.service(workload), objects.pods_service(workload)],
        },
    }
    if options.autoscaling:
        folders["autoscaling"] = {"autoscaler": [objects.autoscaler(workload, options.autoscaling)]}
    if options.gateway:
        folders["gateway"] = {"gateway": list(gateway.objects(workload, options.gateway))}
    if options.kserve:
        folders["kserve"] = {"inference-service": list(objects.kserve(workload))}
    return folders


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
