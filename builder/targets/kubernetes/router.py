"""The engine's own router for the prefill and decode servers of a service, in a separate pod.

It needs no GPU, and reaches its servers by the names of their Services.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...bundle import File
from ...render import CommentedValue, yaml_document
from ..container import BUNDLE, HOME, SCRATCH_GIB, scratch_folders
from ..disaggregated import ROUTER, ROUTER_FILE, router_command, router_document
from . import objects as around
from . import pod
from .workload import Workload, config_maps, files_volume

FILE = f"{ROUTER}/{ROUTER_FILE}"
# Both assumed: one process that passes text on, and the engine's libraries that it loads.
CPUS, MEMORY_GIB = 4, 16
# Source: NVIDIA Container Toolkit, GPU enumeration: `none` is the driver without a GPU.
NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "none", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
ONLY_ONE = (
    "One, since its file is all that it knows: servers are asked in turn, and one that is away is "
    "asked as well"
)


@dataclass(frozen=True)
class Router:
    """The router of both sides, which listens where a server of theirs would."""

    prefill: Workload
    decode: Workload

    @property
    def files(self) -> dict[str, File]:
        prefill, decode = (
            [f"{side.server_name(number)}:{_port(side)}" for number in range(side.replicas)]
            for side in (self.prefill, self.decode)
        )
        given = router_document(self.decode.options.host, _port(self.decode), prefill, decode)
        title = f"The router of the prefill and decode servers of {self.decode.deployment.name}."
        return {FILE: yaml_document(title, given)}

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
        labels = self.decode.labels(ROUTER)
        spec = {
            "replicas": CommentedValue(1, ONLY_ONE),
            "revisionHistoryLimit": 5,
            "progressDeadlineSeconds": self.start_s + around.IMAGE_FETCH_S,
            "selector": {"matchLabels": self.decode.selector(ROUTER)},
            "template": {"metadata": {"labels": labels}, "spec": self._pod()},
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
                "to": [{"podSelector": {"matchLabels": side.selector()}}],
                "ports": around.tcp([_port(side)]),
            }
            for side in (self.prefill, self.decode)
        ]
        ingress = [{"from": around.clients(self.decode), "ports": asked}]
        return around.policy(self.decode, self.decode.called(ROUTER), ROUTER, ingress, servers)

    def disruption_budget(self) -> dict[str, Any]:
        return around.budget(self.decode, self.decode.called(ROUTER), ROUTER, around.ONLY_ONE)

    def _pod(self) -> dict[str, Any]:
        scratch = {"sizeLimit": f"{SCRATCH_GIB}Gi"}
        bundle = {"name": "bundle", "mountPath": BUNDLE, "readOnly": True}
        [digest] = [file.sha256 for file in self.files.values()]
        lines = [f"cd {BUNDLE}", f"echo '{digest}  {FILE}' | {pod.CHECK} -"]
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
        return {
            "name": ROUTER,
            "image": container.image.reference,
            "imagePullPolicy": "IfNotPresent",
            "command": router_command(container.server.record, f"{BUNDLE}/{FILE}", self.start_s),
            "env": CommentedValue(
                [{"name": name, "value": value} for name, value in self._environment().items()],
                "Its libraries load the driver's, which a node with GPUs has [assumed]",
            ),
            "ports": [{"name": "http", "containerPort": _port(self.decode), "protocol": "TCP"}],
            **pod.probes(
                container,
                CommentedValue(
                    self.start_s,
                    f"Until its servers have started, with {around.IMAGE_FETCH_S} s to fetch their "
                    "image [assumed]",
                ),
            ),
            "lifecycle": {"preStop": {"sleep": {"seconds": self.decode.options.deregistration_s}}},
            "resources": {
                "requests": {"cpu": CommentedValue(str(CPUS), "Assumed, as the memory"), **size},
                "limits": size,
            },
            "securityContext": pod.RESTRICTED,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": mounts,
        }

    def _environment(self) -> Mapping[str, str]:
        context = self.decode.container.context
        quiet = context.engine_record.telemetry_variables
        telemetry = {name: value for name, value in context.environment.items() if name in quiet}
        return {**scratch_folders(), **NO_GPU, **telemetry}


def _port(side: Workload) -> int:
    return side.container.ports["http"]
