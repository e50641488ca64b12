"""Tags of container images: the product in an image of its publisher, and its version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# The publisher's repositories, on any host. Their tags begin with the version of the product.
_PRODUCTS = {"tritonserver": "triton", "tensorrt-llm/release": "tensorrt_llm"}
_CONTENT = re.compile(
    r"(?<![\w.-])(?P<repository>tritonserver|tensorrt-llm/release)"
    r":(?P<version>v?\d+(?:\.\d+)+(?:\.?(?:rc|post|dev)\d+)*)(?P<rest>[\w.-]*)"
)
_CLIENTS = "-sdk"  # such an image holds clients and no server


@dataclass(frozen=True, slots=True)
class Content:
    """A product in an image that a text names at `start`. `product` is its name in advisories."""

    product: str
    version: str
    start: int


def contents(text: str) -> Iterator[Content]:
    """The products of all images that a text names and whose tags tell a version."""
    if not any(f"{repository}:" in text for repository in _PRODUCTS):
        return  # at once, for texts of megabytes
    for found in _CONTENT.finditer(text):
        if not found["rest"].endswith(_CLIENTS):
            yield Content(_PRODUCTS[found["repository"]], found["version"], found.start())
