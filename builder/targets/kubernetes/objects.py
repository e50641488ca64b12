"""The objects around a server's pods: what runs them, finds them, guards them and scales them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ...bundle import File, sums
from ...files import resource_root
from ...observability.signals import quoted
from ...render import CommentedValue
from ..container import BUNDLE, MODELS, SCRATCH_GIB
from ..disaggregated import ROUTER
from .options import AutoscalingOptions, DownloadOptions, Volume
from .pod import SECURITY, contained, first_pods, pod, worker_pod
from .workload import CHANNEL, CLIENT_LABEL, Workload, config_maps, files_volume, map_data

# Images of servers are this large, and a node may have to fetch one before anything starts.
IMAGE_FETCH_S = 1800
# Published recipes run mpirun on the first pod too, over SSH (ai-dynamo/dynamo@015d780,
# deploy/operator/internal/dynamo/backend_trtllm.go; AI-Hypercomputer/gpu-recipes@2e1fd5e,
# inference/a4xmax) or by `kubectl exec` (kubernetes-sigs/lws@060ab4d, docs/examples/tensorrt-llm).
# docker/common/install_base.sh@3ea664d of NVIDIA/TensorRT-LLM adds no SSH server to the image.
# Names of hosts: kubernetes-sigs/lws, KEP of headless services.
BY_MPIRUN = "Open MPI 4 and 5 between pods without rights were tried with stand-ins for the engine"
BY_COMMAND = "The same command on each node was tried with two processes of one machine"
DOMAIN_KIND = "resource.nvidia.com/v1beta1/ComputeDomain"
GROUP_KIND = "leaderworkerset.x-k8s.io/v1/LeaderWorkerSet"
TOPOLOGY_ANNOTATION = "leaderworkerset.sigs.k8s.io/exclusive-topology"


def config_map(
    workload: Workload, name: str, files: Mapping[str, File], component: str | None = None
) -> dict[str, Any]:
    content = {"immutable": True, **map_data(files)}
    return workload.document("v1/ConfigMap", name, content, component)


def deployment(workload: Workload) -> dict[str, Any]:
    """The servers, each on one node."""
    start = workload.container.start_s
    spec = {
        **_replicas(workload),
        "revisionHistoryLimit": 5,
        "progressDeadlineSeconds": CommentedValue(
            start.value + IMAGE_FETCH_S,
            f"The start, and {IMAGE_FETCH_S} s to fetch the image [assumed]",
        ),
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": CommentedValue(
                _update(workload), "A surge needs as many free GPUs again as its servers have"
            ),
        },
        "selector": {"matchLabels": workload.selector()},
        "template": template(workload, pod(workload)),
    }
    return workload.document("apps/v1/Deployment", workload.name, {"spec": spec})


def runner(workload: Workload) -> dict[str, Any]:
    """What makes the pods."""
    if workload.nodes > 1:
        return group(workload)
    return stateful_set(workload) if workload.is_side else deployment(workload)


def stateful_set(workload: Workload) -> dict[str, Any]:
    """The servers of a side, each on one node, which the router knows by their numbers."""
    spec = {
        "replicas": workload.replicas,
        "serviceName": f"{workload.own_name}-pods",
        "podManagementPolicy": "Parallel",
        "revisionHistoryLimit": 5,
        "selector": {"matchLabels": workload.selector()},
        "template": template(workload, pod(workload)),
    }
    return workload.document("apps/v1/StatefulSet", workload.own_name, {"spec": spec})


def group(workload: Workload) -> dict[str, Any]:
    """The servers, each on several nodes, which live and die together.

    It has another name than any Service, since its controller makes a Service by its name.
    """
    topology = None if workload.is_side else workload.topology_key
    tried = BY_MPIRUN if workload.container.is_started_from_first_node else BY_COMMAND
    untried = "not on a cluster; fast networks between nodes come by options of this target"
    parts = {
        "size": workload.nodes,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": template(workload, pod(workload)),
        "workerTemplate": template(workload, worker_pod(workload)),
    }
    spec = {
        **_replicas(workload),
        "startupPolicy": "LeaderCreated",
        "networkConfig": {"subdomainPolicy": "Shared"},
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": _update(workload),
        },
        "leaderWorkerTemplate": CommentedValue(parts, f"{tried}, {untried}"),
    }
    return workload.document(
        GROUP_KIND,
        workload.own_name if workload.is_side else workload.called("group"),
        {"spec": spec},
        annotations={TOPOLOGY_ANNOTATION: topology} if topology else None,
    )


def compute_domain(workload: Workload) -> dict[str, Any]:
    """The domain of multi-node NVLink of the pods, and the template of their claims of it.

    Source: kubernetes-sigs/dra-driver-nvidia-gpu; ai-dynamo/dynamo recipes/kimi-k2.5@1e4f693.
    """
    on_demand = CommentedValue(0, "Nodes join as pods with a claim come to them")
    template = {"name": workload.claims[CHANNEL]}
    spec = {"numNodes": on_demand, "channel": {"resourceClaimTemplate": template}}
    return workload.document(DOMAIN_KIND, workload.called("domain"), {"spec": spec})


def services(workload: Workload) -> Iterator[dict[str, Any]]:
    """One address for who asks, behind which are the pods that are ready; and one that lists them,
    for a router that chooses among them."""
    pods = first_pods(workload)
    yield service(workload, workload.own_name, pods)
    yield service(workload, f"{workload.own_name}-pods", pods, headless=True)


def network_policy(workload: Workload) -> dict[str, Any]:
    """Who asks and monitoring get in, nothing gets out; peers may do all among them."""
    among = [
        {"podSelector": {"matchLabels": workload.selector(component)}}
        for component in workload.peers
    ]
    ingress = [*_ingress(workload), *([{"from": among}] if among else [])]
    egress = [{"to": among}] if among else []
    return policy(workload, workload.own_name, workload.component, ingress, egress)


def policy(
    workload: Workload,
    name: str,
    component: str,
    ingress: list[dict[str, Any]],
    egress: list[dict[str, Any]],
) -> dict[str, Any]:
    """What may reach a component, and what it may reach in addition to DNS."""
    names_of_hosts = {
        "to": [
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
        ],
        "ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")],
    }
    spec = {
        "podSelector": {"matchLabels": workload.selector(component)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": [names_of_hosts, *egress],
    }
    return workload.document("networking.k8s.io/v1/NetworkPolicy", name, {"spec": spec}, component)


def tcp(ports: Iterable[int]) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": port} for port in ports]


# Why a pod does not give way.
ONLY_ONE = "The only one, so that draining its node waits: start another first, then drain"
# Source: kubernetes-sigs/lws@060ab4d, RecreateGroupOnPodRestart: a pod takes its group along.
GROUPS = "A pod takes its server along, and the next one waits until all pods of that are ready"


def disruption_budget(workload: Workload) -> dict[str, Any]:
    scale = workload.options.autoscaling
    least = scale.min_replicas if scale else workload.replicas
    missed = "" if least > 1 else ONLY_ONE
    given = GROUPS if workload.nodes > 1 else ""
    return budget(workload, workload.own_name, workload.component, missed, given)


def budget(
    workload: Workload, name: str, component: str, missed: str, given: str = ""
) -> dict[str, Any]:
    """One pod at a time gives way to work on nodes, unless it would be `missed`, which is why.
    What comes of that is in `given`.

    One that does not serve is in no way.
    """
    spec = {
        "maxUnavailable": CommentedValue(0 if missed else 1, missed or given),
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": workload.selector(component)},
    }
    return workload.document("policy/v1/PodDisruptionBudget", name, {"spec": spec}, component)


def model_volumes(workloads: Sequence[Workload]) -> Iterator[dict[str, Any]]:
    """A folder of every node as a volume with its claim; both sides have the same."""
    workload = workloads[-1]
    gib = math.ceil(workload.container.context.plan.facts.checkpoint.nbytes / 2**30)
    size = {"storage": f"{gib}Gi"}
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    volumes: dict[str, Volume] = {}
    for one in workloads:
        volumes |= one.model_volumes
    for role, volume in volumes.items():
        if volume.host_path is None:
            continue
        name = workload.called(role)
        offered = {
            **common,
            "capacity": size,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": volume.host_path, "type": "Directory"},
        }
        claimed = {**common, "volumeName": name, "resources": {"requests": size}}
        yield workload.document("v1/PersistentVolume", name, {"spec": offered})
        yield workload.document("v1/PersistentVolumeClaim", name, {"spec": claimed})


WEIGHTS = "weights"
HUB_SCRIPT, S3_SCRIPT = "kubernetes/weights.py", "kubernetes/weights_s3.sh"
S3_SUMS = "kubernetes/weights.sha256"
# More than the checkpoint has, for files that are under way.
SPARE = 1.1
TRIES = 10


def weights(workload: Workload, options: DownloadOptions) -> Iterator[dict[str, Any]]:
    """The claim of the checkpoint and the Job that fills it, which are no part of the service."""
    name, claimed = workload.called(WEIGHTS), str(workload.options.model.claim)
    gib = math.ceil(SPARE * workload.container.context.plan.facts.checkpoint.nbytes / 2**30)
    claim: dict[str, Any] = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": f"{gib}Gi"}},
    }
    if options.storage_class:
        claim["storageClassName"] = options.storage_class
    yield workload.document("v1/PersistentVolumeClaim", claimed, {"spec": claim}, WEIGHTS)
    script = S3_SCRIPT if options.s3 else HUB_SCRIPT
    found = {script: File((resource_root("templates") / script).read_bytes())}
    if options.s3 and (digests := workload.digests("model", every=True)):
        found[S3_SUMS] = File(sums(digests))
    [(map_name, files)] = config_maps(name, found).items()
    yield config_map(workload, map_name, files, WEIGHTS)
    spec = {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": SECURITY,
        "imagePullSecrets": [{"name": row} for row in workload.options.image_pull_secrets],
        "containers": [_download(workload, options, S3_SUMS in found)],
        "volumes": [
            {"name": "bundle", "projected": files_volume({map_name: files})},
            {"name": "model", "persistentVolumeClaim": {"claimName": claimed}},
            {"name": "tmp", "emptyDir": {"sizeLimit": f"{SCRATCH_GIB}Gi"}},
        ],
    }
    job = {
        "backoffLimit": CommentedValue(TRIES, "A try goes on where the last one stopped"),
        "template": template(workload, spec, WEIGHTS),
    }
    yield workload.document("batch/v1/Job", name, {"spec": job}, WEIGHTS)


def _download(workload: Workload, options: DownloadOptions, has_sums: bool) -> dict[str, Any]:
    folder = f"{MODELS}/{workload.options.model.path}".rstrip("/")
    repository = workload.deployment.checkpoint
    command = ["python3", f"{BUNDLE}/{HUB_SCRIPT}", repository, options.revision, folder]
    if options.s3:
        known = [f"{BUNDLE}/{S3_SUMS}"] if has_sums else []
        command = ["sh", f"{BUNDLE}/{S3_SCRIPT}", options.s3.rstrip("/"), folder, *known]
    variables = {"HOME": "/tmp", "TMPDIR": "/tmp", "USER": "server"}
    size = {"memory": "8Gi", "ephemeral-storage": f"{SCRATCH_GIB}Gi"}
    return contained(
        WEIGHTS,
        options.image or workload.container.image.reference,
        command,
        [
            {"name": "bundle", "mountPath": BUNDLE, "readOnly": True},
            {"name": "model", "mountPath": MODELS},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
        variables,
        envFrom=[{"secretRef": {"name": options.secret}}] if options.secret else [],
        resources={"requests": {"cpu": "2", **size}, "limits": size},
    )


def _update(workload: Workload) -> dict[str, int]:
    update = workload.options.update
    return {"maxSurge": update.max_surge, "maxUnavailable": update.max_unavailable}


def _replicas(workload: Workload) -> dict[str, int]:
    """The number of servers, unless the autoscaler has it: applied again, it would win."""
    return {} if workload.options.autoscaling else {"replicas": workload.replicas}


def template(
    workload: Workload, spec: Mapping[str, Any], component: str | None = None
) -> dict[str, Any]:
    return {"metadata": {"labels": workload.labels(component)}, "spec": dict(spec)}


def service(
    workload: Workload,
    name: str,
    pods: Mapping[str, str],
    component: str | None = None,
    headless: bool = False,
) -> dict[str, Any]:
    """An address of pods that have all these labels; a headless one is that of each."""
    ports = [
        {
            "name": port_name,
            "port": port,
            "targetPort": port_name,
            "protocol": "TCP",
            **({"appProtocol": "kubernetes.io/h2c"} if port_name == "grpc" else {}),
        }
        for port_name, port in workload.container.ports.items()
    ]
    extra = {"clusterIP": "None"} if headless else {}
    spec = {"type": "ClusterIP", **extra, "selector": dict(pods), "ports": ports}
    return workload.document("v1/Service", name, {"spec": spec}, component)


def clients(workload: Workload) -> list[dict[str, Any]]:
    """Who may ask the service: pods with a label, and the gateway."""
    return [
        {"podSelector": {"matchLabels": {CLIENT_LABEL: workload.name}}},
        {"podSelector": {"matchLabels": workload.selector("gateway")}},
    ]


# Source: llm-d/llm-d-router@v0.9.0, config/charts: routerlib/templates/_helpers.tpl and
# llm-d-router-standalone/values.yaml.
PICKER_PORT = 8081


def picker(workload: Workload) -> dict[str, Any]:
    """The pods of llm-d's router before the servers."""
    labels = {"llm-d-router-standalone": f"{workload.picker}-epp"}
    return {"podSelector": {"matchLabels": labels}}


def picker_values(workload: Workload) -> dict[str, Any]:
    """The values of llm-d's chart, whose router sends a request to one of the pods that are ready.

    By default it weighs what it remembers of prompts, and the queue and KV cache by metrics.
    """
    record = workload.container.server.record
    servers = {
        "type": record.llm_d_engine,
        "matchLabels": first_pods(workload),
        "targetPorts": [{"number": workload.container.ports["http"]}],
    }
    metrics = {"metricsDataSource": {"path": record.paths["metrics"]}}
    pool = {"create": CommentedValue(False, "The labels choose the pods, without definitions")}
    return {"router": {"modelServers": servers, "inferencePool": pool, "epp": metrics}}


def _ingress(workload: Workload) -> Iterator[dict[str, Any]]:
    ports = workload.container.ports
    asked = tcp(port for name, port in ports.items() if name != "metrics")
    router = [{"podSelector": {"matchLabels": workload.selector(ROUTER)}}]
    who = router if workload.is_side else clients(workload)
    if workload.options.endpoint_picker:
        who = [picker(workload), *([] if workload.is_side else who)]
    yield {"from": who, "ports": asked}
    options, protocol = workload.options, workload.container.server.record.metrics.protocol
    where = {"kubernetes.io/metadata.name": options.monitoring_namespace}
    peer = {"namespaceSelector": {"matchLabels": where}}
    if protocol != "metrics":  # the port of the API: open to those who need it, not to all of them
        peer["podSelector"] = {"matchLabels": options.monitoring_pods}
    if protocol in ports:
        yield {"from": [peer], "ports": tcp([ports[protocol]])}


# Series that the monitoring of a deployment records for each server, offered to Kubernetes by an
# adapter as external metrics under the same names. Several series are added up, and divided by the
# number of servers.
WAITING, KV_CACHE = "instance:llm_waiting", "instance:llm_kv_cache"
# So long must the load be low before a server, which took minutes to load, is given up.
CALM_S = 900


def autoscaler(workload: Workload, options: AutoscalingOptions) -> dict[str, Any]:
    start_s = workload.container.start_s.value
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": workload.name}
    if workload.nodes > 1:
        version, _, kind = GROUP_KIND.rpartition("/")
        target = {"apiVersion": version, "kind": kind, "name": workload.called("group")}
    behavior = {
        "scaleUp": {
            "stabilizationWindowSeconds": 60,
            "policies": CommentedValue(
                [{"type": "Pods", "value": 1, "periodSeconds": min(1800, start_s)}],
                "The next server is asked for when the last one has had time to load",
            ),
        },
        "scaleDown": {
            "stabilizationWindowSeconds": CALM_S,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": CALM_S}],
        },
    }
    if options.prometheus:
        return _scaled_object(workload, options, target, behavior)
    spec = {
        "scaleTargetRef": target,
        "minReplicas": options.min_replicas,
        "maxReplicas": options.max_replicas,
        "metrics": CommentedValue(
            [
                _metric(workload, WAITING, str(options.waiting_requests)),
                _metric(workload, KV_CACHE, f"{10 * options.kv_cache_percent}m"),
            ],
            "An adapter must offer these as external metrics, as monitoring records them; each is "
            "the mean of the servers",
        ),
        "behavior": behavior,
    }
    kind = "autoscaling/v2/HorizontalPodAutoscaler"
    return workload.document(kind, workload.name, {"spec": spec})


def _scaled_object(
    workload: Workload,
    options: AutoscalingOptions,
    target: Mapping[str, Any],
    behavior: Mapping[str, Any],
) -> dict[str, Any]:
    """The autoscaler as KEDA makes it, which divides each sum by the number of servers.

    Source: kedacore/keda, config/crd/bases/keda.sh_scaledobjects.yaml@00f6634; Prometheus scaler.
    """
    limits = {WAITING: str(options.waiting_requests), KV_CACHE: str(options.kv_cache_percent / 100)}
    triggers = [
        {
            "type": "prometheus",
            "metadata": {
                "serverAddress": options.prometheus,
                "query": f"sum({name}{{deployment={quoted(workload.deployment.name)}}})",
                "threshold": limit,
            },
        }
        for name, limit in limits.items()
    ]
    spec = {
        "scaleTargetRef": dict(target),
        "minReplicaCount": options.min_replicas,
        "maxReplicaCount": options.max_replicas,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": dict(behavior)}},
        "triggers": triggers,
    }
    return workload.document("keda.sh/v1alpha1/ScaledObject", workload.name, {"spec": spec})


def _metric(workload: Workload, name: str, value: str) -> dict[str, Any]:
    selector = {"matchLabels": {"deployment": workload.deployment.name}}
    return {
        "type": "External",
        "external": {
            "metric": {"name": name, "selector": selector},
            "target": {"type": "AverageValue", "averageValue": value},
        },
    }


# What KServe calls the container that serves, and what a runtime can say of its pods.
KSERVE_CONTAINER = "kserve-container"
OF_THE_RUNTIME = (
    *("containers", "volumes", "nodeSelector", "tolerations"),
    *("imagePullSecrets", "resourceClaims"),
)
# Plain Deployments: others look at one port only, and take a slow start for a failed one. KServe's
# own autoscaler looks at processors, which say nothing of a load on GPUs.
MODE = {
    "serving.kserve.io/deploymentMode": "RawDeployment",
    "serving.kserve.io/autoscalerClass": "external",
}


def kserve(workload: Workload) -> Iterator[dict[str, Any]]:
    """The same servers as KServe runs them: a runtime of our own, and the service that uses it.

    KServe labels pods itself; the ones of ours let the rest of the objects find them.
    """
    name, found, scale = workload.name, pod(workload), workload.options.autoscaling
    [container] = found["containers"]
    protocols = list(workload.container.server.record.kserve_protocols)
    # The name is ours: a service asks for its runtime by name.
    format_name = workload.container.context.engine_record.package
    spec = {
        "multiModel": CommentedValue(
            False, "Valid by KServe's definitions; not tried with KServe itself"
        ),
        "supportedModelFormats": [{"name": format_name, "autoSelect": False}],
        **({"protocolVersions": protocols} if protocols else {}),
        **{key: found[key] for key in OF_THE_RUNTIME if key in found},
        "containers": [{**container, "name": KSERVE_CONTAINER}],
    }
    yield workload.document("serving.kserve.io/v1alpha1/ServingRuntime", name, {"spec": spec})
    predictor = {
        "labels": workload.labels(),
        "minReplicas": scale.min_replicas if scale else workload.replicas,
        "maxReplicas": scale.max_replicas if scale else workload.replicas,
        "deploymentStrategy": {"type": "RollingUpdate", "rollingUpdate": _update(workload)},
        "model": {"modelFormat": {"name": format_name}, "runtime": name},
        **{key: value for key, value in found.items() if key not in OF_THE_RUNTIME},
    }
    kind = "serving.kserve.io/v1beta1/InferenceService"
    yield workload.document(kind, name, {"spec": {"predictor": predictor}}, annotations=MODE)
