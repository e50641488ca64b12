"""A server in a container: its image, its files, its settings, and what it needs of its machine.

The server's own script runs unchanged; environment variables configure it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Literal

from ..bundle import File
from ..deployment import Deployment, ServerName, Strict
from ..diagnostics import Diagnostic
from ..facts import images
from ..facts.hardware import load as load_gpu
from ..facts.images import Image
from ..facts.release import published
from ..render import CommentedValue
from ..schema import Bounds
from ..servers import RenderContext, RenderedServer, options_of
from . import host_diagnostics, selected_server, selection_diagnostics, unpinned

# Where things are in the container.
BUNDLE = "/bundle"
MODELS = "/models"
HOME = "/home/server"
KEY_FOLDER = "/run/secrets/server-key"
KEY_FILE = f"{KEY_FOLDER}/key"
TLS_FOLDER = "/run/secrets/server-tls"
# The user of Triton's image, and of any other that has one beside root.
# Source: triton-inference-server/server@0f963c9 Dockerfile, which adds triton-server as user 1000.
USER = 1000
FIRST_FREE_PORT = 1024
# What makers of images call a processor, by what `uname -m` does.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

# What the figures below rest on is in their reasons; none of them was measured here.
CPUS_PER_GPU = 8
HOST_GIB_PER_GPU = 16
SHM_GIB_PER_GPU = 2
SCRATCH_GIB = 20
START_WITHOUT_WEIGHTS_S = 900
GIB = 2**30

Gib = Annotated[int, Bounds(ge=1, le=1_000_000)]
Count = Annotated[int, Bounds(ge=1, le=10_000)]
Seconds = Annotated[int, Bounds(ge=1, le=86_400)]


class ContainerOptions(Strict):
    """How a server runs in a container.

    `server` is the target that runs if there are several. It listens on `host` in the container's
    network. A server without a time limit for its last requests gets `drain_s`. Figures for the
    machine replace assumed ones: `load_gb_per_s` is how fast a pod reads its checkpoint.
    """

    server: ServerName | None = None
    host: Literal["0.0.0.0", "::"] = "0.0.0.0"
    drain_s: Seconds = 300
    load_gb_per_s: Annotated[float, Bounds(gt=0, exact=False)] = 0.35
    cpus: Count | None = None
    memory_gib: Gib | None = None
    shm_gib: Gib | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """One server of a deployment in its image. Its files are in a `folder` of the bundle."""

    context: RenderContext
    options: ContainerOptions
    server: RenderedServer
    image: Image
    folder: str = ""

    @property
    def gpus(self) -> int:
        """The GPUs that it sees, which are those of one node."""
        deployment = self.context.deployment
        return deployment.hardware.num_gpus // deployment.instances // self.context.nodes

    @property
    def ports(self) -> Mapping[str, int]:
        return self.server.ports

    @property
    def command(self) -> list[str]:
        program, script = self.server.entry["argv"]
        return [program, f"{BUNDLE}/{self.folder}{script}"]

    @property
    def files(self) -> dict[str, File]:
        return {f"{self.folder}{path}": file for path, file in self.server.files.items()}

    @property
    def is_started_from_first_node(self) -> bool:
        """Whether one of several nodes starts the ranks of all; or each runs a command."""
        return self.context.nodes > 1 and self.server.record.node_command is None

    @property
    def architecture(self) -> str:
        return ARCHITECTURES[load_gpu(self.context.deployment.hardware.gpu).cpu_arch.value]

    @property
    def health_protocol(self) -> Literal["http", "grpc", "tcp"]:
        """How others ask it for its health: over HTTP where that is on and open to all.

        An open port says as much as it can: servers listen when their models are loaded.
        """
        closed = "health" in self.server.entry.get("restricted_apis", ())
        if closed or ("http" not in self.ports and self.server.tls):
            return "tcp"
        return "http" if "http" in self.ports else "grpc"

    @property
    def ready_path(self) -> str:
        return str(self.server.entry["ready"].get("path"))

    @property
    def models(self) -> dict[str, str]:
        """The folder in the container of each model, by the variable that names it."""
        folders = {"CHECKPOINT": MODELS, "DRAFT_CHECKPOINT": f"{MODELS}/draft"}
        given = self.context.checkpoints.items()
        return {variable: f"{folders[variable]}/{_last(name)}" for variable, name in given}

    @property
    def environment(self) -> dict[str, str]:
        """The variables that differ from what the script and the deployment say."""
        given = self.server.environment
        own = {"SERVE_HOST": self.options.host, **self.models, **scratch_folders()}
        if self.server.has_key:
            own["SERVE_KEY_FILE"] = KEY_FILE
        files = {"CERTIFICATE": "tls.crt", "KEY": "tls.key", "CLIENT_CA": "ca.crt"}
        for name, file in files.items():
            if f"SERVE_TLS_{name}" in given:
                own[f"SERVE_TLS_{name}"] = f"{TLS_FOLDER}/{file}"
        theirs = self.context.environment
        return {name: value for name, value in {**own, **_OFFLINE}.items() if name not in theirs}

    @property
    def stop_s(self) -> int:
        """How long it may take to answer what it has and to end."""
        return int(self.server.entry.get("stop_timeout_s", self.options.drain_s))

    @property
    def start_s(self) -> CommentedValue:
        """How long it may take from its start until it answers."""
        gigabytes = _gigabytes(self.context)
        rate = self.options.load_gb_per_s
        seconds = math.ceil(gigabytes / rate) + START_WITHOUT_WEIGHTS_S
        return CommentedValue(
            seconds,
            f"{gigabytes:.0f} GB of checkpoint at {rate:g} GB/s, and {START_WITHOUT_WEIGHTS_S} s "
            "for everything else [assumed]",
        )

    @property
    def cpus(self) -> CommentedValue:
        reason = f"{CPUS_PER_GPU} cores for the processes of each GPU [assumed]"
        return _overridden(self.options.cpus, self.gpus * CPUS_PER_GPU, reason)

    @property
    def shm_gib(self) -> CommentedValue:
        reason = f"{SHM_GIB_PER_GPU} GiB per GPU for what ranks and the server exchange [assumed]"
        return _overridden(self.options.shm_gib, self.gpus * SHM_GIB_PER_GPU, reason)

    @property
    def memory_gib(self) -> CommentedValue:
        """All host memory, with that of `/dev/shm`."""
        shared = int(self.shm_gib.value)
        processes = self.gpus * HOST_GIB_PER_GPU
        cached = math.ceil(_gigabytes(self.context) * 1e9 / GIB)
        settings = self.context.engine.options.get("kv_cache_config", {})
        offloaded = math.ceil(self.gpus * int(settings.get("host_cache_size") or 0) / GIB)
        parts = {
            f"{HOST_GIB_PER_GPU} GiB per GPU for processes": processes,
            "the checkpoint, which ranks read through the page cache": cached,
            "/dev/shm": shared,
            "the KV cache in host memory": offloaded,
        }
        said = " + ".join(f"{gib} GiB ({name})" for name, gib in parts.items() if gib)
        return _overridden(self.options.memory_gib, sum(parts.values()), f"{said} [assumed]")


def _overridden(given: int | None, assumed: int, reason: str) -> CommentedValue:
    if given:
        return CommentedValue(given, "As the deployment says [override]")
    return CommentedValue(assumed, reason)


# A model comes from its volume or not at all. What the engine would report is off by the plan.
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def scratch_folders() -> dict[str, str]:
    """Everything that a server writes is under two folders; all else can be read only.

    `USER` spares Python from looking the user up, whom an image may not know.
    """
    caches = {
        "XDG_CACHE_HOME": ".cache",
        "HF_HOME": ".cache/huggingface",
        "TORCHINDUCTOR_CACHE_DIR": ".cache/torchinductor",
        "TORCH_EXTENSIONS_DIR": ".cache/torch_extensions",
        "TRITON_CACHE_DIR": ".cache/triton",
        "FLASHINFER_WORKSPACE_BASE": ".cache/flashinfer",
        "CUDA_CACHE_PATH": ".cache/cuda",
    }
    folders = {name: f"{HOME}/{path}" for name, path in caches.items()}
    return {"HOME": HOME, "USER": "server", "TMPDIR": "/tmp", **folders}


def container(context: RenderContext, options: ContainerOptions) -> Container:
    deployment = context.deployment
    server = selected_server(deployment, options.server)
    image = context.image(server)
    assert image is not None  # `diagnostics` refuses a server without one
    return Container(context, options, context.servers[server], image)


def diagnostics(
    deployment: Deployment, target: str, options: ContainerOptions
) -> Iterator[Diagnostic]:
    """Why a deployment's servers cannot run in a container."""
    if found := list(selection_diagnostics(deployment, target, options.server)):
        yield from found
        return
    server = selected_server(deployment, options.server)
    yield from _image_diagnostics(deployment, server)
    refused = list(host_diagnostics(deployment, target, server, options.host))
    yield from refused or port_diagnostics(deployment, server)


def warnings(context: RenderContext, options: ContainerOptions) -> Iterator[Diagnostic]:
    """What a reader should know of the image."""
    server = selected_server(context.deployment, options.server)
    image = context.image(server)
    if image and image.digest is None:
        pinned = f"{image.name}:{image.tag or 'TAG'}"
        yield unpinned(f"images.{server}", image.reference, pinned)


def _image_diagnostics(deployment: Deployment, server: str) -> Iterator[Diagnostic]:
    release, given = deployment.engine.release, deployment.images.get(server)
    if images.image(server, release, given) is None:
        what = f"no image of {server} with release {release} is known"
        newest = images.newest_release(server)
        other = f"use {newest}, the newest release with an image, or " if newest else ""
        own = f"name your own by images.{server}: REFERENCE@sha256:DIGEST"
        found = images.search_words(server)
        yield Diagnostic(published.WHERE, what, f"{other}{own}{f'; {found}' if found else ''}")


def port_diagnostics(deployment: Deployment, server: str) -> Iterator[Diagnostic]:
    """The server has no privileges in its container."""
    for name, port in options_of(deployment, server).ports.items():
        if port < FIRST_FREE_PORT:
            what = f"port {port} for {name} needs rights that a container does not get"
            yield Diagnostic(f"targets.{server}", what, f"give {FIRST_FREE_PORT} or more")


def _gigabytes(context: RenderContext) -> float:
    """What is read from the checkpoint, and from that of the draft model where it is known."""
    facts = context.plan.facts
    known = [facts.checkpoint, *([facts.draft] if facts.draft else [])]
    return sum(model.nbytes for model in known) / 1e9


def _last(checkpoint: str) -> str:
    """The last part of a checkpoint's name, by which clients know the model, as a plain name."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", PurePosixPath(checkpoint).name)
    return name if name.strip(".-") else "model"
