"""The kinds of GPU that words of a file name: labels and machine types of nodes, and remarks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from ..facts import hardware
from .embedded_formats import surroundings


@dataclass(frozen=True, slots=True)
class Mention:
    """The one kind of GPU that a text names, first in `line`; `count` where it says how many each
    time that it says a number."""

    kind: str
    line: int
    count: int | None = None


def of_label(label: str) -> str | None:
    """The kind of GPU that a label or the machine type of a node names, if it is one."""
    for name in hardware.known():
        product = hardware.load(name).kubernetes_product.value
        if label == product or label.startswith(f"{product}-"):
            return name
    machines = surroundings()["machines"]["names"]
    kinds = {found["kind"].lower() for found in _pattern().finditer(label)}
    kinds |= {kind for machine, kind in machines.items() if label.startswith(machine)}
    return next(iter(kinds)) if len(kinds) == 1 else None


@lru_cache(maxsize=64)
def of_text(text: str) -> Mention | None:
    """What a text says of its GPUs anywhere, as in a remark or the name of a partition, where it
    names one kind only."""
    found = list(_pattern().finditer(text))
    if len({row["kind"].lower() for row in found}) != 1:
        return None
    line = text.count("\n", 0, found[0].start()) + 1
    counts = set(_counts(text, found))
    return Mention(found[0]["kind"].lower(), line, counts.pop() if len(counts) == 1 else None)


def _counts(text: str, found: list[re.Match[str]]) -> Iterator[int]:
    """The numbers of GPUs beside their kind; several nodes have more than that."""
    for row in found:
        line = text[text.rfind("\n", 0, row.start()) + 1 :].partition("\n")[0]
        if row["count"]:
            yield 0 if re.search(r"\bnodes?\b", line, re.IGNORECASE) else int(row["count"])


@cache
def _pattern() -> re.Pattern[str]:
    """Kinds of GPU as words, with a number before them as in `8x H100`."""
    names = "|".join(name for name in hardware.known() if name.isalnum())
    return re.compile(
        rf"(?:(?<![\w.])(?P<count>[1-9]\d?)[ ]?[x*][ ]?(?:NVIDIA[ -])?|(?<![A-Za-z0-9.]))"
        rf"(?P<kind>{names})(?=s?(?![A-Za-z0-9])|x\d)",
        re.IGNORECASE,
    )
