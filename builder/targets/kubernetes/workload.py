"""All that the objects of a service are made of: what they are called, and the bundle's own files.

Objects find each other by labels. Files are in ConfigMaps with their bytes, which a pod mounts as
one folder.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...bundle import File, sums
from ...deployment import Deployment
from ...facts.checkpoint_files import HASHED_BYTES
from ...render import as_text
from ..container import Container
from ..disaggregated import ROUTER
from .options import NVLINK_LABEL, KubernetesOptions, Volume

# Kubernetes adds to the names of what it makes itself; with the longest of these, a label's value
# of 63 letters is still long enough.
LONGEST = 40
LABEL_LIMIT = 63
# The component of the objects of servers, where all of them are alike.
SERVER = "server"
# Those of disaggregated serving, prefill first.
SIDES = PREFILL, DECODE = "prefill", "decode"
TOOL = "trtllm-deployment-toolkit"
INSTANCE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
CLIENT_LABEL = f"{TOOL}/client-of"


# The suffixes of the names of a service's other objects.
_PART = re.compile(
    rf"-((({'|'.join((*SIDES, ROUTER))})(-pods|-[0-9]+)?)|pods|metrics|group|gateway|domain"
    "|(draft-)?model|weights|compute-domain-channel)$"
)


def object_name(text: str) -> str:
    """Text as the name of a Service, which knows the fewest letters of all objects.

    What is too long, begins with a digit, or ends like the name of a part of another service keeps
    its own name apart by a digest.
    """
    name = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(name) <= LONGEST and name[:1].isalpha() and not _PART.search(name):
        return name
    return _shortened(name if name[:1].isalpha() else f"d{name}", text)


def _shortened(name: str, text: str) -> str:
    """The beginning of a name, and the digest of the text that it stands for."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9].rstrip('-')}-{digest}"


def label_value(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:LABEL_LIMIT].strip("._-")


# `kubectl apply` keeps the text of an object in an annotation; Kubernetes takes 256 KiB of those.
# Source: kubernetes/apimachinery, pkg/api/validation/objectmeta.go, TotalAnnotationSizeLimitB.
MAX_BYTES = 240 * 1024
READ, EXECUTE = 0o444, 0o555


def config_maps(base: str, files: Mapping[str, File]) -> dict[str, dict[str, File]]:
    """The files by path, in as few maps as can hold them.

    The name of a map tells every other content apart.
    """
    groups: list[dict[str, File]] = [{}]
    size = 0
    for path, file in sorted(files.items()):
        own = _nbytes(path, file)
        size += own
        if size > MAX_BYTES and groups[-1]:
            groups.append({})
            size = own
        groups[-1][path] = file
    return {f"{base}-files-{_digest(group)}": group for group in groups}


def map_data(files: Mapping[str, File]) -> dict[str, dict[str, str]]:
    """The data of a ConfigMap; binary files go to `binaryData`."""
    places: dict[str, dict[str, str]] = {"data": {}, "binaryData": {}}
    for path, file in files.items():
        place, content = _content(file)
        places[place][_key(path)] = content
    return {place: found for place, found in places.items() if found}


def files_volume(maps: Mapping[str, Mapping[str, File]]) -> dict[str, Any]:
    """A folder with every file at its path, as executable as it was."""
    return {
        "defaultMode": READ,
        "sources": [
            {"configMap": {"name": name, "items": list(_items(files))}}
            for name, files in maps.items()
        ],
    }


def _items(files: Mapping[str, File]) -> Iterator[dict[str, Any]]:
    for path, file in files.items():
        mode = EXECUTE if file.executable else READ
        yield {"key": _key(path), "path": path, "mode": mode}


def _key(path: str) -> str:
    """The path as a key, which knows no slash. All paths of a server begin alike, so none meet."""
    return path.replace("/", "__")


def _nbytes(path: str, file: File) -> int:
    """Of a file in the text that `kubectl apply` keeps: JSON that is safe inside HTML."""
    written = json.dumps({_key(path): _content(file)[1]}, ensure_ascii=False)
    return len(written.encode()) + sum(5 * written.count(letter) for letter in "<>&")


def _content(file: File) -> tuple[str, str]:
    """The key of a file in a ConfigMap, and its content there."""
    if (text := as_text(file.data)) is not None:
        return "data", text
    return "binaryData", base64.b64encode(file.data).decode()


def _digest(files: Mapping[str, File]) -> str:
    text = "".join(f"{path} {file.executable} {file.sha256}\n" for path, file in files.items())
    return hashlib.sha256(text.encode()).hexdigest()[:12]


CHANNEL = "compute-domain-channel"


@dataclass(frozen=True)
class Workload:
    """All that the objects of a service are made of: servers that are alike.

    `deployment` is that of the whole service; where it has two sides, `component` is one of them.
    `scripts` are files of this target that its pods run beside those of the server.
    """

    deployment: Deployment
    container: Container
    options: KubernetesOptions
    replicas: int
    scripts: Mapping[str, File]
    has_domain: bool
    component: str = SERVER

    @cached_property
    def name(self) -> str:
        """The name of the Service for clients, which starts the names of all objects."""
        return object_name(self.deployment.name)

    def called(self, part: str) -> str:
        return f"{self.name}-{part}"

    @property
    def is_side(self) -> bool:
        """Whether these are the servers of one side of disaggregated serving."""
        return self.component != SERVER

    @property
    def own_name(self) -> str:
        """Of the objects that another side has too."""
        return self.called(self.component) if self.is_side else self.name

    @property
    def picker(self) -> str:
        """The release of llm-d's chart before these servers; its objects have this name and `-epp`.

        The chart cuts the names of releases off where ours are longest.
        """
        name = self.own_name
        return name if len(name) <= LONGEST else _shortened(name, name)

    @property
    def asked_component(self) -> str:
        """Whose pods answer clients."""
        return ROUTER if self.is_side else SERVER

    @property
    def peers(self) -> tuple[str, ...]:
        """Between whose pods all ports are open: MPI, NCCL and the KV cache choose their own."""
        if self.is_side:
            return SIDES
        return (SERVER,) if self.nodes > 1 else ()

    @property
    def topology_key(self) -> str | None:
        """The label of nodes that are near each other, as those of one domain of NVLink are."""
        return self.options.topology_key or (NVLINK_LABEL if self.has_domain else None)

    @property
    def claims(self) -> dict[str, str]:
        """The templates of the claims of a pod, by their names in it."""
        found = {name: name for name in self.options.resource_claims}
        return found | ({CHANNEL: self.called(CHANNEL)} if self.has_domain else {})

    @property
    def files(self) -> dict[str, File]:
        """All that the pods run, by path in the bundle."""
        return {**self.container.files, **self.scripts, **self.lists}

    @cached_property
    def maps(self) -> dict[str, dict[str, File]]:
        return config_maps(self.own_name, self.files)

    def list_path(self, name: str) -> str:
        """Where a list of digests is in the bundle; each side has its own."""
        return f"kubernetes/{f'{self.component}-' if self.is_side else ''}{name}.sha256"

    @property
    def files_list(self) -> str:
        """The digests of all files that pods run."""
        return self.list_path("files")

    @cached_property
    def lists(self) -> dict[str, File]:
        """What `sha256sum` compares before a server starts: its files, and what is known of models.

        The first list has the digests of the others, and weights are left out unless asked for.
        """
        found = dict[str, File]()
        for role in ("model", "draft-model"):
            if digests := self.digests(role, self.options.verify_weights):
                found[self.list_path(role)] = File(sums(digests))
        files = {**self.container.files, **self.scripts, **found}
        listed = File(sums({path: file.sha256 for path, file in files.items()}))
        return {self.files_list: listed, **found}

    def digests(self, role: str, every: bool) -> dict[str, str]:
        """The known digests of a model's files: of `every` one, or of small ones."""
        facts = self.container.context.plan.facts
        model = facts.checkpoint if role == "model" else facts.draft
        return {
            row.name: row.sha256
            for row in (model.listing.files if model else [])
            if row.sha256 and (every or row.nbytes < HASHED_BYTES)
        }

    @property
    def nodes(self) -> int:
        return self.container.context.nodes

    @property
    def model_volumes(self) -> dict[str, Volume]:
        volumes = {"model": self.options.model, "draft-model": self.options.draft_model}
        return dict(list(volumes.items())[: len(self.container.models)])

    def labels(self, component: str | None = None) -> dict[str, str]:
        """What every object carries."""
        return {
            **self.selector(component),
            "app.kubernetes.io/part-of": self.deployment.name,
            "app.kubernetes.io/version": label_value(self.deployment.engine.release),
            "app.kubernetes.io/managed-by": TOOL,
        }

    def selector(self, component: str | None = None) -> dict[str, str]:
        """What never changes of an object, by which its pods are found."""
        return {
            "app.kubernetes.io/name": self.container.server.record.name.replace("_", "-"),
            INSTANCE_LABEL: self.name,
            COMPONENT_LABEL: component or self.component,
        }

    def document(
        self,
        kind: str,
        name: str,
        content: Mapping[str, Any],
        component: str | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """An object; its `kind` with the version of the API, as in `apps/v1/Deployment`."""
        version, _, kind = kind.rpartition("/")
        noted = {"annotations": annotations} if annotations else {}
        return {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, "labels": self.labels(component), **noted},
            **content,
        }
