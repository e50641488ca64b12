"""Finds the files to check, and reads each by its form: script, Dockerfile, Python program, YAML or
Triton configuration.

A file in a bundle has the bundle's context.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ...diagnostics import NOWHERE, Diagnostic, Location, located
from ...documents import Yaml, scan_yaml, value_at
from ...errors import BadFacts, BadInput, ToolkitError
from ...facts import engines
from ...facts.release import Release, ServerRole
from ...files import MANIFEST, is_folder, is_there, load_json_mapping, read_text
from ..engine import ENGINE_FILE, default_formats, formats, starts_triton
from ..model import Server, StatedWorkload, below, int_at
from ..rules import DAMAGED_BUNDLE, UNREADABLE
from .versions import pins_engine
from .yaml_text import TEMPLATE, MaskedText, template_as_shell

if TYPE_CHECKING:
    from ...facts.checkpoint import Checkpoint
    from .containers import ContainerCommand
    from .shell import Script
    from .slurm import Job

IMAGES = "container images"  # a file of another kind that names images of the publisher
_NAME = re.compile(r"(?:Docker|Container)file(?:\..+)?|.+\.(?:docker|container)file", re.IGNORECASE)
_FROM = re.compile(r"^FROM[ \t]+\S+", re.MULTILINE | re.IGNORECASE)


def is_dockerfile(name: str) -> bool:
    return _NAME.fullmatch(Path(name).name) is not None


def is_requirements(name: str) -> bool:
    return _REQUIREMENTS.fullmatch(Path(name).name) is not None


def has_base(text: str) -> bool:
    """Returns whether a text has a `FROM` line, as every Dockerfile does."""
    return _FROM.search(text) is not None


SCRIPT = "script"
MODEL_CONFIG = "Triton config.pbtxt"
DOCKERFILE = "Dockerfile"
TRITON_COMMANDS = "Triton commands"  # and nothing of an engine
PYTHON = "Python program"
PROSE = "text"
REQUIREMENTS = "Python requirements"
_REQUIREMENTS = re.compile(r"(?:.*[-_.])?(?:requirements|constraints)(?:[-_.].*)?\.(?:txt|in)")
YAML_SUFFIXES = (".yaml", ".yml", ".json")
_SCRIPT_SUFFIXES = (".sh", ".bash", ".sbatch", ".slurm")
# Files that describe options, images and commands without using them.
PROSE_SUFFIXES = (".md", ".markdown", ".rst", ".adoc", ".html", ".ipynb")
_MODEL_CONFIG_LINE = re.compile(
    r"^\s*(input|output|instance_group|parameters|model_transaction_policy)\s*:?\s*[\[{]\s*$", re.M
)


@cache
def _shell_line() -> re.Pattern[str]:
    return re.compile(rf"\A#!.*sh\b|^\s*(exec\s+)?(\S+/)?{default_formats().program}\b", re.M)


def form_of(path: Path, text: str) -> str:
    """Returns the form of a file, such as `SCRIPT`; empty if the file may be YAML."""
    if path.suffix in YAML_SUFFIXES:
        return ""
    if is_dockerfile(path.name) and has_base(text):
        return DOCKERFILE
    if path.suffix.lower() in PROSE_SUFFIXES:
        return PROSE
    if path.suffix == ".py":
        return PYTHON
    if is_requirements(path.name):
        return REQUIREMENTS
    if path.suffix in _SCRIPT_SUFFIXES or text.startswith("#!"):
        return SCRIPT
    if ".pbtxt" in path.suffixes or _MODEL_CONFIG_LINE.search(text):
        return MODEL_CONFIG
    return SCRIPT if _shell_line().search(text) or is_job(text) else ""


SUFFIXES = frozenset(
    (".yaml", ".yml", ".json", ".pbtxt", ".sh", ".bash", ".sbatch", ".slurm", ".tpl", ".j2")
)


def is_job(text: str) -> bool:
    return re.search(r"^#SBATCH\s", text, re.M) is not None


# Real files are shorter, and reading longer ones is slow.
MAX_CHARACTERS = 300_000


@dataclass(frozen=True)
class Text:
    """The text of a file, with its YAML documents if it may contain some. `unread` names the parts
    of a template that are not YAML before the template is filled in."""

    path: Path
    text: str
    form: str
    documents: Sequence[Yaml] = ()
    is_template: bool = False
    unread: tuple[str, ...] = ()
    second: Location | None = None  # start of the second document if one of them is empty

    @cached_property
    def told_lines(self) -> frozenset[int]:
        """The lines of documentation in values of its documents, which run nothing."""
        found: set[int] = set()
        for document in self.documents if "```" in self.text else ():
            for path, text in texts(document.data):
                if "```" in text:
                    start = (document.blocks.get(path) or document.locate(path)).line
                    found.update(range(start, start + text.count("\n") + 1))
        return frozenset(found)

    @cached_property
    def script(self) -> Script:
        """The file as a shell script, read once for all releases and rules."""
        from . import shell  # not needed for option files

        return shell.read_script(self.text)

    @cached_property
    def job(self) -> Job:
        """The file as a Slurm job script."""
        from . import slurm

        return slurm.read_job(self.script)

    @cached_property
    def servers(self) -> list[list[Server]]:
        """The servers that the containers of each document start."""
        from . import containers  # not needed for option files

        return [containers.in_documents([document]) for document in self.documents]

    @cached_property
    def commands(self) -> list[list[ContainerCommand]]:
        """The commands that the containers of each document run."""
        from . import containers

        return [list(containers.container_commands(document)) for document in self.documents]


def read_file(path: Path) -> Text:
    """Reads a file by its form. Raises `BadInput` if it cannot be read."""
    text = read_text(path)
    form = form_of(path, text)
    if form == PROSE:
        return Text(path, "", PROSE)
    if form in (SCRIPT, DOCKERFILE):
        text = _as_shell(path, text, form)
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


def may_hold(engine: str, source: Text) -> bool:
    """Returns whether a file may contain commands or options of an engine, without loading its
    release tables."""
    known, text = formats(engine), source.text
    data = source.documents[0].data if source.documents else None
    wrapped = (*known.wrapped_in, known.wrapped_beside)
    names = (engine, engine.upper(), known.program, *known.signature, *known.marks, *wrapped)
    if any(each and (each in text or each.replace("_", "-") in text) for each in names):
        return True
    keys = [str(key) for key in data] if isinstance(data, Mapping) else []
    is_model = source.path.name == ENGINE_FILE and "model" in keys
    return is_model or any("-" in key for key in keys)


def texts(data: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the texts of a document with their paths."""
    items: Any = enumerate(data) if isinstance(data, list) else ()
    for key, value in data.items() if isinstance(data, Mapping) else items:
        inner = below(path, str(key))
        if isinstance(value, str):
            yield inner, value
        yield from texts(value, inner)


def _as_shell(path: Path, text: str, form: str) -> str:
    """Returns the commands of a script or a Dockerfile as shell text."""
    from . import shell  # not needed for most files

    if form == DOCKERFILE:
        text = shell.dockerfile_as_shell(text)
    return template_as_shell(text)


def _unread(document: Yaml) -> str:
    """Describes a part of a template that cannot be read."""
    line = document.diagnostics[0].location.line
    return f"line {line}: is not YAML until the template is filled in"


def _in_other_branch(repeated: Diagnostic) -> str:
    """Describes a key that several branches set; only the last branch is read."""
    return f"line {repeated.location.line}: {repeated.path} in the branches before this one"


def _is_telling(text: str) -> bool:
    """Returns whether a script contains anything to check."""
    from ...facts import engines, images
    from . import shell

    if shell.mentions_any(text) or is_job(text) or starts_triton(text):
        return True
    return engines.are_mentioned(text) or images.are_named(text)


def _is_telling_program(text: str) -> bool:
    """Returns whether a Python program contains anything to check."""
    from . import python

    return python.may_write(text) or python.may_start(text) or python.may_be_program(text)


def mentions_options(text: str, release: Release) -> bool:
    """Returns whether a text has a line that sets an engine option, even if it is not valid
    YAML."""
    keys = re.findall(r"^[\s-]*([a-z]\w*_\w+)[ \t]*:", text, re.M)
    return any(key in release.top_level or key == "triton_config" for key in keys)


# Maximum depth of a file in a bundle: triton/model_repository/NAME/1/model.yaml.
_BUNDLE_DEPTH = 6


@dataclass(frozen=True)
class BundleContext:
    """What a bundle defines for its files. `folder` is the folder of the bundle.
    `accepted_warnings` are paths in the deployment, each with a rule or ""."""

    folder: Path
    engine: str
    release: str
    role: ServerRole | None
    workload: StatedWorkload
    checkpoint: Checkpoint | None
    block_size: int | None
    damage: tuple[Diagnostic, ...]
    accepted: frozenset[tuple[str, str]] = frozenset()
    accepted_warnings: frozenset[tuple[str, str]] = frozenset()

    def accepts(self, row: Diagnostic) -> bool:
        """Returns whether the deployment accepts this warning about an engine option."""
        paths = {(f"engine_config.{row.path}", rule) for rule in ("", row.rule)}
        return row.severity == "warning" and not paths.isdisjoint(self.accepted_warnings)


@dataclass(frozen=True)
class SourceFile:
    """A file to check. `given` means that the user named the file. `diagnostic` is set if the file
    cannot be listed."""

    path: Path
    given: bool = False
    context: BundleContext | None = None
    diagnostic: Diagnostic | None = None


def expand(paths: Sequence[Path], unread: Counter[str]) -> Iterator[SourceFile]:
    """Yields each file of the paths once; files of a folder are sorted by name. `unread` counts the
    files of folders that check does not support, by suffix."""
    seen: set[tuple[int, int]] = set()
    for path in dict.fromkeys(paths):
        if is_folder(path):
            yield from _folder(path, path.resolve(), seen, _enclosing(path), unread)
        else:
            yield SourceFile(path, given=True, context=_enclosing(path))


def _folder(
    folder: Path,
    given: Path,
    seen: set[tuple[int, int]],
    context: BundleContext | None,
    unread: Counter[str],
) -> Iterator[SourceFile]:
    """Yields the files below a folder, and enters each folder once.

    Links to files are followed. Links to folders are followed only inside the `given` folder: a
    link to `/` would otherwise read every file of the machine.
    """
    try:
        status = folder.stat()
        if (status.st_dev, status.st_ino) in seen:
            return
        seen.add((status.st_dev, status.st_ino))
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        what = f"cannot be read: {reason}"
        yield SourceFile(
            folder, diagnostic=located(NOWHERE, "", what, "check the path", UNREADABLE)
        )
        return
    if own := _surroundings(folder):  # a bundle, possibly inside another one
        context = own
        for diagnostic in own.damage:
            found = located(NOWHERE, "", diagnostic.message, diagnostic.fix, DAMAGED_BUNDLE)
            yield SourceFile(folder / diagnostic.where, diagnostic=found)
    for entry in entries:
        path = folder / entry.name
        if entry.name.startswith(".") or entry.name in ("__pycache__", "node_modules"):
            continue
        if _is(entry, "is_dir"):
            if entry.is_symlink() and not path.resolve().is_relative_to(given):
                unread["link to a folder elsewhere"] += 1
            else:
                yield from _folder(path, given, seen, context, unread)
        elif not _is(entry, "is_file"):
            yield from _no_file(path, entry.is_symlink())
        elif _may_be_judged(path):
            yield SourceFile(path, context=context)
        elif context is None:
            unread[path.suffix or "without suffix"] += 1


def _no_file(path: Path, is_link: bool) -> Iterator[SourceFile]:
    """Warns about a path with a supported name that is a pipe or a broken link."""
    if path.suffix in SUFFIXES or is_dockerfile(path.name):
        what = "is a link that leads to no file" if is_link else "is no plain file"
        row = located(
            NOWHERE, "", f"{what}: not checked", "put a file there", UNREADABLE, "warning"
        )
        yield SourceFile(path, diagnostic=row)


def _may_be_judged(path: Path) -> bool:
    """Returns whether check reads a file that it found in a folder. A Python program must use the
    engine, start it or write options for it; requirements must pin it."""
    pins = is_requirements(path.name)
    if path.suffix != ".py" and not pins:
        return path.suffix in SUFFIXES or is_dockerfile(path.name)
    try:
        text = read_text(path)
    except BadInput:
        return False
    if pins:
        return pins_engine(text)
    from . import python

    if python.may_start(text) or python.may_be_program(text):
        return True
    is_named = re.search(default_formats().named, text, re.IGNORECASE) is not None
    return is_named and python.may_write(text)


def _is(entry: os.DirEntry[str], kind: str) -> bool:
    try:
        return bool(getattr(entry, kind)())
    except OSError:  # a link to itself
        return False


def _enclosing(path: Path) -> BundleContext | None:
    """Returns the context of the bundle that contains a file."""
    above = Path(os.path.abspath(path)).parents[:_BUNDLE_DEPTH]  # noqa: PTH100, links are kept
    return next((found for folder in above if (found := _surroundings(folder))), None)


@lru_cache(maxsize=8)
def _surroundings(folder: Path) -> BundleContext | None:
    """Returns the context of a folder if it is a bundle."""
    manifest = _read_json(folder / MANIFEST)
    engine = manifest.get("engine")
    if "format" not in manifest or not isinstance(engine, dict) or "release" not in engine:
        return None
    from ... import bundle  # not needed outside a bundle
    from ...facts import advisories, checkpoint

    damage: tuple[Diagnostic, ...] = ()
    facts = None
    try:
        bundle.read(folder)
        facts = checkpoint.from_bundle(folder)
    except ToolkitError as error:
        damage = tuple(error.diagnostics)
    request = _request(folder / "deployment.yaml")
    role, gpu = value_at(request, "role"), value_at(request, "hardware.gpu")
    return BundleContext(
        folder,
        name if (name := engine.get("name")) in engines.names() else engines.default().name,
        str(engine["release"]),
        role if role in get_args(ServerRole) else None,
        StatedWorkload(
            int_at(request, "workload.isl"),
            int_at(request, "workload.osl"),
            int_at(request, "workload.concurrency"),
            gpu if isinstance(gpu, str) else None,
        ),
        facts,
        int_at(request, "targets.slurm.site.block_size"),
        damage,
        frozenset(_accepted(value_at(request, advisories.ACCEPTED))),
        frozenset(_accepted_warnings(request)),
    )


def _accepted(rows: Any) -> Iterator[tuple[str, str]]:
    """Yields the products and versions whose vulnerabilities a deployment accepts."""
    for row in rows if isinstance(rows, list) else ():
        yield str(value_at(row, "product")), str(value_at(row, "version"))


def _accepted_warnings(request: Any) -> Iterator[tuple[str, str]]:
    """Yields the accepted warnings of a deployment and of the prefill deployments of its
    targets."""
    targets = value_at(request, "targets")
    named = targets if isinstance(targets, dict) else {}
    sides = (value_at(named, f"{name}.prefill.deployment") for name in named)
    for side in (request, *sides):
        rows = value_at(side, "accepted_warnings")
        for row in rows if isinstance(rows, list) else ():
            yield str(value_at(row, "path")), str(value_at(row, "rule") or "")


def _request(path: Path) -> Any:
    try:
        return scan_yaml(read_text(path))[0].data
    except BadInput:
        return None


def _read_json(path: Path) -> Mapping[str, Any]:
    if not is_there(path):
        return {}  # avoids an exception for each parent folder
    try:
        return load_json_mapping(path)
    except BadFacts:
        return {}
