"""Reads the servers that a script starts, with their GPUs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ...diagnostics import Location
from ...documents import START, Yaml
from ...facts import hardware
from ..engine import default_formats, formats, holder, image_pattern, mentions_holder, spawners
from ..model import ROLES, Gpus, HereDocument, Server, Statement, Word
from . import forms
from .forms import is_job
from .python_files import command_lines
from .shell import Script, before, is_script, read_script, starting, statements
from .shell_values import parts
from .slurm import Job, read_job
from .yaml_text import inside

Words = list[tuple[str, Location]]
_VISIBLE = re.compile(r"\bCUDA_VISIBLE_DEVICES=[\"']?([0-9]+(?:,[0-9]+)*)\b[\"']?")
_SET = re.compile(rf"^\s*(?:export\s+)?{_VISIBLE.pattern}\s*(?:#.*)?$", re.M)
_DOCKER = re.compile(r"--gpus[= ]+[\"']*(?:device=([0-9]+(?:,[0-9]+)*)|([0-9]+))")
_GRES = re.compile(r"gpu:(?:([a-z]\w*):)?([0-9]+)")


def in_script(script: Script) -> list[Server]:
    """Returns the servers that a script starts, with the variables expanded that the script
    sets."""
    gpus, gpu = _visible(script.text), None
    is_job = forms.is_job(script.text)
    if is_job:
        gpus, gpu = of_job(read_job(script))
    found = []
    for words, earlier in _started(script):
        own = None if is_job else _given(earlier)
        mode = Server(words).flag((default_formats().mode_flag,))
        found.append(Server(words, own or gpus, gpu, ROLES.get(mode[0]) if mode else None))
    return found


def started(script: Script) -> Iterator[list[tuple[str, Location]]]:
    """Yields the words of each server command, from the program on."""
    yield from (words for words, _ in _started(script))


def _started(read: Script, depth: int = 0) -> Iterator[tuple[Words, Words]]:
    """Yields the words of each server command in a script and the words before it."""
    values, text = read.values, read.text
    for command, place, rows in zip(read.commands, read.starts, read.runs, strict=True):
        words = [Word(default_formats().program, place, True), *values.words(command)]
        yield _texts(words), _texts(values.words(before(rows)))
    for row in starting(read.statements) if mentions_holder(text) else ():
        for index, word in enumerate(row.words):
            if holder(word.text):
                yield _texts(values.words(row.words[index:])), _texts(row.words[:index])
                break
            is_line = mentions_holder(word.text) and re.search(r"\s", word.text)
            if depth < 2 and is_line:  # bash -c "..."
                inner = read_script(word.text, word.location)
                yield from _started(replace(inner, environment=read.environment), depth + 1)


def _texts(words: Iterable[Word]) -> Words:
    return [(word.text, word.location) for word in words]


def _given(words: Words) -> Gpus | None:
    """Returns the GPUs that the words before a server set: `CUDA_VISIBLE_DEVICES` or `--gpus`."""
    for text, where in words:
        if found := _VISIBLE.fullmatch(text):
            return Gpus(len(found[1].split(",")), where, "CUDA_VISIBLE_DEVICES")
    return docker_gpus(words)


def spreads(text: str) -> bool:
    """Returns whether a script also starts servers on other nodes."""
    names = "|".join(map(re.escape, spawners()))
    return re.search(rf"(?<![\w-])(?:{names})\s", text) is not None


def _visible(text: str) -> Gpus | None:
    """Returns the GPUs that a separate line makes visible, if the script has exactly one such
    line."""
    found = list(_SET.finditer(text))
    if len(found) != 1:
        return None
    place = Location(text.count("\n", 0, found[0].start(1)) + 1, 1)
    return Gpus(len(found[0][1].split(",")), place, "CUDA_VISIBLE_DEVICES")


def docker_gpus(words: Sequence[tuple[str, Location]]) -> Gpus | None:
    """Returns the GPUs that a command assigns to a container."""
    found = _DOCKER.search(" ".join(text for text, _ in words))
    if not found:
        return None
    place = next((where for text, where in words if "--gpus" in text), words[0][1])
    return Gpus(len(found[1].split(",")) if found[1] else int(found[2]), place, "--gpus")


def of_job(job: Job) -> tuple[Gpus | None, str | None]:
    """Returns the GPU count and GPU type of a job if its directives set them."""
    given = {row.name: row for row in job.parts[0]} if len(job.parts) == 1 else {}
    nodes = job.number("nodes")
    for name in ("gpus", "gpus-per-node", "gres"):
        if (row := given.get(name)) is None or not row.value:
            continue
        value = row.value if name == "gres" else f"gpu:{row.value}"
        found = _GRES.fullmatch(value.split(",")[0])
        if not found:
            continue
        kind = found[1] if found[1] in hardware.known() else None
        count = int(found[2])
        whole = count if name == "gpus" else count * nodes if nodes else None
        place = Gpus(whole, row.location, f"--{name}", on_all_nodes=True) if whole else None
        return place, kind
    return None, None


MAX_DEPTH = 3  # nesting of command lines
_BASE = re.compile(r"^FROM[ \t]+(?:--\S+[ \t]+)?(?P<image>\S+)", re.M | re.IGNORECASE)
_PLACEHOLDER = re.compile(r"<\w[\w .|/-]*>|(?<=\s)\{\w+(?:\|\w+)+\}")  # for the user to fill in
_VISIBLE_GPUS = re.compile(r"(CUDA_VISIBLE_DEVICES)=(\d+(?:,\d+)*)")
_HANDLES = frozenset(
    ("build", "buildx", "tag", "push", "pull", "save", "load", "inspect", "rmi", "copy", "set")
)
_RUNS = frozenset(("run", "create", "exec"))
_ELSEWHERE = frozenset(("docker", "podman", "ssh", "kubectl"))  # shell variables do not reach these
_DEVICES = re.compile(r"device=(\d+(?:,\d+)*)|(\d+)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.S)
_REFERENCE = re.compile(r"\$\{?([A-Za-z_]\w*)")
_FENCE = re.compile(
    r"^([ \t]*)```[ \t]*(?:bash|sh|shell|console|zsh)?[ \t]*\n(.*?)^\1```", re.M | re.S
)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The words after the server's program.

    `path` is the location in a document. `is_open` means that a program or an image may take flags
    that the server does not have. The server takes the model as its first argument, a module as a
    flag.
    """

    words: tuple[Word, ...]
    path: str = ""
    is_open: bool = False
    is_part: bool = False  # only flags; the rest of the command is elsewhere
    gpus: Gpus | None = None  # set by its container or its line
    before: tuple[Word, ...] = ()  # the words that start its container
    container: str = ""  # path of the container, if it starts one server only
    statement: Statement | None = None  # of a script, with the words as written
    again: Word | None = None  # server program that repeats the entry point of the image
    program: str = ""  # empty if an image starts the server


def mentions(text: str, engine: str) -> bool:
    """Returns whether a text can contain a server command of an engine."""
    known = formats(engine)
    names = (*known.modules, *known.workers, *known.images, *known.extended_images)
    return (
        f"{known.program} {known.subcommand}" in text
        or any(name in text for name in names)
        or (re.search(rf"\b{known.program}[\"', \t]+{known.subcommand}\b", text) is not None)
    )


def in_text(text: str, engine: str, start: Location = START, depth: int = 0) -> list[CommandLine]:
    """Returns the server commands of an engine in a script, with nested scripts and here
    documents."""
    text = _PLACEHOLDER.sub(lambda found: "$" + "_" * (len(found[0]) - 1), text)
    read = read_script(text, start)
    here, rows, values = read.here, read.statements, read.values
    found: list[CommandLine] = []
    named: dict[str, bool] = {}  # variables in server commands, and whether the command is open
    split: set[str] = set()  # unquoted variables, whose values the shell splits
    visible = _visible_gpus(rows)
    for statement in starting(rows):
        words = values.words(statement.words)
        if words[0].text == "eval":
            words = [
                part
                for word in words
                for part in ((word,) if mentions(word.text, engine) else parts(word))
            ]
        inner = list(of_statement([word for word in words if not word.optional], depth, engine))
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
    if len(found) == 1 and depth == 0 and is_job(text):  # several servers share the job's GPUs
        found = [replace(row, gpus=row.gpus or of_job(read_job(read))[0]) for row in found]
    for document in here:
        if depth < MAX_DEPTH and _runs(document):
            at = Location(document.start.line + start.line - 1, document.start.column)
            found += in_text(document.text, engine, at, depth + 1)
    return found


def _runs(document: HereDocument) -> bool:
    """Returns whether a here document is a script, by its target file or the command that reads
    it."""
    if document.name:
        return is_script(document)
    return (
        re.search(r"\b(?:ba|z|da|k)?sh\b|\bssh\b|\bsrun\b|\bsbatch\b", document.command) is not None
    )


def of_statement(words: Sequence[Word], depth: int, engine: str) -> Iterator[CommandLine]:
    known = formats(engine)
    for index, word in enumerate(words):
        name = word.text.rpartition("/")[2]
        rest = words[index + 1 :]
        if name == known.program and rest and rest[0].text == known.subcommand:
            before = tuple(words[:index])
            yield CommandLine(
                tuple(rest[1:]), gpus=_gpus_before(before), before=before, program=name
            )
            return
        if word.text in (*known.modules, *known.workers):
            is_open, before = word.text in known.workers, tuple(words[:index])
            yield CommandLine(
                tuple(rest),
                is_open=is_open,
                gpus=_gpus_before(before),
                before=before,
                program=word.text,
            )
            return
        if (image := image_pattern(engine).search(word.text)) and index:
            if _is_handled(words[:index]):
                return
            own = _entry_point(words[:index])
            inner = list(of_statement((*own, *rest), depth, engine))
            gpus, before = _gpus_before(words[:index]), tuple(words[:index])
            again = rest[0] if rest and not own and image_starts_server(image, engine) else None
            if inner:
                yield from (
                    replace(row, gpus=row.gpus or gpus, before=before, again=again) for row in inner
                )
            elif rest and are_flags(rest, engine) and not own:
                is_open = image["own"] is None
                yield CommandLine(tuple(rest), is_open=is_open, gpus=gpus, before=before)
            return
        if depth < MAX_DEPTH and re.search(r"\s", word.text) and mentions(word.text, engine):
            place = Location(word.location.line, word.location.column + 1)
            yield from in_text(word.text, engine, place, depth + 1)


def _is_handled(words: Sequence[Word]) -> bool:
    """Returns whether the words before an image only build, copy or name it."""
    texts = {word.text for word in words}
    return not _HANDLES.isdisjoint(texts) and _RUNS.isdisjoint(texts)


def _visible_gpus(rows: Sequence[Statement]) -> Gpus | None:
    """Returns the GPUs that a script sets for all its commands, if its lines agree on the count."""
    found: list[Gpus] = []
    for row in rows:
        words = row.words[row.words[0].text == "export" :]
        if not all(_ASSIGNMENT.fullmatch(word.text) for word in words):
            continue
        for word in words:
            if word.text.startswith("CUDA_VISIBLE_DEVICES"):
                given = _VISIBLE_GPUS.fullmatch(word.text)
                if given is None:
                    return None
                found.append(Gpus(len(given[2].split(",")), word.location, given[1]))
    return found[0] if len({place.count for place in found}) == 1 else None


def _gpus_before(words: Sequence[Word]) -> Gpus | None:
    """Returns the GPUs that the words before a server set: `CUDA_VISIBLE_DEVICES` or `--gpus`."""
    for index, word in enumerate(words):
        found = _VISIBLE_GPUS.fullmatch(word.text)
        if found:
            return Gpus(len(found[2].split(",")), word.location, found[1])
        text = word.text.partition("=")[2]
        if word.text == "--gpus" and index + 1 < len(words):
            text = words[index + 1].text
        if word.text.startswith("--gpus") and (given := _DEVICES.fullmatch(text.strip("\"'"))):
            count = len(given[1].split(",")) if given[1] else int(given[2])
            return Gpus(count, word.location, "--gpus")
    return None


def are_flags(words: Sequence[Word], engine: str) -> bool:
    """Returns whether words are a model and flags, or only flags.

    The server's subcommand may come first. If the entry point of the image already includes it,
    another check reports the duplicate.
    """
    after = bool(words) and words[0].text == formats(engine).subcommand
    return any(re.match(r"--?[A-Za-z]", word.text) for word in words[after : after + 2])


def image_starts_server(image: re.Match[str], engine: str) -> bool:
    """Returns whether the entry point of an image is the server."""
    return image["own"] is not None and image["own"] not in formats(engine).bare_images


def _entry_point(words: Sequence[Word]) -> Sequence[Word]:
    """Returns the program in `--entrypoint`, which replaces the entry point of the image."""
    for word, following in pairwise(words):
        if word.text == "--entrypoint":
            return [following]
    given = (word for word in words if word.text.startswith("--entrypoint="))
    return [replace(word, text=word.text.partition("=")[2]) for word in given]


def _in_variables(
    rows: Sequence[Statement], named: Mapping[str, bool], split: Collection[str]
) -> Iterator[CommandLine]:
    """Yields flags from variables and arrays that a command uses; values in `split` are split at
    spaces."""
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


def in_program(text: str, engine: str) -> Iterator[CommandLine]:
    """Yields the server commands that a Python program starts; the program may add flags to
    each."""
    for words in command_lines(text):
        known = [word for word in words if word.text.strip()]
        yield from (replace(row, is_part=True) for row in of_statement(known, MAX_DEPTH, engine))


def in_dockerfile(text: str, engine: str) -> list[CommandLine]:
    """Returns the server commands of a Dockerfile in shell form. If the base image starts the
    server, the command consists of flags only."""
    found = in_text(text, engine)
    based = _BASE.search(text)
    image = image_pattern(engine).search(based["image"]) if based else None
    if found or image is None:
        return found
    rows = [row.words for row in statements(text) if are_flags(row.words[:1], engine)]
    return [CommandLine(words, is_open=image["own"] is None) for words in rows]


def in_block(
    text: str, path: str, document: Yaml, whole: str, engine: str, start: Location = START
) -> Iterator[CommandLine]:
    """Yields the commands of a text inside a document, with locations in the document. The text
    begins at `start` of the `whole` text at the path."""
    for command in in_text(text, engine, start):
        words = tuple(
            replace(word, location=inside(document, path, whole, word.location))
            for word in command.words
        )
        gpus = command.gpus
        if gpus:
            gpus = replace(gpus, location=inside(document, path, whole, gpus.location))
        yield replace(command, words=words, path=path, gpus=gpus)


def in_prose(text: str, path: str, document: Yaml, engine: str) -> Iterator[CommandLine]:
    """Yields the commands in the fenced code blocks of a Markdown text."""
    for fence in _FENCE.finditer(text):
        start = Location(text.count("\n", 0, fence.start(2)) + 1, 1)
        inner = re.sub(r"(?m)^[ \t]*\$ ", "  ", fence[2])
        yield from in_block(inner, path, document, text, engine, start)
