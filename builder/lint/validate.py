"""One file validated against one release: its kind, and everything that is wrong in it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..diagnostics import Diagnostic, Location, located
from ..documents import Yaml, scan_yaml
from ..errors import BadInput
from ..facts import advisories, images
from ..facts.release import Release
from ..files import read_bytes, read_text
from ..rules.context import RuleContext
from . import job_rules, job_script, kinds, model_config, script
from .kinds import Content
from .section import MAX_DIAGNOSTICS, disagreements, section_diagnostics
from .server_commands import (
    Command,
    ContainerCommand,
    beside_flags,
    container_commands,
    parse,
    read_option_file,
)

MODEL_CONFIG = "Triton config.pbtxt"
SCRIPT = "script"
JOB = "Slurm job script"
IMAGES = "container images"  # a file of another kind that names some of the publisher's
# Nobody writes longer ones, and reading them takes long.
MAX_CHARACTERS = 300_000
YAML_SUFFIXES = (".yaml", ".yml", ".json")

_MODEL_CONFIG_LINE = re.compile(
    r"^\s*(input|output|instance_group|parameters|model_transaction_policy)\s*:?\s*[\[{]\s*$", re.M
)
_SHELL_LINE = re.compile(r"\A#!.*sh\b|^\s*(exec\s+)?(\S+/)?trtllm-serve\b", re.M)


@dataclass(frozen=True)
class Text:
    """A file that was read: its text, and the YAML documents in it where it may hold some."""

    path: Path
    text: str
    form: str
    documents: Sequence[Yaml] = ()


def read(path: Path) -> Text:
    """A file by its form. Raises `BadInput` if it cannot be read."""
    text = read_text(path)
    form = _form(path, text)
    known = script.mentions_any(text) or job_script.is_job(text) or images.are_named(text)
    if form == SCRIPT and not known:
        return Text(path, "", SCRIPT)
    if form and len(text) > MAX_CHARACTERS:
        what = f"{len(text)} characters are too many for a {form}"
        raise BadInput(Diagnostic(str(path), what, f"up to {MAX_CHARACTERS} are read"))
    return Text(path, text, form, () if form else scan_yaml(text))


def _form(path: Path, text: str) -> str:
    """`MODEL_CONFIG` or `SCRIPT`; empty for what may be YAML."""
    if path.suffix in YAML_SUFFIXES:
        return ""
    if ".pbtxt" in path.suffixes or _MODEL_CONFIG_LINE.search(text):
        return MODEL_CONFIG
    is_script = path.suffix in (".sh", ".sbatch", ".slurm") or _SHELL_LINE.search(text)
    return SCRIPT if is_script or job_script.is_job(text) else ""


def mentions_options(text: str, release: Release) -> bool:
    """Whether a text has a line that gives an engine option, readable or not."""
    keys = re.findall(r"^[\s-]*([a-z]\w*_\w+)[ \t]*:", text, re.M)
    return any(key in release.top_level or key == "triton_config" for key in keys)


def validate(
    source: Text, rule_context: RuleContext, accepted: Collection[tuple[str, str]] = ()
) -> tuple[str | None, list[Diagnostic]]:
    """The kind of a file, `None` if it is none that check knows, and its errors.

    Vulnerable versions of products that are `accepted` are warned of.
    """
    if source.form == MODEL_CONFIG:
        return MODEL_CONFIG, list(
            islice(model_config.diagnostics(source.text, source.path), MAX_DIAGNOSTICS)
        )
    named = list(_images(source.text, accepted))
    if source.form == SCRIPT:
        return _script(source, rule_context, named)
    syntax = [row for document in source.documents for row in document.diagnostics]
    content = kinds.read(source.documents, rule_context.release)
    if content is None:
        return (IMAGES, [*syntax, *named]) if images.are_named(source.text) else (None, syntax)
    found = [*syntax, *named, *_content(content, rule_context)]
    if content.kind.startswith(kinds.KUBERNETES):
        ran = (run for document in source.documents for run in container_commands(document))
        found_there = [_run(run, source.path, content, rule_context) for run in ran]
        found += (
            row for diagnostics in found_there if diagnostics is not None for row in diagnostics
        )
        if any(diagnostics is not None for diagnostics in found_there):
            return kinds.KUBERNETES, found
    return content.kind, found


def _content(content: Content, rule_context: RuleContext) -> Iterator[Diagnostic]:
    yield from content.diagnostics
    for section in content.sections:
        yield from section_diagnostics(section, rule_context)
    yield from disagreements(content.sections, rule_context)


def _images(text: str, accepted: Collection[tuple[str, str]]) -> Iterator[Diagnostic]:
    """Container images of versions that are known to be vulnerable, and of unknown ones."""
    for content in images.untold(text):
        row = advisories.unknown(content.product, content.version, "", strict=False)
        if (content.product, content.version) not in accepted:
            yield located(_place(text, content), "", row.message, row.fix, row.rule, row.severity)
    for content in images.contents(text):
        diagnostic = advisories.diagnostic(content.product, content.version, "")
        if diagnostic:
            taken = any(
                product == content.product and advisories.same(version, content.version)
                for product, version in accepted
            )
            severity = "warning" if taken else diagnostic.severity
            place = _place(text, content)
            yield located(place, "", diagnostic.message, diagnostic.fix, diagnostic.rule, severity)


def _place(text: str, content: images.Content) -> Location:
    before = text[: content.start]
    return Location(before.count("\n") + 1, content.start - before.rfind("\n"))


def _script(
    source: Text, rule_context: RuleContext, named: Sequence[Diagnostic]
) -> tuple[str | None, list[Diagnostic]]:
    found = _script_diagnostics(
        script.read(source.text), source.text, source.path, {}, rule_context
    )
    if job_script.is_job(source.text):
        rules = job_rules.diagnostics(
            job_script.read(source.text), source.path.parent, rule_context.block
        )
        return JOB, [*named, *(found or ()), *_line_ends(source.path), *rules]
    if found is None:
        return (IMAGES, [*named]) if images.are_named(source.text) else (None, [])
    return SCRIPT, [*named, *found]


def _line_ends(path: Path) -> Iterator[Diagnostic]:
    """What the text no longer shows."""
    if b"\r\n" in read_bytes(path):
        what = "has the line ends of DOS: sbatch refuses it"
        yield job_script.job_diagnostic("job-line-ends", Location(1, 1), what)


def _run(
    run: ContainerCommand, path: Path, content: Content, rule_context: RuleContext
) -> list[Diagnostic] | None:
    """The errors of what a container runs, beside the files that config maps give it."""
    given = {
        section.within.partition("data.")[2]: Content(kinds.ENGINE, [section])
        for section in content.sections
    }
    found = _script_diagnostics(run.script, run.text, path, given, rule_context)
    return None if found is None else [run.move(row) for row in found]


def _script_diagnostics(
    found: script.Script,
    text: str,
    path: Path,
    given: Mapping[str, Content],
    rule_context: RuleContext,
) -> list[Diagnostic] | None:
    """The errors of server commands and of the files that a script writes, beside those that it is
    given; `None` if it has neither.
    """
    written = {document.name: _written(document, rule_context) for document in found.files}
    if not found.commands and not any(content.sections for content in written.values()):
        return None
    commands = [parse(words, rule_context.release) for words in found.commands]
    result: list[Diagnostic] = []
    for name, content in written.items():
        _settle_backend(content, [row for row in commands if _names(row, name)])
        result += _certain(_content(content, rule_context), text)
    for command in commands:
        result += command.diagnostics
        if command.subcommand == "serve":
            options = _options(command, path, {**given, **written})
            result += beside_flags(command, options, rule_context)
    return result


def _settle_backend(content: Content, commands: Sequence[Command]) -> None:
    """Whether options of one backend only go to that backend, where the commands say it."""
    rest = [row for row in content.diagnostics if row.rule != kinds.AUTODEPLOY_RULE]
    hints = [row for row in content.diagnostics if row.rule == kinds.AUTODEPLOY_RULE]
    if commands and all(row.value("backend") == kinds.AUTODEPLOY_BACKEND for row in commands):
        hints = []
    elif commands:
        hints = [replace(hint, severity="error") for hint in hints]
    content.diagnostics = [*rest, *hints]


def _names(command: Command, name: str) -> bool:
    """Whether a command reads its options from the file of this name."""
    word = command.option_file
    return bool(word and name and Path(name).name == Path(word.text).name)


def _written(document: script.HereDocument, rule_context: RuleContext) -> Content:
    """A file that a script writes."""
    documents = scan_yaml(document.text, document.start)
    content = kinds.read(documents, rule_context.release)
    if content is None and not document.name.endswith((".yaml", ".yml")):
        return Content(kinds.ENGINE)
    content = content or Content(kinds.ENGINE)
    content.diagnostics += (row for each in documents for row in each.diagnostics)
    content.sections = [replace(section, within=document.name) for section in content.sections]
    content.diagnostics = [replace(row, within=document.name) for row in content.diagnostics]
    return content


def _certain(found: Iterable[Diagnostic], text: str) -> Iterator[Diagnostic]:
    """Errors of lines into which the shell puts nothing else."""
    lines = text.splitlines()
    for diagnostic in found:
        line = lines[diagnostic.location.line - 1] if diagnostic.location.line else ""
        if "$" not in line and "`" not in line:
            yield diagnostic


def _options(command: Command, path: Path, written: Mapping[str, Content]) -> Mapping[str, Any]:
    """The options of the file that a command names: one that the script writes, or one on disk."""
    word = command.option_file
    for name, content in written.items():
        if _names(command, name) and content.sections:
            return content.sections[0].options
    return read_option_file(word.text, path.parent) if word else {}
