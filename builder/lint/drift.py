"""Drift: what of one file is right for one engine release and wrong for another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..diagnostics import Diagnostic, located
from ..facts import advisories
from ..facts.release import Release

RULE = "drift"


@dataclass(frozen=True, slots=True)
class Judged:
    """A release and what it has against a file."""

    release: Release
    faults: Sequence[Diagnostic]


def drift(judged: Sequence[Judged]) -> Iterator[Diagnostic]:
    """One fault per path that the releases judge differently, the first of them for comparison."""
    first, *others = judged
    for other in others:
        yield from _new(first, other)
        yield from _new(other, first)


def _new(accepting: Judged, refusing: Judged) -> Iterator[Diagnostic]:
    """What only the second release has something against."""
    seen = {(fault.within, fault.path) for fault in accepting.faults}
    for fault in refusing.faults:
        where = fault.within, fault.path
        if where not in seen and fault.rule != advisories.RULE:
            seen.add(where)
            names = accepting.release.name, refusing.release.name
            what = f"right for {names[0]}, not for {names[1]}: {fault.message}"
            remedy = _new_name(fault.path, accepting.release, refusing.release) or fault.fix
            yield located(fault.location, fault.path, what, remedy, RULE, "warning", fault.within)


def _new_name(path: str, accepting: Release, refusing: Release) -> str:
    """The name by which the second release knows a choice of the first."""
    here: Mapping[str, str] = refusing.words
    for word, name in accepting.words.items():
        if (path == name or path.endswith(f".{name}")) and here.get(word, name) != name:
            return f"{refusing.name} knows it as {here[word]}"
    return ""
