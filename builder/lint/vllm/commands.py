"""Reads the server commands of vLLM in scripts, Dockerfiles, containers and lists of words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ...diagnostics import Location
from ...documents import START, Yaml
from ..engine import formats, image_pattern
from ..model import Gpus
from ..read.commands import of_job
from ..read.containers import command_keys, containers, object_at, words_of
from ..read.python_files import command_lines
from ..read.shell import (
    HereDocument,
    Statement,
    Word,
    is_script,
    read_script,
    runs_code,
    starting,
    statements,
)
from ..read.shell_values import Values, parts
from ..read.slurm import is_job
from ..read.yaml_text import inside

_MAX_DEPTH = 3  # of command lines inside command lines
_BASE = re.compile(r"^FROM[ \t]+(?:--\S+[ \t]+)?(?P<image>\S+)", re.M | re.IGNORECASE)
_PLACEHOLDER = re.compile(r"<\w[\w .|/-]*>|(?<=\s)\{\w+(?:\|\w+)+\}")  # what a reader is to fill in
_VISIBLE = re.compile(r"(CUDA_VISIBLE_DEVICES)=(\d+(?:,\d+)*)")
_HANDLES = frozenset(
    ("build", "buildx", "tag", "push", "pull", "save", "load", "inspect", "rmi", "copy", "set")
)
_RUNS = frozenset(("run", "create", "exec"))
_ELSEWHERE = frozenset(("docker", "podman", "ssh", "kubectl"))  # the shell's variables end there
_DEVICES = re.compile(r"device=(\d+(?:,\d+)*)|(\d+)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.S)
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_FENCE = re.compile(
    r"^([ \t]*)```[ \t]*(?:bash|sh|shell|console|zsh)?[ \t]*\n(.*?)^\1```", re.M | re.S
)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The words behind the server's program.

    `path` is its place in a document, and `is_open` says that a program or an image may take flags
    that are none of the server's own. The model of a module stands behind a flag, not first.
    """

    words: tuple[Word, ...]
    path: str = ""
    is_open: bool = False
    is_part: bool = False  # flags alone, of a command that something else puts together
    gpus: Gpus | None = None  # that its container or its line leaves it
    before: tuple[Word, ...] = ()  # what starts its container
    container: str = ""  # the path of the one whose only server it is
    statement: Statement | None = None  # of a script, the words as they are written
    again: Word | None = None  # a program behind the entry point of an image, which is the server


def mentions(text: str) -> bool:
    """Whether a text can hold a server command."""
    known = formats()
    names = (*known.modules, *known.workers, *known.images, *known.extended_images)
    return (
        f"{known.program} {known.subcommand}" in text
        or any(name in text for name in names)
        or (re.search(rf"\b{known.program}[\"', \t]+{known.subcommand}\b", text) is not None)
    )


def in_text(text: str, start: Location = START, depth: int = 0) -> list[CommandLine]:
    """The server commands of a script, of those that it writes or hands to another shell."""
    text = _PLACEHOLDER.sub(lambda found: "$" + "_" * (len(found[0]) - 1), text)
    here = list(read_script(text, start).here) if "<<" in text else []
    rows = statements(text, start)
    found: list[CommandLine] = []
    named: dict[str, bool] = {}  # the variables of commands, and whether one is open
    split: set[str] = set()  # those of them whose values the shell takes apart
    visible = _visible(rows)
    values = Values(rows)
    for statement in starting(rows):
        words = values.words(statement.words)
        if words[0].text == "eval":
            words = [
                part for word in words for part in ((word,) if mentions(word.text) else parts(word))
            ]
        inner = list(_of_statement([word for word in words if not word.optional], depth))
        if inner and visible and not _ELSEWHERE & {word.text for word in statement.words}:
            inner = [replace(row, gpus=row.gpus or visible) for row in inner]
        if depth == 0 and len(inner) == 1:
            inner = [replace(inner[0], statement=statement)]
        if inner:
            is_open = any(row.is_open for row in inner)
            for word in words:
                for name in _REFERENCE.findall(word.text):
                    named[name] = is_open or named.get(name, False)
                    if not word.quoted:
                        split.add(name)
            more = tuple(word for word in words if word.optional)
            inner += [CommandLine(more, is_open=is_open, is_part=True)] if more else []
        found += inner
    found += _in_variables(rows, named, split)
    if len(found) == 1 and depth == 0 and is_job(text):  # several share its GPUs
        found = [replace(row, gpus=row.gpus or of_job(text)[0]) for row in found]
    for document in here:
        if depth < _MAX_DEPTH and _runs(document):
            at = Location(document.start.line + start.line - 1, document.start.column)
            found += in_text(document.text, at, depth + 1)
    return found


def _runs(document: HereDocument) -> bool:
    """Whether a here document is a script, by the file that it goes to or the command."""
    if document.name:
        return is_script(document)
    return (
        re.search(r"\b(?:ba|z|da|k)?sh\b|\bssh\b|\bsrun\b|\bsbatch\b", document.command) is not None
    )


def _of_statement(words: Sequence[Word], depth: int) -> Iterator[CommandLine]:
    known = formats()
    for index, word in enumerate(words):
        name = word.text.rpartition("/")[2]
        rest = words[index + 1 :]
        if name == known.program and rest and rest[0].text == known.subcommand:
            yield CommandLine(tuple(rest[1:]), gpus=_gpus_before(words[:index]))
            return
        if word.text in (*known.modules, *known.workers):
            is_open, gpus = word.text in known.workers, _gpus_before(words[:index])
            yield CommandLine(tuple(rest), is_open=is_open, gpus=gpus)
            return
        if (image := image_pattern().search(word.text)) and index:
            if _is_handled(words[:index]):
                return
            own = _entry_point(words[:index])
            inner = list(_of_statement((*own, *rest), depth))
            gpus, before = _gpus_before(words[:index]), tuple(words[:index])
            again = rest[0] if rest and not own and _starts(image) else None
            if inner:
                yield from (
                    replace(row, gpus=row.gpus or gpus, before=before, again=again) for row in inner
                )
            elif rest and _are_flags(rest) and not own:
                is_open = image["own"] is None
                yield CommandLine(tuple(rest), is_open=is_open, gpus=gpus, before=before)
            return
        if depth < _MAX_DEPTH and re.search(r"\s", word.text) and mentions(word.text):
            place = Location(word.location.line, word.location.column + 1)
            yield from in_text(word.text, place, depth + 1)


def _is_handled(words: Sequence[Word]) -> bool:
    """Whether the words before an image build, copy or name it, and start nothing."""
    texts = {word.text for word in words}
    return not _HANDLES.isdisjoint(texts) and _RUNS.isdisjoint(texts)


def _visible(rows: Sequence[Statement]) -> Gpus | None:
    """The GPUs that a script leaves all that it starts, where its lines agree on how many."""
    found: list[Gpus] = []
    for row in rows:
        words = row.words[row.words[0].text == "export" :]
        if not all(_ASSIGNMENT.fullmatch(word.text) for word in words):
            continue
        for word in words:
            if word.text.startswith("CUDA_VISIBLE_DEVICES"):
                given = _VISIBLE.fullmatch(word.text)
                if given is None:
                    return None
                found.append(Gpus(len(given[2].split(",")), word.location, given[1]))
    return found[0] if len({place.count for place in found}) == 1 else None


def _gpus_before(words: Sequence[Word]) -> Gpus | None:
    """The GPUs that the words before a server leave it: a variable, or docker's."""
    for index, word in enumerate(words):
        found = _VISIBLE.fullmatch(word.text)
        if found:
            return Gpus(len(found[2].split(",")), word.location, found[1])
        text = word.text.partition("=")[2]
        if word.text == "--gpus" and index + 1 < len(words):
            text = words[index + 1].text
        if word.text.startswith("--gpus") and (given := _DEVICES.fullmatch(text.strip("\"'"))):
            count = len(given[1].split(",")) if given[1] else int(given[2])
            return Gpus(count, word.location, "--gpus")
    return None


def _are_flags(words: Sequence[Word]) -> bool:
    """Whether words are a model and flags, or flags alone; the subcommand before them, which the
    entry point of an image has already, is told later."""
    after = bool(words) and words[0].text == formats().subcommand
    return any(re.match(r"--?[A-Za-z]", word.text) for word in words[after : after + 2])


def _starts(image: re.Match[str]) -> bool:
    """Whether the entry point of an image is the server."""
    return image["own"] is not None and image["own"] not in formats().bare_images


def _entry_point(words: Sequence[Word]) -> Sequence[Word]:
    """The program that a container starts instead of its image's own, where one is given."""
    for word, following in pairwise(words):
        if word.text == "--entrypoint":
            return [following]
    given = (word for word in words if word.text.startswith("--entrypoint="))
    return [replace(word, text=word.text.partition("=")[2]) for word in given]


def _in_variables(
    rows: Sequence[Statement], named: Mapping[str, bool], split: Collection[str]
) -> Iterator[CommandLine]:
    """Flags that a script keeps in a variable or an array which a command names. Of the `split`
    ones the spaces part words."""
    for row in rows:
        words = row.words
        last = _ASSIGNMENT.fullmatch(words[-1].text)
        if row.elements and last and last[1] in named:
            words = row.elements
            if last[1] in split:
                words = tuple(part for word in words for part in parts(word))
            if words and words[0].text.startswith("-"):
                yield CommandLine(words, is_open=named[last[1]], is_part=True)
            continue
        for word in words:
            given = _ASSIGNMENT.fullmatch(word.text)
            if given and given[1] in named and re.search(r"(?:^|\s)--?[a-z]", given[3]):
                inner = [
                    Word(each.text, word.location, each.certain)
                    for statement in statements(given[3])
                    for each in statement.words
                ]
                yield CommandLine(tuple(inner), is_open=named[given[1]], is_part=True)


def in_program(text: str) -> Iterator[CommandLine]:
    """The server commands that a Python program starts; it may add to each."""
    for words in command_lines(text):
        known = [word for word in words if word.text.strip()]
        yield from (replace(row, is_part=True) for row in _of_statement(known, _MAX_DEPTH))


def in_dockerfile(text: str) -> list[CommandLine]:
    """The server commands of a Dockerfile that is written as a shell reads it; one that stands on
    an image of the server has its flags alone."""
    found = in_text(text)
    based = _BASE.search(text)
    image = image_pattern().search(based["image"]) if based else None
    if found or image is None:
        return found
    rows = [row.words for row in statements(text) if _are_flags(row.words[:1])]
    return [CommandLine(words, is_open=image["own"] is None) for words in rows]


def in_containers(document: Yaml) -> Iterator[CommandLine]:
    """The server commands of containers, services and launchers of a document."""
    for path, container in containers(document.data, ""):
        rows = [
            row
            for key in command_keys(container)
            for row in words_of(document, container, path, key, mentions)
        ]
        if not rows or runs_code([word.text for _, word in rows]):
            continue
        texts = [row for row in rows if re.search(r"\s", row[1].text) and mentions(row[1].text)]
        words = tuple(row[1] for row in rows if row not in texts)
        found = [
            command
            for where, word in texts
            for command in _in_block(word.text, where, document, word.text)
        ]
        found += _of_statement(words, _MAX_DEPTH)
        image = image_pattern().search(image_of(container))
        own = image is not None and _starts_server(container, path)
        if image and own and found and _starts(image):
            found = [replace(row, again=rows[0][1]) for row in found]
        elif image and own and not found and _are_flags(words):
            found = [CommandLine(words, is_open=image["own"] is None)]
        here = object_at(document, path)
        for row in found:
            gpus, where = row.gpus or (here.around.total if here else None), row.path or path
            alone = path if len(found) == 1 else ""
            yield replace(row, path=where, gpus=gpus, container=alone)


def _starts_server(container: Mapping[str, Any], path: str) -> bool:
    """Whether a container of the server's image starts it: by its arguments, or in Compose by its
    command, which stands behind the image's entry point."""
    if "entrypoint" in container or "extends" in container:
        return False  # what it extends may have an entry point
    in_compose = path.startswith("services.")
    return ("args" in container and "command" not in container) or (
        in_compose and "command" in container and "args" not in container
    )


def image_of(container: Mapping[str, Any]) -> str:
    image = container.get("image")
    if isinstance(image, Mapping):
        name, tag = image.get("repository", image.get("name", "")), image.get("tag", "")
        return f"{name}:{tag}" if tag else str(name)
    return str(image or "")


def _in_block(
    text: str, path: str, document: Yaml, whole: str, start: Location = START
) -> Iterator[CommandLine]:
    """The commands of a text inside a document, at their places there: it begins at `start` of the
    `whole` text at the path."""
    for command in in_text(text, start):
        words = tuple(
            replace(word, location=inside(document, path, whole, word.location))
            for word in command.words
        )
        gpus = command.gpus
        if gpus:
            gpus = replace(gpus, location=inside(document, path, whole, gpus.location))
        yield replace(command, words=words, path=path, gpus=gpus)


def in_prose(text: str, path: str, document: Yaml) -> Iterator[CommandLine]:
    """The commands in the fenced blocks of a text for readers."""
    for fence in _FENCE.finditer(text):
        start = Location(text.count("\n", 0, fence.start(2)) + 1, 1)
        inner = re.sub(r"(?m)^[ \t]*\$ ", "  ", fence[2])
        yield from _in_block(inner, path, document, text, start)
