"""Checks one file against one release: its kind, its options and everything around them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice

from ..diagnostics import Diagnostic, Location
from ..facts import hardware
from ..facts.release import Release
from ..rules.context import RuleContext
from .engine import every, takes_clicks
from .model import ITSELF, Judged, OptionsBlock, Verdict, of_named_side
from .read.file import DOCKERFILE, MODEL_CONFIG, PROSE, PYTHON, REQUIREMENTS, SCRIPT, Text
from .read.gpu_names import Mention, of_text
from .read.option_file import ENGINE, holds_deployment, read_options
from .read.versions import image_versions, pinned_packages, pins_engine
from .rules.model import model_diagnostics
from .rules.options import MAX_DIAGNOSTICS, empty_document_diagnostics, section_diagnostics
from .rules.versions import Policy, image_diagnostics, package_diagnostics

_WARNING = Policy()


def check_file(
    source: Text,
    rule_context: RuleContext,
    versions: Policy = _WARNING,
    for_mentioned_gpu: bool = True,
    is_told: bool = False,
) -> Verdict:
    """Checks a file against one release and for vulnerable `versions`. An error that only occurs on
    the GPU that the file mentions becomes a warning. `is_told` means that the user named the engine
    of the release, or a command that reads the file did."""
    is_default = takes_clicks(rule_context) or holds_deployment(source.documents)
    asked = is_default and for_mentioned_gpu and not rule_context.gpu
    said = of_text(source.text) if asked else None
    if said is None:
        return _of_file(source, rule_context, versions, is_told)
    gpu = replace(rule_context, gpu=hardware.load(said.kind), num_gpus=said.count or None)
    told = _of_file(source, gpu, versions)
    has_options = told.judged.sections or told.judged.commands
    if has_options and not told.diagnostics:
        return told  # usual case: no need to check without that GPU
    found = _of_file(source, rule_context, versions)
    if not has_options:
        return found
    known = {_fault(row) for row in found.diagnostics}
    rows = [row if _fault(row) in known else _doubtful(row, said) for row in told.diagnostics]
    return replace(told, diagnostics=rows)


def _fault(diagnostic: Diagnostic) -> tuple[Location, str, str]:
    return diagnostic.location, diagnostic.path, diagnostic.rule


def _doubtful(diagnostic: Diagnostic, said: Mention) -> Diagnostic:
    """Turns an error into a warning if it depends on a GPU that a comment or a name mentions."""
    what = f"{diagnostic.message} (line {said.line} names {said.kind})"
    return replace(diagnostic, message=what, severity="warning")


def _of_file(
    source: Text, rule_context: RuleContext, versions: Policy, is_told: bool = False
) -> Verdict:
    form = source.form
    is_default = takes_clicks(rule_context) or holds_deployment(source.documents)
    if form == MODEL_CONFIG:
        from .rules import triton

        rows = islice(triton.config_diagnostics(source.text, source.path), MAX_DIAGNOSTICS)
        return Verdict(MODEL_CONFIG, list(rows), ITSELF)
    if form == PROSE or (form == REQUIREMENTS and not is_default):
        return Verdict(None, [])
    named, diagnostics = 0, list[Diagnostic]()
    if is_default and form != PYTHON:  # images and packages do not depend on the engine
        images = image_versions(source.text)
        named, diagnostics = len(images), list(image_diagnostics(images, versions))
        diagnostics += package_diagnostics(pinned_packages(source.text))
    if form == REQUIREMENTS:
        is_ours = pins_engine(source.text)
        return Verdict(REQUIREMENTS, diagnostics, ITSELF) if is_ours else Verdict(None, [])
    if form in (SCRIPT, DOCKERFILE, PYTHON):
        from . import script_check

        if form == PYTHON:
            return script_check.check_program(source.text, rule_context)
        return script_check.check_script_file(source, rule_context, named, diagnostics)
    if is_default and _is_plain(source, rule_context.release):
        return _of_options(source, rule_context, named, diagnostics)
    from . import document_check

    if is_default:
        return document_check.check_yaml(source, rule_context, named, diagnostics)
    return document_check.check_blocks(source, rule_context, is_told)


@cache
def _more() -> re.Pattern[str]:
    """Returns a pattern of environment variables and programs: a file with one holds more than
    options."""
    return re.compile(rf"[A-Z]_[A-Z]|\b(?:python|{'|'.join(every('families'))})")


def _is_plain(source: Text, release: Release) -> bool:
    """Returns whether a file holds only engine options: no command, variable or launcher."""
    if len(source.documents) != 1 or source.is_template or _more().search(source.text):
        return False
    data = source.documents[0].data
    if not isinstance(data, Mapping):
        return False
    for key, value in data.items():
        if key not in release.top_level and isinstance(value, Mapping | list):
            return False
    content = read_options(source.documents, release)
    return content is not None and content.kind == ENGINE


def _of_options(
    source: Text, rule_context: RuleContext, named: int, diagnostics: Sequence[Diagnostic]
) -> Verdict:
    """Checks a file of engine options against one release."""
    document = source.documents[0]
    section = OptionsBlock(document.data, document)
    if rule_context.role == "agg":
        section = of_named_side(section, source.path.name)
    found = [*document.diagnostics, *diagnostics, *section_diagnostics(section, rule_context)]
    if not rule_context.checkpoint:
        found += model_diagnostics(document, section.options, "")
    found += empty_document_diagnostics(source)
    return Verdict(ENGINE, found, Judged(1, images=named, unread=source.unread))
