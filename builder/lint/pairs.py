"""What the option files of the two sides of disaggregated serving disagree about.

In a bundle all workers of one checkpoint belong together; outside, two files of one folder whose
names differ in nothing but the side: as nothing else says so, that is only warned of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from ..diagnostics import Diagnostic
from ..facts.release import Release
from ..rules import constraints
from ..rules.context import RuleContext
from ..rules.validation import agreed
from . import kinds
from .content import SIDE, side_of
from .files import SourceFile
from .section import Section, disagreements, section_context
from .validate import YAML_SUFFIXES, Text

_SIDES = ("prefill", "decode")
_TRANSCEIVER = "cache_transceiver_config"


@dataclass(frozen=True, slots=True)
class Side:
    """The options of one worker, what they are judged by, and what it shares with its partners.

    `others` are the tables beside that of the rule context, where its release has none.
    """

    path: Path
    section: Section
    rule_context: RuleContext
    service: object
    is_certain: bool
    others: tuple[Release, ...] = ()


def may_be_side(target: SourceFile) -> bool:
    """Whether a file belongs to one side, by its bundle or else by its name."""
    if target.diagnostic or target.path.suffix not in YAML_SUFFIXES:
        return False
    if target.context:
        return target.context.role in _SIDES and target.context.checkpoint is not None
    return side_of(target.path.stem) is not None


def side(target: SourceFile, source: Text, rule_context: RuleContext) -> Side | None:
    """The worker of a file that holds its options and nothing else."""
    content = kinds.read(source.documents, rule_context.release)
    if content is None or content.kind != kinds.ENGINE or content.sections[0].is_open:
        return None
    context, stem = target.context, target.path.stem.lower()
    role = side_of(stem) or "decode"
    service: object = (target.path.parent, SIDE.sub("", stem))
    is_certain = bool(context and context.checkpoint)
    if context and context.checkpoint and context.role:
        role, service = context.role, context.checkpoint.name
    section = replace(content.sections[0], role=role)
    return Side(target.path, section, replace(rule_context, role=role), service, is_certain)


def diagnostics(sides: Sequence[Side]) -> Iterator[Diagnostic]:
    """What each pair of workers of one service should have in common and has not.

    Places are those in the decode worker's file.
    """
    silent: list[Side] = []
    prefill, decode = ([row for row in sides if row.section.role == each] for each in _SIDES)
    for one, two in product(prefill, decode):
        if one.service != two.service or not (one.section.options and two.section.options):
            continue
        for here, there in ((one, two), (two, one)):
            if here not in silent and _TRANSCEIVER in there.section.options:
                silent.append(here)
                yield from _without_transceiver(here)
        contexts = [replace(two.rule_context, release=table) for table in two.others]
        found = {
            context.release.name: list(
                disagreements([one.section, two.section], context, at_both=False)
            )
            for context in (two.rule_context, *contexts)
        }
        for diagnostic in agreed(found):
            what = f"{diagnostic.message} (in {one.path})"
            severity = diagnostic.severity if two.is_certain else "warning"
            found_there = replace(diagnostic, message=what, severity=severity)
            yield found_there.in_file(str(two.path))


def _without_transceiver(side: Side) -> Iterator[Diagnostic]:
    """A worker without a way to hand the KV cache over, beside one that has it."""
    if _TRANSCEIVER in side.section.options:
        return
    context = section_context(side.section, side.rule_context)
    for row in constraints.violations(side.section.options, context):
        if row.where.startswith(_TRANSCEIVER):
            yield side.section.locate(row).in_file(str(side.path))
