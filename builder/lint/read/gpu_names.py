"""Finds GPU types in node labels, machine types and comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from ...facts import hardware
from ..engine import surroundings

_SHARED = "-SHARED"  # suffix of GPU feature discovery for GPUs with time-slicing
_MEMORY = re.compile(r"(?<![\d.])(\d+)gb", re.IGNORECASE)
_ROUNDING = 0.1
_REMARK = ("#", "//")
_DENIES = re.compile(
    r"(?<![\w-])(?:not|no|never|without|instead|unlike|except|than|versus|vs|cannot"
    r"|\w+n['\u2019]t)(?![\w-])",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Mention:
    """The only GPU type that a text names. `line` is where it first appears. `count` is set if all
    numbers in front of it agree."""

    kind: str
    line: int
    count: int | None = None


def of_label(key: str, label: str) -> str | None:
    """Returns the GPU type that a node label or a machine type names. The result is `None` for
    several types and for boards without facts."""
    table = surroundings()["node_labels"]
    if key.rpartition("/")[2] not in table["keys"]:
        return None
    for name in hardware.known():
        product = hardware.load(name).kubernetes_product.value
        if label in (product, f"{product}{_SHARED}"):
            return name
    words = re.split(r"[-_. ]", label.lower())
    is_other = not set(table["other_boards"]).isdisjoint(words)
    if is_other or label.startswith(tuple(table["other_machines"])):
        return None
    machines = surroundings()["machines"]["names"]
    kinds = {row["kind"].lower() for row in _pattern().finditer(label) if not row["board"]}
    kinds = {kind for kind in kinds if _is_of_size(kind, label, kind in table["whole"])}
    kinds |= {kind for machine, kind in machines.items() if label.startswith(machine)}
    return next(iter(kinds)) if len(kinds) == 1 else None


def _is_of_size(kind: str, label: str, must_tell: bool) -> bool:
    """Returns whether the memory size in a label matches the known board; vendors round it."""
    sizes = [int(size) for size in _MEMORY.findall(label)]
    nominal = hardware.load(kind).memory_nominal_gb.value
    near = [abs(size - nominal) <= _ROUNDING * nominal for size in sizes]
    return all(near) and (bool(near) or not must_tell)


@lru_cache(maxsize=64)
def of_text(text: str) -> Mention | None:
    """Returns the GPU type that a comment or a partition name mentions, if it mentions only one. A
    type that the text only excludes or compares with does not count."""
    lowered = text.lower()
    if not any(name in lowered for name in _names()):  # quick exit: most texts name none
        return None
    found = [row for row in _pattern().finditer(text) if not _is_denied(text, row.start())]
    if len({row["kind"].lower() for row in found}) != 1 or any(row["board"] for row in found):
        return None
    line = text.count("\n", 0, found[0].start()) + 1
    counts = set(_counts(text, found))
    return Mention(found[0]["kind"].lower(), line, counts.pop() if len(counts) == 1 else None)


def _is_denied(text: str, at: int) -> bool:
    """Returns whether the line at a position, or the comment line above it, negates or compares."""
    lines = text[: text.find("\n", at) if "\n" in text[at:] else None].rsplit("\n", 2)[-2:]
    if len(lines) == 2 and not all(line.lstrip().startswith(_REMARK) for line in lines):
        del lines[0]
    return _DENIES.search(" ".join(lines)) is not None


def _counts(text: str, found: list[re.Match[str]]) -> Iterator[int]:
    """Yields the GPU counts in front of the type, and 0 on a line about nodes."""
    for row in found:
        line = text[text.rfind("\n", 0, row.start()) + 1 :].partition("\n")[0]
        if row["count"]:
            yield 0 if re.search(r"\bnodes?\b", line, re.IGNORECASE) else int(row["count"])


@cache
def _names() -> tuple[str, ...]:
    return tuple(name for name in hardware.known() if name.isalnum())


@cache
def _pattern() -> re.Pattern[str]:
    """Returns a pattern for GPU types, with an optional count as in `8x H100`. `H100 NVL` and PCIe
    boards have other memory sizes; the group `board` marks them."""
    names = "|".join(_names())
    return re.compile(
        rf"(?:(?<![\w.])(?P<count>[1-9]\d?)[ ]?[x*][ ]?(?:NVIDIA[ -])?|(?<![A-Za-z0-9.]))"
        rf"(?P<kind>{names})(?=s?(?![A-Za-z0-9])|x\d)(?P<board>[ _-](?:NVL|PCIe)(?![A-Za-z0-9]))?",
        re.IGNORECASE,
    )
