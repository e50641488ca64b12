"""The bundle's own files in the cluster: ConfigMaps with their bytes, and where a pod has them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...bundle import File
from ..manifest import as_text

# `kubectl apply` keeps the text of an object in an annotation; Kubernetes takes 256 KiB of those.
# Source: kubernetes/apimachinery, pkg/api/validation/objectmeta.go, TotalAnnotationSizeLimitB.
MOST_BYTES = 240 * 1024
READ, EXECUTE = 0o444, 0o555


@dataclass(frozen=True, slots=True)
class ConfigMap:
    """So many of the files, by path in the bundle. The name tells every other content apart."""

    name: str
    files: Mapping[str, File]

    def document(self, labels: Mapping[str, str]) -> dict[str, Any]:
        """A file that is no text stands in another place."""
        places: dict[str, dict[str, str]] = {"data": {}, "binaryData": {}}
        for path, file in self.files.items():
            place, content = _content(file)
            places[place][_key(path)] = content
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": self.name, "labels": dict(labels)},
            "immutable": True,
            **{place: found for place, found in places.items() if found},
        }


def config_maps(base: str, files: Mapping[str, File]) -> list[ConfigMap]:
    """The files in as few maps as can hold them."""
    groups: list[dict[str, File]] = [{}]
    size = 0
    for path, file in sorted(files.items()):
        own = _nbytes(path, file)
        size += own
        if size > MOST_BYTES and groups[-1]:
            groups.append({})
            size = own
        groups[-1][path] = file
    return [ConfigMap(f"{base}-files-{_digest(group)}", group) for group in groups]


def volume(maps: list[ConfigMap]) -> dict[str, Any]:
    """A folder with every file at its path, as executable as it was."""
    return {
        "defaultMode": READ,
        "sources": [
            {"configMap": {"name": found.name, "items": list(_items(found.files))}}
            for found in maps
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
    """The place of a file in a map, and what stands there."""
    if (text := as_text(file.data)) is not None:
        return "data", text
    return "binaryData", base64.b64encode(file.data).decode()


def _digest(files: Mapping[str, File]) -> str:
    text = "".join(f"{path} {file.executable} {file.sha256}\n" for path, file in files.items())
    return hashlib.sha256(text.encode()).hexdigest()[:12]
