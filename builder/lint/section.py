"""A section: engine options somewhere in a file, checked against a release and its rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from ..diagnostics import Diagnostic, closest, located, nearest, of_same_words
from ..documents import Yaml, value_at
from ..facts import hardware
from ..facts.release import Release, ServerRole
from ..general_rules import UNKNOWN_KEY
from ..rules import constraints
from ..rules.context import RuleContext
from ..rules.options import WRONG_VALUES
from ..rules.validation import validate
from . import rules, serving

# So many errors of one section are enough to see what is wrong with it.
MAX_DIAGNOSTICS = 200


@dataclass(frozen=True, slots=True)
class StatedWorkload:
    """The workload that a file names beside its options; lengths in tokens."""

    isl: int | None = None
    osl: int | None = None
    concurrency: int | None = None
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """Engine options and where they stand.

    `path` is their place in `document`, `within` names the document in its file if it is embedded
    there, as in a `config_map`, and `file` the file that it is for a server, where that is said
    elsewhere. Keys in `inherited` stand at `inherited_at` instead. `beside` are the names
    of the surrounding format, of which a misspelt key may be one. `is_open` if something else may
    add options: what these are with others is not judged then.
    """

    options: Mapping[str, Any]
    document: Yaml
    path: str = ""
    within: str = ""
    config_map: str = ""
    file: str = ""
    role: ServerRole | None = None
    workload: StatedWorkload = StatedWorkload()
    inherited: frozenset[str] = frozenset()
    inherited_at: str = ""
    beside: Sequence[str] = ()
    is_open: bool = False

    def locate(self, diagnostic: Diagnostic) -> Diagnostic:
        """An error of the options at its place in the file."""
        key = diagnostic.where.partition(".")[0]
        path = below(self.inherited_at if key in self.inherited else self.path, diagnostic.where)
        said = (diagnostic.message, diagnostic.fix, diagnostic.rule, diagnostic.severity)
        return located(self.document.locate(path), path, *said, self.within)


def below(path: str, key: str) -> str:
    return ".".join(filter(None, (path, key)))


def int_at(data: Any, path: str) -> int | None:
    """The whole number at a dotted path, or `None`."""
    value = value_at(data, path)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def section_diagnostics(section: Section, rule_context: RuleContext) -> Iterator[Diagnostic]:
    """Options that the release rejects, then rules that the others break.

    `rule_context` is that of the file; what the section itself says goes before.
    """
    found = validate(rule_context.release, section.options)
    rejected = list(islice(found, MAX_DIAGNOSTICS))
    for diagnostic in rejected:
        yield section.locate(_suggest(diagnostic, section, rule_context.release))
    if next(found, None):
        what = f"has more than {MAX_DIAGNOSTICS} faults"
        yield section.locate(Diagnostic("", what, "correct these first", rules.TOO_MANY_FAULTS))
        return
    if section.is_open:
        return
    values = {row.where for row in rejected if row.rule in WRONG_VALUES}
    for diagnostic in constraints.violations(
        section.options, section_context(section, rule_context)
    ):
        if diagnostic.where not in values:  # a wrong value is one error, not two
            yield from _of_model(section.locate(diagnostic), section)


def _of_model(diagnostic: Diagnostic, section: Section) -> Iterator[Diagnostic]:
    """An error of the model at its place, which may be beside the options, and at its GPU's."""
    model = serving.named_model(section.options, section.document, section.path)
    yield (found := serving.at_model(diagnostic, model))
    gpu = serving.named_gpu(section.document)
    if model and gpu and diagnostic.rule == rules.MODEL_ON_GPU:
        yield replace(found, location=gpu.location, path=gpu.path)


def disagreements(
    sections: Sequence[Section], rule_context: RuleContext, at_both: bool = True
) -> Iterator[Diagnostic]:
    """What the prefill and decode workers of one file should have in common and have not: at the
    decode worker, and `at_both` of them, as nothing says which is meant."""
    workers = {role: [s for s in sections if s.role == role] for role in ("prefill", "decode")}
    for prefill, decode in product(workers["prefill"][:1], workers["decode"]):
        here = section_context(decode, rule_context)
        for diagnostic in constraints.disagreements(prefill.options, decode.options, here):
            found = decode.locate(diagnostic)
            yield found
            if not at_both:
                continue
            what = f"is not what the decode worker has in line {found.location.line}"
            yield prefill.locate(replace(diagnostic, message=f"{what}: {found.message}"))


def section_context(section: Section, rule_context: RuleContext) -> RuleContext:
    """The rule context of one section of a file."""
    context = stated_context(rule_context, section.role, section.workload)
    model = serving.named_model(section.options, section.document, section.path)
    return serving.serving(context, model)


def stated_context(
    rule_context: RuleContext, role: ServerRole | None, load: StatedWorkload
) -> RuleContext:
    """A rule context with what a file or a bundle itself says, as far as it does."""
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
    """For an unknown key at the top, the names of the surrounding format count too."""
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
