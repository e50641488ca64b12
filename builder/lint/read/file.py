"""Reads a file by its form: script, Dockerfile, Python program, YAML, Triton configuration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ...diagnostics import Diagnostic, Location
from ...documents import Yaml, scan_yaml
from ...errors import BadInput
from ...facts.release import Release
from ...files import read_text
from ..model import Server
from .forms import DOCKERFILE, PROSE, PYTHON, SCRIPT, form_of, is_job, is_recipe
from .yaml_text import TEMPLATE, MaskedText, template_as_shell

if TYPE_CHECKING:
    from .containers import ContainerCommand

# Nobody writes longer ones, and reading them takes long.
MAX_CHARACTERS = 300_000


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
    def servers(self) -> list[list[Server]]:
        """The servers that the containers of each document start, whatever the release."""
        from . import containers  # option files have none

        return [containers.in_documents([document]) for document in self.documents]

    @cached_property
    def commands(self) -> list[list[ContainerCommand]]:
        """What the containers of each document run."""
        from . import containers

        return [list(containers.container_commands(document)) for document in self.documents]


def read_file(path: Path) -> Text:
    """A file by its form. Raises `BadInput` if it cannot be read."""
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


def _as_shell(path: Path, text: str, form: str) -> str:
    """The commands of a script or a Dockerfile as a shell reads them."""
    from . import dockerfile, shell  # most files are neither

    if form == DOCKERFILE:
        text = dockerfile.dockerfile_as_shell(text)
    elif is_recipe(path.name):
        text = shell.recipe_as_shell(text)
    return template_as_shell(text)


def _unread(document: Yaml) -> str:
    """The part of a template that cannot be read."""
    line = document.diagnostics[0].location.line
    return f"line {line}: is not YAML until the template is filled in"


def _in_other_branch(repeated: Diagnostic) -> str:
    """A key of which only the last branch is read."""
    return f"line {repeated.location.line}: {repeated.path} in the branches before this one"


def _is_telling(text: str) -> bool:
    """Whether a script has anything to judge."""
    from ...facts import engines, images
    from . import shell

    if shell.mentions_any(text) or is_job(text):
        return True
    return engines.are_mentioned(text) or images.are_named(text)


def _is_telling_program(text: str) -> bool:
    """Whether a Python program has anything to judge."""
    from . import python_api, python_files

    starts = python_files.may_write(text) or python_files.may_start(text)
    return starts or python_api.may_be_program(text)


def mentions_options(text: str, release: Release) -> bool:
    """Whether a text has a line that gives an engine option, readable or not."""
    keys = re.findall(r"^[\s-]*([a-z]\w*_\w+)[ \t]*:", text, re.M)
    return any(key in release.top_level or key == "triton_config" for key in keys)
