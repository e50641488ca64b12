"""Checks the two sides of disaggregated serving, prefill and decode, against each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from ...diagnostics import Diagnostic, located, nearest
from ...facts.release import Release
from ...rules import constraints
from ...rules.context import RuleContext
from ...rules.validation import agreed
from ..engine import MODE_FLAG, worker_flags
from ..model import SIDE, Section, Server, is_open, side_of
from ..read.file import Text
from ..read.files import SourceFile
from ..read.forms import YAML_SUFFIXES
from ..read.option_file import ENGINE, read_options
from . import DISAGG_MODE, DISAGG_MODEL
from .options import section_context


def disagreements(
    sections: Sequence[Section], rule_context: RuleContext, at_both: bool = True
) -> Iterator[Diagnostic]:
    """Reports options that must be equal on the prefill and decode workers of one file. Located at
    the decode worker, or with `at_both` at both workers, as either may be wrong."""
    workers = {role: [s for s in sections if s.role == role] for role in ("prefill", "decode")}
    for prefill, decode in product(workers["prefill"][:1], workers["decode"]):
        here = section_context(decode, rule_context)
        for diagnostic in constraints.disagreements(prefill.options, decode.options, here):
            found = decode.locate(diagnostic)
            yield found
            if not at_both:
                continue
            what = f"differs from the decode worker in line {found.location.line}"
            yield prefill.locate(replace(diagnostic, message=f"{what}: {found.message}"))


_SIDES = ("prefill", "decode")
_TRANSCEIVER = "cache_transceiver_config"


@dataclass(frozen=True, slots=True)
class Side:
    """The options of one worker, with its rule context and the service that it belongs to. `others`
    are more release tables to check, if the release itself has no table."""

    path: Path
    section: Section
    rule_context: RuleContext
    service: object
    is_certain: bool
    others: tuple[Release, ...] = ()


def may_be_side(target: SourceFile) -> bool:
    """Whether a file belongs to one side, by its bundle or by its name."""
    if target.diagnostic or target.path.suffix not in YAML_SUFFIXES:
        return False
    if target.context:
        return target.context.role in _SIDES and target.context.checkpoint is not None
    return side_of(target.path.stem) is not None


def side(target: SourceFile, source: Text, rule_context: RuleContext) -> Side | None:
    """The worker that an option file configures; `None` for other files."""
    content = read_options(source.documents, rule_context.release)
    if content is None or content.kind != ENGINE or content.sections[0].is_open:
        return None
    context, stem = target.context, target.path.stem.lower()
    role = side_of(stem) or "decode"
    service: object = (target.path.parent, SIDE.sub("", stem))
    is_certain = bool(context and context.checkpoint)
    if context and context.checkpoint and context.role:
        role, service = context.role, context.checkpoint.name
    section = replace(content.sections[0], role=role)
    return Side(target.path, section, replace(rule_context, role=role), service, is_certain)


def pair_diagnostics(sides: Sequence[Side]) -> Iterator[Diagnostic]:
    """Reports options that must be equal on each pair of workers of one service. Located in the
    decode worker's file."""
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
    """Reports a worker without a KV cache transceiver if its partner has one."""
    if _TRANSCEIVER in side.section.options:
        return
    context = section_context(side.section, side.rule_context)
    for row in constraints.violations(side.section.options, context):
        if row.where.startswith(_TRANSCEIVER):
            yield side.section.locate(row).in_file(str(side.path))


def different_models(servers: Sequence[Server]) -> Iterator[Diagnostic]:
    """Reports models that differ between the two sides of one service."""
    prefill = [row.model for row in servers if row.role == "prefill" and row.model]
    for worker in servers:
        model = worker.model if worker.role == "decode" else None
        if model and prefill and model.name not in {row.name for row in prefill}:
            what = f"{model.name}, but the prefill worker has {prefill[0].name}"
            fix = "serve the same checkpoint on both"
            yield located(model.location, model.path, what, fix, DISAGG_MODEL)


def wrong_mode(worker: Server) -> Iterator[Diagnostic]:
    """Reports an unknown mode, or one that contradicts the role of the service."""
    given = worker.flag((MODE_FLAG,))
    side = given[0].strip("\"'") if given else ""
    modes = worker_flags(worker.program).modes
    if given and side not in modes and not is_open(side):
        what, fix = f"{MODE_FLAG} {side} is not a role of a worker", nearest(side, modes)
        yield located(given[1], worker.path, what, fix, DISAGG_MODE)
    if given and {side, worker.role} == {"prefill", "decode"}:
        what = f"{MODE_FLAG} {side}, but the service is one of {worker.role} workers"
        fix = f"give {worker.role}, or correct the service"
        yield located(given[1], worker.path, what, fix, DISAGG_MODE)


_SIDE_ALONE = re.compile(r"(?<![a-z])(?:prefill|decode|ctx|gen)(?![a-z])", re.IGNORECASE)


def other_side(worker: Server) -> Iterator[Diagnostic]:
    """Reports an option file whose name belongs to the other side. Ambiguous words, as in
    `context_2k` and `text-generation`, are ignored."""
    side = side_of(worker.file) if _SIDE_ALONE.search(worker.file) else None
    if (given := worker.file_flag) and {side, worker.role} == {"prefill", "decode"}:
        what = f"{given[0]} is for {side} workers by its name, but this is a {worker.role} worker"
        fix = f"name the file of the {worker.role} workers"
        yield located(given[1], worker.path, what, fix, DISAGG_MODE, "warning")
