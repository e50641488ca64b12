"""One file validated against one release: its kind, and everything that is wrong in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

from ..diagnostics import Diagnostic, Location, located
from ..documents import Yaml, above, scan_yaml
from ..errors import BadInput
from ..facts import hardware
from ..facts.release import Release
from ..files import read_text
from ..rules.context import RuleContext
from . import (
    compose_services,
    containers,
    dockerfile,
    dynamo_graphs,
    embedded,
    handed_files,
    job_script,
    kinds,
    mentioned_gpus,
    named_images,
    open_quotes,
    program_names,
    references,
    rules,
    script,
    script_judging,
    script_workers,
    serving,
    surroundings,
    variants,
    worker_rules,
    workers,
)
from .content import Content, of_named_side
from .coverage import ITSELF, Judged, Verdict
from .script_judging import SCRIPT
from .section import MAX_DIAGNOSTICS, Section
from .server_commands import ContainerCommand, container_commands
from .variables import TEMPLATE, MaskedText, as_shell
from .workers import Worker

MODEL_CONFIG = "Triton config.pbtxt"
DOCKERFILE = "Dockerfile"
PYTHON = "Python program"
PROSE = "text"
JOB = "Slurm job script"
IMAGES = "container images"  # a file of another kind that names some of the publisher's
# Nobody writes longer ones, and reading them takes long.
MAX_CHARACTERS = 300_000
YAML_SUFFIXES = (".yaml", ".yml", ".json")
_SCRIPT_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm")
# What tells of options, images and commands without using any.
PROSE_SUFFIXES = (".md", ".markdown", ".rst", ".adoc", ".html", ".ipynb")

_WARNING = named_images.Policy()
_MODEL_CONFIG_LINE = re.compile(
    r"^\s*(input|output|instance_group|parameters|model_transaction_policy)\s*:?\s*[\[{]\s*$", re.M
)
_SHELL_LINE = re.compile(r"\A#!.*sh\b|^\s*(exec\s+)?(\S+/)?trtllm-serve\b", re.M)


@dataclass(frozen=True)
class Text:
    """A file that was read: its text, and the YAML documents in it where it may hold some.

    `unread` names parts of a template that are no YAML before it is filled in.
    """

    path: Path
    text: str
    form: str
    documents: Sequence[Yaml] = ()
    is_template: bool = False
    unread: tuple[str, ...] = ()
    second: Location | None = None  # where another document begins, if one of them is empty

    @cached_property
    def servers(self) -> list[list[Worker]]:
        """The servers that the containers of each document start, whatever the release."""
        return [containers.in_documents([document]) for document in self.documents]

    @cached_property
    def commands(self) -> list[list[ContainerCommand]]:
        """What the containers of each document run."""
        return [list(container_commands(document)) for document in self.documents]


def read(path: Path) -> Text:
    """A file by its form. Raises `BadInput` if it cannot be read."""
    text = read_text(path)
    form = _form(path, text)
    if form == PROSE:
        return Text(path, "", PROSE)
    if form == DOCKERFILE:
        text = dockerfile.as_shell(text)
    if form == SCRIPT and script.is_recipe(path.name):
        text = script.recipe_as_shell(text)
    if form in (SCRIPT, DOCKERFILE):
        text = as_shell(text)
    silent = form == SCRIPT and not _is_telling(text)
    if silent or (form == PYTHON and not _is_telling_program(text)):
        return Text(path, "", form)
    if form and len(text) > MAX_CHARACTERS:
        what = f"{len(text)} characters are too many for a {form}"
        raise BadInput(Diagnostic(str(path), what, f"up to {MAX_CHARACTERS} are read"))
    if form:
        return Text(path, text, form)
    if "{{" in text or "{%" in text:
        masked = MaskedText(text, TEMPLATE)
        documents = masked.documents()
        broken = [document for document in documents if not document.readable]
        if masked.originals and (not broken or masked.has_statements):
            unread = (*map(_unread, broken), *map(_in_other_branch, masked.other_branches))
            documents = [document for document in documents if document.readable]
            return Text(path, text, form, documents, is_template=True, unread=unread)
    documents = scan_yaml(text)
    told = [row for row in documents if row.data is not None or row.diagnostics]
    if told and len(told) < len(documents):
        return Text(path, text, form, told, second=documents[1].places[""])
    return Text(path, text, form, documents)


def of_empty_documents(source: Text) -> list[Diagnostic]:
    """What an engine has against a file of options beside which there are empty documents."""
    if source.second is None:
        return []
    what = "begins a second document, and one of them is empty"
    return [located(source.second, "", what, "leave --- out: an engine reads one document")]


def _unread(document: Yaml) -> str:
    """The part of a template that cannot be read."""
    line = document.diagnostics[0].location.line
    return f"line {line}: is no YAML before the template is filled in"


def _in_other_branch(repeated: Diagnostic) -> str:
    """A key of which only the last branch is read."""
    return f"line {repeated.location.line}: {repeated.path} in the branches before this one"


def _is_telling(text: str) -> bool:
    """Whether a script has anything to judge."""
    if script.mentions_any(text) or job_script.is_job(text):
        return True
    from ..facts import engines, images

    return engines.are_mentioned(text) or images.are_named(text)


def _is_telling_program(text: str) -> bool:
    """Whether a Python program has anything to judge."""
    from . import python_api, python_writing

    starts = python_writing.may_hold(text) or python_writing.may_start(text)
    return starts or python_api.may_hold(text)


def _form(path: Path, text: str) -> str:
    """`MODEL_CONFIG`, `SCRIPT`, `DOCKERFILE` or `PROSE`; empty for what may be YAML."""
    if path.suffix in YAML_SUFFIXES:
        return ""
    if dockerfile.is_dockerfile(path.name) and dockerfile.has_base(text):
        return DOCKERFILE
    if path.suffix.lower() in PROSE_SUFFIXES:
        return PROSE
    if path.suffix == ".py":
        return PYTHON
    is_script = script.is_recipe(path.name) or path.suffix in _SCRIPT_SUFFIXES
    if is_script or text.startswith("#!"):
        return SCRIPT
    if ".pbtxt" in path.suffixes or _MODEL_CONFIG_LINE.search(text):
        return MODEL_CONFIG
    return SCRIPT if _SHELL_LINE.search(text) or job_script.is_job(text) else ""


def mentions_options(text: str, release: Release) -> bool:
    """Whether a text has a line that gives an engine option, readable or not."""
    keys = re.findall(r"^[\s-]*([a-z]\w*_\w+)[ \t]*:", text, re.M)
    return any(key in release.top_level or key == "triton_config" for key in keys)


def validate(
    source: Text,
    rule_context: RuleContext,
    versions: named_images.Policy = _WARNING,
    for_mentioned_gpu: bool = True,
) -> Verdict:
    """One file by one release, and by what is said of vulnerable `versions`. What is wrong only on
    the GPU that the file mentions is warned of."""
    asked = for_mentioned_gpu and not rule_context.gpu
    said = mentioned_gpus.of_text(source.text) if asked else None
    if said is None:
        return _of_file(source, rule_context, versions)
    gpu = replace(rule_context, gpu=hardware.load(said.kind), num_gpus=said.count or None)
    told = _of_file(source, gpu, versions)
    has_options = told.judged.sections or told.judged.commands
    if has_options and not told.diagnostics:
        return told  # as most files: nothing to say whether it is wrong for that GPU only
    found = _of_file(source, rule_context, versions)
    if not has_options:
        return found
    known = {_fault(row) for row in found.diagnostics}
    rows = [row if _fault(row) in known else _doubtful(row, said) for row in told.diagnostics]
    return replace(told, diagnostics=rows)


def _fault(diagnostic: Diagnostic) -> tuple[Location, str, str]:
    return diagnostic.location, diagnostic.path, diagnostic.rule


def _doubtful(diagnostic: Diagnostic, said: mentioned_gpus.Mention) -> Diagnostic:
    """What is wrong only if a file is for the GPU that a remark or a name in it speaks of."""
    what = f"{diagnostic.message} (line {said.line} names {said.kind})"
    return replace(diagnostic, message=what, severity="warning")


def _of_file(source: Text, rule_context: RuleContext, versions: named_images.Policy) -> Verdict:
    if source.form == MODEL_CONFIG:
        from . import model_config

        rows = islice(model_config.diagnostics(source.text, source.path), MAX_DIAGNOSTICS)
        return Verdict(MODEL_CONFIG, list(rows), ITSELF)
    if source.form == PROSE:
        return Verdict(None, [])
    if source.form == PYTHON:
        return script_judging.python_verdict(source.text, rule_context)
    named, diagnostics = named_images.read(source.text, versions)
    if source.form in (SCRIPT, DOCKERFILE):
        return _script(source, rule_context, named, diagnostics)
    if variants.may_be(source.documents, rule_context.release):

        def judge(variant: Yaml) -> Verdict:
            return _of_yaml(replace(source, documents=[variant]), rule_context, named, diagnostics)

        return variants.verdict(source.documents[0], judge)
    return _of_yaml(source, rule_context, named, diagnostics)


def _of_yaml(
    source: Text, rule_context: RuleContext, named: int, diagnostics: Sequence[Diagnostic]
) -> Verdict:
    syntax = [row for document in source.documents for row in document.diagnostics]
    content = kinds.read(source.documents, rule_context.release)
    if content and content.kind == kinds.ENGINE and rule_context.role == "agg":
        content.sections = [of_named_side(row, source.path.name) for row in content.sections]
    if content is None or content.kind.startswith(kinds.KUBERNETES):
        content = _with_embedded(source, content, rule_context.release)
    servers = [server for row in source.servers for server in row]
    around = list(_around(source, content, servers, rule_context))
    if content is None and any(row.rule == rules.MISSPELT_NAME for row in around):
        return Verdict(surroundings.layout(source.documents[0]), [*syntax, *around], ITSELF)
    if content is None:
        if not _uses_images(source):
            return Verdict(None, syntax)
        found = [*syntax, *diagnostics, *around]
        return Verdict(IMAGES if named else None, found, Judged(images=named))
    kind = content.kind
    judged = Judged(
        len(content.sections),
        images=named,
        variables=tuple(script_judging.variables(content.sections)),
        unread=(*content.unread, *source.unread),
    )
    own = kind not in (kinds.ENGINE, *kinds.SURROUNDINGS, *embedded.KINDS)
    judged += Judged(itself=own or content.is_read)
    found = [
        *syntax,
        *diagnostics,
        *script_judging.content_diagnostics(content, rule_context, servers),
        *around,
    ]
    if kind not in kinds.SURROUNDINGS and kind not in embedded.KINDS:
        found += of_empty_documents(source)
    if content.kind.startswith((kinds.KUBERNETES, *embedded.KINDS)):
        for started, commands in zip(source.servers, source.commands, strict=True):
            by_path = workers.by_path(started)
            for run in commands:
                within = [row for path in above(run.path) for row in by_path.get(path, ())]
                verdict = _run(run, source.path, content, rule_context, within)
                found += verdict.diagnostics
                judged += verdict.judged
        judged = replace(judged, commands=max(judged.commands, len(servers)))
        if content.kind in kinds.SURROUNDINGS and (judged.commands or judged.sections):
            kind = kinds.KUBERNETES
    if content.kind in embedded.KINDS and not judged:
        return Verdict(None, syntax)
    return Verdict(f"{kind}, a template" if source.is_template else kind, found, judged)


def _with_embedded(source: Text, content: Content | None, release: Release) -> Content | None:
    """A file with the options that stand in it beside those of its own format."""
    if not any(isinstance(document.data, dict) for document in source.documents):
        return content  # a list of its own is a data set and starts nothing
    inside = embedded.read(source.documents, release)
    if content is None:
        starts = (script.COMMAND, script.MODULE, workers.WORKER, *workers.TOOLS)
        runs = any(name in source.text for name in starts)
        return inside or (embedded.empty(source.documents) if runs else None)
    if inside:
        known = {(section.path, section.within) for section in content.sections}
        content.sections += (row for row in inside.sections if (row.path, row.within) not in known)
        content.diagnostics += inside.diagnostics
    return content


def _around(
    source: Text, content: Content | None, servers: Sequence[Worker], rule_context: RuleContext
) -> Iterator[Diagnostic]:
    """What is wrong around the engine options of a YAML file: names, models and numbers of GPUs."""
    first = source.documents[0] if source.documents else Yaml()
    content = content or Content("", document=first)
    if content.kind == kinds.DEPLOYMENT:
        return
    if content.kind or servers or surroundings.layout(content.document):
        yield from surroundings.variable_diagnostics(source.text)
        yield from surroundings.misspelt_keys(content.document)
        yield from surroundings.wrong_values(content.document)
    if not rule_context.checkpoint:
        section = content.sections[0] if content.sections else Section({}, content.document)
        if content.kind and section.document.data is content.document.data:
            yield from serving.model_diagnostics(section.document, section.options, section.path)
        yield from workers.unknown_models(servers)
    yield from surroundings.recipe_diagnostics(content.document, content.sections)
    for document in source.documents if "trtllm-" in source.text else ():
        yield from containers.misspelt_programs(document)
    yield from containers.no_texts(source.documents)
    if servers:
        yield from containers.diagnostics(source.documents)
        yield from dynamo_graphs.diagnostics(source.documents)
        yield from references.diagnostics(source.documents)
    else:
        yield from _gpus_beside(content)
    options = workers.on_disk(servers, source.path.parent) | workers.by_file(content.sections)
    scripts = [run.script for row in source.commands for run in row] if servers else []
    for each in scripts:
        options |= script_judging.written_options(each, rule_context)
    if content.kind == embedded.COMPOSE:
        services, folder = compose_services.services(content.document), source.path.parent
        options = compose_services.option_files(services, folder) | options
        yield from compose_services.diagnostics(content.document, services, options, folder)
    places = [section.file for section in content.sections if "/" in section.file]
    handed = handed_files.of_scripts(scripts, source.text, places)
    yield from worker_rules.diagnostics(servers, options, rule_context, handed=handed)


def _gpus_beside(content: Content) -> Iterator[Diagnostic]:
    """GPUs that a chart's values or the like ask for, against the ranks of the options there."""
    for section in content.sections if content.kind in embedded.KINDS else ():
        here = containers.object_at(section.document, section.path)
        around = here.around if here else None
        sizes = [name for name in section.options if str(name).endswith("_parallel_size")]
        world = surroundings.world_size(section.options) if sizes else None
        gpus = around.total if around else None
        gpus = gpus or surroundings.gpus_beside(section.document, section.path)
        if world and gpus and not section.within:
            found = surroundings.gpu_diagnostic(world, gpus.count, gpus.location, gpus.path)
            if found:  # they may be those of one node of several
                yield replace(found, severity="warning")


def _uses_images(source: Text) -> bool:
    """Whether the images that a file names are those that it starts, as far as its form tells."""
    rows = source.documents
    return dockerfile.has_base(source.text) or any(isinstance(x.data, dict | list) for x in rows)


def _script(
    source: Text, rule_context: RuleContext, named: int, diagnostics: Sequence[Diagnostic]
) -> Verdict:
    servers = script_workers.in_script(source.text)
    read_script = script.read(source.text)
    misspelt = list(program_names.misspelt(read_script.statements))
    is_whole = source.form == SCRIPT and not script.is_recipe(source.path.name)
    open_quote = open_quotes.diagnostic(script.without_data(source.text)) if is_whole else None
    misspelt += [open_quote] if open_quote else []
    ran = script_judging.verdict(read_script, source.text, source.path, {}, rule_context, servers)
    if ran.judged or (named and source.form == DOCKERFILE):
        diagnostics = [*diagnostics, *_around_script(source, servers, read_script, rule_context)]
    judged = ran.judged + Judged(images=named)
    found = [*misspelt, *diagnostics, *ran.diagnostics]
    if job_script.is_job(source.text) or (servers and "srun" in source.text):
        from . import job_rules

        job, folder = job_script.read(source.text), source.path.parent
        if job_script.is_job(source.text):
            found += job_rules.line_ends(source.path)
            found += job_rules.diagnostics(job, folder, rule_context.block)
            return Verdict(JOB, found, judged + ITSELF)
        found += job_rules.ranks(job, folder)
    kind = source.form if ran.judged or misspelt else IMAGES if named else None
    return Verdict(kind, found, judged)


def _around_script(
    source: Text, servers: Sequence[Worker], found: script.Script, rule_context: RuleContext
) -> Iterator[Diagnostic]:
    """What is wrong around the commands of a script: names, models and numbers of GPUs."""
    yield from surroundings.variable_diagnostics(source.text)
    if not rule_context.checkpoint:
        yield from workers.unknown_models(servers)
    options = workers.on_disk(servers, source.path.parent) | script_judging.written_options(
        found, rule_context
    )
    in_job, handed = job_script.is_job(source.text), handed_files.of_scripts([found])
    yield from worker_rules.diagnostics(servers, options, rule_context, in_job, handed)


def _run(
    run: ContainerCommand,
    path: Path,
    content: Content,
    rule_context: RuleContext,
    servers: Sequence[Worker],
) -> Verdict:
    """The errors of what a container runs, beside the files that config maps give it."""
    mounted = {name for server in servers for name in server.config_maps.values()}
    given = {
        workers.file_name(section): Content(kinds.ENGINE, [section])
        for section in content.sections
        if section.config_map in mounted or not (mounted and section.config_map)
    }
    verdict = script_judging.verdict(run.script, run.text, path, given, rule_context, servers)
    told = {(place, server.path) for server in servers for _, place in server.words}
    return replace(verdict, diagnostics=[run.move(row, told) for row in verdict.diagnostics])
