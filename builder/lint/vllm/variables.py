"""The engine's own variables that a file sets: those that a release does not read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from ...diagnostics import Diagnostic, Location, closest, located
from ...facts import release as releases
from ...facts.release import Release
from ...rules.remedies import age
from .. import rules
from .formats import formats

# Where a line sets one: `NAME=`, `NAME:`, `name: NAME` of a container, `ENV NAME value`.
_SET = re.compile(
    r"(?<![\w$.{-])(?:(?P<plain>VLLM_[A-Z0-9_]+)(?=[\"']?[ \t]*[:=])"
    r"|(?<=name: )[\"']?(?P<named>VLLM_[A-Z0-9_]+)"
    r"|(?<=ENV )(?P<env>VLLM_[A-Z0-9_]+)(?=[ \t]))"
)


def diagnostics(text: str, release: Release) -> Iterator[Diagnostic]:
    """Variables that are misspelt, or that other releases read. One that nobody knows may be the
    file's own, as one is that it asks for."""
    for number, line in enumerate(text.splitlines(), 1):
        if "VLLM_" not in line or line.lstrip().startswith("#"):
            continue
        for found in _SET.finditer(line):
            kind = str(found.lastgroup)
            name, start = found[kind], found.start(kind)
            if name in release.environment or re.search(rf"\$\{{?{name}\b", text):
                continue
            if remedy := _remedy(name, release):
                place = Location(number, start + 1)
                what = f"{release.engine.title} {release.name} reads no such variable"
                yield located(place, name, what, remedy, rules.UNKNOWN_VARIABLE, "warning")


@lru_cache(maxsize=1000)
def _remedy(name: str, release: Release) -> str:
    others = [row for row in releases.of_engine(release.engine) if name in row.environment]
    told = [age(release, others)] if others else []
    if former := formats().former_variables.get(name):
        told.append(former)
    near = None if told else closest(name, release.environment)
    return "; ".join(told) or (f"did you mean {near}?" if near else "")
