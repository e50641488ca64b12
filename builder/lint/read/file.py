"""Reads a file by its form: script, Dockerfile, Python program, YAML or Triton configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...diagnostics import Diagnostic, Location
from ...documents import Yaml, scan_yaml
from ...errors import BadInput
from ...facts.release import Release
from ...files import read_text
from ..engine import ENGINE_FILE, formats
from ..model import Server, below
from .yaml_text import TEMPLATE, MaskedText, template_as_shell

if TYPE_CHECKING:
    from .containers import ContainerCommand
    from .shell import Script
    from .slurm import Job


from functools import cache

from ..engine import default_formats

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

    if shell.mentions_any(text) or is_job(text):
        return True
    return engines.are_mentioned(text) or images.are_named(text)


def _is_telling_program(text: str) -> bool:
    """Returns whether a Python program contains anything to check."""
    from . import python_api, python_files

    starts = python_files.may_write(text) or python_files.may_start(text)
    return starts or python_api.may_be_program(text)


def mentions_options(text: str, release: Release) -> bool:
    """Returns whether a text has a line that sets an engine option, even if it is not valid
    YAML."""
    keys = re.findall(r"^[\s-]*([a-z]\w*_\w+)[ \t]*:", text, re.M)
    return any(key in release.top_level or key == "triton_config" for key in keys)
