"""What receives requests: HAProxy as a gateway for clients, and the router of both sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ...bundle import File
from ...render import CommentedValue, text, yaml_document
from ...servers import JSON_FILTER
from ..container import BUNDLE, HOME, SCRATCH_GIB, scratch_folders
from ..disaggregated import ROUTER, ROUTER_FILE, router_command, router_document
from . import objects as around
from . import pod
from .options import GatewayOptions
from .pod import SECRET_MODE, SECURITY
from .workload import READ, Workload, config_maps, files_volume

COMPONENT = "gateway"
FILE = "haproxy.cfg"
FOLDER, TLS_FOLDER = "/etc/gateway", "/run/secrets/gateway-tls"
# Its ports by protocol, and the one that tells whether a server is there.
PORTS = {"http": 8443, "grpc": 8444}
HEALTH_PORT = 8404
# HAProxy finds the key of `server.pem` in a file of that name and one more ending.
TLS_FILES = {"tls.crt": "server.pem", "tls.key": "server.pem.key", "ca.crt": "clients.pem"}
MAX_SERVERS = 64


def files(workload: Workload) -> dict[str, File]:
    """What HAProxy reads; what a machine may change of it comes by variables."""
    container, scale = workload.container, workload.options.autoscaling
    json_filter = container.server.json_filter
    rendered = text(
        f"kubernetes/{FILE}.j2",
        name=workload.deployment.name,
        front=ports(workload),
        health_port=HEALTH_PORT,
        ports=container.ports,
        json_filter=JSON_FILTER,
        json_depth=json_filter[1] if json_filter else None,
        ready=container.ready_path if container.health_protocol == "http" else None,
        # Places for servers, found by name as they come.
        most_servers=max(MAX_SERVERS, workload.replicas, scale.max_replicas if scale else 0),
        drain_s=container.stop_s,
    )
    found = {FILE: File(rendered.encode())}
    if json_filter:
        found[JSON_FILTER] = container.server.files[json_filter[0]]
    return found


def ports(workload: Workload) -> dict[str, int]:
    """The gateway's port for each protocol that clients speak."""
    return {name: port for name, port in PORTS.items() if name in workload.container.ports}


def objects(workload: Workload, options: GatewayOptions) -> Iterator[dict[str, Any]]:
    """The objects of the gateway; its settings have a name that tells them apart."""
    name, read = workload.called(COMPONENT), files(workload)
    digest = sha256("".join(file.sha256 for file in read.values()).encode()).hexdigest()
    settings = f"{name}-{digest[:12]}"
    yield around.config_map(workload, settings, read, COMPONENT)
    yield _deployment(workload, options, settings)
    service = {
        "type": "ClusterIP",
        "selector": workload.selector(COMPONENT),
        "ports": [
            {"name": f"{name}-tls", "port": port, "targetPort": name, "protocol": "TCP"}
            for name, port in ports(workload).items()
        ],
    }
    yield workload.document("v1/Service", name, {"spec": service}, COMPONENT)
    yield _network_policy(workload, name)
    missed = "" if options.replicas > 1 else around.ONLY_ONE
    yield around.budget(workload, name, COMPONENT, missed)


def _deployment(workload: Workload, options: GatewayOptions, settings: str) -> dict[str, Any]:
    selector = {"matchLabels": workload.selector(COMPONENT)}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": selector,
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": SECURITY,
        "topologySpreadConstraints": [spread],
        "terminationGracePeriodSeconds": CommentedValue(
            workload.container.stop_s + workload.options.deregistration_s,
            "As long as the servers have for the requests that go through it",
        ),
        "containers": [_container(workload, options)],
        "volumes": _volumes(options, settings),
    }
    if secrets := workload.options.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in secrets]
    content = {
        "replicas": options.replicas,
        "selector": selector,
        "template": around.template(workload, spec, COMPONENT),
    }
    name = workload.called(COMPONENT)
    return workload.document("apps/v1/Deployment", name, {"spec": content}, COMPONENT)


def _container(workload: Workload, options: GatewayOptions) -> dict[str, Any]:
    check = {"httpGet": {"path": "/ready", "port": "health"}, "periodSeconds": 5}
    size = {"memory": "512Mi", "ephemeral-storage": "64Mi"}
    variables = {
        "GATEWAY_HOST": "",
        "GATEWAY_FOLDER": FOLDER,
        "GATEWAY_TLS_FOLDER": TLS_FOLDER,
        "GATEWAY_SERVERS": workload.called("pods"),
    }
    mounts = {"settings": FOLDER, "tls": TLS_FOLDER}
    return pod.contained(
        COMPONENT,
        options.image,
        ["haproxy", "-W", "-db", "-f", f"{FOLDER}/{FILE}"],
        [{"name": name, "mountPath": path, "readOnly": True} for name, path in mounts.items()],
        variables,
        {**ports(workload), "health": HEALTH_PORT},
        readinessProbe=check,
        livenessProbe={**check, "httpGet": {"path": "/live", "port": "health"}},
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", _drain(workload)]}}},
        resources={"requests": {"cpu": "500m", **size}, "limits": size},
    )


def _drain(workload: Workload) -> str:
    """HAProxy drops requests at the usual signal; at this one it ends with the last of them."""
    options = workload.options
    return f"sleep {options.deregistration_s}; kill -USR1 1; sleep {workload.container.stop_s}"


def _volumes(options: GatewayOptions, settings: str) -> list[dict[str, Any]]:
    items = [{"key": key, "path": path} for key, path in TLS_FILES.items()]
    secret = {"secretName": options.tls_secret, "defaultMode": SECRET_MODE, "items": items}
    return [
        {"name": "settings", "configMap": {"name": settings, "defaultMode": READ}},
        {"name": "tls", "secret": secret},
    ]


def _network_policy(workload: Workload, name: str) -> dict[str, Any]:
    """Everybody may knock; inside it reaches the servers only."""
    own = ports(workload)
    servers = {"podSelector": {"matchLabels": workload.selector(workload.asked_component)}}
    inside = around.tcp(workload.container.ports[protocol] for protocol in own)
    return around.policy(
        workload,
        name,
        COMPONENT,
        [{"ports": around.tcp(own.values())}],
        [{"to": [servers], "ports": inside}],
    )


ROUTER_PATH = f"{ROUTER}/{ROUTER_FILE}"
# Both assumed: one process that passes text on, and the engine's libraries that it loads.
CPUS, MEMORY_GIB = 4, 16
# Source: NVIDIA Container Toolkit, GPU enumeration: `none` is the driver without a GPU.
NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "none", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
# Source: NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/disagg_utils.py@0228a71, node_id: two routers may
# number requests alike, and numbers tell prefill and decode servers whose KV cache is whose.
ONLY_ONE = "One: two might give requests the same numbers"
MOVES = (
    "It moves with work on its node: answers under way come to their end, and new requests find "
    "the next one after its start. To start that first: kubectl rollout restart"
)


@dataclass(frozen=True)
class Router:
    """The router of both sides, which listens where a server of theirs would."""

    prefill: Workload
    decode: Workload

    @property
    def files(self) -> dict[str, File]:
        prefill, decode = ([_address(side)] for side in (self.prefill, self.decode))
        given = router_document(self.decode.options.host, _port(self.decode), prefill, decode)
        title = f"The router of the prefill and decode servers of {self.decode.deployment.name}."
        return {ROUTER_PATH: yaml_document(title, given)}

    @property
    def maps(self) -> dict[str, dict[str, File]]:
        return config_maps(self.decode.called(ROUTER), self.files)

    @property
    def start_s(self) -> int:
        """Until its servers are there, which it waits for."""
        slowest_s = max(side.container.start_s.value for side in (self.prefill, self.decode))
        return int(slowest_s) + around.IMAGE_FETCH_S

    def config_maps(self) -> Iterator[dict[str, Any]]:
        for name, files in self.maps.items():
            yield around.config_map(self.decode, name, files, ROUTER)

    def deployment(self) -> dict[str, Any]:
        spec = {
            "replicas": CommentedValue(1, ONLY_ONE),
            "revisionHistoryLimit": 5,
            "progressDeadlineSeconds": self.start_s + around.IMAGE_FETCH_S,
            "selector": {"matchLabels": self.decode.selector(ROUTER)},
            "template": around.template(self.decode, self._pod(), ROUTER),
        }
        name = self.decode.called(ROUTER)
        return self.decode.document("apps/v1/Deployment", name, {"spec": spec}, ROUTER)

    def services(self) -> Iterator[dict[str, Any]]:
        """One address for clients, and one of the pod, for a gateway."""
        pods = self.decode.selector(ROUTER)
        yield around.service(self.decode, self.decode.name, pods, ROUTER)
        yield around.service(self.decode, self.decode.called("pods"), pods, ROUTER, headless=True)

    def network_policy(self) -> dict[str, Any]:
        """Clients get in; it reaches the servers of both sides."""
        asked = around.tcp([_port(self.decode)])
        servers = [
            {
                "to": [_asked(side)],
                "ports": around.tcp([int(_address(side).rpartition(":")[2])]),
            }
            for side in (self.prefill, self.decode)
        ]
        ingress = [{"from": around.clients(self.decode), "ports": asked}]
        return around.policy(self.decode, self.decode.called(ROUTER), ROUTER, ingress, servers)

    def disruption_budget(self) -> dict[str, Any]:
        return around.budget(self.decode, self.decode.called(ROUTER), ROUTER, "", MOVES)

    def _pod(self) -> dict[str, Any]:
        scratch = {"sizeLimit": f"{SCRATCH_GIB}Gi"}
        bundle = {"name": "bundle", "mountPath": BUNDLE, "readOnly": True}
        [digest] = [file.sha256 for file in self.files.values()]
        lines = [f"cd {BUNDLE}", f"echo '{digest}  {ROUTER_PATH}' | {pod.CHECK} -"]
        mounts: list[dict[str, Any]] = [
            bundle,
            {"name": "home", "mountPath": HOME},
            {"name": "tmp", "mountPath": "/tmp"},
        ]
        return {
            **pod.placed(self.decode),
            "terminationGracePeriodSeconds": pod.grace(self.decode),
            "initContainers": [pod.verification(self.decode.container.image, lines, [bundle])],
            "containers": [self._container(mounts)],
            "volumes": [
                {"name": "bundle", "projected": files_volume(self.maps)},
                {"name": "home", "emptyDir": scratch},
                {"name": "tmp", "emptyDir": scratch},
            ],
        }

    def _container(self, mounts: list[dict[str, Any]]) -> dict[str, Any]:
        container = self.decode.container
        size = {"memory": f"{MEMORY_GIB}Gi", "ephemeral-storage": f"{2 * SCRATCH_GIB}Gi"}
        command = router_command(container.server.record, f"{BUNDLE}/{ROUTER_PATH}", self.start_s)
        reason = f"Until its servers have started, with {around.IMAGE_FETCH_S} s to fetch their"
        cpus = CommentedValue(str(CPUS), "Assumed, as the memory")
        return pod.contained(
            *(ROUTER, container.image.reference, command, mounts),
            self._environment(),
            {"http": _port(self.decode)},
            "Its libraries load the driver's, which a node with GPUs has [assumed]",
            **pod.probes(container, CommentedValue(self.start_s, f"{reason} image [assumed]")),
            lifecycle={"preStop": {"sleep": {"seconds": self.decode.options.deregistration_s}}},
            resources={"requests": {"cpu": cpus, **size}, "limits": size},
        )

    def _environment(self) -> Mapping[str, str]:
        context = self.decode.container.context
        quiet = context.engine_record.telemetry_variables
        telemetry = {name: value for name, value in context.environment.items() if name in quiet}
        return {**scratch_folders(), **NO_GPU, **telemetry}


def _asked(side: Workload) -> dict[str, Any]:
    """The pods that the router of both sides asks."""
    if side.options.endpoint_picker:
        return around.picker(side)
    return {"podSelector": {"matchLabels": side.selector()}}


def _address(side: Workload) -> str:
    """Where the router of both sides asks: at a Service of the pods, or of what picks one."""
    if side.options.endpoint_picker:
        return f"{side.picker}-epp:{around.PICKER_PORT}"
    return f"{side.own_name}:{_port(side)}"


def _port(side: Workload) -> int:
    return side.container.ports["http"]
