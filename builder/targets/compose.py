"""Target `compose`: another target of the deployment on one machine with Docker Compose."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from ..bundle import File, sums
from ..deployment import Deployment
from ..diagnostics import Diagnostic
from ..facts.hardware import load as load_gpu
from ..render import CommentedValue, yaml_document
from ..servers import PORT_STEP, RenderContext
from . import container
from .container import BUNDLE, HOME, KEY_FILE, SCRATCH_GIB, TLS_FOLDER, USER, Container
from .container import ContainerOptions as Options

TARGET = "compose"
FILE = f"{TARGET}/compose.yaml"
LOOPBACK = "127.0.0.1"
# A variable gives the folder of each model on the machine, since a bundle names no such folder.
FOLDERS = {"CHECKPOINT": "CHECKPOINT_FOLDER", "DRAFT_CHECKPOINT": "DRAFT_CHECKPOINT_FOLDER"}
SECRETS = {
    "server-key": ("SERVER_KEY_FILE", KEY_FILE),
    "server-certificate": ("SERVER_CERTIFICATE_FILE", f"{TLS_FOLDER}/tls.crt"),
    "server-certificate-key": ("SERVER_CERTIFICATE_KEY_FILE", f"{TLS_FOLDER}/tls.key"),
    "server-client-ca": ("SERVER_CLIENT_CA_FILE", f"{TLS_FOLDER}/ca.crt"),
}
# Without start_interval, which Compose refuses for a Docker Engine older than 25.
HEALTH = {"interval": "15s", "timeout": "10s", "retries": 8}
MAX_PROCESSES = 16384


def diagnostics(deployment: Deployment) -> Iterator[Diagnostic]:
    options = Options.of(deployment.targets[TARGET])
    found = list(container.diagnostics(deployment, TARGET, options))
    yield from found
    gpu, total = deployment.hardware.gpu, deployment.hardware.num_gpus
    if not found and total > (size := load_gpu(gpu).gpus_per_node.value):
        what = f"{total} are more than the {size} of a machine with {gpu}"
        yield Diagnostic("hardware.num_gpus", what, "take compose out, or kubernetes or slurm")


def render(context: RenderContext, options: Options) -> dict[str, File]:
    served = container.container(context, options)
    name = context.deployment.name
    title = f"Serves {name} on this machine: docker compose -f {FILE} up --detach --wait"
    count = context.deployment.instances
    names = ["server"] if count == 1 else [f"server{index}" for index in range(count)]
    secrets = {row: {"file": _needed(SECRETS[row][0], "a file")} for row in _secrets(served)}
    document = {
        "name": name.replace(".", "-"),
        "services": {row: _service(served, index) for index, row in enumerate(names)},
        **({"secrets": secrets} if secrets else {}),
    }
    return {FILE: yaml_document(title, document)}


def warnings(context: RenderContext, options: Options) -> Iterator[Diagnostic]:
    return container.warnings(context, options)


def _service(container: Container, index: int) -> dict[str, Any]:
    """One instance, with GPUs and ports of its own."""
    secrets = [{"source": name, "target": SECRETS[name][1]} for name in _secrets(container)]
    files = {path: file.sha256 for path, file in container.server.files.items()}
    return {
        "image": container.image.reference,
        "platform": f"linux/{container.architecture}",
        "entrypoint": container.command,
        "command": [],
        "labels": CommentedValue(
            {"files.sha256": hashlib.sha256(sums(files)).hexdigest()},
            "The files that it runs, so that `up` replaces the container when they differ",
        ),
        "user": f"{USER}:{USER}",
        "environment": container.environment,
        **_confinement(container),
        "volumes": list(_volumes(container)),
        **({"secrets": secrets} if secrets else {}),
        "ports": [
            {
                "host_ip": LOOPBACK,
                "published": str(port + index * PORT_STEP),
                "target": port,
                "protocol": "tcp",
            }
            for port in container.ports.values()
        ],
        "healthcheck": _health(container),
        "stop_grace_period": f"{container.stop_s}s",
        "restart": "unless-stopped",
        "logging": {"driver": "local", "options": {"max-size": "100m", "max-file": "5"}},
        **_machine(container, index),
    }


def _confinement(container: Container) -> dict[str, Any]:
    """No rights, and no place to write but two that are empty at every start.

    Engines compile kernels and load them from there, which Docker forbids where it is not told. It
    forgets the mode when a container starts again, but not the owner.
    """
    owner = f"uid={USER},gid={USER}"
    scratch = f"rw,exec,nosuid,nodev,size={SCRATCH_GIB}g,mode=1777,{owner}"
    return {
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges=true"],
        "init": True,
        "ipc": "private",
        "tmpfs": [f"/tmp:{scratch}", f"{HOME}:{scratch}"],
    }


def _machine(container: Container, index: int) -> dict[str, Any]:
    memory, shm, gpus = container.memory_gib, container.shm_gib, container.gpus
    device: dict[str, Any] = {"driver": "nvidia", "capabilities": ["gpu"]}
    if container.context.deployment.instances == 1:
        device["count"] = gpus
    else:
        device["device_ids"] = [str(index * gpus + number) for number in range(gpus)]
    scratch = f"{2 * SCRATCH_GIB} GiB (/tmp and {HOME})"
    return {
        "shm_size": CommentedValue(f"{shm.value}gb", shm.reason),
        "mem_limit": CommentedValue(
            f"{memory.value + 2 * SCRATCH_GIB}gb", f"{memory.reason} + {scratch}"
        ),
        "pids_limit": MAX_PROCESSES,
        "ulimits": CommentedValue(
            {"memlock": -1, "stack": 67_108_864, "nofile": 1_048_576},
            "memlock and stack: what NVIDIA's images ask for when they start",
        ),
        "deploy": {"resources": {"reservations": {"devices": [device]}}},
    }


def _volumes(container: Container) -> Iterator[dict[str, Any]]:
    """The files of the bundle in this folder, and the models, all mounted read-only."""
    folder = container.server.entry["argv"][1].partition("/")[0]
    yield _mount(f"../{folder}", f"{BUNDLE}/{folder}")
    for variable, path in container.models.items():
        yield _mount(_needed(FOLDERS[variable], "the folder of the model"), path)


def _mount(source: str, target: str) -> dict[str, Any]:
    return {
        "type": "bind",
        "source": source,
        "target": target,
        "read_only": True,
        "bind": {"create_host_path": False},
    }


def _secrets(container: Container) -> list[str]:
    told = set(container.environment.values())
    return [name for name, (_, path) in SECRETS.items() if path in told]


def _health(container: Container) -> dict[str, Any]:
    """Asked with Python, which every image of a server has, and without gRPC, which it may not."""
    start = container.start_s
    if container.health_protocol == "http":
        url = f"http://{LOOPBACK}:{container.ports['http']}{container.server.record.paths['live']}"
        probe = f"import urllib.request as r; r.urlopen('{url}', timeout=8)"
    else:
        port = next(iter(container.ports.values()))
        probe = f"import socket; socket.create_connection(('{LOOPBACK}', {port}), 8)"
    return {
        "test": ["CMD", "python3", "-c", probe],
        "start_period": CommentedValue(f"{start.value}s", start.reason),
        **HEALTH,
    }


def _needed(variable: str, what: str) -> str:
    return f"${{{variable}:?is not set; name {what}}}"
