"""Bundles of prefill and decode workers that are checked together: whether they can work so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from ..diagnostics import Diagnostic
from ..errors import BadInput
from ..facts import release
from ..rules.context import RuleContext
from . import kinds
from .files import SourceFile
from .section import Section, disagreements
from .validate import read

_ROLES = ("prefill", "decode")


@dataclass(frozen=True)
class Worker:
    """The option file of one worker, and what its bundle says of it."""

    path: Path
    checkpoint: str
    situation: RuleContext
    section: Section


def findings(targets: Sequence[SourceFile]) -> Iterator[Diagnostic]:
    """What each pair of workers that serve one checkpoint should have in common and has not.

    Places are those in the decode worker's file.
    """
    workers = list(map(_worker, targets))
    found = [worker for worker in workers if worker is not None]
    prefill, decode = ([w for w in found if w.section.role == role] for role in _ROLES)
    for one, two in product(prefill, decode):
        if one.checkpoint == two.checkpoint:
            for diagnostic in disagreements([one.section, two.section], two.situation):
                what = f"{diagnostic.message} (in {one.path})"
                yield replace(diagnostic, message=what).in_file(str(two.path))


def is_worker(target: SourceFile) -> bool:
    """Whether a file belongs to one side of disaggregated serving."""
    within = target.context
    return bool(within and within.role in _ROLES and within.checkpoint and not target.diagnostic)


def _worker(target: SourceFile) -> Worker | None:
    """The options of a file of a worker's bundle, if it holds any."""
    within = target.context
    if within is None or within.checkpoint is None:
        return None
    try:
        table = release.load(within.release, within.folder)
        content = kinds.read(read(target.path).documents, table)
    except BadInput:
        return None  # that has been said
    if content is None or content.kind != kinds.ENGINE:
        return None
    section = replace(content.sections[0], role=within.role)
    situation = RuleContext.of(table, within.checkpoint)
    return Worker(target.path, within.checkpoint.name, situation, section)
