"""Whether an object is exactly what a release of Kubernetes, or a definition of its own, knows.

A field that no definition names is a fault, as it would be dropped in silence or refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from referencing import Registry, Resource

from tests.conftest import ROOT

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

MINORS = ("1.35", "1.36", "1.37")
DEFINITIONS = ROOT.parent / "shared" / "crds"
# Kinds that come with software beside Kubernetes, by the file of their definition.
FOREIGN = {
    "LeaderWorkerSet": "leaderworkersets",
    "ServingRuntime": "servingruntimes",
    "InferenceService": "inferenceservices",
}

TEXT = {"type": "string"}


def _closed(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "additionalProperties": False}


def _list(**fields: Any) -> dict[str, Any]:
    return {"type": "array", "items": _closed(**fields)}


# What NVIDIA's definition lets a ComputeDomain say.
# Source: kubernetes-sigs/dra-driver-nvidia-gpu@9593204, resource.nvidia.com_computedomains.yaml.
COMPUTE_DOMAIN = {
    **_closed(
        apiVersion={"const": "resource.nvidia.com/v1beta1"},
        kind={"const": "ComputeDomain"},
        metadata={"type": "object"},
        spec={
            **_closed(
                numNodes={"type": "integer", "minimum": 0},
                channel={
                    **_closed(
                        allocationMode={"enum": ["All", "Single"]},
                        resourceClaimTemplate={**_closed(name=TEXT), "required": ["name"]},
                    ),
                    "required": ["resourceClaimTemplate"],
                },
            ),
            "required": ["channel"],
        },
    ),
    "required": ["spec"],
}
METADATA = {"apiVersion": {"const": "monitoring.coreos.com/v1"}, "metadata": {"type": "object"}}
LABELS = {"type": "object", "additionalProperties": TEXT}
DURATION = {"type": "string", "pattern": r"^[0-9]+(ms|[smhdwy])$"}
# What Prometheus Operator's definitions let these say, as far as we use it.
# Source: prometheus-operator/prometheus-operator, example/prometheus-operator-crd@0ff52b3,
# monitoring.coreos.com_podmonitors.yaml; @2de7fa3, monitoring.coreos.com_prometheusrules.yaml.
POD_MONITOR = _closed(
    kind={"const": "PodMonitor"},
    spec={
        **_closed(
            selector=_closed(matchLabels=LABELS),
            podMetricsEndpoints=_list(
                port=TEXT,
                path=TEXT,
                interval=DURATION,
                relabelings=_list(
                    sourceLabels={"type": "array", "items": TEXT},
                    targetLabel=TEXT,
                    replacement=TEXT,
                ),
            ),
        ),
        "required": ["podMetricsEndpoints", "selector"],
    },
    **METADATA,
)
PROMETHEUS_RULE = _closed(
    kind={"const": "PrometheusRule"},
    spec=_closed(
        groups=_list(
            name=TEXT,
            interval=DURATION,
            rules=_list(
                record=TEXT,
                alert=TEXT,
                expr=TEXT,
                labels=LABELS,
                annotations=LABELS,
                **{"for": DURATION},
            ),
        )
    ),
    **METADATA,
)
CLOSED = {
    "ComputeDomain": COMPUTE_DOMAIN,
    "PodMonitor": POD_MONITOR,
    "PrometheusRule": PROMETHEUS_RULE,
}
# Kinds that are no part of Kubernetes, which patches them as plain JSON.
CUSTOM = (*FOREIGN, *CLOSED)

Object = Mapping[str, Any]


def faults(found: Object, minor: str) -> list[str]:
    """What the definition of an object's kind has against it, each fault with its path."""
    validator = _foreign(found["kind"]) if found["kind"] in CUSTOM else _known(minor, found)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(found)]


def definitions_are_here() -> bool:
    return DEFINITIONS.is_dir()


def schema(minor: str, found: Object) -> Object:
    """That of an object's kind, which is one of Kubernetes itself."""
    return _schema(minor, _name(found))


def field(minor: str, around: Object, name: str) -> Object:
    """The schema of a field, by the one of what it stands in; of a list, `items` is one."""
    found = around.get("properties", {"items": around.get("items")}).get(name) or {}
    if "$ref" in found:
        target = _definitions(minor)["$defs"][found["$ref"].rpartition("/")[2]]
        return {**target, **found}
    result: Object = found
    return result


def _known(minor: str, found: Object) -> Draft202012Validator:
    return _validator(minor, _name(found))


def _name(found: Object) -> str:
    group, _, version = found["apiVersion"].rpartition("/")
    return "-".join(filter(None, (found["kind"].lower(), group.partition(".")[0], version)))


@cache
def _schema(minor: str, name: str) -> Object:
    found: Object = json.loads((_folder(minor) / f"{name}.json").read_text())
    return found


@cache
def _validator(minor: str, name: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator  # takes seconds: it makes grammars

    schema = _schema(minor, name)
    registry: Registry[Any] = Registry()
    for known in (_definitions(minor), schema):
        registry = Resource.from_contents(known) @ registry
    return Draft202012Validator(schema, registry=registry)


@cache
def _definitions(minor: str) -> Object:
    found: Object = json.loads((_folder(minor) / "_definitions.json").read_text())
    return found


@cache
def _folder(minor: str) -> Path:
    import kubernetes_validate

    schemas = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    [folder] = schemas.glob(f"v{minor}.*-local-strict")
    return folder


@cache
def _foreign(kind: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    if kind not in FOREIGN:
        return Draft202012Validator(CLOSED[kind])
    text = (DEFINITIONS / f"{FOREIGN[kind]}.yaml").read_text()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document = yaml.load(text, Loader=loader)
    [version] = [row for row in document["spec"]["versions"] if row["storage"]]
    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    _close(schema)
    return Draft202012Validator(schema)


def _close(node: Any) -> None:
    """Make every field that a definition does not name a fault, unless it says otherwise."""
    for inner in _inner(node):
        _close(inner)
    keeps = isinstance(node, dict) and node.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(node, dict) and "properties" in node and not keeps:
        node.setdefault("additionalProperties", False)


def _inner(node: Any) -> Iterator[Any]:
    """The definitions inside one; the names of its fields are none."""
    if isinstance(node, dict):
        yield from node.get("properties", {}).values()
        yield from (node[key] for key in ("items", "additionalProperties") if key in node)
