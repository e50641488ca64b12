"""Checks options blocks of a file against one release, in their context."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from ...diagnostics import Diagnostic, closest, located, nearest, of_same_words
from ...facts import hardware
from ...facts.release import Release, ServerRole
from ...general_rules import UNKNOWN_KEY
from ...rules import constraints
from ...rules.context import RuleContext
from ...rules.options import WRONG_VALUES
from ...rules.validation import validate
from ..model import Section, StatedWorkload
from ..read.file import Text
from . import MODEL_ON_GPU, TOO_MANY_FAULTS
from .model import at_model, for_model, named_gpu, named_model


def of_empty_documents(source: Text) -> list[Diagnostic]:
    """Reports empty documents in an option file."""
    if source.second is None:
        return []
    what = "begins a second document, and one of them is empty"
    return [located(source.second, "", what, "remove ---: an engine reads one document")]


_NO_WORKLOAD = StatedWorkload()
# At most this many errors are listed for one options block.
MAX_DIAGNOSTICS = 200


def section_diagnostics(section: Section, rule_context: RuleContext) -> Iterator[Diagnostic]:
    """Reports options that the release rejects, then rules that the other options violate.
    `rule_context` is the context of the file; settings of the options block override it."""
    found = validate(rule_context.release, section.options)
    rejected = list(islice(found, MAX_DIAGNOSTICS))
    for diagnostic in rejected:
        yield section.locate(_suggest(diagnostic, section, rule_context.release))
    if next(found, None):
        what = f"has more than {MAX_DIAGNOSTICS} faults"
        yield section.locate(Diagnostic("", what, "correct these first", TOO_MANY_FAULTS))
        return
    if section.is_open:
        return
    values = {row.where for row in rejected if row.rule in WRONG_VALUES}
    for diagnostic in constraints.violations(
        section.options, section_context(section, rule_context)
    ):
        if diagnostic.where not in values:  # report a wrong value once
            yield from _of_model(section.locate(diagnostic), section)


def _of_model(diagnostic: Diagnostic, section: Section) -> Iterator[Diagnostic]:
    """Locates an error at the model, which may be outside the options, and also at the GPU."""
    model = named_model(section.options, section.document, section.path)
    yield (found := at_model(diagnostic, model))
    gpu = named_gpu(section.document)
    if model and gpu and diagnostic.rule == MODEL_ON_GPU:
        yield replace(found, location=gpu.location, path=gpu.path)


def section_context(section: Section, rule_context: RuleContext) -> RuleContext:
    """The rule context of one options block of a file."""
    context = stated_context(rule_context, section.role, section.workload)
    model = named_model(section.options, section.document, section.path)
    return for_model(context, model)


def stated_context(
    rule_context: RuleContext, role: ServerRole | None, load: StatedWorkload
) -> RuleContext:
    """Adds the role and workload that a file or bundle sets to a rule context."""
    if load == _NO_WORKLOAD and role in (None, rule_context.role):
        return rule_context
    gpu = hardware.load(load.gpu) if load.gpu and load.gpu in hardware.known() else None
    return replace(
        rule_context,
        role=role or rule_context.role,
        gpu=gpu or rule_context.gpu,
        isl=load.isl or rule_context.isl,
        osl=load.osl or rule_context.osl,
        concurrency=load.concurrency or rule_context.concurrency,
    )


def _suggest(diagnostic: Diagnostic, section: Section, release: Release) -> Diagnostic:
    """For an unknown top-level key, also suggests keys of the surrounding format."""
    if diagnostic.rule != UNKNOWN_KEY or "." in diagnostic.where:
        return diagnostic
    if closest(diagnostic.where, [*section.beside, *release.top_level]) in section.beside:
        return replace(diagnostic, fix=nearest(diagnostic.where, section.beside))
    near = (
        None
        if closest(diagnostic.where, release.top_level)
        else of_same_words(diagnostic.where, section.beside)
    )
    return replace(diagnostic, fix=f"did you mean {near}?") if near else diagnostic
