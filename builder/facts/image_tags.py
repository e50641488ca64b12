"""Tags of container images: the product in an image of its publisher, and its version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from . import servers

_VERSION = r":(?P<version>v?\d+(?:\.\d+)+(?:\.?(?:rc|post|dev)\d+)*)(?P<rest>[\w.-]*)"
_CLIENTS = "-sdk"  # such an image holds clients and no server


@dataclass(frozen=True, slots=True)
class Content:
    """A product in an image that a text names at `start`. `product` is its name in advisories."""

    product: str
    version: str
    start: int


def contents(text: str) -> Iterator[Content]:
    """The products of all images that a text names and whose tags tell a version."""
    products = _products()
    if not any(f"{repository}:" in text for repository in products):
        return  # at once, for texts of megabytes
    for found in _pattern().finditer(text):
        if not found["rest"].endswith(_CLIENTS):
            yield Content(products[found["repository"]], found["version"], found.start())


@cache
def _products() -> dict[str, str]:
    """Products by the publisher's repository, on any host. Its tags begin with the version."""
    images = (servers.load(name).image for name in servers.names())
    return {image.repository: image.product for image in images}


@cache
def _pattern() -> re.Pattern[str]:
    repositories = "|".join(map(re.escape, _products()))
    return re.compile(rf"(?<![\w.-])(?P<repository>{repositories}){_VERSION}")
