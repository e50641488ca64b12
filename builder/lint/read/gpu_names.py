"""Finds kinds of GPU in labels and machine types of nodes, and in remarks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

from ...facts import hardware
from ..engine import surroundings

_SHARED = "-SHARED"  # which GPU feature discovery puts behind a GPU that pods take turns at
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
    """The one kind of GPU that a text names, first in `line`; `count` where it says how many each
    time that it says a number."""

    kind: str
    line: int
    count: int | None = None


def of_label(key: str, label: str) -> str | None:
    """The kind of GPU that a label or the machine type of a node names, if it is one and its board
    is the one whose facts are known."""
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
    """Whether the memory that a label tells is that of the known board; makers round it."""
    sizes = [int(size) for size in _MEMORY.findall(label)]
    nominal = hardware.load(kind).memory_nominal_gb.value
    near = [abs(size - nominal) <= _ROUNDING * nominal for size in sizes]
    return all(near) and (bool(near) or not must_tell)


@lru_cache(maxsize=64)
def of_text(text: str) -> Mention | None:
    """What a text says of its GPUs anywhere, as in a remark or the name of a partition, where it
    names one kind only; not what it only sets itself against."""
    lowered = text.lower()
    if not any(name in lowered for name in _names()):  # most texts name none: soon known
        return None
    found = [row for row in _pattern().finditer(text) if not _is_denied(text, row.start())]
    if len({row["kind"].lower() for row in found}) != 1 or any(row["board"] for row in found):
        return None
    line = text.count("\n", 0, found[0].start()) + 1
    counts = set(_counts(text, found))
    return Mention(found[0]["kind"].lower(), line, counts.pop() if len(counts) == 1 else None)


def _is_denied(text: str, at: int) -> bool:
    """Whether the line of a place, or of a remark the one before it, denies or compares."""
    lines = text[: text.find("\n", at) if "\n" in text[at:] else None].rsplit("\n", 2)[-2:]
    if len(lines) == 2 and not all(line.lstrip().startswith(_REMARK) for line in lines):
        del lines[0]
    return _DENIES.search(" ".join(lines)) is not None


def _counts(text: str, found: list[re.Match[str]]) -> Iterator[int]:
    """The numbers of GPUs beside their kind; several nodes have more than that."""
    for row in found:
        line = text[text.rfind("\n", 0, row.start()) + 1 :].partition("\n")[0]
        if row["count"]:
            yield 0 if re.search(r"\bnodes?\b", line, re.IGNORECASE) else int(row["count"])


@cache
def _names() -> tuple[str, ...]:
    return tuple(name for name in hardware.known() if name.isalnum())


@cache
def _pattern() -> re.Pattern[str]:
    """Kinds of GPU as words, with a number before them as in `8x H100`; `H100 NVL` and PCIe are
    boards with other memory, a kind of their own."""
    names = "|".join(_names())
    return re.compile(
        rf"(?:(?<![\w.])(?P<count>[1-9]\d?)[ ]?[x*][ ]?(?:NVIDIA[ -])?|(?<![A-Za-z0-9.]))"
        rf"(?P<kind>{names})(?=s?(?![A-Za-z0-9])|x\d)(?P<board>[ _-](?:NVL|PCIe)(?![A-Za-z0-9]))?",
        re.IGNORECASE,
    )
