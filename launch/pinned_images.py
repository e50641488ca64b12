"""Container images that a bundle names without a digest: a tag can come to mean another image."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from builder.bundle import EVIDENCE, MANIFEST, Bundle, read_contents
from builder.diagnostics import Diagnostic
from builder.documents import scan_yaml, with_file
from builder.errors import DamagedBundle
from builder.files import parse_json

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_IMAGE_FILES = (".sqsh", ".sif")  # on the machine's own disk, which no tag names
# Nothing starts from the manifest, from evidence, or from pages and examples for others.
_NOT_STARTED = (MANIFEST, f"{EVIDENCE}/", "handoff/")
_REMEDY = (
    "render the bundle again with the image as REFERENCE@sha256:DIGEST: under images for servers, "
    "under targets.slurm.site.container.images for Slurm"
)


def unpinned(bundle: Bundle) -> list[Diagnostic]:
    """Every image that may be started and has no digest, at the file that names it."""
    return [
        Diagnostic(f"{bundle.folder}/{path}", f"names the image {image} without a digest", _REMEDY)
        for path, file in sorted(read_contents(bundle.folder).files.items())
        if not path.startswith(_NOT_STARTED)
        for image in dict.fromkeys(_images(_documents(path, file.data)))
        if not _is_pinned(image)
    ]


def _is_pinned(image: str) -> bool:
    is_file = image.startswith("/") or image.endswith(_IMAGE_FILES)
    return is_file or _DIGEST.search(image) is not None


def _documents(path: str, data: bytes) -> Iterable[Any]:
    kind = PurePosixPath(path).suffix
    if kind == ".json":
        return [parse_json(data.decode())]
    if kind not in (".yaml", ".yml"):
        return ()
    documents = scan_yaml(data.decode(errors="surrogateescape"))
    if wrong := [with_file(row, path) for document in documents for row in document.diagnostics]:
        raise DamagedBundle(wrong)  # others may read images in it
    return [document.data for document in documents]


def _images(documents: Iterable[Any]) -> Iterator[str]:
    """Values under `image`, and under names of servers in `images`, at any depth."""
    left, seen = list(documents), set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue  # an alias
        seen.add(id(one))
        if isinstance(one, Mapping):
            named = one.get("images")
            found = [one.get("image"), *(named.values() if isinstance(named, Mapping) else ())]
            yield from (image for image in found if isinstance(image, str) and image)
            left += one.values()
        elif isinstance(one, list):
            left += one
