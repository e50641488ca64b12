"""Container images: which one carries a server of an engine release, and how a name is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from ..documents import DATA, load_yaml
from . import servers
from .image_tags import contents

IMAGES = DATA / "images.yaml"

# HOST[:PORT]/PATH[:TAG][@sha256:DIGEST], in the spelling that every container runtime takes.
_PATTERN = (
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+)"
    r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(@(?P<digest>sha256:[0-9a-f]{64}))?$"
)
# What a deployment file may hold, without the named groups that pydantic's patterns do not know.
Reference = Annotated[str, Field(pattern=re.sub(r"\?P<[a-z]+>", "", _PATTERN), max_length=500)]


@dataclass(frozen=True, slots=True)
class Image:
    """An image that carries a server.

    `known` tells whether its content is in the data; `version` is that of Triton in it, where it is
    known. `size_gb` is what its publisher says it takes.
    """

    name: str
    tag: str | None
    digest: str | None
    known: bool
    version: str | None = None
    architectures: tuple[str, ...] = ()
    size_gb: float | None = None
    source: str = "named by the deployment"

    @property
    def reference(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")


def image(server: str, release: str, given: str | None = None) -> Image | None:
    """The image of a server of a release: as `given`, else that of the data, else `None`.

    What the data knows of a tag holds for the same tag of a mirror: only the host differs then.
    """
    product = servers.load(server).image.product
    if given is None:
        row = next(
            (row for row in _rows() if (row["server"], row["release"]) == (server, release)), None
        )
        return _image(str(row["image"]), row, product) if row else None
    found = re.match(_PATTERN, given)
    if found is None:
        raise ValueError(f"{given} is no image reference")
    last = f"{found['name'].rpartition('/')[2]}:{found['tag']}"
    same = (row for row in _rows() if str(row["image"]).rpartition("/")[2] == last)
    return _image(given, next((row for row in same if row["server"] == server), None), product)


def versions(server: str) -> list[str]:
    """The versions in the published images of a server, newest last."""
    return [str(row["version"]) for row in _rows() if row["server"] == server and "version" in row]


def _image(reference: str, row: Mapping[str, Any] | None, product: str) -> Image:
    found = re.match(_PATTERN, reference)
    assert found is not None  # validated before
    parts = (found["name"], found["tag"], found["digest"])
    if row is None:
        content = next(contents(reference), None)
        version = content.version if content and content.product == product else None
        return Image(*parts, known=False, version=version)
    return Image(
        *parts,
        known=True,
        version=row.get("version"),
        architectures=tuple(row["architectures"]),
        size_gb=row["size_gb"],
        source=row["source"],
    )


@cache
def _rows() -> tuple[Mapping[str, Any], ...]:
    return tuple(load_yaml(IMAGES.read_text(encoding="utf-8"))["images"])
