"""Finds the versions that a file names: products in images, and pinned packages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ...diagnostics import Location
from ...facts import engines
from .yaml_text import places

_PIN = re.compile(
    r"(?<![\w.-])(?P<name>[A-Za-z][\w.-]*)(?:\[[\w,. -]*\])?[ \t]*==[ \t]*(?P<version>\d[\w.+]*)"
)
# A variable with the tag of an image, set by a line of a script or of a Dockerfile.
_TAG = re.compile(
    r"^[ \t]*(?:(?:ARG|ENV|export)[ \t]+)?(\w+)=[\"']?(v?\d[\w.-]*)[\"']?[ \t]*$", re.M
)
_TAGGED = re.compile(r"(?<=[\w-]:)\$\{?(\w+)\}?")
_SEPARATORS = re.compile(r"[-_.]+")


@dataclass(frozen=True, slots=True)
class NamedVersion:
    """A version of a product or package; `unknown` for an image whose tag names none."""

    name: str
    version: str
    location: Location


@lru_cache(maxsize=8)
def with_tags(text: str) -> str:
    """The text with the tags of images filled in that it sets itself, once, by a variable."""
    if ":$" not in text:
        return text
    values: dict[str, set[str]] = {}
    for name, value in _TAG.findall(text):
        values.setdefault(name, set()).add(value)
    alone = {name: value for name, (value, *more) in values.items() if not more}
    return _TAGGED.sub(lambda found: alone.get(found[1], found[0]), text)


@lru_cache(maxsize=8)  # each release is checked with the same file
def image_versions(text: str) -> tuple[NamedVersion, ...]:
    """The products in the images of servers that a file names."""
    text = with_tags(text)
    if "/" not in text:
        return ()
    from ...facts import images  # imported late: short option files do not need it

    place = places(text)
    rows = (*images.untold(text), *images.contents(text))
    return tuple(NamedVersion(row.product, row.version, place(row.start)) for row in rows)


@lru_cache(maxsize=8)
def pinned_packages(text: str) -> Mapping[str, NamedVersion]:
    """The packages that a file pins to an exact version, by name; the last pin of each counts."""
    found: dict[str, NamedVersion] = {}
    if "==" not in text:
        return found
    place = places(text)
    for row in _PIN.finditer(text):
        if "#" not in text[text.rfind("\n", 0, row.start()) + 1 : row.start()]:
            name = _SEPARATORS.sub("-", row["name"]).lower()
            found[name] = NamedVersion(name, row["version"], place(row.start()))
    return found


def pins_engine(text: str) -> bool:
    """Returns whether a text pins the package of an engine to an exact version."""
    packages = pinned_packages(text)
    return any(engines.load(name).package in packages for name in engines.names())
